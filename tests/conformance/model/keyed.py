"""Operators with a function of the cases: reduce, a processor with a timer, and deduplicate, which only Sluice has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.conformance.model.expressions import SIZES, Expression, evaluate, text
from tests.conformance.model.flow import Key, Record, Stream, computed
from tests.conformance.model.tables import MappedTable, Stored


@dataclass(kw_only=True)
class Doubled(Stream):
    """A map by a function."""

    def process(self, record: Record) -> None:
        self.send(Record(record.key, doubled(record.value), record.time, record.headers))


@dataclass(kw_only=True)
class DoubledTable(MappedTable):
    """A table that a function maps."""

    value: Expression = field(default_factory=list)

    def _mapped(self, key: Key, value: Any) -> Any:
        return doubled(value)


def doubled(value: Any) -> Any:
    """What the function returns for a value."""
    if value is None:
        return None
    n = value["n"]
    return value | {"n": None if n is None else n * 2 % SIZES}


@dataclass(kw_only=True)
class Reduction(Stored):
    """A reduce of a stream, whose result depends on the order. The first value is the first result."""

    def process(self, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        row = self.rows.get(record.key)
        result = record.value
        if row:
            result = result | {"n": ((row.value["n"] or 0) * 7 + (result["n"] or 0)) % SIZES}
        self.update(record.key, result, max(row.time, record.time) if row else record.time)


@dataclass(kw_only=True)
class TableReduction(Stored):
    """A reduce of a table to a sum, which subtracts old rows and adds new ones."""

    def process(self, record: Record) -> None:
        new, old = record.value
        row = self.rows.get(record.key)
        result = row and row.value
        if row and old is not None:
            result = row.value | {"n": (row.value["n"] or 0) - (old["n"] or 0)}
        if new is not None:
            result = new if result is None else result | {"n": (result["n"] or 0) + (new["n"] or 0)}
        self.update(record.key, result, max(row.time, record.time) if row else record.time)


@dataclass
class Fold:
    """An aggregate by functions, which the windows use as they use the aggregates by columns."""

    def initial(self) -> int:
        return 0

    def add(self, total: int, _: str, value: Any) -> int:
        return (total * 7 + ((value or {}).get("n") or 0)) % SIZES

    def merge(self, one: int, other: int) -> int:
        return (one * 3 + other) % SIZES

    def subtract(self, total: int, _: str, value: Any) -> int:
        raise NotImplementedError


class RemovingFold(Fold):
    """An aggregate whose function sometimes removes it."""

    def add(self, total: int, key: str, value: Any) -> int | None:  # type: ignore[override]
        added = super().add(total, key, value)
        return None if is_removed(added) else added


def is_removed(total: int) -> bool:
    """Whether the function of the cases removes an aggregate instead of returning this total."""
    return total % 3 == 0


class Sum(Fold):
    """An aggregate of a table by functions."""

    def add(self, total: int, _: str, value: Any) -> int:
        return total + (value["n"] or 0)

    def subtract(self, total: int, _: str, value: Any) -> int:
        return total - (value["n"] or 0)


class RemovingSum(Sum):
    """An aggregate of a table whose functions sometimes remove it."""

    def add(self, total: int, key: str, value: Any) -> int | None:  # type: ignore[override]
        added = super().add(total, key, value)
        return None if is_removed(added) else added

    def subtract(self, total: int, key: str, value: Any) -> int | None:  # type: ignore[override]
        left = super().subtract(total, key, value)
        return None if is_removed(left) else left


@dataclass(kw_only=True)
class Turns(Stream):
    """Numbers the records of a key. Each key has a timer, which its next record postpones. Unlike in Kafka Streams, a
    record without a key has neither. All records of the topics that the task reads advance the
    time.
    """

    is_timed_by_rows: bool = True
    """Whether the records that arrive advance the time."""
    fires_with_rows: bool = True
    """Whether timers fire after each record that arrives, not only when the topology fires them."""
    turns: dict[Key, int] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    time: int = -1

    def process(self, record: Record) -> None:
        if self.is_timed_by_rows:
            self.time = max(self.time, record.time)
        n = (record.value or {}).get("n")
        if isinstance(record.key, str):
            self.turns[record.key] = number = self.turns.get(record.key, 0) + 1
            self.timers[record.key] = record.time + 5
            self.send(
                replace(record, value={"n": ((n or 0) + number) % SIZES, "g": str(number % 3)})
            )
        else:
            self.send(replace(record, value={"n": n, "g": None}))
        if self.fires_with_rows:
            self.fire()

    @property
    def next_due(self) -> int | None:
        """The time of the earliest timer, if it is due."""
        first = min(self.timers.values(), default=None)
        return first if first is not None and first <= self.time else None

    def fire(self) -> None:
        """Fire the timers that are due."""
        while self.next_due is not None:
            self.fire_next()

    def fire_next(self) -> None:
        key, time = min(self.timers.items(), key=lambda timer: (timer[1], timer[0]))
        del self.timers[key]
        self.send(Record(key, {"n": time % SIZES, "g": None}, time))


@dataclass(kw_only=True)
class ProcessValues(Stream):
    """Changes value, headers and time by expressions over the record as it came in, and counts records per key."""

    node: Mapping[str, Any]
    tables: Mapping[str, Any]
    """The tables that its expressions look up."""
    counts: Counter[Key] = field(default_factory=Counter)

    def process(self, record: Record) -> None:
        self.counts[record.key] += 1

        def lookup(table: str, key: Expression) -> Any:
            row = self.tables[table].rows.get(computed_here(key))
            return None if row is None else row.value

        more: dict[str, Callable[..., Any]] = {
            "ts": lambda: record.time,
            "header": lambda name: dict(record.headers).get(name),
            "count_so_far": lambda: self.counts[record.key],
            "lookup": lookup,
        }

        def computed_here(expression: Expression) -> Any:
            return evaluate(expression, record.key, record.value, more)

        node = self.node
        if "where" in node and computed_here(node["where"]) is not True:
            return
        names = {*node.get("remove_headers", ()), *node.get("set_headers", ())}
        headers = [header for header in record.headers if header[0] not in names]
        for name, expression in (
            *node.get("set_headers", {}).items(),
            *node.get("add_headers", {}).items(),
        ):
            result = computed_here(expression)
            headers.append((name, None if result is None else text(result)))
        value = computed_here(node["value"]) if "value" in node else record.value
        time = computed_here(node["ts"]) if "ts" in node else None
        # A time of null leaves the record's time as it is.
        self.send(
            replace(
                record,
                value=value,
                time=record.time if time is None else time,
                headers=tuple(headers),
            )
        )


@dataclass(kw_only=True)
class Punctuate(Stream):
    """Counts the records of each key, and sends the counts whenever its clock passes a multiple of a time."""

    is_timed_by_rows: bool = True
    fires_with_rows: bool = True
    every: int
    resets: bool
    forwards: bool
    on_wall_clock: bool
    counts: Counter[Key] = field(default_factory=Counter)
    time: int = -1
    due: int = 0

    def __post_init__(self) -> None:
        # Punctuation by stream time is due at the first record; by the wall clock, after one
        # interval.
        self.due = self.every if self.on_wall_clock else 0

    def process(self, record: Record) -> None:
        if self.forwards:
            self.send(record)
        if record.key is not None:
            self.counts[record.key] += 1
        if self.is_timed_by_rows and not self.on_wall_clock:
            self.time = max(self.time, record.time)
        if self.fires_with_rows and not self.on_wall_clock:
            self.fire()

    @property
    def next_due(self) -> int | None:
        """The time of the next punctuation, if it is due."""
        return self.due if self.due <= self.time else None

    def fire(self) -> None:
        """Send the counts if they are due."""
        if self.next_due is not None:
            self.fire_next()

    def fire_next(self) -> None:
        """Send the counts. A jump over several multiples of the time makes one punctuation."""
        self.due = (self.time // self.every + 1) * self.every
        for key in sorted(self.counts, key=str):
            self.send(Record(key, {"n": self.counts[key], "at": self.time}, self.time))
        if self.resets:
            self.counts.clear()


@dataclass(kw_only=True)
class Deduplicate(Stream):
    """Drops a record if another one with the same id has passed within a time. Records without an id pass."""

    by: Expression
    within: int
    passed: dict[Any, list[int]] = field(default_factory=dict)
    time: int = -1

    def process(self, record: Record) -> None:
        self.time = max(self.time, record.time)
        name = computed(self.by, record)
        if name is not None:
            times = [time for time in self.passed.get(name, ()) if time + self.within >= self.time]
            self.passed[name] = times
            if any(abs(record.time - time) <= self.within for time in times):
                return
            times.append(record.time)
        self.send(record)
