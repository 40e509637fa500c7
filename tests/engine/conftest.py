"""Runs a pipeline on the real broker and the shared Spark, and reads its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from sluice.engine.run.driver_lease import this_process
from sluice.engine.run.job_run import JobRun
from sluice.errors import EngineError
from sluice.kafka.brokers import silent_admin
from sluice.kafka.listed_offsets import list_offsets
from sluice.kafka.topics import watermark_offsets
from sluice.local.broker import EmbeddedKafka
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.model import GenerationRef, Snapshot, StoreInfo
from sluice.state.remote.opening import open_shard
from sluice.topology.pipeline import Pipeline
from sluice.values.topic_patterns import is_pattern
from tests.engine.shop import Build, Names
from tests.support.spark_in_process import SparkInProcess

Record = bytes | tuple[str | bytes | None, bytes | None]
"""A value, or a key and a value."""


@dataclass
class Running:
    """A pipeline with its own state."""

    spark: SparkSession
    names: Names
    pipeline: Pipeline
    settings: Settings
    kafka: EmbeddedKafka
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self.bootstrap = self.kafka.bootstrap
        self.producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0}
        )

    def send(self, topic: str, *records: Record, partition: int = 0, **more: Any) -> None:
        """Write records to a topic of the test, in order."""
        for record in records:
            key, value = record if isinstance(record, tuple) else (b"key", record)
            self.producer.produce(
                self.names(topic), key=key, value=value, partition=partition, **more
            )
        assert self.producer.flush(20) == 0

    def run(self, **how: Any) -> int:
        """Run the pipeline until it has processed all records.

        Returns the number of records read.
        """
        job = plan(self.pipeline).job
        return JobRun(self.spark, job, self.settings, **how).run()

    def store(self, name: str) -> dict[Any, Any]:
        """The values of a store in the newest snapshot, by key, or by key and the window's start in ms."""
        with self.ledger() as ledger:
            (info,) = [
                store
                for store in ledger.generations.stores(self.pipeline.name)
                if store.name in (name, self.names(name))
            ]
            workers = ledger.generations.workers(self.pipeline.name)
        snapshot = self.snapshot()
        return {
            key: value
            for worker in workers
            for key, value in state_rows(worker.location, info, snapshot.batch)
        }

    def owned(self, name: str, worker: int) -> set[Any]:
        """The keys of a store that a worker owns."""
        with self.ledger() as ledger:
            (info,) = [
                store
                for store in ledger.generations.stores(self.pipeline.name)
                if store.name == name
            ]
            location = ledger.generations.workers(self.pipeline.name)[worker].location
        return {key for key, _ in state_rows(location, info, self.snapshot().batch)}

    def ledger(self) -> Ledger:
        return Ledger.open(self.settings.ledger)

    def snapshots(self) -> list[Snapshot]:
        """All snapshots, oldest first."""
        with self.ledger() as ledger:
            return ledger.snapshots.recent(self.pipeline.name, limit=1000)[::-1]

    def snapshot(self) -> Snapshot:
        return self.snapshots()[-1]

    def counts(self, name: str) -> int:
        """A count, summed over all snapshots."""
        return sum(snapshot.counts.get(name, 0) for snapshot in self.snapshots())

    def output(self, topic: str) -> list[tuple[str | None, Any]]:
        """The committed records of a topic of the test: key and decoded value."""
        return [
            (
                None if (key := message.key()) is None else key.decode(),
                json.loads(message.value() or b"null"),
            )
            for message in self.messages(self.names(topic))
        ]

    def dead_letters(self) -> list[Message]:
        return self.messages(self.pipeline.dead_letters)

    def reasons(self) -> list[str]:
        """The reason of every dead letter, in order."""
        reasons: list[str] = []
        for letter in self.dead_letters():
            reason = dict(letter.headers() or [])["sluice.reason"]
            assert isinstance(reason, bytes)
            reasons.append(reason.decode())
        return reasons

    def messages(self, topic: str) -> list[Message]:
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "tests", "isolation.level": "read_committed",
            "enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10,
        })  # fmt: skip
        with closing(consumer):
            partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            self._await_markers(topic, partitions)
            consumer.assign([_beginning(consumer, topic, number) for number in partitions])
            # The consumer mixes partitions, but each partition's records are in order.
            return sorted(
                _to_the_end(consumer, len(partitions)),
                key=lambda one: (one.partition(), one.offset()),
            )

    def _await_markers(self, topic: str, partitions: Iterable[int]) -> None:
        """Wait until the topic's transactions have ended; at most 5 s, because a test may leave one open.

        A transaction may be committed before all its partitions have the marker that lets readers see its
        records.
        """
        admin = silent_admin({"bootstrap.servers": self.bootstrap})
        places = [TopicPartition(topic, number) for number in partitions]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            committed = list_offsets(admin, places, latest, 20)
            written = list_offsets(admin, places, latest, 20, IsolationLevel.READ_UNCOMMITTED)
            if all(committed[place].offset == written[place].offset for place in places):
                return

    def planned(self) -> PlannedBatch:
        """The plan of the newest batch."""
        with self.ledger() as ledger:
            planned = ledger.plans.newest(GenerationRef(self.pipeline.name, 1))
        assert planned is not None
        return planned

    def crash_before_publishing(self) -> None:
        """Run until a batch's shards and output are written, and end as after a crash right before the ledger."""

        def crash(*_: object) -> None:
            raise RuntimeError("crash")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Snapshots, "publish", crash)
            with pytest.raises(EngineError, match="crash"):
                self.run()

    def take_lease(self) -> None:
        """Another driver takes the lease."""
        ref = GenerationRef(self.pipeline.name, 1)
        with self.ledger() as ledger:
            # The lease is not taken if its holder renews it between these two calls.
            while ledger.leases.take(ref, this_process("another"), ledger.leases.get(ref)) is None:
                pass

    def everything(self) -> dict[str, Any]:
        """All results of the pipeline."""
        with self.ledger() as ledger:
            stores = [store.name for store in ledger.generations.stores(self.pipeline.name)]
        topics = plan(self.pipeline).job.outputs
        outputs = {topic: [(m.key(), m.value()) for m in self.messages(topic)] for topic in topics}
        dead_letters = [
            (message.key(), message.value(), message.headers()) for message in self.dead_letters()
        ]
        return {
            "stores": {name: self.store(name) for name in stores},
            "outputs": outputs,
            "dead letters": dead_letters,
            "snapshots": self.snapshots(),
        }


