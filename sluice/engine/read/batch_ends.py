"""Divides the unread records of several partitions into batches that end at common points of the records' order.

A record's *sequence* is the largest Kafka timestamp so far in its partition. Records are ordered by sequence, then by
source, partition and offset. A batch takes the first records of this order, so several small batches give the same
results as one large batch.

A batch ends at a time T: it takes all records with a sequence below T. Kafka's index of timestamps finds a suitable T
in a few requests. But the index includes transaction markers and aborted records, which readers of committed records do
not see and whose timestamps may be years later than those of neighbouring records. The search in the records themselves
therefore begins at the offset from the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sluice.engine.batch.stream_time import BEFORE_ALL

Part = tuple[str, int]
"""Topic and partition."""
Offsets = Mapping[Part, int]

_ENOUGH = 0.7
"""A batch found by the index is large enough if it has this share of the maximum number of records."""
_AIM = 0.85
_READ_AT_ONCE = 20_000


@dataclass(frozen=True)
class Stretch:
    """Consecutive records of a partition."""

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    complete: bool
    """Whether the backlog has no later records in this partition."""


class Timestamps(Protocol):
    """The timestamps of the records in the partitions of a backlog, up to its end."""

    def index(self, time: int) -> Offsets:
        """Partition → first offset with a timestamp of at least `time`, if there is one."""

    def latest(self) -> int:
        """An upper bound of the records' timestamps."""

    def read(self, starts: Offsets, count: int) -> Mapping[Part, Stretch]:
        """Read at least `count` records of each partition from its start offset, or all up to the backlog's end."""


