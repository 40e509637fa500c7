"""Values on Arrow: arrays, scalars that stand for every row, and rows for which a function fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Value: TypeAlias = Any
"""An Arrow array, or a scalar that applies to every row."""
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Result:
    """The values of an expression, and the rows for which it fails, which have no value."""

    values: Value
    failed: Mask | None = None


def array_of(value: Value, count: int) -> pa.Array:
    """The value for each of `count` rows."""
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def mask_of(conditions: Value, count: int) -> Mask:
    """The rows for which a condition is true, neither false nor null."""
    known = pc.fill_null(array_of(conditions, count), False)
    return np.asarray(known.to_numpy(zero_copy_only=False), bool)


def valid(value: Value, count: int) -> Mask:
    """The rows that have a value."""
    return mask_of(pc.is_valid(value), count)


def either(*masks: Mask | None) -> Mask | None:
    """The rows of any of the masks."""
    found = [mask for mask in masks if mask is not None and mask.any()]
    return np.logical_or.reduce(found) if found else None


def without(values: pa.Array, rows: Mask) -> pa.Array:
    """The values, null for some rows."""
    return pc.if_else(pa.array(rows), pa.scalar(None, values.type), values)


def by_row(function: Callable[..., Any], arguments: Iterable[Value], kind: pa.DataType, count: int) -> Result:
    """The results of a Python function for each row; null if an argument is null.

    A row fails if the function raises ArithmeticError or ValueError.
    """
    made: list[Any] = []
    failed = np.zeros(count, bool)
    for row, values in enumerate(zip(*(array_of(value, count).to_pylist() for value in arguments), strict=True)):
        result = None
        if None not in values:
            try:
                result = function(*values)
            except (ArithmeticError, ValueError):
                failed[row] = True
        made.append(result)
    return Result(pa.array(made, kind), failed if failed.any() else None)


def null_if_failed(result: Result) -> Result:
    """The result of a function that is null where another one fails."""
    return Result(result.values)
