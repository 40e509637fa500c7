"""The task after the stateless steps: turns records into operators' rows and groups' state rows.

Each operator has a stream time per partition. If all rows of an operator come from one topic, a
partition's task knows the stream time, and each row includes the stream time before and after its
record. Every task also reports where its rows advance the stream time of an operator (`advances`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from typing_extensions import override

from sluice.engine.batch.accounting import (
    PartitionResults,
    RecordSinks,
    StreamTimeReader,
    TaskResults,
    boolean_mask,
    columns_of_records,
    sources_of,
)
from sluice.engine.batch.arrow_tasks import TaskOfBatch
from sluice.engine.batch.batch_start import BatchStart, RunningTask
from sluice.engine.batch.record_headers import headers_of_records
from sluice.engine.batch.row_schemas import origins, rows
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, advance
from sluice.engine.combine.totals import Totals, WindowedRecords
from sluice.engine.combine.windowing import Windowing
from sluice.engine.stages.advances import Advances, only_last_times
from sluice.errors import EngineError, sentence
from sluice.operators.base import LEFT
from sluice.plan import AggregationGroup, Edge, Job, PlannedOperator
from sluice.support.arrays import Indices, Integers, Mask, Times
from sluice.values.record_places import Partition
from sluice.values.row_order import END_OF_RECORD, START


@dataclass(kw_only=True)
class _TaskResults(TaskResults):
    """The results, windowed records and advances of stream time that a task has collected."""

    windowing: Windowing
    windowed: WindowedRecords
    advances: Advances

    def time(self, name: str, part: Partition) -> int:
        """Return the current stream time of an operator in a partition."""
        topic, number = part
        if part in self.parts:
            time = self.parts[part].times.get(f"{name}/{topic}/{number}")
            if time is not None:
                return time
        return self.before.of(name, topic, number)


@dataclass(frozen=True)
class Ingest(TaskOfBatch):
    """Creates the operators' rows and the groups' state rows from one task's records."""

    stream_times: StreamTimeReader
    sinks: RecordSinks
    groups: tuple[AggregationGroup, ...]
    totals: Totals
    operators: tuple[PlannedOperator, ...]
    workers: int

    @classmethod
    def of(
        cls,
        job: Job,
        totals: Totals,
        side_outputs: SideOutputs,
        partitions: Mapping[str, int],
    ) -> Self:
        """Return the ingest of a job. `partitions`: topic → number of partitions."""
        stream_times = StreamTimeReader.of(job, partitions)
        sinks = RecordSinks.of(job, side_outputs)
        return cls(stream_times, sinks, job.groups, totals, job.operators, job.pipeline.workers)

    @staticmethod
    def columns(job: Job) -> dict[str, str]:
        """Return column → its SQL, for the columns that the task reads."""
        names: list[str] = []
        for group in job.groups:
            names += [group.passed, group.key, *group.inputs]
            if group.null:
                names.append(group.null)
            if group.late is not None:
                names += [group.late_key, group.late_value]
        for operator in job.operators:
            for edge in operator.edges_from_records:
                names += [edge.column, edge.key_column, edge.value_column]
                if edge.foreign is not None:
                    names.append(edge.foreign_column)
                if edge.path_column is not None:
                    names.append(edge.path_column)
        if job.has_operators:
            names += ["_sequence", "_offset"]
        return columns_of_records(job) | dict(zip(names, names, strict=True))

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        results: _TaskResults | None = None
        # Each row of a record has the number of all the record's rows, so they must be in one
        # batch.
        if self.operators:
            batches = whole_records(batches)
        for batch in batches:
            if batch.num_rows:
                results = results or self._new_task(task.start)
                yield from self._rows(batch, results)
        if results is not None:
            yield from results.windowed.rest()
            # An operator's report goes to every worker. So every worker runs the operator, even if
            # it has no rows for the operator. A timer of the worker may be due, or a window may
            # close because a partition has become idle.
            topics = {topic for topic, _ in results.parts}
            with_records: list[PlannedOperator] = []
            for operator in self.operators:
                if operator.has_own_stream_time and not topics.isdisjoint(operator.topics):
                    with_records.append(operator)
            yield from results.advances.reports(with_records, self.workers)
            results.end(self.sinks)

    def _new_task(self, start: BatchStart) -> _TaskResults:
        before = self.stream_times.before_reading(start)
        return _TaskResults(
            before=before,
            windowing=Windowing(self.groups, before),
            windowed=WindowedRecords(self.totals),
            advances=Advances(only_last_times(self.operators)),
        )

    def _rows(self, batch: pa.RecordBatch, task: _TaskResults) -> Iterator[pa.RecordBatch]:
        parts = list(self.sinks.partitions_of(batch))
        undecided = np.zeros(batch.num_rows, np.int64)
        for part, mask in parts:
            results = task.parts.setdefault(part, PartitionResults())
            records = batch
            if mask is not None:
                records = batch.filter(pa.array(mask))
            outcome = self.sinks.collect(records, results)
            for group, windowed in task.windowing.windowed(records, part, results, outcome):
                yield from task.windowed.add_records(group, windowed)
            # Count records only after all groups: a record that any group aggregates is applied,
            # not late.
            undecided[_rows_in(mask)] = results.count_records(outcome)
        if not self.operators:
            return
        positions = self._positions(batch)
        for operator in self.operators:
            if operator.timed_by_topics:
                self._add_times_of_records(batch, operator, positions, task)
            for side in operator.edges_from_records:
                passed = boolean_mask(batch.column(side.column))
                advancing = self._advancing(batch, side, passed)
                if passed.any() or advancing.any():
                    yield self._operator_rows(
                        batch,
                        operator,
                        side,
                        passed,
                        advancing,
                        undecided,
                        parts,
                        positions,
                        task,
                    )

    def _positions(self, batch: pa.RecordBatch) -> dict[str, Times]:
        """Return the sequence and origin of every record.

        Raises EngineError if a number of a partition or an offset is too large for an origin.
        """
        offsets = batch.column("_offset").to_numpy()
        origin = np.zeros(len(offsets), np.int64)
        for source, partition, mask in sources_of(batch):
            of_partition = _rows_in(mask)
            try:
                origin[of_partition] = origins(source, partition, offsets[of_partition])
            except OverflowError as error:
                raise EngineError(
                    f"{self.sinks.topics[source]}, partition {partition}, cannot be read: "
                    f"{sentence(error)}",
                    next_step="Copy the records to a new topic, so that its partition numbers and "
                    "offsets are smaller, and read that topic.",
                ) from None
        return {"sequence": batch.column("_sequence").to_numpy(), "origin": origin}

    def _operator_rows(
        self,
        batch: pa.RecordBatch,
        operator: PlannedOperator,
        side: Edge,
        passed: Mask,
        advancing: Mask,
        undecided: Integers,
        parts: list[tuple[Partition, Mask | None]],
        positions: dict[str, Times],
        task: _TaskResults,
    ) -> pa.RecordBatch:
        """Return the rows for one side of an operator.

        Also records in `task` which rows advance the operator's stream time.
        """
        indices = np.flatnonzero(passed)
        taken = pa.array(indices)
        columns: dict[str, pa.Array | int | bool | str | bytes] = {
            "target": operator.number,
            "side": side.side,
        }
        columns["key"] = batch.column(side.key_column).take(taken)
        columns["value"] = batch.column(side.value_column).take(taken)
        if side.foreign is not None:
            columns["foreign"] = batch.column(side.foreign_column).take(taken)
        position = _positions_at(positions, indices)
        # If no step turns a record into several rows, all rows have the same path.
        if side.path_column is None:
            position["path"] = pa.repeat(pa.scalar(side.constant_path, pa.binary()), len(indices))
        else:
            position["path"] = batch.column(side.path_column).take(taken)
        position["time"] = batch.column("_time").take(taken)
        columns["undecided"] = pa.array(undecided[indices], pa.int32())
        headers = headers_of_records(batch)
        if headers is not None:
            position["headers"] = headers.take(taken)
        if operator.has_own_stream_time and not side.is_copied:
            task.advances.add_rows(operator, side.side, advancing[indices], position)
            self._add_other_advances(batch, operator, side, advancing & ~passed, positions, task)
            if operator.is_timed_by_source:
                before, after = self._stream_times(batch, operator, advancing, parts, task)
                position |= {"before": pa.array(before[indices]), "after": pa.array(after[indices])}
        return rows(len(indices), columns | position)

    def _advancing(self, batch: pa.RecordBatch, side: Edge, passed: Mask) -> Mask:
        """Return a mask of the records that advance stream time.

        Records that lack a key or a value that the operator needs do not advance it, except if
        every record counts.
        """
        if side.counts_every_record:
            return self._are_of(batch, side.topics)
        advancing = passed
        for is_needed, column in (
            (side.requires_key, side.key_column),
            (side.requires_value, side.value_column),
        ):
            if is_needed:
                advancing = advancing & boolean_mask(batch.column(column).is_valid())
        return advancing

    def _add_times_of_records(
        self,
        batch: pa.RecordBatch,
        operator: PlannedOperator,
        positions: dict[str, Times],
        task: _TaskResults,
    ) -> None:
        """Add reports for all records of topics that advance the stream time of a processor.

        The processor comes after other operators. Stream time advances before all rows of such a
        record.
        """
        of_topics = self._are_of(batch, operator.timed_by_topics)
        count = int(of_topics.sum())
        if count:
            columns = _positions_at(positions, of_topics)
            columns["path"] = pa.repeat(pa.scalar(START, pa.binary()), count)
            columns["time"] = batch.column("_time").filter(pa.array(of_topics))
            task.advances.add_rows(operator, LEFT, np.ones(count, bool), columns)

    def _are_of(self, batch: pa.RecordBatch, topics: tuple[str, ...]) -> Mask:
        """Return a mask of the records of these topics."""
        numbers: list[int] = []
        for number, topic in self.sinks.topics.items():
            if topic in topics:
                numbers.append(number)
        return np.isin(batch.column("_source").to_numpy(), numbers)

    @staticmethod
    def _add_other_advances(
        batch: pa.RecordBatch,
        operator: PlannedOperator,
        side: Edge,
        others: Mask,
        positions: dict[str, Times],
        task: _TaskResults,
    ) -> None:
        """Add reports for records that advance stream time but have no row for the operator.

        Stream time advances after all rows of such a record.
        """
        count = int(others.sum())
        if count:
            columns = _positions_at(positions, others)
            columns["path"] = pa.repeat(pa.scalar(END_OF_RECORD, pa.binary()), count)
            columns["time"] = batch.column("_time").filter(pa.array(others))
            task.advances.add_rows(operator, side.side, np.ones(count, bool), columns)

    @staticmethod
    def _stream_times(
        batch: pa.RecordBatch,
        operator: PlannedOperator,
        advancing: Mask,
        parts: list[tuple[Partition, Mask | None]],
        task: _TaskResults,
    ) -> tuple[Times, Times]:
        """Stream time before and after every record."""
        times = batch.column("_time").to_numpy()
        all_before, all_after = np.full(len(times), BEFORE_ALL), np.full(len(times), BEFORE_ALL)
        for part, mask in parts:
            if part[0] not in operator.topics:
                continue
            if mask is None:
                in_part = np.ones(len(times), bool)
            else:
                in_part = mask
            # Stream time never falls below the time up to which windows are closed, even if a
            # partition that was idle gets records again.
            closed = task.before.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
            before, after = advance(
                times,
                advancing & in_part,
                max(task.time(operator.clock, part), closed),
            )
            all_before[in_part], all_after[in_part] = before[in_part], after[in_part]
            if (advancing & in_part).any():
                task.parts[part].times[f"{operator.clock}/{part[0]}/{part[1]}"] = int(after[-1])
        return all_before, all_after


