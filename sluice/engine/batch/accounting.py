"""Collects a task's results after the stateless steps: output records, counts and stream times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.dead_letters import RejectedRecord, dead_letter_records
from sluice.engine.batch.record_headers import (
    RAW,
    concatenate_records,
    headers_of_records,
    with_headers,
)
from sluice.engine.batch.record_outcomes import Outcome, RecordOutcome
from sluice.engine.batch.row_schemas import origins
from sluice.engine.batch.side_outputs import BatchStats, SideOutputs, part_name
from sluice.engine.batch.stream_time import SEEN, StreamTimes
from sluice.errors import EngineError, RecordFailed
from sluice.plan import Expectation, Failure, Job, Sink
from sluice.plan.arrow_support import failure_columns
from sluice.plan.planned_operators import edge_column, key_column
from sluice.sql.arrow_values import mask_of
from sluice.support.arrays import Indices, Integers, Mask
from sluice.values.record_places import Partition
from sluice.values.sink_tables import POSITION

_OF_EVERY_RECORD = ("_source", "_partition", "_offset", "_time", "_sequence", RAW)
"""The columns, besides key and value, from which output records are made. A batch may lack some of
them."""


@dataclass
class PartitionResults:
    """The counts and records that a task has collected for one partition of a batch so far."""

    counts: Counter[str] = field(default_factory=Counter)
    step_rows: Counter[str] = field(default_factory=Counter)
    """The numbers of records that groups have received."""
    outputs: dict[str, list[pa.Table]] = field(default_factory=dict)
    """Topic → tables of output records for the topic."""
    times: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    """Name of the column with a step's errors → the offset of the last record for which the step
    failed."""
    last_dead_letter: int = -1
    """The offset of the last record that became a dead letter; -1 if no record did."""
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Table → the offset of the last record with rows for it, and the number of these rows so
    far."""
    _last: tuple[int, int] | None = None
    """The offset of the last row's record, and the record's `Outcome`.

    This record is not counted yet, because the next rows may belong to it.
    """

    def count_records(self, outcome: RecordOutcome) -> Integers:
        """Count each record once, under the first `Outcome` that applies to any of its rows.

        Returns the `undecided` number of each row (see `record_outcomes`).
        """
        best, undecided = outcome.decided()
        if outcome.records is None:
            self._count_outcomes(best)
            return undecided
        # A step such as flat_map turns a record into several rows. These rows follow each other,
        # and may be divided between two batches of rows.
        first = _first_rows(outcome.records)
        of_records = np.minimum.reduceat(best, first)
        if self._last is not None and self._last[0] == outcome.records[0]:
            of_records[0] = min(of_records[0], self._last[1])
        elif self._last is not None:
            self.counts[Outcome(self._last[1]).count] += 1
        self._count_outcomes(of_records[:-1])
        self._last = int(outcome.records[-1]), int(of_records[-1])
        return undecided

    def row_places(
        self,
        sink: Sink,
        rows: pa.RecordBatch,
        topics: Mapping[int, str],
    ) -> dict[str, pa.Array]:
        """Return the columns that identify a row appended to a table.

        They contain the place of the row's record in its topic, and the row's number among the
        record's rows.
        """
        offsets = rows.column("_offset").to_numpy()
        first = _first_rows(offsets)
        lengths = np.diff(first, append=len(offsets))
        numbers = np.arange(len(offsets)) - np.repeat(first, lengths)
        last_offset, count = self.placed.get(sink.topic, (-1, 0))
        # If the previous batch ended with rows of the same record, continue their numbering.
        if offsets[0] == last_offset:
            numbers[: lengths[0]] += count
        self.placed[sink.topic] = int(offsets[-1]), int(numbers[-1]) + 1
        topic = topics[rows.column("_source")[0].as_py()]
        places = [
            pa.repeat(topic, len(offsets)),
            rows.column("_partition"),
            rows.column("_offset"),
            pa.array(numbers),
        ]
        return dict(zip(POSITION, places, strict=True))

    def _count_outcomes(self, outcomes: Integers) -> None:
        for kind, number in enumerate(np.bincount(outcomes, minlength=len(Outcome)).tolist()):
            # The counts `applied` and `filtered` are reported even if they are 0.
            if number or kind in (Outcome.APPLIED, Outcome.FILTERED):
                self.counts[Outcome(kind).count] += number

    def count_last_record(self) -> None:
        if self._last is not None:
            self.counts[Outcome(self._last[1]).count] += 1
            self._last = None


