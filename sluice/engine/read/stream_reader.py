"""The task that decodes streams' records. `Reader` also serves global tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sluice.engine.batch.arrow_tasks import TaskOfBatch
from sluice.engine.batch.batch_start import BatchStart, RunningTask
from sluice.engine.batch.dead_letters import RejectedRecord, dead_letter_records
from sluice.engine.batch.gathered_batches import combined
from sluice.engine.batch.record_headers import headers_of
from sluice.engine.batch.side_outputs import (
    BatchStats,
    LastRecord,
    SideOutputs,
    no_garbage_collection,
    part_name,
)
from sluice.engine.batch.stream_time import BEFORE_ALL, ORDER
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.event_times import Problems, earliest_valid_time, invalid_times
from sluice.engine.read.record_keys import UnusableKeyError, require_short_keys
from sluice.engine.read.value_columns import Values, failing_places
from sluice.errors import RecordFailed, error_text
from sluice.plan import Job
from sluice.registry.http_registry import NO_REGISTRY
from sluice.registry.registry import Registry
from sluice.sql.arrow_types import arrow_schema, arrow_type
from sluice.values.record_metadata import METADATA, record_fingerprint

SKIPPED = "skipped"
_MOST_ROWS, _MOST_BYTES = 20_000, 16_777_216
"""About how many rows and bytes a batch of decoded rows has. Smaller batches would cost more,
because each batch has a fixed cost in later steps."""
_EXTRA = {
    "_null": "BOOLEAN",
    "_sequence": "BIGINT",
    "_raw_key": "BINARY",
    "_raw_value": "BINARY",
    "_raw_headers": "STRING",
}


@dataclass
class PartitionOutput:
    """Accumulates the side outputs of one partition in a batch."""

    topic: str
    partition: int
    counts: Counter[str] = field(default_factory=Counter)
    dead_letters: list[pa.RecordBatch] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)
    last: LastRecord | None = None

    @property
    def name(self) -> str:
        """The name of this partition's side outputs."""
        return part_name("read", self.topic, self.partition)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """Split a batch by partition: only batches from a test driver have several partitions."""
    topics, partitions = batch.column("topic"), batch.column("partition")
    if pc.count_distinct(topics).as_py() == 1 and pc.count_distinct(partitions).as_py() == 1:
        yield (topics[0].as_py(), partitions[0].as_py()), batch
        return
    parts = list(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))
    begin = 0
    for row in range(1, len(parts) + 1):
        if row == len(parts) or parts[row] != parts[begin]:
            yield parts[begin], batch.slice(begin, row - begin)
            begin = row


def _last_record(records: pa.RecordBatch, earlier: LastRecord | None) -> LastRecord:
    """Return the last of a partition's records.

    `earlier` is the last record that the task has read before these records.
    """
    last = records.slice(records.num_rows - 1)
    offset: int = last.column("offset")[0].as_py()
    key, value = last.column("key")[0].as_py(), last.column("value")[0].as_py()
    fingerprint = record_fingerprint(key, value, _milliseconds(last)[0].as_py())
    if earlier is None:
        first_epoch = _leader_epoch(records)
    else:
        first_epoch = earlier.first_leader_epoch
    return LastRecord(offset, fingerprint, _leader_epoch(last), first_epoch)


def _leader_epoch(records: pa.RecordBatch) -> int:
    """Return the leader epoch of the first record.

    Return -1 if it is unknown, as it is in a test driver.
    """
    if "leader_epoch" not in records.schema.names:
        return -1
    epoch: int | None = records.column("leader_epoch")[0].as_py()
    return -1 if epoch is None else epoch


def _milliseconds(records: pa.RecordBatch) -> pa.Array:
    """Return the records' Kafka timestamps, in epoch ms."""
    timestamps = records.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
    return timestamps.cast(pa.int64())