def whole_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches that keep all rows of a record together.

    A step may have turned a record into many rows.
    """
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if held is None:
            held = batch
            continue
        divided = _rows_of_last_record(held, batch)
        if divided < held.num_rows:
            yield held.slice(0, held.num_rows - divided)
        if divided:
            held = pa.concat_batches([held.slice(held.num_rows - divided), batch])
        else:
            held = batch
    if held is not None:
        yield held


def _rows_of_last_record(batch: pa.RecordBatch, following: pa.RecordBatch) -> int:
    """Return how many rows at the end of `batch` belong to a record that `following` continues."""
    count: int = batch.num_rows
    last, begin = count - 1, 0
    for name in ("_offset", "_partition", "_source"):
        numbers = batch.column(name).to_numpy()
        if numbers[last] != following.column(name)[0].as_py():
            return 0
        others = np.flatnonzero(numbers != numbers[last])
        if len(others):
            begin = max(begin, int(others[-1]) + 1)
    return count - begin


def _rows_in(mask: Mask | None) -> Mask | slice:
    """Return an index of the rows in a mask; None is the mask of all rows."""
    return slice(None) if mask is None else mask


def _positions_at(positions: Mapping[str, Times], chosen: Indices | Mask) -> dict[str, pa.Array]:
    """Return the columns of the positions of some rows, given by indices or as a mask."""
    return {name: pa.array(numbers[chosen]) for name, numbers in positions.items()}
