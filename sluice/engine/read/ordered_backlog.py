"""Divides the unread records of several partitions into batches that follow one order.

A record's *sequence* is the largest Kafka timestamp so far in its partition. Records are ordered by
sequence, then by source, partition and offset. A batch takes the first records of this order, so
several small batches give the same results as one large batch.

A batch ends at a time T: it takes all records with a sequence below T. Kafka's index of timestamps
finds a suitable T in a few requests. But the index includes transaction markers and aborted
records. Readers of committed records do not see these, and their timestamps may be years later than
the timestamps of the neighbouring records. The search therefore continues in the records
themselves, from the offset that the index gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.support.arrays import Integers
from sluice.values.record_places import Partition

Offsets = Mapping[Partition, int]

_ENOUGH = 0.9
"""The search with the index ends when a batch has at least this share of the intended number of
records."""
_MOST_AIM = 0.85
"""The search first aims at batches of equal size with at most this share of the maximum number of
records."""
_READ_AT_ONCE = 20_000


@dataclass(frozen=True)
class Stretch:
    """Consecutive records of a partition."""

    offsets: Integers
    timestamps: Integers
    complete: bool
    """Whether the backlog has no later records in this partition."""


class Timestamps(Protocol):
    """The timestamps of the records in the partitions of a backlog, up to its end."""

    def index(self, time: int) -> Offsets:
        """Partition → the first offset with a timestamp of at least `time`.

        Omits partitions without such an offset.
        """

    def latest(self) -> int:
        """Return an upper bound of the records' timestamps."""

    def read(self, starts: Offsets, count: int) -> Mapping[Partition, Stretch]:
        """Read each partition from its start: at least `count` records, or the whole backlog."""