def _first_rows(offsets: Integers) -> Indices:
    """Return the indices of each record's first row. The rows of a record follow each other."""
    is_first = np.concatenate(([True], offsets[1:] != offsets[:-1]))
    return np.flatnonzero(is_first)


@dataclass(frozen=True)
class StreamTimeReader:
    """Reads the stream times at the start of a batch. Used in tasks."""

    partitions: Mapping[str, int]
    """Topic of each stream → its number of partitions."""
    idle_timeout_ms: int | None
    goes_on_when_idle: bool

    @classmethod
    def of(cls, job: Job, partitions: Mapping[str, int]) -> Self:
        counts = {source.topic: partitions[source.topic] for source in job.streams}
        goes_on_when_idle = job.pipeline.advance_when_idle_ms is not None
        return cls(counts, job.pipeline.idle_timeout_ms, goes_on_when_idle)

    def before(self, start: BatchStart) -> StreamTimes:
        """Return the stream times from which a stage continues."""
        return self._at(start, start.times)

    def before_reading(self, start: BatchStart) -> StreamTimes:
        """Return the stream times from which a task that reads records continues."""
        return self._at(start, start.read_times)

    def _at(self, start: BatchStart, times: Mapping[str, int]) -> StreamTimes:
        return StreamTimes(
            times, self.partitions, start.begun, self.idle_timeout_ms, self.goes_on_when_idle
        )


@dataclass
class TaskResults:
    """The counts and records that one task of a batch has collected so far, by partition."""

    before: StreamTimes
    """The stream times at the start of the batch."""
    parts: dict[Partition, PartitionResults] = field(default_factory=dict)

    def end(self, sinks: RecordSinks) -> None:
        """Add each partition's output records, counts and stream times to the side outputs."""
        for partition, results in self.parts.items():
            sinks.add_side_outputs(partition, results, self.before.now)


