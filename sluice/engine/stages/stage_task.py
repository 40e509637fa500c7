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
from sluice.engine.batch.batch_start import this_batch, this_worker
from sluice.engine.batch.row_schemas import (
    END,
    LAST,
    SCHEMA,
    SORT_KEY,
    STREAM_TIME,
    Position,
    sorted_indices,
)
from sluice.engine.batch.side_outputs import BatchStats, SideOutputs, no_garbage_collection
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes, Times
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.stages.column_aggregation import ColumnAggregation
from sluice.engine.stages.operator_run import BatchStates, OperatorRun
from sluice.engine.stages.stage_output import StageOperator, StageOutput
from sluice.engine.stages.timeline import Timeline
from sluice.operators.aggregation.aggregate import TableAggregate
from sluice.operators.base import LEFT, Row
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
    last_only: frozenset[int]
    """The operators for which only the last result of each key and window in a batch matters."""
    topics: Mapping[int, str]
    """Source number → its topic."""
    epoch: int
    """Epoch of the lease under which states are read and written."""
    token: str = field(default="", repr=False)
    """Token for state servers."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process one worker's rows, and fire its wall-clock timers. Rows for other stages pass through."""
        start = this_batch()
        before = self.stream_times.before(start)
        table = pa.Table.from_batches([batch for batch in batches if batch.num_rows], SCHEMA)
        targets = pa.array([operator.number for operator in self.operators], pa.int32())
        of_stage = pc.and_(
            pc.is_in(table.column("target"), targets),
            pc.invert(table.column("emitted")),
        )
        yield from table.filter(pc.invert(of_stage)).to_batches()
        rows = table.filter(of_stage)
        worker = rows.column("worker")[0].as_py() if rows.num_rows else this_worker()
        if rows.num_rows or self._has_due_timers(before, worker):
            with no_garbage_collection():
                yield from self._run(rows, worker, start.number, before)

    def _has_due_timers(self, before: StreamTimes, worker: int) -> bool:
        """Whether a wall-clock timer of the worker is due, even without rows."""
        due = [before.timer_due(operator.plan.name, worker) for operator in self.operators]
        return any(time is not None and BEFORE_ALL < time <= before.now for time in due)

    def _run(
        self,
        rows: pa.Table,
        worker: int,
        batch: int,
        before: StreamTimes,
    ) -> Iterator[pa.RecordBatch]:
        is_report = pc.equal(rows.column("side"), STREAM_TIME)
        timelines = self._timelines(rows.filter(is_report), before)
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            run = StageRun.of(self, BatchStates(shard, worker, batch, self.epoch, before), timelines)
            run.process(rows.filter(pc.invert(is_report)))
            run.close()
            shard.write_states(batch, run.operators, run.states_to_store(), self.epoch)
            timers = run.timers_after()
        stats = self._stats(run, timelines, timers)
        self.side_outputs.add_stats(f"stage-{self.number}-{worker:05}", stats)
        yield from run.output.batches()

    def _stats(
        self,
        run: StageRun,
        timelines: Mapping[str, Timeline],
        timers: Mapping[str, int],
    ) -> BatchStats:
        """The counts and stream times after the batch, and when timers are due."""
        times = dict(timers)
        for clock, timeline in timelines.items():
            times |= timeline.after
            if timeline.closed_after >= 0:
                times[f"{CLOSED}/{clock}"] = timeline.closed_after
        by_partition: dict[str, dict[str, int]] = {}
        for (source, number), counts in run.output.by_partition.items():
            by_partition[f"{self.topics[source]}-{number}"] = dict(counts)
        return BatchStats(dict(run.output.counts), times, by_partition=by_partition)

    def _timelines(self, reports: pa.Table, before: StreamTimes) -> dict[str, Timeline]:
        """Operator name → its stream times in this batch, for operators with their own stream time."""
        by_target: dict[int, list[bytes]] = {}
        columns = (reports.column(name).to_pylist() for name in ("target", "advances"))
        for target, advances in zip(*columns, strict=True):
            by_target.setdefault(target, []).append(advances)
        timelines: dict[str, Timeline] = {}
        for operator in self.operators:
            plan = operator.plan
            if plan.has_own_stream_time:
                timelines[plan.name] = Timeline(plan, by_target.get(plan.number, ()), before)
        return timelines


