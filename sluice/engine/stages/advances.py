"""Reports the positions in a batch at which an operator's stream time advances.

The tasks that create an operator's rows report where these rows advance its stream time. Every
worker gets all reports, and therefore knows the operator's stream time at any position
(`timeline.py`), although it has only some of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import (
    LAST,
    SORT_KEY,
    STREAM_TIME,
    partition_of,
    position_numbers,
    rows,
)
from sluice.engine.batch.side_outputs import pack_table
from sluice.engine.batch.stream_time import BEFORE_ALL, advance
from sluice.operators.columns import CHANGE_OF_ROW, replaced_values
from sluice.operators.lateness import WindowLateness
from sluice.plan import Edge, Job, PlannedOperator
from sluice.plan.operator_parameters import (
    AggregateParameters,
    ProcessParameters,
    PythonAggregateParameters,
    SuppressParameters,
)
from sluice.support.arrays import Integers, Mask, columns_named
from sluice.values.windows import Window

ADVANCES = pa.schema([
    ("sequence", pa.int64()), ("origin", pa.int64()), ("path", pa.binary()), ("time", pa.int64()),
    ("side", pa.int8()), ("complete", pa.bool_()), ("headers", pa.string()),
])  # fmt: skip
"""The columns of a report: a row's position and event time, and whether it is complete (see
`Advances.add_rows`)."""


@dataclass
class Advances:
    """Collects the rows of one task that may advance the stream time of operators."""

    only_last: frozenset[int] = frozenset()
    """The operators that need only their stream time after the batch (see `only_last_times`)."""
    batches: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """Operator → its rows."""

    def add_rows(
        self,
        operator: PlannedOperator,
        side: int,
        complete: Mask,
        columns: Mapping[str, pa.Array],
    ) -> None:
        """Add rows of one side of an operator.

        `complete` rows have a key and a value if the operator needs them.

        Only complete rows advance stream time. The stream time that both sides of a stream join
        share is an exception: all rows advance it. `columns` are the columns of the position,
        `time`, and perhaps `headers`.
        """
        headers = columns.get("headers", pa.nulls(len(complete), pa.string()))
        chosen = [columns[name] for name in (*SORT_KEY, "time")]
        chosen.append(headers)
        if not operator.is_stream_join and not complete.all():
            chosen = [column.filter(pa.array(complete)) for column in chosen]
            complete = complete[complete]
        count = len(complete)
        if count:
            *chosen, headers = chosen
            sides = pa.repeat(pa.scalar(side, pa.int8()), count)
            batch = pa.RecordBatch.from_arrays(
                [*chosen, sides, pa.array(complete), headers],
                schema=ADVANCES,
            )
            if operator.number in self.only_last:
                batch = _latest_rows(batch)
            elif (window := operator.closing_times) is not None:
                batch = _closing_rows(batch, window)
            self.batches.setdefault(operator.number, []).append(batch)

    def reports(
        self,
        operators: Iterable[PlannedOperator],
        workers: int,
    ) -> Iterator[pa.RecordBatch]:
        """For each operator, yield a report for every worker.

        The report of an operator without rows is empty.
        """
        for operator in operators:
            added = pa.Table.from_batches(self.batches.get(operator.number, []), ADVANCES)
            # Report only rows that advance a stream time. Most rows advance none, and every worker
            # gets the reports of all tasks.
            table = _advancing_rows(added, is_stream_join=operator.is_stream_join)
            advances = pa.repeat(pa.scalar(pack_table(table), pa.binary()), workers)
            columns = {
                "target": operator.number,
                "side": STREAM_TIME,
                "sequence": LAST,
                "origin": 0,
            }
            yield rows(
                workers,
                columns | {"advances": advances, "worker": pa.array(range(workers), pa.int32())},
            )


def only_last_times(operators: Iterable[PlannedOperator]) -> frozenset[int]:
    """Return the operators that need only their stream time after the batch, not at each position.

    An operator must meet three conditions: its rows contain the stream times; its results do not
    wait for stream time; and no operator is chained to it, because the results of a chained
    operator might wait for stream time.
    """
    operators = [*operators]
    followed = {operator.chained_to for operator in operators}
    only_last: set[int] = set()
    for operator in operators:
        match operator.action:
            case (
                AggregateParameters()
                | PythonAggregateParameters()
                | ProcessParameters(sets_timers=False)
            ):
                waits = False
            case _:
                waits = True
        if not waits and operator.is_timed_by_source and operator.number not in followed:
            only_last.add(operator.number)
    return frozenset(only_last)


@dataclass(frozen=True)
class ReportAdvances:
    """Passes on the results of a stage's operators, and reports those that advance stream times."""

    operators: tuple[PlannedOperator, ...]
    """The operators that take results of the stage and have their own stream time."""
    stage: int
    workers: int

    @classmethod
    def of(cls, job: Job, stage: int) -> Self:
        operators: list[PlannedOperator] = []
        for operator in job.operators:
            has_rows = any(edge.stage == stage for edge in operator.edges)
            if operator.has_own_stream_time and has_rows:
                operators.append(operator)
        return cls(tuple(operators), stage, job.pipeline.workers)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        edges: list[tuple[PlannedOperator, Edge]] = []
        for operator in self.operators:
            if not operator.is_timed_by_rows:
                continue
            for edge in operator.edges:
                # If a processor reads tables, their rows do not advance the processor's stream
                # time.
                if edge.stage == self.stage and not edge.is_copied:
                    edges.append((operator, edge))
        inputs: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        """Operator and side → the rows for this side so far."""
        for batch in batches:
            if batch.num_rows:
                for _, edge in edges:
                    rows = _input_rows(edge, batch)
                    if rows.num_rows:
                        inputs.setdefault((edge.target, edge.side), []).append(rows)
            yield batch
        advances = Advances()
        for operator, edge in edges:
            rows_of_edge = inputs.get((edge.target, edge.side))
            if rows_of_edge:
                table = pa.Table.from_batches(rows_of_edge).combine_chunks()
                self._add_rows(advances, table, operator, edge)
        with_rows: list[PlannedOperator] = []
        for operator in self.operators:
            if operator.number in advances.batches:
                with_rows.append(operator)
        yield from advances.reports(with_rows, self.workers)

    @staticmethod
    def _add_rows(
        advances: Advances,
        rows: pa.Table,
        operator: PlannedOperator,
        edge: Edge,
    ) -> None:
        has_key = boolean_mask(rows.column("has_key"))
        has_value = boolean_mask(rows.column("has_value"))
        is_old = boolean_mask(rows.column("old"))
        complete = np.ones(len(rows), np.bool_)
        if edge.requires_key:
            complete &= has_key
        if edge.requires_value:
            complete &= has_value
        # A table's change must advance stream time once. An old value directly precedes its new
        # value and has the same time. So leave out an old value if the next row replaces it and
        # advances stream time itself. A deleted row has only the old value, and the new value may
        # have no key.
        is_replaced = replaced_values(columns_named(rows, CHANGE_OF_ROW), is_old)
        complete &= ~(is_replaced & np.append(complete[1:], False))
        # In Kafka Streams, a filtered table sends no tombstone for a row that never passed the
        # filter. So a tombstone advances stream time only if it replaces a value.
        if isinstance(operator.action, SuppressParameters) and operator.action.filtered:
            replaces_value = np.concatenate(([False], (is_old & has_value)[:-1]))
            complete &= ~is_old & (has_value | replaces_value)
        columns: dict[str, pa.Array] = {}
        for name in (*SORT_KEY, "time", "headers"):
            columns[name] = rows.column(name).combine_chunks()
        advances.add_rows(operator, edge.side, complete, columns)


