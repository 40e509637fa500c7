"""Operators with a function of the cases: reduce, a processor with a timer, and deduplicate, which only Sluice has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.conformance.model.expressions import SIZES, Expression
from tests.conformance.model.flow import Key, Record, Stream, computed
from tests.conformance.model.tables import Stored


@dataclass(kw_only=True)
class Doubled(Stream):
    """A map by a function."""

    def process(self, record: Record) -> None:
        if record.value is None:
            self.send(record)
            return
        n = record.value["n"]
        doubled = record.value | {"n": None if n is None else n * 2 % SIZES}
        self.send(Record(record.key, doubled, record.time))


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


class Sum(Fold):
    """An aggregate of a table by functions."""

    def add(self, total: int, _: str, value: Any) -> int:
        return total + (value["n"] or 0)

    def subtract(self, total: int, _: str, value: Any) -> int:
        return total - (value["n"] or 0)


@dataclass(kw_only=True)
class Turns(Stream):
    """Numbers the records of a key. Each key has a timer, which its next record postpones. Unlike in Kafka Streams, a
    record without a key has neither. If the records come from topics directly, all records of the topics advance the
    time.
    """

    turns: dict[Key, int] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    time: int = -1

    def process(self, record: Record) -> None:
        self.time = max(self.time, record.time)
        n = (record.value or {}).get("n")
        if isinstance(record.key, str):
            self.turns[record.key] = number = self.turns.get(record.key, 0) + 1
            self.timers[record.key] = record.time + 5
            self.send(replace(record, value={"n": ((n or 0) + number) % SIZES, "g": str(number % 3)}))
        else:
            self.send(replace(record, value={"n": n, "g": None}))
        self.fire()

    def fire(self) -> None:
        """Fire the timers that are due."""
        for key, time in sorted(self.timers.items(), key=lambda timer: (timer[1], timer[0])):
            if time <= self.time:
                del self.timers[key]
                self.send(Record(key, {"n": time % SIZES, "g": None}, time))


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
