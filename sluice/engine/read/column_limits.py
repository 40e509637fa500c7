"""Checks columns of decoded values against the limits of a contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from sluice.engine.read.json_lines import require
from sluice.values.contracts import choice_values

D = TypeVar("D")
P = TypeVar("P")
Check: TypeAlias = Callable[[pa.Array], None]
"""Raises UnsureError if a value of a column, other than null, is outside the limits."""


def without_limits(kind: inspect.Type) -> tuple[inspect.Type, Check | None]:
    """Return a type without its limits, and a function that checks them, or None.

    Limits that Arrow would check differently stay in the type: patterns, and multiples of a number.
    """
    match kind:
        case inspect.IntType(multiple_of=None) | inspect.FloatType(multiple_of=None):
            bare: inspect.Type = type(kind)()
            if kind == bare:
                return kind, None
            return bare, partial(_check_numbers, kind)
        case inspect.StrType(pattern=None) | inspect.BytesType():
            bare = type(kind)()
            if kind == bare:
                return kind, None
            return bare, partial(_check_lengths, kind)
        case _:
            return kind, None


def checked(read: Callable[[D, P], pa.Array], check: Check) -> Callable[[D, P], pa.Array]:
    """Return a function that reads a column as `read` does, and then checks it."""

    def read_checked(data: D, places: P) -> pa.Array:
        column = read(data, places)
        check(column)
        return column

    return read_checked


def _check_numbers(kind: inspect.IntType | inspect.FloatType, column: pa.Array) -> None:
    bounds = pc.min_max(column)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None:
        return
    require(kind.gt is None or least > kind.gt)
    require(kind.ge is None or least >= kind.ge)
    require(kind.lt is None or most < kind.lt)
    require(kind.le is None or most <= kind.le)


def _check_lengths(kind: inspect.StrType | inspect.BytesType, column: pa.Array) -> None:
    if pa.types.is_string(column.type):
        lengths = pc.utf8_length(column)
    else:
        lengths = pc.binary_length(column)
    bounds = pc.min_max(lengths)
    if bounds["min"].as_py() is None:
        return
    require(kind.min_length is None or bounds["min"].as_py() >= kind.min_length)
    require(kind.max_length is None or bounds["max"].as_py() <= kind.max_length)


def choices_of(kind: inspect.Type) -> list[Any]:
    """Return the values of a Literal or an Enum of one type; empty for another type."""
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return choice_values(kind)
    return []


def struct_of(columns: Mapping[str, pa.Array], names: list[str]) -> pa.Array:
    """Return a column of objects, with fields in the order of the names."""
    return pa.StructArray.from_arrays([columns[name] for name in names], names)


def maps_of(rows: npt.NDArray[np.int64], count: int, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return a column of maps, from entries in the order of their rows.

    Raises UnsureError if a map has a key twice: only the last of its values would count.
    """
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places = rows * (len(keys) + 1) + codes
    require(len(np.unique(places)) == len(places))
    bounds = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=bounds[1:])
    return pa.MapArray.from_arrays(pa.array(bounds), keys, values)
