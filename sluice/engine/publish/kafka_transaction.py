"""Writes a batch's output records and a marker for the batch in one Kafka transaction.

The marker is a record in a compacted topic. If a batch is retried after its transaction, the writer
finds the marker and does not write the batch's records again. The writer compares the records with
the marker, because the input or the pipeline may have changed in between. A producer aborts, on
start-up, any transaction that a dead predecessor left open.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import repeat
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer
from xxhash import xxh3_64_intdigest

from sluice.engine.batch.job_topics import (
    TIMEOUT_S,
    TopicLimits,
    ensure_topics,
    kafka_errors,
    topic_limits,
)
from sluice.engine.publish.consumer_group import ConsumerGroup
from sluice.engine.publish.markers import (
    MARKER_SETTINGS,
    NOTHING_PUBLISHED,
    Marker,
    MarkerTopic,
    PublishedState,
    Writer,
    encode_registration,
    merge_ends,
    newest_until,
    read_marker_topic,
)
from sluice.engine.read.source_identity import Positions
from sluice.errors import (
    BatchDiffers,
    EngineError,
    OutputError,
    WentBack,
    recovery_advice,
)
from sluice.kafka.brokers import ANY_SIZE, producer_of
from sluice.kafka.denied_operations import WRITE, denial_named
from sluice.sinks.target import Written
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.history import Batch
from sluice.state.model import GenerationInfo
from sluice.support.arrays import Indices

COMMIT_TIMEOUT_S = 120
"""If a commit takes longer, the run fails without knowing the transaction's outcome. The next run
learns from the marker whether the transaction was committed."""
_FAST: dict[str, str | bool] = {
    "linger.ms": "20",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "1048576",
    "delivery.report.only.error": True,
    "transaction.timeout.ms": "600000",
    # After this time, the client stops waiting for a deleted topic. All brokers know a new topic
    # much earlier.
    "topic.metadata.propagation.max.ms": "3000",
    **ANY_SIZE,
}
_SLOW_S = 3.0
"""A writer that waits for the broker checks after each period of this length whether the wait is
useless."""
_BATCH_BYTES = 1_000_000
_DEAD_LETTER_HEADERS = 1 << 20
"""Bytes by which a dead letter may exceed the rejected record."""
_CHUNK = 2_000
"""How many records the driver lists, queues and frees at once: few enough to stay in the
processor's caches."""
_BITS, _PRIME = 2**32 - 1, 2_654_435_761


