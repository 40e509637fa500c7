"""Writes a batch's output records and a marker for the batch in one Kafka transaction.

The marker is a record in a compacted topic. A retried batch finds the marker and does not write its records again. A
producer aborts, on start-up, any transaction that a dead predecessor left open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sluice.brokers import quiet
from sluice.engine.batch.topics import TIMEOUT_S, ensure_topics, kafka_errors, message_limits, next_step_for
from sluice.errors import EngineError
from sluice.state.ledger.history import Batch
from sluice.state.model import JobRef

COMMIT_TIMEOUT_S = 120
"""After this time the run fails without knowing the transaction's outcome; the next run reads it from the marker."""
_FAST = {
    "linger.ms": "20",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "2000000",
    "queue.buffering.max.kbytes": "1048576",
    # The Java clients' partitioner: every client sends a key to the same partition.
    "partitioner": "murmur2_random",
    "transaction.timeout.ms": "600000",
    # The topic limits the size of a record, not the client.
    "message.max.bytes": "1000000000",
}
_BATCH_BYTES = 1_000_000
_DEAD_LETTER_HEADERS = 1 << 20
"""Bytes by which a dead letter may exceed its record."""
_CHUNK = 50_000
_MARKER_READER = {
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    # Otherwise, the broker would wait for more records at the end of the log.
    "fetch.wait.max.ms": "10",
}


@dataclass(frozen=True)
class Writer:
    """A generation of a job, as a writer of output."""

    ref: JobRef
    markers: str
    """The topic of the pipeline's markers."""

    @property
    def transactional_id(self) -> str:
        """The transactional id, shared by all generations of a job so that a newer producer fences an older one."""
        return f"sluice.{self.ref.pipeline}.{self.ref.job}"

    @property
    def name(self) -> str:
        return f"{self.transactional_id}.{self.ref.generation}"


class Marker(msgspec.Struct, frozen=True):
    """A written batch, and its number of records per topic."""

    batch: Batch
    outputs: dict[str, int]


