"""Aggregates of streams, of windows and of tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.conformance.model.differences import SLUICE, Difference, Differences
from tests.conformance.model.expressions import Expression, compact_json, evaluate
from tests.conformance.model.flow import Change, Key, Record, Stream, Windowed, plain
from tests.conformance.model.tables import Row, Stored

Aggregate = dict[str, Any]


def initial(fn: str) -> Any:
    return {"count": 0, "sum": 0, "max": None, "collect_list": [], "collect_sorted": []}[fn]


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else 0


def _greater(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return one if other is None else other
    # The cases' maximum compares numbers, as which a text counts as zero.
    return max(_number(one), _number(other))


def _removed(elements: list[Any], element: Any) -> list[Any]:
    """The elements without the first that is equal."""
    at = elements.index(element) if element in elements else len(elements)
    return elements[:at] + elements[at + 1 :]


def added(fn: str, aggregate: Any, value: Any) -> Any:
    match fn:
        case "count":
            return aggregate + 1
        case "sum":
            return aggregate + (value or 0)
        case "max":
            return _greater(aggregate, value)
        case "collect_list":
            return aggregate if value is None else [*aggregate, value]
        case "collect_sorted":
            return aggregate if value is None else sorted([*aggregate, value], key=compact_json)
    raise NotImplementedError(fn)


def _subtracted(fn: str, aggregate: Any, value: Any) -> Any:
    match fn:
        case "count":
            return aggregate - 1
        case "sum":
            return aggregate - (value or 0)
        case "collect_list" | "collect_sorted":
            return aggregate if value is None else _removed(aggregate, value)
    raise NotImplementedError(fn)


def merged(fn: str, one: Any, other: Any) -> Any:
    return _greater(one, other) if fn == "max" else one + other


class Calculation(Protocol):
    """How an aggregate is computed."""

    def initial(self) -> Any: ...
    def add(self, aggregate: Any, key: str, value: Any, /) -> Any: ...
    def subtract(self, aggregate: Any, key: str, value: Any, /) -> Any: ...
    def merge(self, one: Any, other: Any, /) -> Any: ...


@dataclass
class Aggregator:
    """The cases' aggregates: a list of `{name, fn, expr}`."""

    columns: list[dict[str, Any]]

    def initial(self) -> Aggregate:
        return {column["name"]: initial(column["fn"]) for column in self.columns}

    def add(self, aggregate: Aggregate, key: str, value: Any) -> Aggregate:
        return self._changed(added, aggregate, key, value)

    def subtract(self, aggregate: Aggregate, key: str, value: Any) -> Aggregate:
        return self._changed(_subtracted, aggregate, key, value)

    def merge(self, one: Aggregate, other: Aggregate) -> Aggregate:
        return {
            column["name"]: merged(column["fn"], one[column["name"]], other[column["name"]])
            for column in self.columns
        }

    def _changed(
        self, function: Callable[[str, Any, Any], Any], aggregate: Aggregate, key: str, value: Any
    ) -> Aggregate:
        return {
            column["name"]: function(
                column["fn"],
                aggregate[column["name"]],
                evaluate(column["expr"], key, value) if "expr" in column else None,
            )
            for column in self.columns
        }


@dataclass(kw_only=True)
class Aggregation(Stored):
    """An aggregate of a stream, without windows."""

    aggregator: Calculation
    like: Differences = SLUICE

    def process(self, record: Record) -> None:
        if record.key is not None and record.value is not None:
            self.add(record.key, record, self.rows.get(record.key))

    def add(self, key: Key, record: Record, row: Row | None) -> None:
        """Add a record to a row, and send the update. In Kafka Streams, a new row replaces the aggregate of no records,
        and a sliding window that begins with the records of another one replaces the aggregate of
        that one.
        """
        aggregate, time = row or (self.aggregator.initial(), record.time)
        name = plain(key)
        assert name is not None
        added = self.aggregator.add(aggregate, name, record.value)
        if Difference.FIRST_ROWS in self.like:
            self.replace(key, aggregate, added, max(time, record.time))
        else:
            self.update(key, added, max(time, record.time))


