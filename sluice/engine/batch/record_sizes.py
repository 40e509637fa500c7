"""The sizes of output records, as upper bounds of the bytes that Kafka counts before compression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.support.arrays import Integers

_RECORD_OVERHEAD = 100
"""Upper bound of the bytes that Kafka adds to a record: its batch's header, lengths, timestamps."""
_HEADER_OVERHEAD = 10
"""Upper bound of the bytes that Kafka adds to a header: two lengths."""


def record_sizes(records: pa.Table) -> Integers:
    """Return the size of each record (columns `key`, `value` and perhaps `headers`), in bytes."""
    sizes = _lengths(records.column("key")) + _lengths(records.column("value")) + _RECORD_OVERHEAD
    if "headers" in records.column_names:
        for first_row, chunk in _chunks(records.column("headers")):
            names, values = chunk.flatten().flatten()
            lengths = _lengths(names) + _lengths(values) + _HEADER_OVERHEAD
            np.add.at(sizes, first_row + np.asarray(pc.list_parent_indices(chunk)), lengths)
    return sizes


def size_of_part(part: bytes | Sequence[Mapping[str, Any]] | None) -> int:
    """Return the bytes of a key, a value or headers."""
    if part is None:
        return 0
    if isinstance(part, bytes):
        return len(part)
    size = 0
    for header in part:
        size += len(header["key"].encode()) + len(header["value"] or b"") + _HEADER_OVERHEAD
    return size


def _chunks(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.ListArray]]:
    """Yield the chunks of a column, each with the number of its first row."""
    first_row = 0
    for chunk in column.chunks:
        yield first_row, chunk
        first_row += len(chunk)


def _lengths(values: pa.ChunkedArray | pa.Array) -> Integers:
    lengths: Any = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths.to_numpy(), np.int64)
