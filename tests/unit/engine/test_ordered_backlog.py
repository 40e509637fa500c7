"""A backlog of several partitions is divided at common points of the order of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.read.ordered_backlog import Backlog, Offsets, Stretch
from sluice.values.record_places import Partition

Entry = tuple[int, bool]
"""An entry of a partition's log: its timestamp, and whether readers see it; they do not see transaction markers."""


@dataclass
class Logs:
    """Partitions in memory, with an index of timestamps like Kafka's: it also has the entries that readers do not
    see."""

    entries: dict[Partition, list[Entry]]
    ends: dict[Partition, int]
    asked: int = 0
    """Number of requests to the index."""
    read_records: int = 0
    parts: tuple[Partition, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = tuple(self.entries)

    def index(self, time: int) -> Offsets:
        self.asked += 1
        results = {
            part: next(
                (offset for offset, (timestamp, _) in enumerate(entries) if timestamp >= time), None
            )
            for part, entries in self.entries.items()
        }
        return {part: offset for part, offset in results.items() if offset is not None}

    def latest(self) -> int:
        return max(
            (timestamp for entries in self.entries.values() for timestamp, _ in entries), default=-1
        )

    def read(self, starts: Offsets, count: int) -> dict[Partition, Stretch]:
        return {part: self._read(part, start, count) for part, start in starts.items()}

    def _read(self, part: Partition, start: int, count: int) -> Stretch:
        seen = [
            (offset, timestamp)
            for offset, (timestamp, is_seen) in enumerate(self.entries[part][: self.ends[part]])
            if is_seen and offset >= start
        ]
        self.read_records += len(seen[:count])
        offsets, timestamps = np.array(seen[:count], np.int64).reshape(-1, 2).T
        return Stretch(offsets, timestamps, len(seen) <= count)

    def backlog(self, position: Offsets | None = None) -> Backlog:
        """The backlog from a position on. What was read before it is known, as it is from the last snapshot."""
        position = position or dict.fromkeys(self.parts, 0)
        largest_timestamps = {
            part: max(timestamps)
            for part in self.parts
            if (
                timestamps := [
                    time for time, is_seen in self.entries[part][: position[part]] if is_seen
                ]
            )
        }
        return Backlog(self, self.parts, dict(position), self.ends, largest_timestamps)

    def ordered(self, position: Offsets | None = None) -> list[tuple[int, int, int]]:
        """The backlog's records in order: sequence, number of the partition, offset."""
        records = []
        for number, (part, entries) in enumerate(self.entries.items()):
            sequence = -1
            for offset, (timestamp, is_seen) in enumerate(entries[: self.ends[part]]):
                if is_seen:
                    sequence = max(sequence, timestamp)
                    if offset >= (position or {}).get(part, 0):
                        records.append((sequence, number, offset))
        return sorted(records)


def logs(*partitions: Iterable[int | Entry]) -> Logs:
    """Partitions of a topic. A number is the timestamp of a record."""
    entries = {
        ("topic", number): [
            entry if isinstance(entry, tuple) else (entry, True) for entry in partition
        ]
        for number, partition in enumerate(partitions)
    }
    return Logs(entries, {part: len(entries) for part, entries in entries.items()})


def taken(
    found: Logs, most: int, position: Offsets | None = None
) -> Iterator[list[tuple[int, int, int]]]:
    """The records of each batch, in order."""
    begin = dict(position or dict.fromkeys(found.parts, 0))
    for ends in found.backlog(position).batches(lambda: most):
        yield [
            one
            for one in found.ordered()
            if begin[found.parts[one[1]]] <= one[2] < ends[found.parts[one[1]]]
        ]
        begin = dict(ends)
    assert begin == found.ends


@given(st.data())
def test_batches_are_consecutive_stretches_of_the_order(data: st.DataObject) -> None:
    # Few different times, so that there are ties; out of order; among them entries that nobody
    # sees.
    entry = st.tuples(st.integers(0, 12), st.booleans() | st.just(True))
    partitions = data.draw(st.lists(st.lists(entry, max_size=25), min_size=1, max_size=4))
    far_away: list[Entry] = [(10**12, False)] if data.draw(st.booleans()) else []
    result = logs(*([*far_away, *partition] for partition in partitions))
    position = {part: data.draw(st.integers(0, result.ends[part])) for part in result.parts}
    most = data.draw(st.integers(1, 30))
    batches = list(taken(result, most, position))
    assert [record for batch in batches for record in batch] == result.ordered(position)
    assert all(len(batch) <= most for batch in batches)


def test_equal_times_stay_together_if_a_batch_can_hold_them() -> None:
    result = logs([1, 1, 2, 2, 3], [1, 2, 2, 2, 3])
    assert [[record[0] for record in batch] for batch in taken(result, 6)] == [
        [1, 1, 1],
        [2] * 5,
        [3, 3],
    ]


def test_a_time_with_more_records_than_a_batch_may_have_takes_several_batches() -> None:
    result = logs([5] * 7, [5] * 4, [4, 6])
    assert [len(batch) for batch in taken(result, 5)] == [1, 5, 5, 2]


def test_a_record_waits_for_the_time_that_its_partition_has_reached() -> None:
    result = logs([1, 50, 2, 3], [10, 20, 30, 40])
    assert [[(record[1], record[2]) for record in batch] for batch in taken(result, 3)] == [
        [(0, 0), (1, 0)],
        [(1, 1), (1, 2)],
        [(1, 3)],
        [(0, 1), (0, 2), (0, 3)],
    ]


@pytest.mark.parametrize("most", [100, 1_000])
def test_the_index_finds_each_batch_with_few_requests_and_few_records_read(most: int) -> None:
    # A day of records, at different speeds.
    result = logs(
        *(
            [1_700_000_000_000 + number * step for number in range(2_000)]
            for step in (43_000, 21_000, 7_000)
        )
    )
    sizes = [len(batch) for batch in taken(result, most)]
    assert all(size >= most * 0.55 for size in sizes)
    assert result.asked <= 6 * len(sizes)
    assert result.read_records <= 3 * (len(sizes) + 1)


def test_a_backlog_is_divided_evenly() -> None:
    # The last of three batches has as many records as the others, not the rest of two that are as
    # large as possible.
    result = logs(range(0, 1_000, 2), range(1, 1_000, 2))
    sizes = [len(batch) for batch in taken(result, 500)]
    assert (len(sizes), sum(sizes)) == (3, 1_000)
    assert max(sizes) - min(sizes) < 50


def test_markers_of_transactions_do_not_end_batches_early_or_late() -> None:
    # Records of years ago, written today in transactions: the index finds the first marker for
    # every later time.
    marker = (1_700_000_000_000, False)
    one: list[int | Entry] = [entry for time in range(0, 100, 2) for entry in (time, marker)]
    result = logs(one, list(range(1, 100, 2)))
    batches = list(taken(result, 10))
    assert len(batches) >= 10
    for before, after in pairwise(batches):
        assert before[-1] < after[0]
    assert max(map(len, batches)) == 10


def test_the_most_records_may_change_from_batch_to_batch() -> None:
    found = logs(range(0, 400, 2), range(1, 400, 2))
    most = iter([50, 100, 100, 400, 400])
    counts, begin = [], dict.fromkeys(found.parts, 0)
    for ends in found.backlog().batches(lambda: next(most)):
        counts.append(sum(ends[part] - begin[part] for part in found.parts))
        begin = dict(ends)
    assert sum(counts) == 400
    assert counts[0] <= 50 < counts[1] <= 100
    assert len(counts) == 4