@dataclass(kw_only=True)
class TableAggregation(Stored):
    """An aggregate of a table, which subtracts old rows and adds new ones."""

    aggregator: Calculation

    def process(self, record: Record) -> None:
        key = plain(record.key)
        assert key is not None
        new, old = record.value
        row = self.rows.get(key)
        aggregate, time = row.value if row else None, record.time
        if row and (new is not None or old is not None):
            time = max(row.time, time)
        if aggregate is not None and old is not None:
            aggregate = self.aggregator.subtract(aggregate, key, old)
        if new is not None:
            aggregate = self.aggregator.add(
                self.aggregator.initial() if aggregate is None else aggregate, key, new
            )
        self.update(key, aggregate, time)


def regrouped(
    group_key: Expression, group_value: Expression, send: Callable[[Record], None]
) -> Callable[[Record], None]:
    """Sends the update of a table's row to the row's groups: once if both are the same, else to the old one first."""

    def process(record: Record) -> None:
        to, since = (
            None if one is None else evaluate(group_key, record.key, one) for one in record.value
        )
        new, old = (
            None if one is None else evaluate(group_value, record.key, one) for one in record.value
        )
        if to is not None and to == since:
            send(Record(to, Change(new, old), record.time))
            return
        if since is not None:
            send(Record(since, Change(None, old), record.time))
        if to is not None:
            send(Record(to, Change(new, None), record.time))

    return process


@dataclass
class Latest:
    """The time of a store of windows, which several streams may share."""

    time: int = -1


@dataclass(kw_only=True)
class StartedWindows(Aggregation):
    """Windows that the store keeps by their starts.

    Cogrouped streams share the store and its time, the latest start of a window. The store forgets
    a window that began `retention` before that time; a stream that lags so far behind begins the
    window again.
    """

    size: int
    grace: int
    time: int = -1
    latest: Latest | None = None

    @property
    def retention(self) -> int:
        return self.size + self.grace

    def stored(self) -> dict[Windowed, Row]:
        """The windows that the store still knows."""
        last = -1 if self.latest is None else self.latest.time - self.retention
        return {
            key: row
            for key, row in self.rows.items()
            if isinstance(key, Windowed) and key.start > last
        }

    def replace(self, key: Key, old: Any, value: Any, time: int) -> None:
        if self.latest is not None:
            assert isinstance(key, Windowed)
            self.latest.time = max(self.latest.time, key.start)
        super().replace(key, old, value, time)


@dataclass(kw_only=True)
class TimeWindows(StartedWindows):
    """Tumbling and hopping windows."""

    advance: int

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        self.time = max(self.time, record.time)
        start = max(0, record.time - self.size + self.advance) // self.advance * self.advance
        for begin in range(start, record.time + 1, self.advance):
            if begin + self.size > self.time - self.grace:
                key = Windowed(str(record.key), begin, begin + self.size)
                self.add(key, record, self.stored().get(key))


@dataclass(kw_only=True)
class SessionWindows(Stored):
    """The store forgets a session that ended `retention` before its time, the latest end of a session."""

    aggregator: Calculation
    like: Differences = SLUICE
    gap: int
    grace: int
    retention: int
    time: int = -1
    latest: Latest = field(default_factory=Latest)

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        key, at = str(record.key), record.time
        self.time = max(self.time, at)
        near = [
            window
            for window in self.rows
            if isinstance(window, Windowed) and window.key == key
            and window.end >= at - self.gap and window.start <= at + self.gap
            and window.end > self.latest.time - self.retention
        ]  # fmt: skip
        near.sort(key=lambda window: (window.end, window.start))
        merged = Windowed(
            key, min([at, *(one.start for one in near)]), max([at, *(one.end for one in near)])
        )
        if merged.end < self.time - self.grace - self.gap:
            return
        aggregate = self.aggregator.initial()
        for window in near:
            aggregate = self.aggregator.merge(aggregate, self.rows[window].value)
        if merged != (key, at, at):
            for window in near:
                self.update(window, None, window.end)
        self.latest.time = max(self.latest.time, merged.end)
        added = self.aggregator.add(aggregate, key, record.value)
        if Difference.SESSIONS_OF_ONE_INSTANT in self.like:
            self.replace(merged, None, added, merged.end)
        else:
            self.update(merged, added, merged.end)