@dataclass(frozen=True)
class RecordReader(TaskOfBatch):
    """Decodes a task's records, and writes their dead letters and counts as side outputs."""

    side_outputs: SideOutputs
    dead_letters: str
    decoders: dict[str, ValueDecoder]
    sequenced: bool = field(default=False, kw_only=True)
    """Whether to compute the records' order; False with a test driver, which provides the order."""
    uncounted: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Topics whose records another reader of the job also reads. Only the other reader counts
    them."""
    global_stores: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Topic of each global table that this reader reads → the table's store."""

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        outputs: dict[tuple[str, int], PartitionOutput] = {}
        start = task.start
        with no_garbage_collection():
            for batch in batches:
                if not batch.num_rows:
                    continue
                for part, records in _by_partition(batch):
                    output = outputs.setdefault(part, PartitionOutput(*part))
                    output.counts["read"] += records.num_rows
                    output.last = _last_record(records, output.last)
                    if self.sequenced:
                        records = self._with_sequence(records, output, start)
                    with_keys = self._without_null_keys(records, output)
                    if with_keys.num_rows:
                        yield from self._decode(with_keys, output, start.begun)
        for output in outputs.values():
            # The other reader counts these topics' records, and makes their dead letters.
            if output.topic in self.uncounted:
                continue
            if output.dead_letters:
                dead_letters = pa.Table.from_batches(output.dead_letters)
                self.side_outputs.add_records(self.dead_letters, output.name, dead_letters)
            stats = BatchStats(
                dict(output.counts),
                output.times,
                f"{output.topic}-{output.partition}",
                output.last,
            )
            self.side_outputs.add_stats_of_reading(output.name, stats)

    def _decode(
        self, batch: pa.RecordBatch, output: PartitionOutput, clock: int
    ) -> Iterable[pa.RecordBatch]:
        raise NotImplementedError

    def _without_null_keys(
        self, records: pa.RecordBatch, output: PartitionOutput
    ) -> pa.RecordBatch:
        """Drop and count a global table's records without a key, for every value of `on_error`.

        Kafka Streams drops them, too, but first reads their values. Such records of
        other tables are dropped by the tables' operators.
        """
        store = self.global_stores.get(output.topic)
        decoder = self.decoders[output.topic]
        if store is None or decoder.source.key is not None:
            return records
        has_key = records.column("key").is_valid()
        if decoder.source.key_decode is not None:
            keys = decoder.keys.decode(records.column("key").to_pylist(), records.column("headers"))
            has_key = pa.array([key is not None for key in keys], pa.bool_())
        if not has_key.false_count:
            return records
        without_key = records.filter(pc.invert(has_key))
        rows, _, unreadable = decoder.decode(
            without_key.column("value").to_pylist(), headers=without_key.column("headers")
        )
        self._reject(without_key, output, unreadable)
        output.counts["dropped/null_key"] += len(rows)
        output.counts[f"null_key/{store}"] += len(rows)
        return records.filter(has_key)

    def _with_sequence(
        self,
        batch: pa.RecordBatch,
        output: PartitionOutput,
        start: BatchStart,
    ) -> pa.RecordBatch:
        """Add the records' sequence: the largest Kafka timestamp so far in their partition.

        The largest timestamp is kept from batch to batch. Rejected records count, too, as in
        `ordered_backlog`.
        """
        name = f"{ORDER}/{output.topic}/{output.partition}"
        if name not in output.times:
            output.times[name] = start.read_times.get(name, BEFORE_ALL)
        timestamps = _milliseconds(batch).to_numpy()
        sequence = np.maximum(np.maximum.accumulate(timestamps), output.times[name])
        output.times[name] = int(sequence[-1])
        return batch.append_column("sequence", pa.array(sequence))

    def _reject(
        self,
        batch: pa.RecordBatch,
        output: PartitionOutput,
        dead_letters: list[RejectedRecord],
    ) -> None:
        """Handle the rejected records according to the source's `on_error`."""
        if not dead_letters:
            return
        dead_letters.sort(key=lambda dead_letter: dead_letter.row)
        on_error = self.decoders[output.topic].source.on_error
        if on_error == "fail":
            first = dead_letters[0]
            offset = batch.column("offset")[first.row].as_py()
            raise RecordFailed(
                f"{output.topic}, partition {output.partition}, offset {offset}: "
                f"{first.reason}: {first.detail}.",
                next_step='Set the source\'s `on_error` to "dead_letter" or "skip", and have the '
                "producer write valid records.",
            )
        outcome = "dropped"
        if on_error == "dead_letter":
            outcome = "dead_letter"
            output.dead_letters.append(dead_letter_records(batch, dead_letters))
        for dead_letter in dead_letters:
            output.counts[f"{outcome}/{dead_letter.reason}"] += 1


