"""Gathers small record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def gathered(
    batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the record batches in lists of about `most_rows` rows or `most_bytes` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def combined(
    batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of about `most_rows` rows or `most_bytes` bytes.

    A record batch of this size is not copied.
    """
    for gathered_batches in gathered(batches, most_rows, most_bytes):
        if len(gathered_batches) == 1:
            yield gathered_batches[0]
        else:
            yield pa.concat_batches(gathered_batches)
