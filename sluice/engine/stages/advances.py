"""The positions in a batch at which an operator's stream time advances.

The tasks that create an operator's rows report where these rows advance its stream time. Every worker gets all reports,
and therefore knows the operator's stream time at any position, although it has only some of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import truth
from sluice.engine.batch.row_schemas import (
    BEGIN,
    END,
    LAST,
    SORT_KEY,
    STREAM_TIME,
    Position,
    in_order,
    partition_of,
    rows,
)
from sluice.engine.batch.side_outputs import packed
from sluice.engine.batch.stream_time import (
    BEFORE_ALL,
    CLOSED,
    Mask,
    StreamTimes,
    Times,
    advance,
    advance_joint,
)
from sluice.operators.base import LEFT, RIGHT
from sluice.plan import Edge, Job, PlannedOperator
from sluice.plan.operator_parameters import Suppress

_SCHEMA = pa.schema([
    ("sequence", pa.int64()), ("origin", pa.int64()), ("path", pa.binary()), ("time", pa.int64()), ("side", pa.int8()),
    ("complete", pa.bool_()), ("headers", pa.string()),
])  # fmt: skip

_Ranks = npt.NDArray[np.intp]


@dataclass
class Advances:
    """The rows of one task that may advance the stream time of operators."""

    batches: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """Operator → its rows."""

    def add(self, operator: PlannedOperator, side: int, complete: Mask, columns: Mapping[str, pa.Array]) -> None:
        """Add rows of one side of an operator; `complete` rows have a key and a value if the operator needs them.

        Only complete rows advance stream time, except the stream time that both sides of a join share. `columns` are
        the columns of the position, `time`, and perhaps `headers`.
        """
        headers = columns.get("headers", pa.nulls(len(complete), pa.string()))
        chosen = [*(columns[name] for name in (*SORT_KEY, "time")), headers]
        if not operator.is_stream_join and not complete.all():
            chosen = [column.filter(pa.array(complete)) for column in chosen]
            complete = complete[complete]
        count = len(complete)
        if count:
            *chosen, headers = chosen
            sides = pa.repeat(pa.scalar(side, pa.int8()), count)
            batch = pa.RecordBatch.from_arrays([*chosen, sides, pa.array(complete), headers], schema=_SCHEMA)
            self.batches.setdefault(operator.number, []).append(batch)

    def reports(self, operators: Iterable[PlannedOperator], workers: int) -> Iterator[pa.RecordBatch]:
        """Rows that report the added rows of these operators to every worker; also for operators without added rows."""
        for operator in operators:
            added = pa.Table.from_batches(self.batches.get(operator.number, []), _SCHEMA)
            table = _reduced(_sorted(added), joint=operator.is_stream_join)
            advances = pa.repeat(pa.scalar(packed(table), pa.binary()), workers)
            columns = {"target": operator.number, "side": STREAM_TIME, "sequence": LAST, "origin": 0}
            yield rows(workers, columns | {"advances": advances, "worker": pa.array(range(workers), pa.int32())})


@dataclass(frozen=True)
class Gather:
    """The task after a stage's operators: passes their results on, and reports which results advance stream times."""

    operators: tuple[PlannedOperator, ...]
    """The operators that take results of the stage and have their own stream time."""
    stage: int
    workers: int

    @classmethod
    def of(cls, job: Job, stage: int) -> Self:
        operators = (
            operator
            for operator in job.operators
            if operator.has_own_stream_time and any(edge.stage == stage for edge in operator.edges)
        )
        return cls(tuple(operators), stage, job.pipeline.workers)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        passed: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        for batch in batches:
            for operator in self.operators if batch.num_rows else ():
                for edge in operator.edges:
                    if edge.stage == self.stage and (rows := _rows_of(edge, batch)).num_rows:
                        passed.setdefault((edge.target, edge.side), []).append(rows)
            yield batch
        advances = Advances()
        for operator in self.operators:
            for edge in operator.edges:
                if rows := passed.get((edge.target, edge.side)):
                    self._add(advances, pa.Table.from_batches(rows).combine_chunks(), operator, edge)
        given = [operator for operator in self.operators if operator.number in advances.batches]
        yield from advances.reports(given, self.workers)

    @staticmethod
    def _add(advances: Advances, rows: pa.Table, operator: PlannedOperator, edge: Edge) -> None:
        keyed, valued, old = (truth(rows.column(name)) for name in ("keyed", "valued", "old"))
        # A table's old value directly precedes the new one and has the same time. A deleted row has only the old value.
        complete = (
            ~_replaced(rows, old) & (keyed if edge.requires_key else True) & (valued if edge.requires_value else True)
        )
        if isinstance(operator.action, Suppress) and operator.action.filtered:
            replaces = np.concatenate(([False], (old & valued)[:-1]))
            complete &= ~old & (valued | replaces)
        columns = {name: rows.column(name).combine_chunks() for name in (*SORT_KEY, "time", "headers")}
        advances.add(operator, edge.side, complete, columns)


