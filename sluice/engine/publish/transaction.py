"""Output records of a batch, in one Kafka transaction together with a marker that says the batch is out.

The marker is a record of a compacted topic, written in the same transaction as the output. On a replay it tells that
the batch's records are there already. A producer that starts ends whatever a dead predecessor left open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from sluice.brokers import quiet
from sluice.errors import EngineError
from sluice.state.ledger.history import Batch
from sluice.state.model import JobRef

TIMEOUT_S = 30
COMMIT_TIMEOUT_S = 120
"""A transaction whose end is not known by then fails the run; the next one ends it, and learns from the marker how."""
_FAST = {
    "linger.ms": "20",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "2000000",
    "queue.buffering.max.kbytes": "1048576",
    # As Java's clients do, so that a key's records land in the same partition whoever writes them.
    "partitioner": "murmur2_random",
    "transaction.timeout.ms": "600000",
    # How large a record may be is for its topic to say, not for the client.
    "message.max.bytes": "1000000000",
}
_BATCH_BYTES = 1_000_000
_KAFKAS_LIMIT = 1_048_588
"""Bytes of a topic's largest record or batch unless it or its broker says otherwise."""
_LETTERS_HEADERS = 1 << 20
"""Bytes that a dead letter may have more than the record that it is of."""
_CHUNK = 50_000
_MARKER_READER = {
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    # At the end of the log the broker would wait for more.
    "fetch.wait.max.ms": "10",
}


@dataclass(frozen=True)
class Writer:
    """Who writes: a job's generation."""

    ref: JobRef
    markers: str
    """The topic of the pipeline's markers."""

    @property
    def transactional_id(self) -> str:
        """Of all generations of the job: a writer of a newer one fences whoever still writes for an older one."""
        return f"sluice.{self.ref.pipeline}.{self.ref.job}"

    @property
    def name(self) -> str:
        """The key of its markers."""
        return f"{self.transactional_id}.{self.ref.generation}"


class Marker(msgspec.Struct, frozen=True):
    """What is out: a batch, and how many records of it by topic."""

    batch: Batch
    outputs: dict[str, int]