_COLUMNS_READ = (
    "target", "key", "value", "time", "side", "old", "window_start", "window_end", "foreign", "headers", *SORT_KEY,
)  # fmt: skip
_ROWS_AT_ONCE = 1_000
"""Rows become Python objects in small numbers, so that they are still in the processor's cache when they are used."""
_GROUPED_BY_KEY = ("target", "key")
"""Sorts the rows of a key one after the other, so that the key's state stays in the processor's cache.

Results do not change: keys only meet when stream time releases results, and the results are sorted by position later.
"""


class StageRun:
    """All operators of a stage in one batch."""

    def __init__(
        self, operators: dict[int, OperatorRun], only_stored: frozenset[int], last_only: frozenset[int] = frozenset()
    ) -> None:
        self.operators = operators
        self.last_only = last_only
        self.listeners: dict[int, list[OperatorRun]] = {}
        """Operator → the operators that get its results directly."""
        for operator in operators.values():
            if operator.spec.chained_to is not None:
                self.listeners.setdefault(operator.spec.chained_to, []).append(operator)
        self.output = StageOutput(listeners=self.listeners, only_stored=only_stored)

    @classmethod
    def of(cls, stage: Stage, states: BatchStates, timelines: Mapping[str, Timeline]) -> Self:
        operators: dict[int, OperatorRun] = {}
        for operator in stage.operators:
            timeline = timelines.get(operator.plan.clock)
            operators[operator.number] = OperatorRun(operator, states, timeline)
        return cls(operators, stage.only_stored, stage.last_only)

    def process(self, rows: pa.Table) -> None:
        """Sort the rows and pass each to its operator, which releases due results before and after the row."""
        output, operators = self.output, self.operators
        self._load_states(rows)
        rows = self._aggregate_in_columns(rows)
        releasing: dict[int, list[OperatorRun]] = {}
        for number in operators:
            runs = (operators[number], *self.listeners.get(number, ()))
            releasing[number] = [run for run in runs if run.releases is not None]
        # A processor that reads tables depends on the rows of other keys, too.
        reads_tables = any(run.reads_tables for run in operators.values())
        can_group_by_key = not (self.listeners or any(releasing.values()) or reads_tables)
        first = _GROUPED_BY_KEY if can_group_by_key else ()
        ordered = rows.take(pa.array(sorted_indices(rows, first)))
        changes = self._changes_within_groups(ordered)
        old_rows: dict[int, Row] = {}
        for number, (target, position, row) in enumerate(self._operator_rows(ordered)):
            for run in releasing[target]:
                run.release(output, position, with_row=False)
            output.start_row(position, row.after)
            # The old and the new value of a table's row in the same group are one update.
            if number not in changes:
                operators[target].process(row, output)
            elif row.old:
                old_rows[target] = row
                continue
            else:
                operators[target].change(old_rows.pop(target), row, output)
            for run in releasing[target]:
                run.release(output, position, with_row=True)

    def _aggregate_in_columns(self, rows: pa.Table) -> pa.Table:
        """Aggregate the rows whose order does not matter, and return the rest."""
        for number in self.last_only & self.operators.keys():
            aggregation = ColumnAggregation.of(self.operators[number], self.listeners.get(number, ()))
            if aggregation is not None:
                is_input = pc.equal(rows.column("target"), number)
                inputs = rows.filter(is_input)
                rest = aggregation.process(inputs, self._stream_times(inputs)["before"], self.output)
                rows = pa.concat_tables([rows.filter(pc.invert(is_input)), rest])
        return rows

    def _operator_rows(self, table: pa.Table) -> Iterator[tuple[int, Position, Row]]:
        """Target and position of each row, and the row as operators get it."""
        all_times = self._stream_times(table)
        for begin in range(0, len(table), _ROWS_AT_ONCE):
            rows = table.slice(begin, _ROWS_AT_ONCE)
            columns = {name: rows.column(name).to_pylist() for name in _COLUMNS_READ}
            end = begin + _ROWS_AT_ONCE
            times = {name: column[begin:end].tolist() for name, column in all_times.items()}
            bounds = zip(columns["window_start"], columns["window_end"], strict=True)
            windows = (None if start == NO_WINDOW else (start, end) for start, end in bounds)
            operator_rows = map(
                Row, columns["key"], columns["value"], columns["time"], times["before"], times["after"],
                columns["side"], columns["old"], windows,
                zip(times["left"], times["right"], strict=True), columns["foreign"], columns["headers"],
            )  # fmt: skip
            positions = zip(*(columns[name] for name in SORT_KEY), strict=True)
            yield from zip(columns["target"], positions, operator_rows, strict=True)

    def _stream_times(self, rows: pa.Table) -> dict[str, Times]:
        """Stream times before and after each row; for a join also the stream times of both sides, including the row."""
        times: dict[str, Times] = {}
        for name in ("before", "after"):
            times[name] = np.array(pc.fill_null(rows.column(name), BEFORE_ALL).to_numpy())
        for name in ("left", "right"):
            times[name] = np.full(len(rows), BEFORE_ALL)
        targets = rows.column("target").to_numpy()
        for number, run in self.operators.items():
            plan = run.spec.plan
            # The task of the source has put the times of these operators into their rows.
            if plan.is_timed_by_source or not plan.has_own_stream_time:
                continue
            if run.timeline is not None:
                indices = np.flatnonzero(targets == number)
                times_of_rows = run.timeline.stream_times(rows.take(pa.array(indices)))
                for name, of_operator in times_of_rows.items():
                    times[name][indices] = of_operator
        return times

    def _changes_within_groups(self, rows: pa.Table) -> frozenset[int]:
        """Indices of the rows that are the old and the new value of a table's row that stays in its group.

        As in Kafka Streams, such a change is one update of the group. A change of group is two updates.
        """
        subtracting: set[int] = set()
        for number, run in self.operators.items():
            if isinstance(run.operator, TableAggregate):
                subtracting.add(number)
        if not subtracting:
            return frozenset()
        # One record may change several rows of a group. `foreign` is the key of the
        # changed row, and tells them apart.
        names = ("target", "old", "key", "sequence", "origin", "foreign")
        columns = [rows.column(name).to_pylist() for name in names]
        indices: list[int] = []
        last_old_row: dict[int, tuple[int, tuple[object, ...]]] = {}
        """Target → the index and the group of its last row, if that is an old value."""
        for number, (target, old, group_key, *change) in enumerate(zip(*columns, strict=True)):
            if target not in subtracting or group_key is None:
                continue
            group_change = group_key, *change
            old_number, old_group_change = last_old_row.pop(target, (-1, ()))
            if old:
                last_old_row[target] = number, group_change
            elif old_group_change == group_change:
                indices += (old_number, number)
        return frozenset(indices)

    def _load_states(self, rows: pa.Table) -> None:
        """Load the states of all keys, sorted because neighbours are close to each other in the shard."""
        for target in pc.unique(rows.column("target")).to_pylist():
            of_target = rows.filter(pc.equal(rows.column("target"), target))
            if self.operators[target].reads_tables:
                of_target = self._load_copied_rows(self.operators[target], of_target)
            keys = of_target.column("key")
            sorted_keys = pc.drop_null(pc.unique(keys)).sort().to_pylist()
            for run in (self.operators[target], *self.listeners.get(target, ())):
                run.load(sorted_keys)

    @staticmethod
    def _load_copied_rows(run: OperatorRun, rows: pa.Table) -> pa.Table:
        """Load the rows of tables that change. Returns the other rows."""
        is_record = pc.equal(rows.column("side"), LEFT)
        changes = rows.filter(pc.and_(pc.invert(is_record), rows.column("key").is_valid()))
        sides, keys = (changes.column(name).to_pylist() for name in ("side", "key"))
        run.copied_rows.load(sorted({f"{side}:{key}" for side, key in zip(sides, keys, strict=True)}))
        return rows.filter(is_record)

    def close(self) -> None:
        """Close all operators after the last row. An operator's results may go to a later one, so the order matters."""
        for operator in self.operators.values():
            if operator.releases is not None:
                operator.release(self.output, END, with_row=True)
            # Results at the end of the batch come from no record, so they have no headers.
            self.output.headers = None
            self.output.start_row((LAST, operator.spec.number, b""), operator.closed)
            operator.send_last_results(self.output)
            operator.close(self.output)
            operator.put_store_changes(self.output)

    def states_to_store(self) -> list[State]:
        """The states of all operators' loaded keys; the shard writes those that have changed."""
        states: list[State] = []
        for operator in self.operators.values():
            states += operator.states_to_store()
        return states

    def timers_after(self) -> dict[str, int]:
        """When the earliest wall-clock timer of each processor is due after the batch, by name."""
        timers: dict[str, int] = {}
        for operator in self.operators.values():
            timers |= operator.timer_after()
        return timers