@dataclass
class Backlog:
    """The records between `position` and `ends`, in the partitions of all streams."""

    timestamps: Timestamps
    partitions: tuple[Partition, ...]
    """The partitions, sorted by source and number. If records of several partitions have equal
    sequences, the order of the partitions decides."""
    position: dict[Partition, int]
    ends: Offsets
    largest_timestamps: Offsets = field(default_factory=dict)
    """Partition → the largest timestamp before its position. Contains only partitions that have
    been read."""
    _since: int = BEFORE_ALL
    """A lower bound of the backlog's sequences."""
    _latest: int = BEFORE_ALL

    @property
    def size(self) -> int:
        """Number of offsets to read."""
        return sum(self.ends[partition] - self.position[partition] for partition in self.partitions)

    def batches(self, most_records: Callable[[], int]) -> Iterator[Offsets]:
        """Yield the end offsets of the batches that together read the whole backlog.

        `most_records` is called for each batch, and returns its maximum number of records.
        """
        most = most_records()
        if self.size > most:
            self._since = self._first()
            self._latest = self.timestamps.latest()
        count = math.ceil(self.size / (most * _MOST_AIM))
        while self.size > most:
            aim = self.size / max(count, math.ceil(self.size / most))
            self.position = self._by_index(most, aim) or self._by_reading(most)
            count -= 1
            yield self.position
            if (now := most_records()) != most:
                most, count = now, math.ceil(self.size / (now * _MOST_AIM))
        if self.size:
            self.position = dict(self.ends)
            yield self.position

    def _first(self) -> int:
        """Return the smallest sequence of the backlog."""
        starts: dict[Partition, int] = {}
        for partition in self.partitions:
            if self.position[partition] < self.ends[partition]:
                starts[partition] = self.position[partition]
        read = self.timestamps.read(starts, 1)
        firsts: list[int] = []
        for partition, stretch in read.items():
            if len(stretch.timestamps):
                firsts.append(max(int(stretch.timestamps[0]), self._lowest_sequence(partition)))
        return min(firsts, default=BEFORE_ALL)

    def _lowest_sequence(self, partition: Partition) -> int:
        """Return a lower bound of the sequences of a partition's records from its position on."""
        return max(self.largest_timestamps.get(partition, BEFORE_ALL), self._since)

    def _by_index(self, most: int, aim: float) -> dict[Partition, int] | None:
        """Return the end offsets of a batch of about `aim` records, found with Kafka's index.

        Return None if the index does not help.

        This is a binary search for the time at which the batch ends. According to the index, a
        batch that ends at time `low` has too few records, and a batch that ends at time `high` has
        too many.
        """
        low, high, low_count, high_count = self._since, self._latest + 1, 0, self.size
        best: Offsets = {}
        interpolates = True
        while high - low > 1 and low_count < aim * _ENOUGH:
            # Every second round interpolates by the numbers of records. The other rounds halve the
            # interval: if timestamps are unevenly distributed, interpolation alone would approach
            # the time in tiny steps.
            share = (aim - low_count) / (high_count - low_count) if interpolates else 0.5
            time = min(max(low + int((high - low) * share), low + 1), high - 1)
            ends = self._limited_to_backlog(time, self.timestamps.index(time))
            count = sum(ends[partition] - self.position[partition] for partition in self.partitions)
            if count <= most:
                low, low_count, best = time, count, ends
            else:
                high, high_count = time, count
            interpolates = not interpolates
        return self._exact_ends(low, best, most - low_count) if low_count else None

    def _limited_to_backlog(self, time: int, index: Offsets) -> dict[Partition, int]:
        """Return the index's offsets, limited to the backlog.

        If a record before a partition's position has a timestamp of at least `time`, the batch
        takes no records from the partition: the sequences of the unread records are at least
        `time`, too.
        """
        limited: dict[Partition, int] = {}
        for partition in self.partitions:
            begin, end = self.position[partition], self.ends[partition]
            if self.largest_timestamps.get(partition, BEFORE_ALL) >= time:
                limited[partition] = begin
            else:
                limited[partition] = min(max(index.get(partition, end), begin), end)
        return limited

    def _exact_ends(self, time: int, starts: Offsets, spare: int) -> dict[Partition, int] | None:
        """Return the offset of each partition's first record with a sequence of at least `time`.

        The search begins at `starts`. Returns None if these offsets add more than `spare` records
        to the batch.
        """
        ends: dict[Partition, int] = {}
        searched: dict[Partition, int] = {}
        for partition, offset in starts.items():
            largest = self.largest_timestamps.get(partition, BEFORE_ALL)
            is_exact = offset == self.ends[partition] or largest >= time
            (ends if is_exact else searched)[partition] = offset
        count = 1
        while searched:
            for partition, stretch in self.timestamps.read(searched, count).items():
                del searched[partition]
                reaching = np.flatnonzero(stretch.timestamps >= time)
                if len(reaching):
                    ends[partition] = int(stretch.offsets[reaching[0]])
                elif stretch.complete:
                    ends[partition] = self.ends[partition]
                else:
                    searched[partition] = int(stretch.offsets[-1]) + 1
                spare -= int(reaching[0]) if len(reaching) else len(stretch.offsets)
            if spare < 0:
                return None
            # Usually the first record from the index's offset on has a timestamp of at least
            # `time`. Otherwise, the offset belongs to a transaction's marker or to aborted records.
            # In this case, read many records at once.
            count = _READ_AT_ONCE
        self._since = time
        return ends

    def _by_reading(self, most: int) -> dict[Partition, int]:
        """Return the end offsets of a batch, found by reading timestamps.

        These are the timestamps of the batch's records and of a few records after them. If more
        than `most` records have the smallest sequence, the batch ends among them.
        """
        read: list[_PartitionRead] = []
        for partition in self.partitions:
            begin, end = self.position[partition], self.ends[partition]
            lowest = self._lowest_sequence(partition)
            read.append(_PartitionRead(partition, begin, end, lowest, complete=begin >= end))
        at_once = min(max(2 * most // len(read), 100), _READ_AT_ONCE)
        certain = _certain_sequences(read)
        while sum(map(len, certain)) <= most:
            incomplete = [partition_read for partition_read in read if not partition_read.complete]
            if not incomplete:
                return dict(self.ends)
            # The next records to process are in the partition with the lowest sequence, so read
            # more of this partition.
            behind = min(incomplete, key=lambda partition_read: partition_read.sequence)
            starts: dict[Partition, int] = {}
            for partition_read in incomplete:
                if partition_read is behind or not len(partition_read.offsets):
                    starts[partition_read.partition] = partition_read.next
            stretches = self.timestamps.read(starts, at_once)
            for partition_read in incomplete:
                if partition_read.partition in stretches:
                    partition_read.append(stretches[partition_read.partition])
            certain = _certain_sequences(read)
        self._since = int(np.partition(np.concatenate(certain), most)[most])
        counts = [int(np.searchsorted(sequences, self._since)) for sequences in certain]
        # More records have the smallest sequence than fit a batch: take them
        # partition by partition, up to `most`.
        if not any(counts):
            for number, sequences in enumerate(certain):
                equal = int(np.searchsorted(sequences, self._since, side="right"))
                counts[number] = min(equal, most - sum(counts))
        ends: dict[Partition, int] = {}
        for partition_read, count in zip(read, counts, strict=True):
            ends[partition_read.partition] = partition_read.end_after(count)
        return ends


@dataclass
class _PartitionRead:
    """The records of a partition that were read to find the end of the next batch."""

    partition: Partition
    next: int
    """Offset of the next record to read."""
    end: int
    sequence: int
    """A lower bound of the sequences from offset `next` on."""
    complete: bool
    offsets: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    sequences: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    def append(self, stretch: Stretch) -> None:
        sequences = np.maximum(np.maximum.accumulate(stretch.timestamps), self.sequence)
        self.offsets = np.concatenate([self.offsets, stretch.offsets])
        self.sequences = np.concatenate([self.sequences, sequences])
        if len(stretch.offsets):
            self.next, self.sequence = int(stretch.offsets[-1]) + 1, int(sequences[-1])
        self.complete = stretch.complete

    def end_after(self, count: int) -> int:
        """Return the partition's end offset for a batch that takes the first `count` records."""
        if count < len(self.offsets):
            return int(self.offsets[count])
        return self.end if self.complete else self.next


def _certain_sequences(read: list[_PartitionRead]) -> list[Integers]:
    """Return the sequences of each partition's records that come before all unread records.

    Only the order of these records is certain. An unread record may come before any of the other
    records that were read.
    """
    incomplete: list[tuple[int, int]] = []
    for number, partition in enumerate(read):
        if not partition.complete:
            incomplete.append((partition.sequence, number))
    if not incomplete:
        return [partition.sequences for partition in read]
    sequence, lowest = min(incomplete)
    certain: list[Integers] = []
    for number, partition in enumerate(read):
        sequences = partition.sequences
        if number == lowest:
            certain.append(sequences)
            continue
        # Records with equal sequences are in the order of their partitions. So in partitions before
        # the partition `lowest`, records with the sequence `sequence` are certain, too.
        side: Literal["left", "right"] = "right" if number < lowest else "left"
        certain.append(sequences[: np.searchsorted(sequences, sequence, side=side)])
    return certain