@dataclass(frozen=True)
class StreamReader(RecordReader):
    """Yields rows with `_source`, `_partition`, `_time`, the metadata in use, and typed fields."""

    metadata: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """The columns of `_EXTRA` that the job needs."""

    @classmethod
    def of(
        cls,
        job: Job,
        side_outputs: SideOutputs,
        *,
        interleaved: bool = False,
        registry: Registry = NO_REGISTRY,
    ) -> StreamReader:
        """Return a reader of the job's streams.

        If `interleaved`, the records have their order in the column `sequence`.
        """
        decoders = {source.topic: ValueDecoder(source, registry) for source in job.streams}
        # If a step fails after this task, the dead letter needs the record's
        # original key, value and headers.
        needs_raw = bool(job.failures_before_operators)
        extra: list[str] = []
        if any(source.keeps_nulls for source in job.streams):
            extra.append("_null")
        if job.has_operators:
            extra.append("_sequence")
        if needs_raw:
            extra += ["_raw_key", "_raw_value"]
        if needs_raw or job.keeps_headers:
            extra.append("_raw_headers")
        dead_letters, sequenced = job.pipeline.dead_letters, job.has_operators and not interleaved
        return cls(
            side_outputs,
            dead_letters,
            decoders,
            job.metadata,
            tuple(extra),
            sequenced=sequenced,
            global_stores={table.source.topic: table.store for table in job.tables},
        )

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        decoded = (rows for rows in super().run(batches, task) if rows.num_rows)
        # Only the rows' columns are copied, not the records, which are several times as large.
        for _, of_partition in groupby(decoded, _partition_of):
            yield from combined(of_partition, _MOST_ROWS, _MOST_BYTES)

    @property
    def columns(self) -> dict[str, str]:
        """Names and DDL types of the rows' columns."""
        columns = {"_source": "INT", "_partition": "INT", "_time": "BIGINT"}
        for name in self.metadata:
            columns[name] = METADATA[name]
        for name in self.extra:
            columns[name] = _EXTRA[name]
        for decoder in self.decoders.values():
            for planned in decoder.source.fields:
                columns[planned.column] = planned.type
        return columns

    @property
    def schema(self) -> pa.Schema:
        """The rows' columns as an Arrow schema."""
        return arrow_schema(self.columns)

    def _decode(
        self, batch: pa.RecordBatch, output: PartitionOutput, clock: int
    ) -> Iterator[pa.RecordBatch]:
        decoder = self.decoders[output.topic]
        for run in decoder.runs(batch.column("value"), batch.column("headers")):
            records = batch.slice(run.begin, run.end - run.begin)
            columns = None
            if run.values is not None:
                columns = self._valid_columns(decoder, records, run.values, output, clock)
            else:
                columns = self._mostly_valid_columns(decoder, records, output, clock)
            if columns is None:
                columns = self._decode_each(decoder, records, output, clock)
            yield self._record_batch(columns)

    def _mostly_valid_columns(
        self,
        decoder: ValueDecoder,
        records: pa.RecordBatch,
        output: PartitionOutput,
        clock: int,
    ) -> dict[str, pa.Array] | None:
        """Return the rows' columns, and reject the records that name no schema.

        If other records may be invalid, too, return None and reject nothing.
        """
        decoded = decoder.mostly_columns(
            records.column("value"), records.column("key"), records.column("headers")
        )
        if decoded is None:
            return None
        rows, values, dead_letters = decoded
        columns = self._valid_columns(decoder, records.take(rows), values, output, clock)
        if columns is not None:
            self._reject(records, output, dead_letters)
        return columns

    def _record_batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        schema, count = self.schema, len(columns["_time"])
        # Columns of the other sources' fields are null in this source's records.
        arrays = [columns.get(column.name, pa.nulls(count, column.type)) for column in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _valid_columns(
        self,
        decoder: ValueDecoder,
        records: pa.RecordBatch,
        values: Values,
        output: PartitionOutput,
        clock: int,
    ) -> dict[str, pa.Array] | None:
        """Return the rows' columns, or None if a record does not fit or has no valid event time."""
        try:
            columns = self._columns(decoder, records, values, output, clock)
        except (pa.ArrowException, OverflowError, ValueError):
            return None
        if any(invalid_times(decoder, columns["_time"], clock)):
            return None
        return columns

    def _decode_each(
        self, decoder: ValueDecoder, batch: pa.RecordBatch, output: PartitionOutput, clock: int
    ) -> dict[str, pa.Array]:
        """Return the columns of a batch's valid records. Reject the other records."""
        rows, values, dead_letters = decoder.decode(
            batch.column("value").to_pylist(), batch.column("key"), batch.column("headers")
        )
        kept = batch
        if len(rows) < batch.num_rows:
            kept = batch.take(pa.array(rows, pa.int64()))
        try:
            columns = self._columns(decoder, kept, values, output, clock)
            problems = invalid_times(decoder, columns["_time"], clock)
        except (pa.ArrowException, OverflowError, ValueError):
            # Arrow's error concerns the whole batch, so find the records that do not fit.
            columns, problems = {}, self._problems(decoder, kept, values, output, clock)
        if any(problems):
            problems = self._apply_on_time(decoder, problems, output)
            valid: list[int] = []
            valid_values: list[Any] = []
            for place, (row, problem) in enumerate(zip(rows, problems, strict=True)):
                if problem is None:
                    valid.append(place)
                    valid_values.append(values[place])
                elif problem[0] != SKIPPED:
                    dead_letters.append(RejectedRecord(row, *problem))
            kept = kept.take(pa.array(valid, pa.int64()))

            columns = self._columns(
                decoder,
                kept,
                valid_values,
                output,
                clock,
                replace_invalid=True,
            )
        self._reject(batch, output, dead_letters)
        return columns

    def _columns(
        self,
        decoder: ValueDecoder,
        kept: pa.RecordBatch,
        values: Values,
        output: PartitionOutput,
        clock: int,
        *,
        replace_invalid: bool = False,
    ) -> dict[str, pa.Array]:
        """Return the rows' columns.

        If `replace_invalid` is true, `clock` replaces invalid times if the source's policy is
        "clock".

        `clock` is the time at which the batch began, in epoch ms.
        """
        source = decoder.source
        columns: dict[str, pa.Array] = {}
        for planned in source.fields:
            columns[planned.column] = decoder.column_of(planned, values, kept.column("key"))
        columns["_source"] = pa.repeat(pa.scalar(source.number, pa.int32()), len(values))
        columns["_partition"] = pa.repeat(pa.scalar(output.partition, pa.int32()), len(values))
        columns["_time"] = decoder.columns.event_times(values, kept.column("timestamp"), clock)
        if replace_invalid and source.on_time == "clock":
            is_valid = pc.fill_null(
                pc.greater_equal(columns["_time"], earliest_valid_time(decoder)),
                False,
            )
            columns["_time"] = pc.if_else(is_valid, columns["_time"], pa.scalar(clock, pa.int64()))
        for name in self.metadata:
            if name != "_partition":
                columns[name] = self._metadata(name, kept, decoder)
        if "_key" in columns:
            require_short_keys("the key", columns["_key"])
        for name in self.extra:
            columns[name] = self._extra(name, kept)
        return columns

    @staticmethod
    def _metadata(name: str, kept: pa.RecordBatch, decoder: ValueDecoder) -> pa.Array:
        kind = arrow_type(METADATA[name])
        if name == "_headers":
            texts = [_header_texts(text) for text in kept.column("headers").to_pylist()]
            return pa.array(texts, kind)
        # If the key is a field, Kafka's key is not used, and need not be text.
        if name == "_key" and decoder.source.key is not None:
            return pa.nulls(kept.num_rows, kind)
        if name == "_key" and decoder.source.key_decode is not None:
            keys = list(decoder.keys.decode(kept.column("key").to_pylist(), kept.column("headers")))
            for key in keys:
                if isinstance(key, BaseException):
                    raise ValueError(error_text(key))
            return pa.array(keys, kind)
        return kept.column(name[1:]).cast(kind)

    @staticmethod
    def _extra(name: str, kept: pa.RecordBatch) -> pa.Array:
        match name:
            case "_null":
                return kept.column("value").is_null()
            case "_sequence":
                return kept.column("sequence")
            case _:
                return kept.column(name.removeprefix("_raw_"))

    def _fit(
        self,
        decoder: ValueDecoder,
        records: pa.RecordBatch,
        values: Sequence[Any],
        output: PartitionOutput,
        clock: int,
        begin: int,
        end: int,
    ) -> bool:
        """Return whether all records in a range fit the columns and have valid event times."""
        some = records.slice(begin, end - begin)
        return self._valid_columns(decoder, some, values[begin:end], output, clock) is not None

    def _problems(
        self,
        decoder: ValueDecoder,
        records: pa.RecordBatch,
        values: Sequence[Any],
        output: PartitionOutput,
        clock: int,
    ) -> Problems:
        """Return, for each record, the reason why it is rejected, or None.

        Used if some record does not fit the columns.
        """
        problems: Problems = [None] * len(values)
        fits = partial(self._fit, decoder, records, values, output, clock)
        for place in failing_places(len(values), fits):
            record, value = records.slice(place, 1), values[place : place + 1]
            problems[place] = self._problem(decoder, record, value, output, clock)
        return problems

    @staticmethod
    def _apply_on_time(
        decoder: ValueDecoder,
        problems: Problems,
        output: PartitionOutput,
    ) -> Problems:
        """Apply the source's policy for records without a valid event time."""
        if decoder.source.on_time == "dead_letter":
            return problems
        applied: Problems = []
        for problem in problems:
            if problem is None or problem[0] != "event_time":
                applied.append(problem)
            elif decoder.source.on_time == "fail":
                raise RecordFailed(
                    f"{output.topic}, partition {output.partition}: {problem[1]}.",
                    next_step="Set the source's `invalid_time` to another policy, and have the "
                    "producer write valid event times.",
                )
            elif decoder.source.on_time == "clock":
                applied.append(None)
            else:
                output.counts["dropped/event_time"] += 1
                applied.append((SKIPPED, ""))
        return applied

    def _problem(
        self,
        decoder: ValueDecoder,
        record: pa.RecordBatch,
        value: Sequence[Any],
        output: PartitionOutput,
        clock: int,
    ) -> tuple[str, str] | None:
        """Return the reason why a single record is rejected, or None."""
        (key,) = decoder.keys.decode(record.column("key").to_pylist(), record.column("headers"))
        if (
            "_key" in self.metadata
            and decoder.source.key is None
            and isinstance(key, BaseException)
        ):
            reason = "key"
            if isinstance(key, UnicodeDecodeError):
                reason = "key_not_utf8"
            return reason, error_text(key)
        try:
            columns = self._columns(decoder, record, value, output, clock)
        except UnusableKeyError as error:
            return error.reason, str(error)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            return "out_of_range", str(error).splitlines()[0]
        return next(iter(invalid_times(decoder, columns["_time"], clock)), None)


def _partition_of(rows: pa.RecordBatch) -> tuple[int, int]:
    """Source and partition of rows of the same partition."""
    return rows.column("_source")[0].as_py(), rows.column("_partition")[0].as_py()


def _header_texts(text: str | None) -> list[tuple[str, str | None]] | None:
    """Return the last header of each name, with its value as text; None if it is not UTF-8.

    Returns None for a record without headers.
    """
    if not text:
        return None
    texts: dict[str, str | None] = {}
    for header in headers_of(text):
        texts[str(header["key"])] = _utf8(header["value"])
    return [*texts.items()]


def _utf8(value: str | bytes | None) -> str | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
