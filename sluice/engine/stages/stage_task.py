"""The task of a stage: passes one worker's rows, in order, through the stage's operators.

The worker's shard stores a version of each state per batch, so a retried batch starts from the same
states. If the driver has lost its lease, reading and writing states fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sluice.engine.batch.accounting import StreamTimeReader
from sluice.engine.batch.arrow_tasks import TaskOfBatch
from sluice.engine.batch.batch_start import BatchStart, RunningTask
from sluice.engine.batch.row_schemas import SCHEMA, STREAM_TIME
from sluice.engine.batch.side_outputs import BatchStats, SideOutputs, no_garbage_collection
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.stages.batch_states import BatchStates
from sluice.engine.stages.closing_run import ClosingRun
from sluice.engine.stages.operator_rows import COLUMNS as OPERATOR_COLUMNS
from sluice.engine.stages.operator_rows import OperatorRows
from sluice.engine.stages.operator_run import OperatorRun
from sluice.engine.stages.recorded_answers import NO_ANSWERS, RecordedAnswers
from sluice.engine.stages.shared_store import StoreLookup
from sluice.engine.stages.stage_output import StageOperator, StageOutput
from sluice.engine.stages.timeline import Timeline
from sluice.operators.base import LEFT, Row
from sluice.plan import Edge
from sluice.plan.step_counts import received_by_side, results_name
from sluice.state.shard.operator_states import State
from sluice.support.arrays import columns_named
from sluice.support.memory import release_memory_after_rows


@dataclass(frozen=True)
class Stage(TaskOfBatch):
    """The task of a stage, which runs on executors."""

    number: int
    stream_times: StreamTimeReader
    side_outputs: SideOutputs
    locations: tuple[str, ...]
    """Addresses of the workers' shards."""
    operators: tuple[StageOperator, ...]
    sharing: Mapping[int, tuple[Edge, ...]]
    """Operator of the stage → the edges that share the rows of this operator's edges."""
    only_stored: frozenset[int]
    """The operators whose results go only to their store."""
    topics: Mapping[int, str]
    """Source number → its topic."""
    epoch: int
    """Epoch of the lease under which states are read and written."""
    token: str = field(default="", repr=False)
    """The token that state servers require."""

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        """Process one worker's rows, and fire its wall-clock timers.

        Rows for other stages pass through.
        """
        start = task.start
        before = self.stream_times.before(start)
        received = StageRows(
            [operator.number for operator in self.operators],
            self.sharing,
            {operator.number: received_by_side(operator.plan) for operator in self.operators},
        )
        for batch in batches:
            if batch.num_rows:
                yield from received.add(batch)
        worker = received.worker
        if worker is None:
            worker = task.worker
        if received.worker is not None or self._has_due_results(before, worker):
            with no_garbage_collection():
                yield from self._run(received, worker, start, before)

    def _has_due_results(self, before: StreamTimes, worker: int) -> bool:
        """Return whether a wall-clock timer or a held-back result of the worker is due.

        If so, the stage must run even without rows.
        """
        for operator in self.operators:
            timer = before.timer_due(operator.plan.name, worker)
            if timer is not None and BEFORE_ALL < timer <= before.now:
                return True
            if before.has_reached_result(operator.plan.name, operator.plan.clock, worker):
                return True
        return False

    def _run(
        self,
        received: StageRows,
        worker: int,
        start: BatchStart,
        before: StreamTimes,
    ) -> Iterator[pa.RecordBatch]:
        batch = start.number
        timelines, row_bytes = self._timelines(received.reports, before), received.size
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            states = BatchStates(shard, worker, batch, self.epoch, before, start.shared)
            run = StageRun.of(self, states, timelines)
            yield from run.process(received.by_target)
            yield from run.close()
            shard.write_states(batch, run.operators, run.states_to_store(), self.epoch)
            timers = run.timers_after()
        stats = self._stats(run, timelines, timers)
        stats.row_bytes = {f"stage-{self.number}": row_bytes}
        stats.step_rows = dict(received.counts) | self._results(run.output)
        part = f"stage-{self.number}-{worker:05}"
        self.side_outputs.add_stats(part, stats)
        self.side_outputs.add_undecided(part, run.output.passed_over.reports())

    def _results(self, output: StageOutput) -> dict[str, int]:
        """Return the numbers of results, by the names of their counts."""
        counts: dict[str, int] = {}
        for operator in self.operators:
            name = results_name(operator.plan)
            # Not all results are made if a listener reads the operator's states instead, or if the
            # results go only to the operator's store.
            is_partial = operator.has_listeners or operator.number in self.only_stored
            if name is not None and not is_partial:
                counts[name] = output.results[operator.number]
        return counts

    def _stats(
        self,
        run: StageRun,
        timelines: Mapping[str, Timeline],
        timers: Mapping[str, int],
    ) -> BatchStats:
        """Return the counts and stream times after the batch, and when timers are due."""
        times = dict(timers)
        for clock, timeline in timelines.items():
            times |= timeline.after
            if timeline.closed_after >= 0:
                times[f"{CLOSED}/{clock}"] = timeline.closed_after
        output = run.output
        for part, corrections in output.passed_over.corrections.items():
            output.counts.update(corrections)
            output.by_partition.setdefault(part, Counter()).update(corrections)
        by_partition: dict[str, dict[str, int]] = {}
        for (source, number), counts in output.by_partition.items():
            by_partition[f"{self.topics[source]}-{number}"] = dict(counts)
        return BatchStats(dict(output.counts), times, by_partition=by_partition)

    def _timelines(
        self, reports: Mapping[int, list[bytes]], before: StreamTimes
    ) -> dict[str, Timeline]:
        """Return the stream times in this batch, by name, of operators that have their own."""
        timelines: dict[str, Timeline] = {}
        for operator in self.operators:
            plan = operator.plan
            if plan.has_own_stream_time:
                timelines[plan.name] = Timeline(plan, reports.get(plan.number, ()), before)
        return timelines


