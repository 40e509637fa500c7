"""Types of NumPy arrays, and the values of Arrow arrays that are not null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask: TypeAlias = npt.NDArray[np.bool_]
"""For each row, whether a condition is true."""
Indices: TypeAlias = npt.NDArray[np.intp]
"""Places of rows or of other elements, such as an index into another array."""
Integers: TypeAlias = npt.NDArray[np.int64]
Times: TypeAlias = Integers
"""Event times or stream times, in epoch ms."""


def present_values(values: pa.Array) -> pa.Array:
    """Return the values that are not null: the same array if none is null."""
    # Arrow's `drop_null` copies the values even if none is null.
    if values.null_count:
        return values.drop_null()
    return values


def columns_named(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> dict[str, pa.Array]:
    """Return some of the columns of rows, by name."""
    return {name: rows.column(name) for name in names}