def _input_rows(edge: Edge, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows for an edge's target, with only the columns that determine advances."""
    is_input = pc.and_(
        pc.equal(batch.column("target"), edge.target),
        pc.equal(batch.column("side"), edge.side),
    )
    columns = {
        "has_key": batch.column("key").is_valid(),
        "has_value": batch.column("value").is_valid(),
    }
    columns |= columns_named(batch, ("old", "foreign", *SORT_KEY, "time", "headers"))
    is_for_edge = pc.and_(is_input, pc.invert(batch.column("emitted")))
    return pa.RecordBatch.from_pydict(columns).filter(is_for_edge)


def _advancing_rows(table: pa.Table, *, is_stream_join: bool) -> pa.Table:
    """Return the rows that advance their partition's stream time, as far as this task knows.

    This considers the rows in the order of their positions.
    """
    order = np.argsort(position_numbers(table), kind="stable")
    times, numbers = table.column("time").to_numpy()[order], partition_numbers(table)[order]
    sides, complete = (
        table.column("side").to_numpy()[order],
        boolean_mask(table.column("complete"))[order],
    )
    advancing = np.zeros(len(times), bool)
    for number in np.unique(numbers):
        of_number = numbers == number
        clocks: list[Mask] = []
        for side in np.unique(sides):
            clocks.append(of_number & complete & (sides == side))
        # In Kafka Streams, a join of two streams also has a stream time that all records of both
        # sides advance, even incomplete records.
        if is_stream_join:
            clocks.append(of_number)
        for counted in clocks:
            before, after = advance(times, counted, BEFORE_ALL)
            advancing |= after > before
    chosen = np.zeros(len(times), bool)
    chosen[order[advancing]] = True
    if advancing.all():
        return table
    return table.filter(pa.array(chosen))


def _latest_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the row with the largest event time of each partition."""
    times, numbers = batch.column("time").to_numpy(), partition_numbers(batch)
    latest: list[int] = []
    for number in np.unique(numbers):
        of_number = np.flatnonzero(numbers == number)
        latest.append(of_number[np.argmax(times[of_number])])
    return batch.take(pa.array(latest))


def _closing_rows(batch: pa.RecordBatch, window: Window) -> pa.RecordBatch:
    """Return each partition's row with the largest event time, and rows that may close windows."""
    times, numbers = batch.column("time").to_numpy(), partition_numbers(batch)
    # The window that starts at 0 closes first.
    first_close = WindowLateness(window).closes_at(window.size_ms)
    chosen = np.zeros(len(times), np.bool_)
    for number in np.unique(numbers):
        of_number = np.flatnonzero(numbers == number)
        latest = np.maximum.accumulate(times[of_number])
        closed = (latest - first_close) // window.every_ms
        # The first row may close windows that were open before these rows.
        chosen[of_number[np.diff(closed, prepend=closed[0] - 1) > 0]] = True
        chosen[of_number[np.argmax(times[of_number])]] = True
    return batch.filter(pa.array(chosen))


def partition_numbers(table: pa.Table | pa.RecordBatch) -> Integers:
    """Return the partition number of each row's record."""
    origins: Integers = table.column("origin").to_numpy()
    _, numbers = partition_of(origins)
    return numbers