class TransactionalOutput:
    """Writes each batch's records exactly once. Used as a context manager; entering it fences any older writer."""

    def __init__(self, kafka: Mapping[str, str], writer: Writer, limits: Mapping[str, int]) -> None:
        self._kafka = dict(kafka)
        self._writer = writer
        self._producer = Producer({**quiet(self._kafka), **_fast(limits), "transactional.id": writer.transactional_id})
        self._marker: Marker | None = None

    @property
    def last(self) -> Batch | None:
        return None if self._marker is None else self._marker.batch

    @property
    def last_batch(self) -> int:
        """Number of the last written batch; -1 before the first."""
        return -1 if self.last is None else self.last.number

    def __enter__(self) -> Self:
        with kafka_errors("Starting the output's transactions", self._kafka):
            self._producer.init_transactions(TIMEOUT_S)
            self._marker = read_marker(self._kafka, self._writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.purge()

    def send(self, batch: Batch, records: Iterable[tuple[str, pa.Table]]) -> dict[str, int]:
        """Write the batch's records atomically: per topic a table of `key`, `value` and optionally `headers`.

        Returns the number of records per topic. A retried batch does not write its records again, except to topics that
        were added to the pipeline after the batch was written.
        """
        written = self._marker.outputs if self._marker is not None and batch.number == self.last_batch else {}
        counts = dict(written)
        begun = False
        with kafka_errors("Writing the output", self._kafka):
            if batch.number > self.last_batch:
                begun = self._begin()
            for topic, table in records:
                if written.get(topic):
                    continue
                counts[topic] = counts.get(topic, 0) + table.num_rows
                if batch.number >= self.last_batch and table.num_rows:
                    begun = begun or self._begin()
                    _produce(self._producer, topic, table)
            if begun:
                marker = Marker(batch, counts)
                self._producer.produce(self._writer.markers, key=self._writer.name, value=msgspec.json.encode(marker))
                self._producer.commit_transaction(COMMIT_TIMEOUT_S)
                self._marker = marker
        return counts

    def _begin(self) -> bool:
        self._producer.begin_transaction()
        return True


def fence(kafka: Mapping[str, str], writer: Writer) -> Batch | None:
    """Keep drivers of the job that have not noticed the loss of their lease from writing any more output.

    Returns the last batch whose output the writer's generation has written, or None. Raises EngineError if the broker
    cannot be reached.
    """
    markers = writer.markers
    ensure_topics(kafka, {markers: 1}, {markers: {"cleanup.policy": "compact"}})
    with TransactionalOutput(kafka, writer, message_limits(kafka, [markers])) as output:
        return output.last


def read_marker(kafka: Mapping[str, str], writer: Writer) -> Marker | None:
    """The writer's newest committed marker, or None."""
    consumer = Consumer({**quiet(kafka), **_MARKER_READER, "group.id": writer.name})
    with kafka_errors("Reading the markers", kafka), contextlib.closing(consumer):
        # Reading the watermarks makes the client find the partition's leader at once instead of after 0.5 s.
        markers = TopicPartition(writer.markers, 0)
        markers.offset, _ = consumer.get_watermark_offsets(markers, TIMEOUT_S)
        consumer.assign([markers])
        values = [message.value() for message in _to_the_end(consumer) if message.key() == writer.name.encode()]
    try:
        markers_read = [msgspec.json.decode(value, type=Marker) for value in values]
    except msgspec.DecodeError as error:
        raise EngineError(
            f"A marker of {writer.name} in the topic {writer.markers} cannot be read: {error}.",
            next_step="Another version of Sluice or another program wrote it. Give the pipeline another name.",
        ) from error
    return max(markers_read, key=lambda marker: marker.batch.number, default=None)


def _fast(limits: Mapping[str, int]) -> dict[str, str]:
    """Settings for a fast producer with batches no larger than the topics' limits."""
    return _FAST | {"batch.size": str(min(_BATCH_BYTES, *limits.values()))}


def send_at_least_once(
    kafka: Mapping[str, str], records: Iterable[tuple[str, pa.Table]], limits: Mapping[str, int]
) -> dict[str, int]:
    """Write records without a transaction, and return their number per topic. A retried task writes them again.

    Tasks call this concurrently, so that the records do not pass through the driver.
    """
    failed: list[KafkaError] = []
    own = {**_fast(limits), "enable.idempotence": True, "on_delivery": partial(_note, failed)}
    producer = Producer(quiet(kafka) | own)
    counts: dict[str, int] = {}
    with kafka_errors("Writing the output", kafka):
        for topic, table in records:
            counts[topic] = counts.get(topic, 0) + table.num_rows
            _produce(producer, topic, table)
        left = producer.flush(COMMIT_TIMEOUT_S)
    if failed or left:
        why = failed[0].str() if failed else f"no answer within {COMMIT_TIMEOUT_S} s"
        raise EngineError(f"{len(failed) + left} records were not written: {why}.", next_step=next_step_for(why))
    return counts


def _note(failed: list[KafkaError], error: KafkaError | None, _: object) -> None:
    if error is not None:
        failed.append(error)


def _produce(producer: Producer, topic: str, table: pa.Table) -> None:
    """Queue records one by one: the client's batches have neither headers nor timestamps."""
    names = ("key", "value", "timestamp", "headers")
    for chunk in table.to_batches(max_chunksize=_CHUNK):
        columns = [chunk.column(name).to_pylist() if name in table.column_names else repeat(None) for name in names]
        for key, value, timestamp, headers in zip(*columns, strict=False):
            more: dict[str, Any] = {"timestamp": timestamp} if timestamp is not None else {}
            if headers:
                more["headers"] = [(header["key"], header["value"]) for header in headers]
            while True:
                try:
                    producer.produce(topic, value, key, **more)
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.1)


def _to_the_end(consumer: Consumer) -> Iterator[Any]:
    while True:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise EngineError(
                f"Reading the markers took longer than {TIMEOUT_S} s.", next_step="Check that the broker is up."
            )
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise KafkaException(error)


def dead_letter_limit(limits: Mapping[str, int]) -> int:
    """Size in bytes of the largest dead letter that a record within the topics' limits can become."""
    return max(limits.values()) + _DEAD_LETTER_HEADERS