class StageRows:
    """The rows for a stage's operators, by operator, of all batches that a task has received."""

    def __init__(
        self,
        operators: Collection[int],
        sharing: Mapping[int, tuple[Edge, ...]] = MappingProxyType({}),
        counted: Mapping[int, Mapping[int, str]] = MappingProxyType({}),
    ) -> None:
        """Create empty rows.

        `counted`: operator → its sides whose rows are counted, with the names of the counts.
        """
        self._numbers = frozenset(operators)
        self._operators = pa.array(operators, pa.int32())
        self._sharing = sharing
        self._counted = counted
        self.counts: Counter[str] = Counter()
        """The numbers of received rows."""
        self.by_target: dict[int, list[dict[str, pa.Array]]] = {}
        """Operator → the columns of its rows in each batch."""
        self.reports: dict[int, list[bytes]] = {}
        """Operator → the reports on where its stream time advances."""
        self.worker: int | None = None
        """The worker that owns the rows; None if there are no rows for the stage."""
        self.size = 0
        """The bytes of the rows. Rows that several operators share count once."""

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add the rows for the stage.

        Yields the other rows, and the rows that later stages share with this stage.
        """
        of_stage = pc.and_(
            pc.is_in(batch.column("target"), self._operators), pc.invert(batch.column("emitted"))
        )
        if not pc.all(of_stage).as_py():
            yield batch.filter(pc.invert(of_stage))
            batch = batch.filter(of_stage)
        if not batch.num_rows:
            return
        self.worker = batch.column("worker")[0].as_py()
        is_report = pc.equal(batch.column("side"), STREAM_TIME)
        reports = batch.filter(is_report)
        targets_of_reports = reports.column("target").to_pylist()
        advances_reported = reports.column("advances").to_pylist()
        for target, advances in zip(targets_of_reports, advances_reported, strict=True):
            self.reports.setdefault(target, []).append(advances)
        if reports.num_rows:
            batch = batch.filter(pc.invert(is_report))
        self.size += batch.nbytes
        targets = pc.unique(batch.column("target")).to_pylist()
        for target in targets:
            # In most pipelines, all rows of a batch are for one operator, and nothing is copied.
            if len(targets) == 1:
                rows = batch
            else:
                rows = batch.filter(pc.equal(batch.column("target"), target))
            self._add_rows(target, rows)
            for edge in self._sharing.get(target, ()):
                shared = _shared_rows(rows, edge)
                if edge.target in self._numbers:
                    self._add_rows(edge.target, shared)
                else:
                    yield shared

    def _add_rows(self, target: int, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            columns = columns_named(rows, OPERATOR_COLUMNS)
            self.by_target.setdefault(target, []).append(columns)
            for side, name in self._counted.get(target, {}).items():
                self.counts[name] += pc.sum(pc.equal(rows.column("side"), side)).as_py()


def _shared_rows(rows: pa.RecordBatch, edge: Edge) -> pa.RecordBatch:
    """Convert rows of an operator to rows of an edge that shares them."""
    shares = edge.shares
    assert shares is not None
    assert edge.constant_path is not None
    is_shared = pc.equal(rows.column("side"), shares.side)
    if shares.needs_key:
        is_shared = pc.and_(is_shared, rows.column("key").is_valid())
    if not pc.all(is_shared).as_py():
        rows = rows.filter(is_shared)
    changed = {
        "target": pa.scalar(edge.target, pa.int32()),
        "side": pa.scalar(edge.side, pa.int32()),
        "path": pa.scalar(edge.constant_path, pa.binary()),
    }
    columns = columns_named(rows, SCHEMA.names)
    for name, value in changed.items():
        columns[name] = pa.repeat(value, rows.num_rows)
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class StageRun:
    """All operators of a stage in one batch."""

    def __init__(
        self,
        operators: dict[int, OperatorRun],
        only_stored: frozenset[int],
        answers: Mapping[int, RecordedAnswers] = NO_ANSWERS,
    ) -> None:
        self.operators = operators
        self.answers = answers
        """Number of an operator that calls a service or a database → its `RecordedAnswers`."""
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
            if operator.chained_to is not None and operator.plan.reads_windows:
                assert timeline is not None
                run: OperatorRun = ClosingRun(
                    operator, states, timeline, operators[operator.chained_to]
                )
            else:
                run = OperatorRun(operator, states, timeline)
            operators[operator.number] = run
        answers: dict[int, RecordedAnswers] = {}
        for number, run in operators.items():
            asking = run.operator.asking
            if isinstance(asking, StoreLookup):
                # Only a batch knows the snapshot that its records read.
                asking.read_at(states.snapshots, stage.locations, stage.token)
            if asking is not None:
                answers[number] = RecordedAnswers(run.spec, asking, states, stage.topics)
        return cls(operators, stage.only_stored, answers)

    def process(self, by_target: dict[int, list[dict[str, pa.Array]]]) -> Iterator[pa.RecordBatch]:
        """Pass all rows to their operators, one operator after the other.

        Yields results, and frees the rows.
        """
        # Operators do not depend on each other within a stage, unless one is chained to the other.
        # So each operator can process all of its rows before the next operator begins.
        for number, run in self.operators.items():
            if number not in by_target:
                continue
            rows = OperatorRows.of(by_target.pop(number), run.timeline_of_rows)
            # The received copies of the rows have been freed, so release their memory.
            release_memory_after_rows(len(rows))
            # A table whose results go only to its store needs only each key's last row.
            if number in self.output.only_stored and run.spec.has_states_in_store:
                rows = rows.last_of_keys()
            listeners = self.listeners.get(number, [])
            runs = (run, *listeners)
            if number in self.answers:
                yield from self.answers[number].process(rows, self.output)
            elif run.is_independent and not listeners:
                yield from run.process_by_key(rows, self.output)
            else:
                # Each step replaces `rows`, which frees the copy that is no longer needed.
                takes_results = all(each.operator.takes_last_results for each in listeners)
                if run.operator.takes_columns and takes_results:
                    rows = run.process_columns(rows, self.output, listeners)
                self._load(runs, rows)
                rows = rows.in_order()
                yield from self._process_in_order(runs, rows)
            self.output.settle(run.spec, rows)
            del rows
            yield from self.output.take()

    @staticmethod
    def _load(runs: Sequence[OperatorRun], rows: OperatorRows) -> None:
        """Load the states of all keys."""
        if runs[0].operator.reads_tables:
            runs[0].load_copied_rows(rows)
            keys = rows.keys(LEFT)
        else:
            keys = rows.keys()
        for run in runs:
            run.load(keys)

    def _process_in_order(
        self, runs: Sequence[OperatorRun], rows: OperatorRows
    ) -> Iterator[pa.RecordBatch]:
        """Pass rows, sorted by position, to the first operator.

        Send due results before and after each row.
        """
        output, operator = self.output, runs[0]
        for listener in runs[1:]:
            listener.expect_rows(rows.keys())
        releasing = [run for run in runs if run.releases is not None]
        replaced = operator.replaced_rows(rows)
        old_row: Row | None = None
        for number, (position, row) in enumerate(rows.rows()):
            for run in releasing:
                run.release(output, position, with_row=False)
            output.start_row(position, row.after)
            # The old and the new value of a table's row in the same group are one update.
            if number in replaced:
                old_row = row
                continue
            if old_row is None:
                operator.process(row, output)
            else:
                operator.change(old_row, row, output)
                old_row = None
            for run in releasing:
                run.release(output, position, with_row=True)
            if output.has_many_rows:
                yield from output.take()

    def close(self) -> Iterator[pa.RecordBatch]:
        """Close all operators in order after the last row.

        Their results may go to later operators.
        """
        for number, operator in self.operators.items():
            for listener in self.listeners.get(number, ()):
                listener.send_before_close(self.output)
            operator.close(self.output)
        yield from self.output.take()

    def states_to_store(self) -> list[State]:
        """Return the states of all operators' finished keys.

        The shard writes those that have changed.
        """
        states: list[State] = []
        for operator in self.operators.values():
            states += operator.changed
            states += operator.shared_states()
        return states

    def timers_after(self) -> dict[str, int]:
        """Return when the earliest timers and held-back results are due after the batch.

        The result has a time for each processor with timers, and for each operator that holds back
        results.
        """
        timers: dict[str, int] = {}
        for operator in self.operators.values():
            timers |= operator.timer_after() | operator.result_after()
        return timers