class TransactionalOutput:
    """Writes each batch's records exactly once.

    Used as a context manager; entering it fences any older writer. Each batch's end offsets are
    committed to the consumer group `group`, if there is one.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        writer: Writer,
        limits: Mapping[str, TopicLimits],
        group: ConsumerGroup | None = None,
    ) -> None:
        self._kafka = dict(kafka)
        self._writer = writer
        self._topics = frozenset(limits)
        self._group = group
        self._producer = producer_of(
            kafka,
            _producer_settings(limits) | {"transactional.id": writer.transactional_id},
        )
        self._marker: Marker | None = None
        self.topic = MarkerTopic()
        """The topic of markers when the writer started."""
        self._registration: bytes | None = None
        """The generation's registration, if the topic of markers does not have it yet."""
        self.topic_ids: Mapping[str, str] = {}
        """Topic → Kafka's id of the topic that the writer writes to, for the markers."""
        self.why_unwritable: Callable[[], EngineError | None] = lambda: None
        """Returns the error that makes a wait for the broker useless, if there is one."""

    @property
    def markers(self) -> Mapping[int, Marker]:
        """Generation → its newest marker when the writer started."""
        return self.topic.markers

    @property
    def last(self) -> Batch | None:
        """The last batch that the writer's generation has written; None if it has written none."""
        if self._marker is None:
            return None
        return self._marker.batch

    @property
    def last_batch(self) -> int:
        """The number of the last written batch; -1 if none has been written."""
        return -1 if self.last is None else self.last.number

    @property
    def newest_generation(self) -> int:
        """The newest generation that has written a batch; 0 if none has."""
        return max(self.markers, default=0)

    def require_newest(self) -> None:
        """Raise EngineError if a generation after the ledger's current one has written output."""
        generation = self._writer.ref.generation
        if (last := self.newest_generation) > generation:
            name = self._writer.ref.pipeline
            raise EngineError(
                f"Generation {last} of {name} has written output, up to batch "
                f"{self.markers[last].batch.number}, but generation {generation} is current in "
                "the ledger. Possible causes: the ledger was lost, or was restored from an older "
                "backup.",
                next_step=f"{recovery_advice(name)} If this ledger is new on purpose, give the "
                "pipeline another name.",
            )

    def lacks_marker(self, newest: Audit | None) -> bool:
        """Return whether the marker of the ledger's newest batch is gone.

        If it is gone, the marker of a later batch, which was not published, may be gone, too.
        """
        return newest is not None and newest.is_written and self.last_batch < newest.batch

    def require_marker(self, newest: Audit | None) -> None:
        """Raise OutputError if the marker of the ledger's newest batch is gone."""
        if newest is not None and self.lacks_marker(newest):
            raise lost_markers(
                f"The topic {self._writer.markers} lacks the marker of batch {newest.batch}, which "
                f"{newest.pipeline} has published. The topic was deleted, or lost records.",
                newest.pipeline,
            )

    def __enter__(self) -> Self:
        with kafka_errors("Starting the output's transactions", self._kafka):
            # This call connects the client. If it was not connected, the client would wait 0.5 s
            # before it looked up the transaction coordinator.
            self._producer.list_topics(self._writer.markers, TIMEOUT_S)
            # Fences older producers with this transactional id, and aborts their open transaction.
            with self._denial_named():
                self._producer.init_transactions(TIMEOUT_S)
            self.topic = read_marker_topic(self._kafka, self._writer)
            self._marker = self.markers.get(self._writer.ref.generation)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.purge()

    def register(self, info: GenerationInfo) -> None:
        """Write a generation's registration with the next batch, unless it has been written."""
        registration = encode_registration(info)
        if registration != self.topic.registrations.get(info.generation):
            self._registration = registration

    def send(
        self,
        batch: Batch,
        records: Iterable[tuple[str, pa.Table]],
        state: PublishedState = NOTHING_PUBLISHED,
    ) -> dict[str, int]:
        """Write the batch's records atomically.

        Each topic has a table with the columns `key`, `value` and optionally `headers`.

        `state` is published in the ledger together with the batch. Return the number of records per
        topic. A retried batch does not write its records again, except to topics that were added to
        the pipeline after the batch was written. Raise BatchDiffers if the records for the other
        topics differ from the records that were written. Raise WentBack if the ledger has lost a
        written batch: this or a later batch was written with other records.
        """
        self._require_next(batch)
        marker = self._marker if batch.number == self.last_batch else None
        written: Mapping[str, int] = {}
        checksums: Counter[str] = Counter()
        if marker is not None:
            written = marker.outputs
            records = [*records]
            self._require_same(marker, records)
        counts = dict(written)
        ends = merge_ends(self._earlier_ends, batch.ends)
        begun = False
        with (
            kafka_errors("Writing the output", self._kafka),
            self._denial_named(),
            self._rejections_raised(),
        ):
            if marker is None:
                # A batch without records needs a transaction, too, because its marker must show
                # that it was written.
                begun = self._begin_transaction()
                self._add_offsets(state, ends)
            for topic, table in records:
                # If the batch is repeated, its records for this topic may be in Kafka already.
                if written.get(topic):
                    continue
                counts[topic] = counts.get(topic, 0) + table.num_rows
                # A batch that was written before gets a transaction only for topics that were added
                # to the pipeline after it was written.
                if table.num_rows:
                    begun = begun or self._begin_transaction()
                    total = _produce(self._producer, topic, table, self._require_writable)
                    checksums[topic] += total
            if begun:
                sums = dict(marker.checksums) if marker is not None else {}
                for topic, total in checksums.items():
                    sums[topic] = _hexadecimal(total)
                marker = Marker(batch, counts, ends, sums, dict(self.topic_ids), state)
                self._queue_marker(self._writer.name, marker)
                self._commit()
                self._marker = marker
                self._registration = None
        return counts

    def _require_next(self, batch: Batch) -> None:
        """Raise WentBack unless the batch is the last written one, or comes after it."""
        last = self.last
        if (
            last is None
            or batch.number > last.number
            or (batch.number, batch.begun) == (last.number, last.begun)
        ):
            return
        ref = self._writer.ref
        raise WentBack.of(
            ref.pipeline, f"{ref.generation}.{last.number}", f"{ref.generation}.{batch.number - 1}"
        )

    def replace_newest(self, marker: Marker) -> None:
        """Replace the newest marker by another one for the same batch."""
        generation = max(self.markers)
        ref = msgspec.structs.replace(self._writer.ref, generation=generation)
        self._write_marker(replace(self._writer, ref=ref).name, marker)

    def replace_lost(self, marker: Marker) -> None:
        """Write a marker of the writer's generation, in place of a lost one."""
        self._write_marker(self._writer.name, marker)

    def _write_marker(self, key: str, marker: Marker) -> None:
        with kafka_errors("Writing the marker", self._kafka), self._denial_named():
            self._producer.begin_transaction()
            self._queue_marker(key, marker)
            self._commit()

    def _queue_marker(self, key: str, marker: Marker) -> None:
        topic = self._writer.markers
        # Like any record, the marker may have to wait until the client's queue has room again.
        if self._registration is not None:
            _queue(
                self._producer,
                self._require_writable,
                topic,
                self._registration,
                self._writer.registration_key,
            )
        _queue(self._producer, self._require_writable, topic, msgspec.json.encode(marker), key)

    def _commit(self) -> None:
        """Commit the transaction.

        If this takes long, check whether the topics can be written at all. Without this check, the
        client would try for minutes to write to a deleted topic.
        """
        until = time.monotonic() + COMMIT_TIMEOUT_S
        while True:
            try:
                self._producer.commit_transaction(_SLOW_S)
                return
            except KafkaException as error:
                # After a timeout, calling the client again continues the same commit.
                if error.args[0].code() != KafkaError._TIMED_OUT or time.monotonic() > until:
                    raise
            self._require_writable()

    def _require_writable(self) -> None:
        if (reason := self.why_unwritable()) is not None:
            raise reason

    def _require_same(self, marker: Marker, records: Iterable[tuple[str, pa.Table]]) -> None:
        """Raise BatchDiffers if a retried batch has other records than in the earlier attempt.

        Compare only the topics to which the pipeline still writes.
        """
        counts: Counter[str] = Counter(dict.fromkeys(self._topics & marker.outputs.keys(), 0))
        totals: Counter[str] = Counter()
        for topic, table in records:
            counts[topic] += table.num_rows
            totals[topic] += checksum(table)
        now: dict[str, Written] = {}
        for topic in sorted(counts):
            now[topic] = Written(counts[topic], _hexadecimal(totals[topic]))
        # The marker lacks a topic that was added to the pipeline after the batch was written. The
        # records for this topic are written now.
        differences: list[str] = []
        for topic, written in now.items():
            if topic in marker.outputs:
                difference = marker.written_to(topic).difference(topic, written)
                if difference:
                    differences.append(difference)
        if differences:
            raise BatchDiffers.of(self._writer.ref.pipeline, marker.batch.number, differences)

    @contextlib.contextmanager
    def _rejections_raised(self) -> Iterator[None]:
        """Raise the broker's error if it keeps the client from taking more records."""
        try:
            yield
        except KafkaException as error:
            # An error of this kind does not say why the transaction has failed. A commit raises the
            # broker's error, which says why.
            if error.args[0].code() == KafkaError._STATE:
                self._producer.commit_transaction(TIMEOUT_S)
            raise

    def _denial_named(self) -> AbstractContextManager[None]:
        """Name the operation if Kafka denies it. The client's error does not name the topic."""
        topics = sorted({*self._topics, self._writer.markers})
        return denial_named(WRITE, " or ".join(topics), self._writer.transactional_id)

    @property
    def _earlier_ends(self) -> Positions:
        """The end offsets of all earlier batches, including batches of earlier generations."""
        if self.newest_marker is None:
            return {}
        return self.newest_marker.with_earlier.ends

    @property
    def newest_marker(self) -> Marker | None:
        """The marker of the last batch that was written; None if none has been written."""
        return self._marker or newest_until(self.markers, self._writer.ref.generation)

    def _begin_transaction(self) -> bool:
        self._producer.begin_transaction()
        return True

    def _add_offsets(self, state: PublishedState, ends: Positions) -> None:
        # If committing the group's offsets fails, the transaction is begun anew. It must still be
        # empty then.
        if self._group is not None:
            self._group.add_to_transaction(self._producer, state.sources, ends)


