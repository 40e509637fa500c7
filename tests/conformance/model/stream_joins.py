"""Joins of a stream: with another stream within a window, with a table, with a global table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

from tests.conformance.model.differences import SLUICE, Difference, Differences
from tests.conformance.model.expressions import Expression
from tests.conformance.model.flow import Flow, Record, Stream, computed
from tests.conformance.model.tables import Table

Side = Literal["left", "right"]


@dataclass
class _Records:
    """The records of one side that the other side still finds."""

    kept_for: int
    records: list[Record] = field(default_factory=list)
    time: int = -1

    def add(self, record: Record) -> None:
        self.time = max(self.time, record.time)
        self.records.append(record)

    def find(self, key: Any, begin: int, end: int) -> list[Record]:
        begin = max(begin, self.time - self.kept_for + 1)
        found = [one for one in self.records if one.key == key and begin <= one.time <= end]
        return sorted(found, key=lambda one: one.time)

    def remove(self, record: Record) -> None:
        self.records = [one for one in self.records if one is not record]


@dataclass(kw_only=True)
class StreamJoin(Stream):
    how: str
    before: int
    after: int
    grace: int
    like: Differences = SLUICE
    time: int = -1
    unmatched: list[tuple[Side, Record]] = field(default_factory=list)
    arrivals: list[tuple[Side, Record]] = field(default_factory=list)
    """All records, in the order in which they came."""
    searched_from: float = inf
    """Stream time must pass the window of this time before the next search for records that can get no match."""

    def __post_init__(self) -> None:
        self._sides: dict[Side, _Records] = {
            side: _Records(self._kept_for(side)) for side in ("left", "right")
        }

    def _kept_for(self, side: Side) -> int:
        before, after = self._reach(side)
        if Difference.FORGOTTEN_TOO_EARLY not in self.like:
            # The window of a record includes its end.
            before = max(before, 1)
        return before + after + self.grace

    def connect_sides(self, left: Stream, right: Stream, flow: Flow) -> None:
        left.connect(lambda record: self._process(record, "left"), flow)
        right.connect(lambda record: self._process(record, "right"), flow)

    def _process(self, record: Record, side: Side) -> None:
        self.arrivals.append((side, record))
        self.time = max(self.time, record.time)
        keeps_unmatched = self.how == "outer" or (self.how == "left" and side == "left")
        if record.value is None:
            return
        if record.key is None:
            if keeps_unmatched:
                self._send(record, None, side)
            return
        if record.time == self.time:
            self._release(side)
        other: Side = "right" if side == "left" else "left"
        before, after = self._reach(side)
        found = self._sides[other].find(record.key, record.time - before, record.time + after)
        for match in found:
            self.unmatched = [
                one
                for one in self.unmatched
                if (one[0], one[1].key, one[1].time) != (other, match.key, match.time)
            ]
            self._send(record, match, side)
        self._sides[side].add(record)
        if not found and keeps_unmatched:
            # Kafka Streams does not wait for the grace of a record whose window has ended when it
            # comes.
            waits = 0 if Difference.UNMATCHED_TOO_EARLY in self.like else self.grace
            if record.time + after + waits < self.time:
                self._send_unmatched(record, side)
            else:
                self.unmatched.append((side, record))
                self.searched_from = min(self.searched_from, record.time)

    def _reach(self, side: Side) -> tuple[int, int]:
        """How much earlier and later than a record of this side its match may be."""
        return (self.before, self.after) if side == "left" else (self.after, self.before)

    def _release(self, side: Side) -> None:
        """Send the records that can no longer get a match, in the order of time, the right side first, and key.

        As in Kafka Streams, a search ends at the first record behind an open one of each side, and
        the next search begins after the window of the record at which it ended. Records that are
        due may therefore wait a while.
        """
        if self.searched_from + self._reach(side)[1] + self.grace >= self.time:
            return
        self.searched_from = inf
        are_open: set[Side] = set()
        ended = []
        for waiting in sorted(self.unmatched, key=_order):
            side, record = waiting
            self.searched_from = record.time
            if len(are_open) == 2:
                break
            if record.time + self._reach(side)[1] + self.grace >= self.time:
                are_open.add(side)
            else:
                ended.append(waiting)
        self.unmatched = [one for one in self.unmatched if one not in ended]
        for side, record in ended:
            self._send_unmatched(record, side)

    def _send_unmatched(self, record: Record, side: Side) -> None:
        self._send(record, None, side)
        # In Kafka Streams, records that come later can still match the record.
        if Difference.MATCHED_TOO_LATE not in self.like:
            self._sides[side].remove(record)

    def _send(self, record: Record, match: Record | None, side: Side) -> None:
        values = (record.value, match and match.value)
        left, right = values if side == "left" else values[::-1]
        time = max(record.time, match.time) if match else record.time
        self.send(Record(record.key, {"left": left, "right": right}, time))


def _order(waiting: tuple[Side, Record]) -> tuple[int, bool, bytes]:
    side, record = waiting
    return record.time, side == "left", str(record.key).encode()


@dataclass(kw_only=True)
class Lookup(Stream):
    """A join with a table or a global table, whose rows are looked up by the record's key or by `on`."""

    how: str
    table: Table
    on: Expression | None = None
    grace: int | None = None
    """How long, in stream time, a record is held before it is joined; one that comes later is joined at once."""
    time: int = -1
    held: list[Record] = field(default_factory=list)

    def process(self, record: Record) -> None:
        if self.grace is None:
            self._join(record)
            return
        if record.key is None or record.value is None:
            return
        self.time = max(self.time, record.time)
        if record.time < self.time - self.grace:
            self._join(record)
        else:
            self.held.append(record)
        # The sort keeps the order of records of the same time.
        for due in sorted(self.held, key=lambda one: one.time):
            if due.time <= self.time - self.grace:
                self.held.remove(due)
                self._join(due)

    def _join(self, record: Record) -> None:
        if record.value is None:
            return
        key = record.key if self.on is None else computed(self.on, record)
        right = None if key is None else self._right(key, record.time)
        if right is not None or self.how == "left":
            self.send(replace(record, value={"left": record.value, "right": right}))

    def _right(self, key: Any, time: int) -> Any:
        if self.table.is_versioned:
            return self.table.as_of(key, time)
        row = self.table.get(key)
        return row and row.value
