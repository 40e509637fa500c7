"""How many records a batch may have follows from the memory that a run may use, and from the size of the rows."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sluice import Pipeline
from sluice.engine.batch.side_outputs import NOTHING, DataSize
from sluice.engine.read.backlog_timestamps import KafkaTimestamps
from sluice.engine.run import batch_loop
from sluice.engine.run.batch_size import ROW_BYTES, SAFE_RECORDS, BatchSize
from sluice.plan import plan
from sluice.values.run_memory import FIXED_MB, heap_mb

pytestmark = pytest.mark.unit


def most_records(memory_mb: int, record_bytes: float) -> int:
    size = BatchSize(memory_mb)
    size.expect(DataSize(record_bytes, 0), rows=1)
    return size.most_records()


def test_large_records_and_little_memory_make_small_batches() -> None:
    assert most_records(1_500, 2_000) < most_records(1_500, 100) / 5
    assert most_records(1_200, 100) < most_records(1_500, 100)
    assert most_records(100_000, 100) == most_records(100_000, 10), (
        "the first batch has a moderate size"
    )


@pytest.mark.parametrize("record_bytes", [100, 2_000])
def test_the_rows_of_a_batch_fit_the_memory(record_bytes: int) -> None:
    rows_mb = most_records(1_500, record_bytes) * record_bytes / 1e6
    assert rows_mb < (1_500 - FIXED_MB) / 2


def test_the_next_batch_follows_from_the_rows_of_the_last() -> None:
    size = BatchSize(4_000)
    size.expect(DataSize(1_000, 0), rows=1)
    assert not size.is_unknown
    expected = size.most_records()
    size.measure(500_000, 500_000 * 10_950, NOTHING)
    assert size.most_records() == pytest.approx(expected / 10, rel=0.02)
    # Windows that close make many rows of a few records.
    size.measure(10, 10**9, DataSize(10**9, 10**9))
    assert size.most_records() == pytest.approx(expected / 10, rel=0.02)
    size.measure(500_000, 500, NOTHING)
    assert size.most_records() == 2_000_000, "a task that adds records up holds few rows"


def test_records_that_are_added_up_have_no_rows_but_each_may_be_the_first_of_its_key() -> None:
    size = BatchSize(1_500)
    size.expect(DataSize(230, 80), rows=0)
    assert size.most_records() == 1_000_000
    assert most_records(100_000, 10) == 1_200_000


def test_later_batches_leave_memory_for_processes_that_have_grown() -> None:
    size = BatchSize(1_500)
    size.expect(DataSize(100, 0), rows=1)
    first = size.most_records()
    size.measure(500_000, 500_000 * (100 + ROW_BYTES), NOTHING)
    assert size.most_records() < 0.95 * first


def test_a_batch_always_has_some_records() -> None:
    assert most_records(1_200, 10_000_000) == SAFE_RECORDS


def test_the_output_of_a_batch_fits_the_memory() -> None:
    """Each record may become an output record or a dead letter, however few rows it has."""
    size = BatchSize(1_500)
    size.expect(DataSize(10_000, 10_000), rows=0)
    assert 5_000 < size.most_records() < 10_000
    size.measure(9_000, 0, DataSize(9_000 * 10_000, 9_000 * 10_000))
    assert 5_000 < size.most_records() < 10_000
    size.measure(9_000, 0, DataSize(9_000 * 10_000, 9_000 * 100))
    assert 20_000 < size.most_records() < 30_000, "the driver has them uncompressed"
    size.measure(25_000, 0, DataSize(25_000 * 70, 25_000 * 25))
    assert size.most_records() == 2_000_000, "small output records do not matter"


@pytest.mark.parametrize("memory_mb", [1_500, 4_000, 16_000])
def test_the_compressed_output_of_a_batch_fits_the_heap_of_the_jvm(memory_mb: int) -> None:
    size = BatchSize(memory_mb)
    size.expect(DataSize(10_000, 10_000), rows=0)
    size.measure(50_000, 0, DataSize(50_000 * 10_000, 50_000 * 10_000))
    assert size.most_records() * 10_000 / 1e6 < heap_mb(memory_mb) / 4


def test_a_batch_of_large_records_is_measured_although_it_has_few() -> None:
    size = BatchSize(1_500)
    size.expect(DataSize(100_000, 100_000), rows=0)
    assert size.most_records() < 1_000
    size.measure(900, 0, DataSize(900 * 70, 900 * 25))
    assert size.most_records() == 2_000_000


def test_the_number_that_the_user_sets_takes_precedence() -> None:
    size = BatchSize(1_500, given=30)
    assert not size.is_unknown
    size.measure(500_000, 10**12, NOTHING)
    assert size.most_records() == 30


@pytest.mark.parametrize(("row_bytes", "most_batches"), [(113, 2), (125, 2), (202, 4)])
def test_two_million_small_records_take_few_batches(row_bytes: int, most_batches: int) -> None:
    """The sizes are those of rows in the benchmark of operators: with windows, with joins, and with foreign keys."""
    size = BatchSize(1_500)
    size.expect(DataSize(26, 0), rows=1)
    # A backlog aims at 85 % of the largest batch.
    assert 2_000_000 / (size.most_records() * 0.85) <= 2
    size.measure(1_000_000, 1_000_000 * row_bytes, NOTHING)
    assert 600_000 < size.most_records() < 1_300_000
    assert 2_000_000 / size.most_records() <= most_batches


@pytest.mark.parametrize(
    ("given", "unread", "expected"),
    [(None, SAFE_RECORDS + 1, True), (None, SAFE_RECORDS, False), (30, 10**9, False)],
)
def test_the_size_of_records_is_read_before_the_first_batch_if_it_matters(
    monkeypatch: pytest.MonkeyPatch, given: int | None, unread: int, expected: bool
) -> None:
    monkeypatch.setattr(
        batch_loop, "end_offsets", lambda *_: {("clicks", 0): unread + 7, ("shops", 0): 10**9}
    )
    records = SimpleNamespace(
        mean_size=lambda starts: DataSize(2_000, 500) if starts == {("clicks", 0): 7} else None
    )
    monkeypatch.setattr(KafkaTimestamps, "of", lambda *_: nullcontext(records))
    pipeline = Pipeline("sized", workers=1)
    pipeline.global_table("shops", value=str)
    pipeline.stream("clicks", value=str).group_by_key().reduce(max, store="latest")
    size = BatchSize(1_500, given)
    batch_loop.expect_size(size, plan(pipeline).job, {}, {"clicks": {"0": 7}, "shops": {"0": 0}})
    known = BatchSize(1_500, given)
    if expected:
        known.expect(DataSize(2_000, 500), rows=1)
    assert size == known