class TransactionalOutput:
    """Writes each batch's records exactly once. Use as a context manager: entering fences any older writer."""

    def __init__(self, kafka: Mapping[str, str], writer: Writer, limits: Mapping[str, int]) -> None:
        self._kafka = dict(kafka)
        self._writer = writer
        self._producer = Producer({**quiet(self._kafka), **_fast(limits), "transactional.id": writer.transactional_id})
        self._out: Marker | None = None

    @property
    def last(self) -> Batch | None:
        """The last batch that is out."""
        return None if self._out is None else self._out.batch

    @property
    def last_batch(self) -> int:
        """The number of the last batch that is out, -1 if none is."""
        return -1 if self.last is None else self.last.number

    def __enter__(self) -> Self:
        with kafka_errors("Starting the output's transactions"):
            self._producer.init_transactions(TIMEOUT_S)
            self._out = read_marker(self._kafka, self._writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.purge()

    def send(self, batch: Batch, records: Iterable[tuple[str, pa.Table]]) -> dict[str, int]:
        """Write the batch's records, tables of `key`, `value` and perhaps `headers` by topic, all or none.

        Returns the number of records by topic. On a replay, what is out already is not written again; a topic that the
        pipeline had not when the batch was written gets its records now.
        """
        out = self._out.outputs if self._out is not None and batch.number == self.last_batch else {}
        counts = dict(out)
        begun = False
        with kafka_errors("Writing the output"):
            if batch.number > self.last_batch:
                begun = self._begin()
            for topic, table in records:
                if out.get(topic):
                    continue
                counts[topic] = counts.get(topic, 0) + table.num_rows
                if batch.number >= self.last_batch and table.num_rows:
                    begun = begun or self._begin()
                    self._produce(topic, table)
            if begun:
                marker = Marker(batch, counts)
                self._producer.produce(self._writer.markers, key=self._writer.name, value=msgspec.json.encode(marker))
                self._producer.commit_transaction(COMMIT_TIMEOUT_S)
                self._out = marker
        return counts

    def _begin(self) -> bool:
        self._producer.begin_transaction()
        return True

    def _produce(self, topic: str, table: pa.Table) -> None:
        if "headers" in table.column_names or "timestamp" in table.column_names:
            _produce_one_by_one(self._producer, topic, table)
            return
        for chunk in table.to_batches(max_chunksize=_CHUNK):
            self._produce_chunk(topic, chunk.to_pylist())

    def _produce_chunk(self, topic: str, messages: list[dict[str, Any]]) -> None:
        while messages:
            queued = self._producer.produce_batch(topic, messages)
            # What did not fit into the queue is marked; it goes again once some of the queue is out.
            messages = [m for m in messages if "_error" in m] if queued < len(messages) else []
            for message in messages:
                if (error := message.pop("_error")).code() != KafkaError._QUEUE_FULL:
                    raise EngineError(
                        f"A record for {topic} cannot be written: {error.str()}.",
                        next_step="Nothing of the batch is visible. Let the pipeline write less, or Kafka take more.",
                    )
            self._producer.poll(0.1 if messages else 0)


def read_marker(kafka: Mapping[str, str], writer: Writer) -> Marker | None:
    """The last batch that is out, None if none is: the newest of this writer's committed markers."""
    consumer = Consumer({**quiet(kafka), **_MARKER_READER, "group.id": writer.name})
    with kafka_errors("Reading the markers"), contextlib.closing(consumer):
        # Asked for its offsets first, the client knows the partition's leader: it would look for it for 0.5 s.
        markers = TopicPartition(writer.markers, 0)
        markers.offset, _ = consumer.get_watermark_offsets(markers, TIMEOUT_S)
        consumer.assign([markers])
        mine = [message.value() for message in _to_the_end(consumer) if message.key() == writer.name.encode()]
    try:
        found = [msgspec.json.decode(value, type=Marker) for value in mine]
    except msgspec.DecodeError as error:
        raise EngineError(
            f"A marker of {writer.name} in the topic {writer.markers} cannot be read: {error}.",
            next_step="An older version of Sluice wrote it, or a stranger: give the pipeline another name.",
        ) from error
    return max(found, key=lambda marker: marker.batch.number, default=None)


def _fast(limits: Mapping[str, int]) -> dict[str, str]:
    """A quick producer's settings, with batches that each of the topics takes."""
    return _FAST | {"batch.size": str(min(_BATCH_BYTES, *limits.values()))}


def send_at_least_once(
    kafka: Mapping[str, str], records: Iterable[tuple[str, pa.Table]], limits: Mapping[str, int]
) -> dict[str, int]:
    """Write records without a transaction; the number by topic, once Kafka has them all. Tried again, they are twice.

    Tasks call it for themselves, all at once: nothing goes through the driver, and no transaction holds readers up.
    """
    failed: list[KafkaError] = []
    own = {**_fast(limits), "enable.idempotence": True, "on_delivery": partial(_note, failed)}
    producer = Producer(quiet(kafka) | own)
    counts: dict[str, int] = {}
    with kafka_errors("Writing the output"):
        for topic, table in records:
            counts[topic] = counts.get(topic, 0) + table.num_rows
            _produce_one_by_one(producer, topic, table)
        left = producer.flush(COMMIT_TIMEOUT_S)
    if failed or left:
        why = failed[0].str() if failed else f"no answer within {COMMIT_TIMEOUT_S} s"
        raise EngineError(f"{len(failed) + left} records were not written: {why}.", next_step=_way_out(why))
    return counts


def _note(failed: list[KafkaError], error: KafkaError | None, _: object) -> None:
    if error is not None:
        failed.append(error)


def _produce_one_by_one(producer: Producer, topic: str, table: pa.Table) -> None:
    for row in table.to_pylist():
        more: dict[str, Any] = {}
        if row.get("headers"):
            more["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
        if row.get("timestamp") is not None:
            more["timestamp"] = row["timestamp"]
        while True:
            try:
                producer.produce(topic, key=row["key"], value=row["value"], **more)
                break
            except BufferError:  # the queue is full
                producer.poll(0.1)


def _to_the_end(consumer: Consumer) -> Iterator[Any]:
    while True:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise EngineError(f"The markers cannot be read within {TIMEOUT_S} s.", next_step="Is the broker up?")
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise KafkaException(error)


@contextlib.contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Kafka's errors as ours."""
    try:
        yield
    except KafkaException as error:
        said = error.args[0].str()
        raise EngineError(f"{doing}: {said}.", next_step=_way_out(said)) from error


def _way_out(said: str) -> str:
    if "size too large" in said:
        return (
            "Nothing of the batch is visible. Raise max.message.bytes of the output's topic, let the pipeline write "
            'less, or have such records set aside: to(topic, on_error="dead_letter").'
        )
    return "Is the broker up and reachable?"


def message_limits(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, int]:
    """Bytes of the largest record that each topic takes; Kafka's own default where it may not be asked for."""
    admin = AdminClient(quiet(kafka))
    found = dict.fromkeys(topics, _KAFKAS_LIMIT)
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in found])
    with kafka_errors("Looking at the topics' settings"):
        for resource, future in asked.items():
            try:
                found[resource.name] = int(future.result(TIMEOUT_S)["max.message.bytes"].value)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_TOLD:
                    raise
    return found


_NOT_TOLD = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)


def room_for_letters(limits: Mapping[str, int]) -> int:
    """The largest dead letter, in bytes, of records that the topics take."""
    return max(limits.values()) + _LETTERS_HEADERS


def ensure_topics(
    kafka: Mapping[str, str], wanted: Mapping[str, int], settings: Mapping[str, Mapping[str, str]]
) -> None:
    """Create the topics that are missing, each with so many partitions, and with settings if it has any."""
    admin = AdminClient(quiet(kafka))
    with kafka_errors("Looking at the topics"):
        there = admin.list_topics(timeout=TIMEOUT_S).topics
        missing = [
            NewTopic(topic, count, config=dict(settings.get(topic, {})))
            for topic, count in wanted.items()
            if topic not in there
        ]
        for made in admin.create_topics(missing).values() if missing else ():
            made.result(TIMEOUT_S)


def partition_counts(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, int]:
    """How many partitions each topic has; EngineError for one that is not there."""
    admin = AdminClient(quiet(kafka))
    with kafka_errors("Looking at the topics"):
        there = admin.list_topics(timeout=TIMEOUT_S).topics
    missing = sorted(set(topics) - there.keys())
    if missing:
        raise EngineError(
            f"There is no topic {', '.join(missing)}.", next_step="Create it, or correct its name in the pipeline."
        )
    return {topic: len(there[topic].partitions) for topic in topics}
