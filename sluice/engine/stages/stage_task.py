"""The task of a stage: passes one worker's rows, in order, through the stage's operators.

The worker's shard stores a version of each state per batch, so a retried batch starts from the same states. If the
driver has lost its lease, reading and writing states fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import StreamTimeReader
from sluice.engine.batch.batch_start import this_batch
from sluice.engine.batch.row_schemas import END, LAST, SORT_KEY, STREAM_TIME, Position, in_order
from sluice.engine.batch.side_outputs import BatchStats, SideOutputs, no_garbage_collection
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes, Times
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.stages.advances import Timeline
from sluice.engine.stages.runner import BatchStates, OperatorRun, StageOperator, StageOutput
from sluice.operators.aggregation.aggregate import TableAggregate
from sluice.operators.base import Row
from sluice.state.model import NO_WINDOW
from sluice.state.shard.operator_states import State


@dataclass(frozen=True)
class Stage:
    """The task of a stage, which runs on executors."""

    number: int
    stream_times: StreamTimeReader
    side_outputs: SideOutputs
    locations: tuple[str, ...]
    """Addresses of the workers' shards."""
    operators: tuple[StageOperator, ...]
    only_stored: frozenset[int]
    """The operators whose results go only to their store."""
    topics: Mapping[int, str]
    """Source number → its topic."""
    epoch: int
    """Epoch of the lease under which states are read and written."""
    token: str = field(default="", repr=False)
    """Token for state servers."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process one worker's rows. Rows for other stages pass through."""
        not_empty = [batch for batch in batches if batch.num_rows]
        if not not_empty:
            return
        table = pa.Table.from_batches(not_empty)
        targets = pa.array([operator.number for operator in self.operators], pa.int32())
        of_stage = pc.and_(pc.is_in(table.column("target"), targets), pc.invert(table.column("emitted")))
        yield from table.filter(pc.invert(of_stage)).to_batches()
        rows = table.filter(of_stage)
        if rows.num_rows:
            with no_garbage_collection():
                yield from self._run(rows, table.column("worker")[0].as_py())

    def _run(self, rows: pa.Table, worker: int) -> Iterator[pa.RecordBatch]:
        start = this_batch()
        batch = start.number
        is_report = pc.equal(rows.column("side"), STREAM_TIME)
        before = self.stream_times.before(start)
        timelines = self._timelines(rows.filter(is_report), before)
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            run = StageRun.of(self, BatchStates(shard, batch, self.epoch, before), timelines)
            run.process(rows.filter(pc.invert(is_report)))
            run.close()
            shard.write_states(batch, run.operators, run.changed(), self.epoch)
        times: dict[str, int] = {}
        for clock, timeline in timelines.items():
            times |= timeline.after
            if timeline.closed_after >= 0:
                times[f"{CLOSED}/{clock}"] = timeline.closed_after
        by_partition = {f"{self.topics[source]}-{number}": dict(counts)
                        for (source, number), counts in run.output.by_partition.items()}  # fmt: skip
        stats = BatchStats(dict(run.output.counts), times, by_partition=by_partition)
        self.side_outputs.add_stats(f"stage-{self.number}-{worker:05}", stats)
        yield from run.output.batches()

    def _timelines(self, reports: pa.Table, before: StreamTimes) -> dict[str, Timeline]:
        """Operator name → its stream times in this batch, for operators with their own stream time."""
        by_target: dict[int, list[bytes]] = {}
        columns = (reports.column(name).to_pylist() for name in ("target", "advances"))
        for target, advances in zip(*columns, strict=True):
            by_target.setdefault(target, []).append(advances)
        timed = (operator.plan for operator in self.operators if operator.plan.has_own_stream_time)
        return {plan.name: Timeline(plan, by_target.get(plan.number, ()), before) for plan in timed}


_READ = (
    "target", "key", "value", "time", "side", "old", "window_start", "window_end", "foreign", "headers", *SORT_KEY,
)  # fmt: skip
_ROWS_AT_ONCE = 1_000
"""Rows become Python objects in small numbers, so that they are still in the processor's cache when they are used."""