_GATHERED = ("old", "foreign", *SORT_KEY, "time", "headers")


def _rows_of(edge: Edge, batch: pa.RecordBatch) -> pa.RecordBatch:
    """What advances depend on, of the rows for an edge's target."""
    is_input = pc.and_(pc.equal(batch.column("target"), edge.target), pc.equal(batch.column("side"), edge.side))
    columns = {"keyed": batch.column("key").is_valid(), "valued": batch.column("value").is_valid()}
    columns |= {name: batch.column(name) for name in _GATHERED}
    return pa.RecordBatch.from_pydict(columns).filter(pc.and_(is_input, pc.invert(batch.column("emitted"))))


def _replaced(rows: pa.Table, old: Mask) -> Mask:
    """Mask of the old values that the next row replaces."""
    before, after = rows.slice(0, len(rows) - 1), rows.slice(1)
    same = old[:-1] & ~old[1:]
    for name in ("sequence", "origin", "foreign"):
        columns = before.column(name), after.column(name)
        same &= truth(pc.fill_null(pc.equal(*columns), pc.and_(*(pc.is_null(column) for column in columns))))
    return np.concatenate((same, [False]))


def _sorted(table: pa.Table) -> pa.Table:
    return table.take(pa.array(in_order(table))).combine_chunks()


def _reduced(table: pa.Table, *, joint: bool) -> pa.Table:
    """The rows that advance a stream time of their partition within this task."""
    times, numbers = table.column("time").to_numpy(), _numbers(table)
    sides, complete = table.column("side").to_numpy(), truth(table.column("complete"))
    advancing = np.zeros(len(times), bool)
    for number in np.unique(numbers):
        of_number = numbers == number
        counted_rows = [of_number & complete & (sides == side) for side in (LEFT, RIGHT)]
        for counted in (*counted_rows, *([of_number] if joint else [])):
            before, after = advance(times, counted, BEFORE_ALL)
            advancing |= after > before
    return table if advancing.all() else table.filter(pa.array(advancing))


def _numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """The partition number of each row's record."""
    origins: npt.NDArray[np.int64] = table.column("origin").to_numpy()
    _, numbers = partition_of(origins)
    return numbers


@dataclass(frozen=True)
class _Partition:
    """The stream times of the partitions with the same number, before the batch and after every advance.

    There are four kinds of stream time: of all rows; the closed time; and one for each side of a join.
    """

    begin: tuple[int, ...]
    running: tuple[Times, ...]

    def at(self, kind: int, ranks: _Ranks) -> Times:
        """The stream time of a kind after `ranks` advances."""
        return np.concatenate(([self.begin[kind]], self.running[kind]))[ranks]

    def last(self, kind: int) -> int:
        running = self.running[kind]
        return int(running[-1]) if len(running) else self.begin[kind]


_ANY, _CLOSED, _LEFT, _RIGHT = range(4)
_SUFFIXES = (".any", "", ".0", ".1")
"""Suffixes of the names of an operator's stream times. Only joins of two streams have all of them."""