def lost_markers(detail: str, pipeline: str) -> OutputError:
    """Make the error for lost markers. `detail` says what was lost."""
    return OutputError(
        f"{detail} Without the markers, output could be written twice, if a driver was killed "
        "before it published the output's batch.",
        next_step=f"Restore the topic's records. Otherwise: sluice topics accept {pipeline}. If "
        "output may be written twice, the command says so and changes nothing.",
    )


def fence(kafka: Mapping[str, str], writer: Writer) -> TransactionalOutput:
    """Fence the pipeline's drivers that lost their lease, so that they write no more output.

    Return the closed output, with its markers. Raise EngineError if the broker cannot be reached.
    """
    markers = writer.markers
    ensure_topics(kafka, {markers: 1}, {markers: MARKER_SETTINGS})
    with TransactionalOutput(kafka, writer, topic_limits(kafka, [markers])) as output:
        return output


def _producer_settings(limits: Mapping[str, TopicLimits]) -> dict[str, str | bool]:
    """Return settings for a fast producer with batches no larger than the topics' limits."""
    # Kafka applies a topic's limit to batches of records, not to single records. So no batch may be
    # larger than the smallest limit.
    sizes = [limit.size for limit in limits.values()]
    return _FAST | {"batch.size": str(min(_BATCH_BYTES, *sizes))}