@dataclass(frozen=True)
class RecordSinks:
    """Collects the output records and dead letters of stateless steps, and records' outcomes."""

    side_outputs: SideOutputs
    sinks: tuple[Sink, ...]
    expectations: tuple[Expectation, ...]
    topics: Mapping[int, str]
    passes: tuple[tuple[str, str | None], ...]
    """Two columns for each side of an operator after the stateless steps. A record goes to this
    side if the first column is true and the second column, if there is one, is not null."""
    failing: tuple[Failure, ...]
    dead_letters: str

    @classmethod
    def of(cls, job: Job, side_outputs: SideOutputs) -> Self:
        passes: list[tuple[str, str | None]] = []
        for edge in job.edges_from(0):
            passes.append((edge.column, None))
        for operator in job.operators:
            for edge in operator.edges:
                if edge.shares is not None:
                    column = edge_column(edge.shares.target, edge.shares.side)
                    needed = key_column(column) if edge.shares.needs_key else None
                    passes.append((column, needed))
        return cls(
            side_outputs,
            job.stream_sinks,
            job.expectations,
            job.topics_by_source,
            tuple(passes),
            job.failures_before_operators,
            job.pipeline.dead_letters,
        )

    def partitions_of(self, batch: pa.RecordBatch) -> Iterator[tuple[Partition, Mask | None]]:
        """Yield each partition in a batch, with the mask of its records.

        If the batch has only one partition, there is no mask. A batch of rows that Spark SQL has
        computed can have rows of all partitions that its task reads.
        """
        for source, partition, mask in sources_of(batch):
            yield (self.topics[source], partition), mask

    def collect(self, batch: pa.RecordBatch, results: PartitionResults) -> RecordOutcome:
        """Add the output records of a partition's records to `results`. Return their outcomes."""
        count = batch.num_rows
        applied = np.zeros(count, bool)
        for sink in self.sinks:
            passed = boolean_mask(batch.column(sink.passed))
            applied |= passed
            if passed.any():
                records = self._output_records(sink, batch, passed, results)
                results.outputs.setdefault(sink.topic, []).append(records)
        for expectation in self.expectations:
            for name, column in (
                (expectation.count_of_records, expectation.passed),
                (expectation.count_of_broken, expectation.broken),
            ):
                results.counts[name] += int(boolean_mask(batch.column(column)).sum())
        for_operators = np.zeros(count, np.int64)
        for name, needed in self.passes:
            passed = boolean_mask(batch.column(name))
            if needed is not None:
                passed = passed & boolean_mask(batch.column(needed).is_valid())
            for_operators += passed
        offsets = None
        if "_offset" in batch.schema.names:
            offsets = batch.column("_offset").to_numpy()
        rejected, skipped = self._reject_failures(batch, offsets, results)
        return RecordOutcome(offsets, applied, for_operators, rejected, skipped)

    def _output_records(
        self,
        sink: Sink,
        batch: pa.RecordBatch,
        passed: Mask,
        results: PartitionResults,
    ) -> pa.Table:
        """Return the output records of the records that reach a sink."""
        wanted = (sink.key, sink.value, *_OF_EVERY_RECORD)
        names: list[str] = []
        for name in batch.schema.names:
            if name in wanted:
                names.append(name)
        chosen = batch.select(names).filter(pa.array(passed))
        columns = {
            "key": chosen.column(sink.key),
            "value": chosen.column(sink.value),
            "timestamp": chosen.column("_time"),
        }
        columns |= _position(chosen)
        # Appended rows have no key. A repeated batch finds the rows that it has already written by
        # their positions.
        if sink.appends:
            columns |= results.row_places(sink, chosen, self.topics)
        records = pa.table(columns)
        # As in Kafka Streams, an output record keeps the headers of the record from which it was
        # made. A table's row has no headers.
        if sink.table is None:
            records = with_headers(records, headers_of_records(chosen))
        return records

    def _reject_failures(
        self,
        batch: pa.RecordBatch,
        offsets: Integers | None,
        results: PartitionResults,
    ) -> tuple[Mask, Mask]:
        """Return two masks: of the rows that a step rejected, and of the rows that it skipped.

        Only the first failure of a record makes a dead letter. `offsets` has the offset of each
        row's record; None if each record has one row.
        """
        rejected, skipped = np.zeros(batch.num_rows, bool), np.zeros(batch.num_rows, bool)
        dead_letters: dict[int, RejectedRecord] = {}
        for failure in self.failing:
            step, error = failure.step, batch.column(failure.column)
            failed = boolean_mask(error.is_valid())
            if not failed.any():
                continue
            rows = np.flatnonzero(failed)
            if step.on_error == "fail":
                raise _failure_error(failure, batch, int(rows[0]))
            if step.on_error == "skip":
                skipped |= failed
            else:
                rejected |= failed
            # Count a record once, even if other steps have turned it into several rows. The first
            # rows may belong to the previous batch's last record, whose failure has been counted
            # already.
            if offsets is not None:
                last_offset = results.rejected.get(failure.column, -1)
                failed_offsets = offsets[rows]
                rows = rows[np.diff(failed_offsets, prepend=last_offset) != 0]
                # The next batch of this task may begin with more rows of the last record, so keep
                # its offset.
                results.rejected[failure.column] = int(failed_offsets[-1])
            results.counts[f"failed/{step.name}"] += len(rows)
            if step.on_error != "dead_letter":
                continue
            for row in rows.tolist():
                record = row if offsets is None else int(offsets[row])
                # The record may already have become a dead letter, because of a row in the previous
                # batch.
                if record != results.last_dead_letter and record not in dead_letters:
                    dead_letters[record] = RejectedRecord(
                        row, "processing", error[row].as_py(), step.title, step.at
                    )
        if dead_letters:
            in_order = [dead_letters[record] for record in sorted(dead_letters)]
            table = pa.Table.from_batches([dead_letter_records(_records_as_read(batch), in_order)])
            results.outputs.setdefault(self.dead_letters, []).append(table)
            if offsets is not None:
                results.last_dead_letter = max(dead_letters)
        return rejected, skipped

    def add_side_outputs(self, partition: Partition, results: PartitionResults, now: int) -> None:
        """Add one partition's output records, counts and stream times to the side outputs."""
        topic, number = partition
        name = part_name("part", topic, number)
        # The last record has not been counted yet, because more of its rows could have followed.
        results.count_last_record()
        for output, tables in results.outputs.items():
            self.side_outputs.add_records(output, name, concatenate_records(tables))
        times = results.times | {f"{SEEN}/{topic}/{number}": now}
        stats = BatchStats(
            dict(results.counts), times, f"{topic}-{number}", step_rows=dict(results.step_rows)
        )
        self.side_outputs.add_stats_of_reading(name, stats)