class Timeline:
    """An operator's stream time at every position of a batch.

    Partitions of several topics with the same number share a stream time. The closed time, up to which all windows are
    closed, is the smallest stream time of all partition numbers that are not idle.
    """

    def __init__(self, operator: PlannedOperator, reports: Iterable[bytes], before: StreamTimes) -> None:
        self._operator = operator
        self._before = before
        tables = [pa.ipc.open_stream(report).read_all() for report in reports]
        self._table = _sorted(pa.concat_tables([*tables, _SCHEMA.empty_table()]))
        self._times, self._numbers = self._table.column("time").to_numpy(), _numbers(self._table)
        self._sequences, self._origins = (self._table.column(name).to_numpy() for name in SORT_KEY[:2])
        self._paths = self._table.column("path")
        sides, complete = self._table.column("side").to_numpy(), truth(self._table.column("complete"))
        carried = before.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
        self.closed_before = max(carried, before.closed(operator.clock, operator.topics))
        """The closed time before the batch. It never decreases, even if an idle partition has records again."""
        self._partitions = {
            number: self._partition(number, sides, complete)
            for number in range(max(before.partitions[topic] for topic in operator.topics))
        }
        self._active = [
            partition
            for number, partition in self._partitions.items()
            if (self._numbers == number).any() or not before.is_idle(operator.topics, number)
        ]
        active = [partition.running[_CLOSED] for partition in self._active]
        closed = np.minimum.reduce(active) if active else np.full(len(self._times), BEFORE_ALL)
        closed = np.maximum(closed, self.closed_before)
        before_each = np.concatenate(([self.closed_before], closed[:-1])) if len(closed) else closed
        self.closings = np.flatnonzero(closed > before_each)
        """The advances that increase the closed time."""
        self.closed = closed[self.closings]
        """The closed time after each of these advances."""
        self.closed_after = int(closed[-1]) if len(closed) else self.closed_before
        self.looks = self._looks(sides, complete) if operator.is_stream_join else ()
        """For each side of a join, the advances at which the join may look for unmatched records, and their times."""

    def _partition(self, number: int, sides: npt.NDArray[np.int8], complete: Mask) -> _Partition:
        times, of_number = self._times, self._numbers == number
        begins = tuple(self._begin(suffix, number) for suffix in _SUFFIXES)
        begins = (begins[_ANY], max(begins[_CLOSED], self.closed_before), *begins[_LEFT:])
        if not self._operator.is_stream_join:
            _, running = advance(times, of_number, begins[_CLOSED])
            return _Partition(begins, (running,) * len(_SUFFIXES))
        _, every, closed = advance_joint(times, of_number, of_number & complete, begins[_ANY], begins[_CLOSED])
        left, right = (
            advance(times, of_number & complete & (sides == side), begins[kind])[1]
            for side, kind in ((LEFT, _LEFT), (RIGHT, _RIGHT))
        )
        return _Partition(begins, (every, closed, left, right))

    def _begin(self, suffix: str, number: int) -> int:
        operator = self._operator
        return max(self._before.of(f"{operator.clock}{suffix}", topic, number) for topic in operator.topics)

    def _looks(self, sides: npt.NDArray[np.int8], complete: Mask) -> tuple[tuple[_Ranks, Times], ...]:
        in_order = complete & (self._times == self._partitions[0].running[_ANY])
        indices = [np.flatnonzero(in_order & (sides == side)) for side in (LEFT, RIGHT)]
        return tuple((each, self._times[each]) for each in indices)

    @property
    def after(self) -> dict[str, int]:
        """The stream times that the batch has advanced, by name."""
        operator, times = self._operator, {}
        for number, partition in self._partitions.items():
            if not (self._numbers == number).any():
                continue
            topic = next(topic for topic in operator.topics if self._before.partitions[topic] > number)
            for kind in range(len(_SUFFIXES)) if operator.is_stream_join else [_CLOSED]:
                times[f"{operator.clock}{_SUFFIXES[kind]}/{topic}/{number}"] = partition.last(kind)
        return times

    @property
    def reached(self) -> tuple[int, int]:
        """The stream times that both sides of a join have reached after the batch in every partition.

        A side may lag behind in one partition, whose later records can still match earlier ones. Idle partitions, and
        those without any record of a side, do not count.
        """
        left, right = ([last for p in self._active if (last := p.last(kind)) != BEFORE_ALL] for kind in (_LEFT, _RIGHT))
        return min(left, default=BEFORE_ALL), min(right, default=BEFORE_ALL)

    def closing(self, due: int) -> Position:
        """The first position at which the closed time has reached `due`."""
        if due <= self.closed_before:
            return BEGIN
        closing = int(np.searchsorted(self.closed, due))
        return self.position(int(self.closings[closing])) if closing < len(self.closings) else END

    def position(self, advance: int) -> Position:
        """The position of an advance."""
        return int(self._sequences[advance]), int(self._origins[advance]), self._paths[advance].as_py()

    @cached_property
    def headers(self) -> Mapping[Position, str]:
        """The headers of the records whose rows advance stream time, by their positions."""
        headers = self._table.column("headers")
        with_headers = np.flatnonzero(truth(headers.is_valid()))
        return {self.position(index): headers[index].as_py() for index in with_headers.tolist()}

    def columns(self, table: pa.Table) -> dict[str, Times]:
        """Stream times before and after each of the operator's rows; for a join also the stream times of both sides."""
        count = len(table)
        # Each row is inserted twice: before the advances at its own position, and after them.
        parts = [
            part.select(SORT_KEY).append_column("at", pa.repeat(pa.scalar(at, pa.int8()), len(part)))
            for part, at in ((self._table, 1), (table, 0), (table, 2))
        ]
        everything = pa.concat_tables(parts)
        order = np.asarray(pc.sort_indices(everything, [(name, "ascending") for name in (*SORT_KEY, "at")]))
        passed = np.empty(len(order), np.intp)
        passed[order] = np.cumsum(order < len(self._times))
        exclusive, inclusive = np.split(passed[len(self._times) :], 2)
        numbers = _numbers(table)
        columns = {name: np.full(count, BEFORE_ALL) for name in ("before", "after", "left", "right")}
        for number, partition in self._partitions.items():
            of_number = numbers == number
            columns["before"][of_number] = partition.at(_CLOSED, exclusive[of_number])
            columns["after"][of_number] = partition.at(
                _ANY if self._operator.is_stream_join else _CLOSED, inclusive[of_number]
            )
            if self._operator.is_stream_join:
                columns["left"][of_number] = partition.at(_LEFT, inclusive[of_number])
                columns["right"][of_number] = partition.at(_RIGHT, inclusive[of_number])
        return columns