@dataclass(kw_only=True)
class SlidingWindows(StartedWindows):
    """Windows of `size`, both bounds inclusive, that end or begin at a record."""

    @property
    def retention(self) -> int:
        return 2 * self.size + self.grace

    def process(self, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        self.time = max(self.time, record.time)
        if record.time + 1 + self.size <= self.time - self.grace:
            return
        windows = _Slide(self, record)
        if record.time < self.size:
            windows.add_early()
        else:
            windows.add()


class _Slide:
    """The windows of one record's key around the record."""

    def __init__(self, node: SlidingWindows, record: Record) -> None:
        self._node, self._record, self._at = node, record, record.time
        self._key = str(record.key)
        self._near = {
            key.start: row
            for key, row in node.stored().items()
            if key.key == self._key and max(0, self._at - 2 * node.size) <= key.start <= self._at + 1
        }  # fmt: skip

    def add(self) -> None:
        at, size = self._at, self._node.size
        right: Row | None = None
        before: Row | None = None
        previous: int | None = None
        has_left = False
        for start, row in sorted(self._near.items(), reverse=True):
            end = start + size
            if start == at + 1:
                continue
            if end > at:
                right = right or row
                self._update(start, row)
            elif end == at:
                has_left = True
                self._update(start, row)
                if row.time >= at:
                    return
                previous = row.time
            else:
                before, previous = row, row.time
                break
        if previous is not None and previous + 1 not in self._near and previous + 1 + size >= at:
            self._update(previous + 1, None)
        if not has_left:
            reached = before is not None and previous is not None and at - size <= previous
            self._update(at - size, Row(before.value, at) if reached and before else None)
        self._make_right(right)

    def add_early(self) -> None:
        """A record before the first full window shares the window that begins at 0."""
        at = self._at
        right: Row | None = None
        previous: int | None = None
        shared = self._near.get(0)
        if shared and shared.time < at:
            previous = shared.time
        for start, row in sorted(self._near.items()):
            if 0 < start <= at:
                right = row
                self._update(start, row)
        if right is None and shared and shared.time > at:
            right = shared
        self._make_right(right)
        if previous is not None and previous + 1 not in self._near:
            self._update(previous + 1, None)
        self._update(0, shared)

    def _make_right(self, row: Row | None) -> None:
        """The window that begins after the record, if it is new and has records: those of `row`."""
        if row and row.time > self._at and self._at + 1 not in self._near:
            self._node.replace(self._window(self._at + 1), None, row.value, row.time)

    def _update(self, start: int, row: Row | None) -> None:
        window = self._window(start)
        if window.end >= self._node.time - self._node.grace:
            self._node.add(window, self._record, row)

    def _window(self, start: int) -> Windowed:
        return Windowed(self._key, start, start + self._node.size)


@dataclass(kw_only=True)
class FinalResults(Stream):
    """Sends each window of an aggregate once no record can change it any more."""

    windows: Any
    """The aggregate, with its stream time."""
    wait: int
    """How many ms after its end a window stays open."""
    held: dict[Key, Record] = field(default_factory=dict)

    def process(self, record: Record) -> None:
        """Hold an update of the aggregate."""
        if record.value.new is None:
            self.held.pop(record.key, None)
        else:
            self.held[record.key] = Record(record.key, record.value.new, record.time)

    def release(self) -> None:
        closed = [
            key
            for key in self.held
            if isinstance(key, Windowed) and key.end + self.wait <= self.windows.time
        ]
        for key in sorted(closed, key=lambda key: (key.end, key.key.encode())):
            self.send(self.held.pop(key))


@dataclass
class CogroupedAggregator(Aggregator):
    """The columns of all streams, to which one stream adds some."""

    added: list[dict[str, Any]]
    lists_nulls: bool
    """Whether lists take nulls, too, as in tumbling, hopping and session windows."""

    def add(self, aggregate: Aggregate, key: str, value: Any) -> Aggregate:
        more = Aggregator(self.added).add(aggregate, key, value)
        for column in self.added if self.lists_nulls else ():
            if column["fn"] == "collect_list" and evaluate(column["expr"], key, value) is None:
                more[column["name"]] = [*more[column["name"]], None]
        return aggregate | more