def _records_as_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    for name in ("topic", "partition", "offset", "timestamp"):
        columns[name] = batch.column(f"_{name}")
    for name in ("key", "value", "headers"):
        columns[name] = batch.column(f"_raw_{name}")
    return pa.RecordBatch.from_pydict(columns)


def columns_of_records(job: Job) -> dict[str, str]:
    """Return the columns by which records are counted and sent to topics, with their SQL."""
    names = ["_source", "_partition", "_time"]
    if "_offset" in job.metadata:
        names.append("_offset")
    for sink in job.stream_sinks:
        names += [sink.passed, sink.key, sink.value]
    for expectation in job.expectations:
        names += [expectation.passed, expectation.broken]
    failures = job.failures_before_operators
    # The dead letter of a failed step needs the whole record, not only its columns.
    if failures:
        names += ["_topic", "_timestamp", "_raw_key", "_raw_value"]
    if failures or job.keeps_headers:
        names.append(RAW)
    columns = dict(zip(names, names, strict=True))
    for column in failure_columns(job):
        columns[column.name] = column.sql
    return columns


def _position(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns `sequence` and `origin`, from which the driver finds the order of records.

    Returns no columns if the job has no operators.
    """
    # If the job has no operators, results do not depend on the order across partitions, so records
    # need no positions.
    if "_sequence" not in batch.schema.names:
        return {}
    source = batch.column("_source")[0].as_py()
    partition = batch.column("_partition")[0].as_py()
    numbers = origins(source, partition, batch.column("_offset").to_numpy())
    return {"sequence": batch.column("_sequence"), "origin": pa.array(numbers)}


def _failure_error(failure: Failure, batch: pa.RecordBatch, row: int) -> EngineError:
    """Return the error that ends the run when a step with `on_error="fail"` fails."""
    topic = batch.column("_topic")[row].as_py()
    partition = batch.column("_partition")[row].as_py()
    offset = batch.column("_offset")[row].as_py()
    error = batch.column(failure.column)[row].as_py()
    return RecordFailed(
        f"{failure.step} failed for the record of {topic}, partition {partition}, offset {offset}: "
        f"{error}",
        next_step=(
            "Correct the step or the program that writes the topic, or set the step's "
            '`on_error` to "dead_letter" or "skip".'
        ),
    )


def sources_of(batch: pa.RecordBatch) -> Iterator[tuple[int, int, Mask | None]]:
    """Yield each source and partition in a non-empty batch, with the mask of its records.

    If the batch has only one partition, there is no mask.
    """
    sources = batch.column("_source").to_numpy()
    partitions = batch.column("_partition").to_numpy()
    # Most batches have one partition. They need no mask, so their columns are not copied.
    if (sources == sources[0]).all() and (partitions == partitions[0]).all():
        yield int(sources[0]), int(partitions[0]), None
        return
    for source, partition in dict.fromkeys(zip(sources.tolist(), partitions.tolist(), strict=True)):
        yield source, partition, (sources == source) & (partitions == partition)


def boolean_mask(booleans: pa.Array) -> Mask:
    """Return a mask of the rows for which a Boolean column is true. Null counts as false."""
    return mask_of(booleans, len(booleans))