@dataclass
class Backlog:
    """The records between `position` and `ends`, in the partitions of all streams."""

    timestamps: Timestamps
    parts: tuple[Part, ...]
    """Sorted in the order of records with equal sequences."""
    position: dict[Part, int]
    ends: Offsets
    reached: Offsets = field(default_factory=dict)
    """Partition → the largest timestamp before its position; only partitions that have been read."""
    _since: int = BEFORE_ALL
    """A lower bound of the backlog's sequences."""
    _latest: int = BEFORE_ALL

    @property
    def size(self) -> int:
        """Number of offsets to read."""
        return sum(self.ends[part] - self.position[part] for part in self.parts)

    def batches(self, most: int) -> Iterator[Offsets]:
        """The end offsets of batches of at most `most` records that read the whole backlog."""
        if self.size > most:
            self._since = self._first()
            self._latest = self.timestamps.latest()
        while self.size > most:
            self.position = self._by_index(most) or self._by_reading(most)
            yield self.position
        if self.size:
            self.position = dict(self.ends)
            yield self.position

    def _first(self) -> int:
        """The smallest sequence of the backlog."""
        read = self.timestamps.read(self._unread(), 1)
        firsts = ((part, stretch.timestamps) for part, stretch in read.items() if len(stretch.timestamps))
        return min((max(int(times[0]), self._reached(part)) for part, times in firsts), default=BEFORE_ALL)

    def _unread(self) -> dict[Part, int]:
        return {part: self.position[part] for part in self.parts if self.position[part] < self.ends[part]}

    def _reached(self, part: Part) -> int:
        return max(self.reached.get(part, BEFORE_ALL), self._since)

    def _by_index(self, most: int) -> dict[Part, int] | None:
        """The end offsets of a batch, found with Kafka's index; None if the index does not help.

        A binary search: according to the index, a batch that ends at `low` has too few records, at `high` too many.
        """
        low, high, low_count, high_count = self._since, self._latest + 1, 0, self.size
        best: Offsets = {}
        interpolates = True
        while high - low > 1 and low_count < most * _ENOUGH:
            share = (most * _AIM - low_count) / (high_count - low_count) if interpolates else 0.5
            time = min(max(low + int((high - low) * share), low + 1), high - 1)
            found = self._within(time, self.timestamps.index(time))
            count = sum(found[part] - self.position[part] for part in self.parts)
            if count <= most:
                low, low_count, best = time, count, found
            else:
                high, high_count = time, count
            interpolates = not interpolates
        return self._exactly(low, best, most - low_count) if low_count else None

    def _within(self, time: int, found: Offsets) -> dict[Part, int]:
        """The index's offsets, limited to the backlog. A partition that has reached `time` adds no records."""
        return {
            part: self.position[part]
            if self.reached.get(part, BEFORE_ALL) >= time
            else min(max(found.get(part, self.ends[part]), self.position[part]), self.ends[part])
            for part in self.parts
        }

    def _exactly(self, time: int, found: Offsets, spare: int) -> dict[Part, int] | None:
        """The offset of each partition's first record with a sequence of at least `time`, searched from offset `found`.

        None if the search adds more than `spare` records to the batch.
        """
        ends: dict[Part, int] = {}
        searched: dict[Part, int] = {}
        for part, offset in found.items():
            is_exact = offset == self.ends[part] or self.reached.get(part, BEFORE_ALL) >= time
            (ends if is_exact else searched)[part] = offset
        count = 1
        while searched:
            for part, stretch in self.timestamps.read(searched, count).items():
                del searched[part]
                reaching = np.flatnonzero(stretch.timestamps >= time)
                if len(reaching):
                    ends[part] = int(stretch.offsets[reaching[0]])
                elif stretch.complete:
                    ends[part] = self.ends[part]
                else:
                    searched[part] = int(stretch.offsets[-1]) + 1
                spare -= int(reaching[0]) if len(reaching) else len(stretch.offsets)
            if spare < 0:
                return None
            count = _READ_AT_ONCE
        self._since = time
        return ends

    def _by_reading(self, most: int) -> dict[Part, int]:
        """The end offsets of a batch, found by reading the timestamps of its records and of a few more.

        If more than `most` records have the smallest sequence, the batch ends among them.
        """
        unread = self._unread()
        read = [
            _Read(part, self.position[part], self.ends[part], self._reached(part), part not in unread)
            for part in self.parts
        ]
        at_once = min(max(2 * most // len(read), 100), _READ_AT_ONCE)
        while sum(map(len, known := _known(read))) <= most:
            incomplete = [one for one in read if not one.complete]
            if not incomplete:
                return dict(self.ends)
            lowest = min(incomplete, key=lambda one: one.sequence)
            wanted = {one.part: one.next for one in incomplete if one is lowest or not len(one.offsets)}
            stretches = self.timestamps.read(wanted, at_once)
            for one in incomplete:
                if one.part in stretches:
                    one.add(stretches[one.part])
        self._since = int(np.partition(np.concatenate(known), most)[most])
        taken = [int(np.searchsorted(sequences, self._since)) for sequences in known]
        if not any(taken):
            for number, sequences in enumerate(known):
                equal = int(np.searchsorted(sequences, self._since, side="right"))
                taken[number] = min(equal, most - sum(taken))
        return {one.part: one.end_after(count) for one, count in zip(read, taken, strict=True)}


@dataclass
class _Read:
    """The records of a partition that were read to find the end of the next batch."""

    part: Part
    next: int
    """Offset of the next record to read."""
    end: int
    sequence: int
    """A lower bound of the sequences from offset `next` on."""
    complete: bool
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sequences: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, stretch: Stretch) -> None:
        sequences = np.maximum(np.maximum.accumulate(stretch.timestamps), self.sequence)
        self.offsets = np.concatenate([self.offsets, stretch.offsets])
        self.sequences = np.concatenate([self.sequences, sequences])
        if len(stretch.offsets):
            self.next, self.sequence = int(stretch.offsets[-1]) + 1, int(sequences[-1])
        self.complete = stretch.complete

    def end_after(self, count: int) -> int:
        """The end offset of a batch that takes the first `count` records."""
        if count < len(self.offsets):
            return int(self.offsets[count])
        return self.end if self.complete else self.next


def _known(read: list[_Read]) -> list[npt.NDArray[np.int64]]:
    """For each partition, the sequences of the records that come before all unread records."""
    incomplete = [(one.sequence, number) for number, one in enumerate(read) if not one.complete]
    if not incomplete:
        return [one.sequences for one in read]
    sequence, lowest = min(incomplete)
    counts = [
        len(one.sequences) if number == lowest
        else np.searchsorted(one.sequences, sequence, side="right" if number < lowest else "left")
        for number, one in enumerate(read)
    ]  # fmt: skip
    return [one.sequences[:count] for one, count in zip(read, counts, strict=True)]