class StageRun:
    """All operators of a stage in one batch."""

    def __init__(self, operators: dict[int, OperatorRun], only_stored: frozenset[int]) -> None:
        self.operators = operators
        self.output = StageOutput(only_stored=only_stored)
        for operator in operators.values():
            if operator.spec.chained_to is not None:
                self.output.listeners.setdefault(operator.spec.chained_to, []).append(operator)

    @classmethod
    def of(cls, stage: Stage, states: BatchStates, timelines: Mapping[str, Timeline]) -> Self:
        operators = {
            operator.number: OperatorRun(operator, states, timelines.get(operator.plan.clock))
            for operator in stage.operators
        }
        return cls(operators, stage.only_stored)

    def process(self, rows: pa.Table) -> None:
        """Sort the rows and pass each to its operator, which releases due results before and after the row."""
        output, operators = self.output, self.operators
        releasing = {
            number: [run for run in (operators[number], *output.listeners.get(number, ())) if run.releases is not None]
            for number in operators
        }
        # Keys only meet in releases. Without any, the rows of a key follow each other: while they are processed, the
        # key's state stays in the processor's cache. Results are sorted by position later.
        by_key = () if output.listeners or any(releasing.values()) else ("target", "key")
        ordered = rows.take(pa.array(in_order(rows, by_key)))
        self._load(ordered)
        changes, old_rows = self._changes(ordered), dict[int, Row]()
        for number, (target, position, row) in enumerate(self._rows(ordered)):
            for run in releasing[target]:
                run.release(output, position, with_row=False)
            output.start_row(position, row.after)
            if number not in changes:
                operators[target].process(row, output)
            elif row.old:
                old_rows[target] = row
                continue
            else:
                operators[target].change(old_rows.pop(target), row, output)
            for run in releasing[target]:
                run.release(output, position, with_row=True)

    def _rows(self, table: pa.Table) -> Iterator[tuple[int, Position, Row]]:
        """Target and position of each row, and the row as operators get it."""
        all_times = self._stream_times(table)
        for begin in range(0, len(table), _ROWS_AT_ONCE):
            rows = table.slice(begin, _ROWS_AT_ONCE)
            columns = {name: rows.column(name).to_pylist() for name in _READ}
            of_time = {name: times[begin : begin + _ROWS_AT_ONCE].tolist() for name, times in all_times.items()}
            bounds = zip(columns["window_start"], columns["window_end"], strict=True)
            windows = (None if start == NO_WINDOW else (start, end) for start, end in bounds)
            made = map(
                Row, columns["key"], columns["value"], columns["time"], of_time["before"], of_time["after"],
                columns["side"], columns["old"], windows,
                zip(of_time["left"], of_time["right"], strict=True), columns["foreign"], columns["headers"],
            )  # fmt: skip
            positions = zip(*(columns[name] for name in SORT_KEY), strict=True)
            yield from zip(columns["target"], positions, made, strict=True)

    def _stream_times(self, rows: pa.Table) -> dict[str, Times]:
        """The stream times before and after each row, and those of both sides of a join including the row."""
        known = {name: pc.fill_null(rows.column(name), BEFORE_ALL) for name in ("before", "after")}
        times = {name: np.array(column.to_numpy()) for name, column in known.items()}
        times |= {name: np.full(len(rows), BEFORE_ALL) for name in ("left", "right")}
        targets = rows.column("target").to_numpy()
        for number, run in self.operators.items():
            if run.timeline is not None and run.spec.plan.has_own_stream_time and not run.spec.plan.is_timed_by_source:
                indices = np.flatnonzero(targets == number)
                for name, of_operator in run.timeline.columns(rows.take(pa.array(indices))).items():
                    times[name][indices] = of_operator
        return times

    def _changes(self, rows: pa.Table) -> frozenset[int]:
        """Indices of the rows that are the old and the new value of a table's row that stays in its group."""
        subtracting = {number for number, run in self.operators.items() if isinstance(run.operator, TableAggregate)}
        if not subtracting:
            return frozenset()
        # One record may change several rows of a group, each with its own key, which is `foreign`.
        names = ("target", "old", "key", "sequence", "origin", "foreign")
        columns = [rows.column(name).to_pylist() for name in names]
        indices: list[int] = []
        last: dict[int, tuple[int, tuple[object, ...]]] = {}
        for number, (target, old, *group) in enumerate(zip(*columns, strict=True)):
            if target in subtracting and group[0] is not None:
                before, old_group = last.pop(target, (-1, ()))
                if old:
                    last[target] = number, tuple(group)
                elif old_group == tuple(group):
                    indices += (before, number)
        return frozenset(indices)

    def _load(self, rows: pa.Table) -> None:
        """Load the states of all keys, sorted because neighbours are close to each other in the shard."""
        for target in pc.unique(rows.column("target")).to_pylist():
            keys = rows.filter(pc.equal(rows.column("target"), target)).column("key")
            sorted_keys = pc.drop_null(pc.unique(keys)).sort().to_pylist()
            for run in (self.operators[target], *self.output.listeners.get(target, ())):
                run.load(sorted_keys)

    def close(self) -> None:
        """Close all operators after the last row, in their order, because results may go to a later operator."""
        for operator in self.operators.values():
            if operator.releases is not None:
                operator.release(self.output, END, with_row=True)
            self.output.headers = None
            self.output.start_row((LAST, operator.spec.number, b""), operator.closed)
            operator.finish(self.output)
            operator.close(self.output)
            operator.show(self.output)

    def changed(self) -> list[State]:
        """The changed states of all operators."""
        return [state for operator in self.operators.values() for state in operator.changed()]
