"""Small record batches are combined before the steps that take some time for each record batch."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.batch.gathered_batches import combined
from sluice.engine.read.kafka_records import RECORDS


def batch(begin: int, count: int) -> pa.RecordBatch:
    """Records from the offset `begin` on.

    Some have no value, and the records of some batches no headers.
    """
    rows = [
        {"topic": "orders", "partition": 0, "offset": offset, "timestamp": offset, "key": b"%d" % offset,
         "value": b"x" * (offset % 5) if offset % 3 else None, "headers": "[]" if begin % 2 else None}
        for offset in range(begin, begin + count)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, RECORDS)


@given(st.lists(st.integers(1, 9)), st.integers(1, 20), st.integers(1, 2_000))
def test_combined_batches_have_the_same_rows_and_no_more_than_needed(
    counts: list[int], most_rows: int, most_bytes: int
) -> None:
    batches = [batch(sum(counts[:number]), count) for number, count in enumerate(counts)]
    made = list(combined(batches, most_rows, most_bytes))
    assert pa.Table.from_batches(made, RECORDS).equals(pa.Table.from_batches(batches, RECORDS))
    # The last small batch of a batch fills it. Together, the small batches have a few more bytes.
    assert all(part.num_rows < most_rows + 9 for part in made)
    for part in made[:-1]:
        assert part.num_rows >= most_rows or part.nbytes >= most_bytes - 64 * len(batches)