def state_rows(location: str, info: StoreInfo, batch: int) -> Iterator[tuple[Any, Any]]:
    """The rows of a store in a shard: keys, with the start of the window if there is one, and values."""
    with open_shard(location) as shard:
        for group_id in shard.scan(info.group_id, batch, limit=1_000_000):
            assert group_id.value is not None
            yield (
                (group_id.key, group_id.window_start) if info.kind == "window" else group_id.key,
                json.loads(group_id.value)[info.store_column],
            )


def _beginning(consumer: Consumer, topic: str, partition: int) -> TopicPartition:
    offset, _ = watermark_offsets(consumer, TopicPartition(topic, partition), 20)
    return TopicPartition(topic, partition, offset)


def _to_the_end(consumer: Consumer, partitions: int) -> Iterator[Message]:
    until = time.monotonic() + 20
    while partitions and time.monotonic() < until:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            partitions -= 1
        else:
            raise AssertionError(error.str())
    assert not partitions, "the topic's end was not reached"


Start = Callable[..., Running]


@pytest.fixture
def run_session(request: pytest.FixtureRequest) -> SparkSession:
    """The session of the test's runs: Spark with `--spark` or the marker `spark`, otherwise this process."""
    if request.config.getoption("--spark") or request.node.get_closest_marker("spark"):
        spark: SparkSession = request.getfixturevalue("spark")
        return spark
    return SparkInProcess.session()


@pytest.fixture
def start(
    run_session: SparkSession,
    kafka: EmbeddedKafka,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> Start:
    """Creates a pipeline's topics and folder: `start(build, sales=3)` gives its topic `sales` 3 partitions."""

    def make(build: Build, **partitions: int) -> Running:
        names = Names(fresh_name("shop"))
        pipeline = build(names)
        job = plan(pipeline).job
        topics = [topic for topic in job.topics if not is_pattern(topic)]
        short = {topic: topic.removeprefix(f"{names.prefix}.") for topic in topics}
        if short:
            kafka.create_topics({topic: partitions.get(name, 1) for topic, name in short.items()})
        # Clients outlive the broker for a moment, and would log this.
        brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
        settings = Settings.read(
            {"SLUICE_HOME": str(tmp_path / names.prefix), "SLUICE_KAFKA": brokers}
        )
        return Running(run_session, names, pipeline, settings, kafka)

    return make