def checksum(table: pa.Table) -> int:
    """Return the sum of the records' digests, which does not depend on the order of the records."""
    return sum(chunk.checksum for chunk in _chunks(table))


@dataclass(frozen=True)
class _Chunk:
    """Some records for a topic, converted to lists once.

    Every output record of the driver goes through such a chunk.
    """

    records: pa.RecordBatch
    keys: list[bytes | None]
    values: list[bytes | None]

    @property
    def checksum(self) -> int:
        """The sum of the records' XXH3 digests.

        A record's digest covers its key and value, and starts from a number made of its timestamp
        and the key's length. The driver computes it for every output record, so only functions in C
        are called for each record.
        """
        # The key's length tells where the value begins. Null differs from an empty key or value.
        lengths = pc.fill_null(
            pc.add(pc.binary_length(self.records.column("key")).cast(pa.int64()), 1), 0
        )
        begins = _PRIME * (
            2 * np.asarray(lengths) + np.asarray(self.records.column("value").is_null())
        )
        if "timestamp" in self.records.schema.names:
            begins += np.asarray(pc.fill_null(self.records.column("timestamp").cast(pa.int64()), 0))
        of_keys = map(xxh3_64_intdigest, _without_nulls(self.keys), (begins & _BITS).tolist())
        return sum(map(xxh3_64_intdigest, _without_nulls(self.values), of_keys))

    def arguments(self, topic: str, partitions: int) -> Iterator[tuple[Any, ...]]:
        """Return the arguments of `produce` for each record, in order.

        `partitions` is the topic's number of partitions.
        """
        columns = dict(zip(self.records.schema.names, self.records.columns, strict=True))
        # If the partition is -1, the client chooses it by the key. If the timestamp is 0, the
        # client sets the current time.
        chosen: Iterable[int] = repeat(-1)
        if "partition" in columns:
            numbers = np.asarray(pc.fill_null(columns["partition"], -1))
            chosen = np.where(numbers < 0, -1, numbers % partitions).tolist()
        timestamps: Iterable[int] = repeat(0)
        if "timestamp" in columns:
            timestamps = pc.fill_null(columns["timestamp"], 0).to_pylist()
        headers: Iterable[Any] = repeat(None)
        if "headers" in columns:
            headers = _header_lists(columns["headers"])
        nothing = repeat(None)
        return zip(
            repeat(topic),
            self.values,
            self.keys,
            chosen,
            nothing,
            nothing,
            timestamps,
            headers,
            strict=False,
        )


