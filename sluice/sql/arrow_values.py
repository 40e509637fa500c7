"""Values in Arrow: arrays, scalars that apply to every row, and masks of the rows that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.support.arrays import Mask

Value: TypeAlias = Any
"""An Arrow array, or a scalar that applies to every row."""


@dataclass(frozen=True)
class Result:
    """The values of an expression, and the rows for which it fails. These rows' values are null."""

    values: Value
    failed: Mask | None = None

    @classmethod
    def with_failures(cls, values: Value, failed: Mask) -> Result:
        """Return the values, and the rows that have failed, if any."""
        return cls(values, any_of(failed))

    def failed_of(self, count: int) -> Mask:
        """Return for each of `count` rows whether the expression fails."""
        if self.failed is None:
            return np.zeros(count, bool)
        return self.failed


def array_of(value: Value, count: int) -> pa.Array:
    """Return the value as an array of `count` rows."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, count)
    return value


def arrays_of(values: Iterable[Value], count: int) -> list[pa.Array]:
    """Return each of the values as an array of `count` rows."""
    return [array_of(value, count) for value in values]


def rows_of(value: Value, count: int) -> list[Any]:
    """Return the value as a list of `count` Python values."""
    values: list[Any] = array_of(value, count).to_pylist()
    return values


def mask_of(conditions: Value, count: int) -> Mask:
    """Return a mask of the rows for which a condition is true. Null counts as false."""
    is_true = false_if_null(array_of(conditions, count))
    return np.asarray(is_true.to_numpy(zero_copy_only=False), bool)


def false_if_null(conditions: Value) -> Value:
    """Return the conditions, with false in place of null."""
    # Most conditions have no nulls. For these conditions, skip the call of Arrow, which takes as
    # long as computing thousands of rows.
    if isinstance(conditions, pa.Array) and not conditions.null_count:
        return conditions
    return pc.fill_null(conditions, False)


def valid_rows(value: Value, count: int) -> Mask:
    """Return a mask of the rows that have a value."""
    return mask_of(pc.is_valid(value), count)


def any_of(*masks: Mask | None) -> Mask | None:
    """Return a mask of the rows that are in any of the masks; None if there are no such rows."""
    present: list[Mask] = []
    for mask in masks:
        if mask is not None and mask.any():
            present.append(mask)
    if not present:
        return None
    either: Mask = np.logical_or.reduce(present)
    return either


def map_rows(
    function: Callable[..., Any],
    arguments: Iterable[Value],
    kind: pa.DataType,
    count: int,
) -> Result:
    """Return the results of a Python function for each row; null if an argument is null.

    A row fails if the function raises ArithmeticError or ValueError.
    """
    columns = [rows_of(value, count) for value in arguments]
    results: list[Any] = []
    failed = np.zeros(count, bool)
    for row, values in enumerate(zip(*columns, strict=True)):
        result = None
        if None not in values:
            try:
                result = function(*values)
            except (ArithmeticError, ValueError):
                failed[row] = True
        results.append(result)
    return Result.with_failures(pa.array(results, kind), failed)


def map_present(
    function: Callable[[Any], Any], values: pa.Array, kind: pa.DataType | None = None
) -> pa.Array:
    """Return a Python function's result for each value, by default a text; null for null."""
    results: list[Any] = []
    for value in values.to_pylist():
        results.append(None if value is None else function(value))
    return pa.array(results, kind or pa.string())


def ignore_failures(result: Result) -> Result:
    """Return the result of a `try_` function.

    It is null where the function without `try_` fails.
    """
    return Result(result.values)


def bytes_of(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all texts, one after the other.

    The result may also contain bytes of nulls.
    """
    _, ends, data = texts.buffers()
    if data is None or not len(texts):
        return np.empty(0, np.uint8)
    # The array may be a slice of a larger array, so read only its own bytes.
    begin, end = np.frombuffer(ends, np.int32)[[texts.offset, texts.offset + len(texts)]].tolist()
    return np.frombuffer(data, np.uint8)[begin:end]
