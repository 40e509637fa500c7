"""The paths of many results at once. `values.row_order` has the same rules for a single path."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.stream_time import Times
from sluice.operators.columns import Indices
from sluice.values import row_order


def result_paths(causes: pa.Array, numbers: Indices, *, rekeyed: bool = False) -> pa.Array:
    """The paths of results, each made from the path of the cause and the result's number among the cause's results."""
    different, places = np.unique(numbers, return_inverse=True)
    elements = pa.array([row_order.result_path(b"", number) for number in different.tolist()], pa.binary())
    parts = [causes, elements.take(pa.array(places))]
    if rekeyed:
        parts.insert(0, pa.scalar(row_order.after_rekeying(b"")))
    return _joined(*parts)


def release_paths(causes: pa.Array, ranks: Times, keys: pa.Array, *, before: bool = False) -> pa.Array:
    """The paths of results that are released after the row that advances stream time, or before it."""
    different, places = np.unique(ranks, return_inverse=True)
    elements = pa.array([row_order.release(rank, before=before) for rank in different.tolist()], pa.binary())
    escaped = pc.replace_substring(keys.cast(pa.binary()), row_order.END_OF_TEXT, row_order.ESCAPED)
    return _joined(causes, elements.take(pa.array(places)), escaped, pa.scalar(row_order.END_OF_TEXT))


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))