def _chunks(table: pa.Table) -> Iterator[_Chunk]:
    for name in ("key", "value"):
        # Bytes are faster to list and to send than text, and the cast copies nothing.
        table = table.set_column(
            table.schema.get_field_index(name), name, table.column(name).cast(pa.binary())
        )
    for records in table.to_batches(max_chunksize=_CHUNK):
        keys = records.column("key").to_pylist()
        values = records.column("value").to_pylist()
        yield _Chunk(records, keys, values)


def _without_nulls(values: list[bytes | None]) -> list[bytes]:
    """Replace nulls in the values with empty bytes."""
    return [value or b"" for value in values]


def _hexadecimal(total: int) -> str:
    return f"{total:x}"


def _produce(
    producer: Producer,
    topic: str,
    table: pa.Table,
    when_slow: Callable[[], None] = lambda: None,
) -> int:
    """Queue records one by one, and return their checksum.

    The client's `produce_batch` takes no headers or timestamps. Call `when_slow` each time
    the client's queue has been full for `_SLOW_S`.
    """
    produce, total = producer.produce, 0
    partitions = 1
    if "partition" in table.column_names:
        partitions = len(producer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
    for chunk in _chunks(table):
        total += chunk.checksum
        for arguments in chunk.arguments(topic, partitions):
            try:
                # Pass the arguments by position, and do not call `_queue` for each record: both
                # save time.
                produce(*arguments)
            except BufferError:
                _queue(producer, when_slow, *arguments)
        # The client keeps delivered records in memory until it is polled, even without delivery
        # callbacks.
        producer.poll(0)
    return total


def _queue(producer: Producer, when_slow: Callable[[], None], *arguments: Any) -> None:
    """Call `produce` with these arguments.

    If the client's queue is full, wait until it has sent some records.
    """
    slow_at = time.monotonic() + _SLOW_S
    while True:
        try:
            producer.produce(*arguments)
            return
        except BufferError:
            producer.poll(0.1)
        if time.monotonic() > slow_at:
            when_slow()
            slow_at = time.monotonic() + _SLOW_S


def _header_lists(records: pa.ListArray) -> Iterator[list[tuple[str, bytes | None]] | None]:
    """Yield the headers of each record as pairs; None for a record without headers.

    Records that follow each other often have the same headers, such as the bounds of a window. They
    share one list.
    """
    firsts = _first_with_headers(records)
    counts = np.diff(firsts, append=len(records)).tolist()
    records = records.take(pa.array(firsts))
    # Listing the headers of all records at once takes a tenth of the time of listing each record's
    # headers.
    columns = [column.to_pylist() for column in records.flatten().flatten()]
    pairs = list(zip(*columns, strict=True))
    begin = 0
    for length, count in zip(
        pc.fill_null(pc.list_value_length(records), 0).to_pylist(), counts, strict=True
    ):
        yield from repeat(pairs[begin : begin + length] or None, count)
        begin += length


def _first_with_headers(records: pa.ListArray) -> Indices:
    """Return the first record, and each record whose headers differ from the preceding record's.

    Return all records if their numbers of headers differ, or if they have no headers.
    """
    lengths = np.asarray(pc.fill_null(pc.list_value_length(records), 0))
    length = int(lengths[0]) if len(records) else 0
    if not length or (lengths != length).any():
        return np.arange(len(records))
    differs = np.ones(len(records), np.bool_)
    differs[1:] = False
    for column in records.flatten().flatten():
        is_same = pc.fill_null(
            pc.equal(column.slice(length), column.slice(0, len(column) - length)), False
        )
        differs[1:] |= ~np.asarray(is_same).reshape(-1, length).all(axis=1)
    return np.flatnonzero(differs)


def dead_letter_limit(limits: Mapping[str, TopicLimits]) -> int:
    """Return the size in bytes of the largest dead letter that a record can become."""
    return max(limit.size for limit in limits.values()) + _DEAD_LETTER_HEADERS
