"""An episode: a pipeline of random operators, records in random order, and what it must have done with them.

The records' timestamps are their event times. Sluice orders the records of a batch by the largest
timestamp so far in their partition, so that the positions of the snapshots say in which order the
model has to take the records.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions

from sluice import Pipeline
from sluice.engine.run.driver_lease import Patience
from sluice.kafka.redrive import REDRIVEN
from sluice.kafka.topics import watermark_offsets
from sluice.plan import plan
from sluice.settings import settings
from sluice.state.ledger.audits import Audit
from sluice.state.model import Snapshot
from sluice.state.shard.addresses import is_file
from tests.chaos.extras import add_extras, different_extras
from tests.chaos.one_shuffle import one_shuffle
from tests.conformance import catalogue
from tests.conformance.catalogue import SOURCES, Nodes
from tests.conformance.model.flow import Record, Windowed
from tests.conformance.model.topology import Topology as Model
from tests.conformance.topologies import Input, Topology, add_topologies, by_key, difference
from tests.engine.conftest import Running
from tests.faults.world import wait_until
from tests.servers.hosts import TOKEN, Host

START_MS = 1_700_000_000_000
MALFORMED = b'{"n": '
PATIENCE = Patience(beat_s=0.2, silence_s=1.0)
STORED = ("aggregate", "fold", "reduce", "to_table")
"""The operators whose store has a name."""


@dataclass(frozen=True)
class Sent:
    """A record in a source topic."""

    source: str
    offset: int
    input: Input
    is_malformed: bool


class Episode(Running):
    """A running pipeline, and the records that have been sent to it."""

    def __init__(self, running: Running, seed: int) -> None:
        super().__init__(
            running.spark, running.names, running.pipeline, running.settings, running.kafka
        )
        self.chance = random.Random(seed)
        self.reads_ahead = self.chance.random() < 0.5
        """Whether rows are shuffled once, so that the tasks read a batch while the previous one's
        output is written."""
        count = self.chance.choice((1, 1, 2))
        self.topologies = [_topology(1_000 * seed + 10 * number) for number in range(count)]
        self.sources: Collection[str] = tuple(SOURCES)
        """The sources that the pipeline reads."""
        if self.reads_ahead:
            self.topologies, self.sources = one_shuffle(self.chance, count + 1)
        self.since = [0] * len(self.topologies)
        """For each topology, the number of batches that had been published before it was added."""
        self.sent: list[Sent] = []
        self.ends: list[dict[tuple[str, int], int]] = []
        """The end offsets of each published batch."""
        self._clock = START_MS
        self._used: set[int] = set()
        self._offsets: Counter[str] = Counter()
        self.has_extras = "t" in self.sources and self.chance.random() < 0.4
        self.is_history_known = True
        """Whether a rebuild has read all records that the pipeline had read before it."""
        self.boundaries_lost = False
        """Whether the ledger has lost the ends of earlier batches, so that a rebuild divides the
        records otherwise."""
        self.is_output_known = True
        """Whether later outputs follow from all records, as those of the model do."""
        self.have_transactions: set[str] = set()
        """The sources with transactions, whose ends have the time of the broker's clock. Segments
        are divided by the times of records, which are earlier, so they are not compacted."""
        self._hosts: tuple[Host, Host] | None = None
        self.closing = ExitStack()
        self.set_workers(self.chance.choice((1, 2, 3)))

    def set_workers(self, workers: int) -> None:
        """Build the pipeline again, with another number of workers."""
        self.pipeline = Pipeline(self.names.prefix, workers=workers)
        sources = add_topologies(
            self.pipeline, self.topologies, f"{self.names.prefix}.", self.sources
        )
        if self.has_extras:
            add_extras(
                self.pipeline, sources, self.names, with_tables=bool(self.settings.connections)
            )

    def hosts(self) -> tuple[Host, Host] | None:
        """State servers of two hosts, of which the first has the shards of new workers.

        None for other shards.
        """
        if self._hosts is None and is_file(self.settings.shards):
            self.closing.callback(settings.cache_clear)
            self.closing.enter_context(pytest.MonkeyPatch.context()).setenv(
                "SLUICE_SERVER_TOKEN", TOKEN
            )
            settings.cache_clear()
            ledger = self.closing.enter_context(self.ledger())
            folders = self.settings.home / "shards", self.settings.home / "away"
            home, away = (
                Host(ledger, folder).start(pipeline=self.pipeline.name) for folder in folders
            )
            for host in (home, away):
                self.closing.callback(host.stop)
            self._hosts = home, away
        return self._hosts

    def exists(self, topic: str) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return topic in admin.list_topics(timeout=20).topics

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result(20)
        assert wait_until(lambda: not self.exists(topic))

    def restore(self, topic: str, records: Sequence[Message]) -> None:
        """Create a deleted output again, and write its records back."""
        partitions = max((record.partition() or 0 for record in records), default=0) + 1
        self.kafka.create_topics({topic: partitions})
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for record in records:
            producer.produce(
                topic,
                record.value(),
                record.key(),
                record.partition() or 0,
                timestamp=record.timestamp()[1],
                headers=record.headers() or [],
            )
        assert producer.flush(30) == 0

    def add_output(self) -> str:
        """Add an output of a stream to the pipeline's file, if it reads one.

        Only later batches write to it.
        """
        topics = plan(self.pipeline).job.topics
        source = next((name for name in ("l", "r") if self.names(name) in topics), None)
        if source is None:
            return "no output is added"
        nodes = Nodes()
        doubled = catalogue.double(nodes, nodes.sources[source])
        self.topologies.append(Topology(f"output of {source}", nodes.nodes, {"out": doubled}))
        self.since.append(len(self.ends))
        self.set_workers(self.pipeline.workers)
        return f"an output of {source} is added"

    def remove_output(self) -> None:
        """Undo `add_output`."""
        self.topologies.pop()
        self.since.pop()
        self.set_workers(self.pipeline.workers)

    @property
    def is_timed(self) -> bool:
        """Whether results depend on stream time."""
        nodes = [node for topology in self.topologies for node in topology.nodes]
        timed = ("window", "within", "ms")
        return any(
            node["op"] in ("suppress", "process") or any(name in node for name in timed)
            for node in nodes
        )

    def run(self, **how: Any) -> int:
        try:
            return super().run(patience=PATIENCE, **how)
        finally:
            self.note_ends()

    def note_ends(self) -> None:
        """Note the batches that have been published since."""
        for snapshot in self._published():
            ends = {
                (topic, int(number)): end
                for topic, at in snapshot.positions.items()
                for number, end in at.items()
            }
            if not self.ends or _is_behind(ends, self.ends[-1]):
                self.ends.append(ends)

    def _published(self) -> list[Snapshot]:
        with self.ledger() as ledger:
            return ledger.snapshots.recent(self.pipeline.name, limit=10_000)[::-1]

    def send_some(self, count: int, *, only: str = "") -> None:
        """Send random records: some late, some without key or value, some that cannot be read."""
        for _ in range(count):
            source = only or self.chance.choice([name for name in SOURCES if name != "w"])
            self._clock += self.chance.choice((1, 1, 2, 4, 10))
            when = self._clock - self.chance.choice((0, 0, 0, 2, 8, 25))
            while when in self._used:
                when -= 1
            self._used.add(when)
            keys = ("a", "b", "x", "") if SOURCES[source] != "stream" else ("a", "b", "x", "", None)
            value = {
                "n": self.chance.choice((None, *range(-3, 10))),
                "g": self.chance.choice(("a", "b", "x", "", None)),
            }
            record: Input = {
                "topic": source,
                "key": self.chance.choice(keys),
                "value": self.chance.choice((value, value, value, value, None)),
                "ts": when,
            }
            self.send_record(record, is_malformed=self.chance.random() < 0.05)
        assert self.producer.flush(30) == 0

    def send_record(self, record: Input, *, is_malformed: bool) -> None:
        value = None if record["value"] is None else json.dumps(record["value"]).encode()
        self.producer.produce(
            self.names(record["topic"]),
            MALFORMED if is_malformed else value,
            record["key"],
            0,
            timestamp=record["ts"],
        )
        self.sent.append(
            Sent(record["topic"], self._next_offset(record["topic"]), record, is_malformed)
        )

    def _next_offset(self, source: str) -> int:
        offset = self._offsets[source]
        self._offsets[source] += 1
        return offset

    def send_transaction(self, count: int) -> None:
        """Send records in a transaction that is aborted. Its records and its end take offsets."""
        source = self.chance.choice(("l", "r", "t"))
        config = {
            "bootstrap.servers": self.bootstrap,
            "transactional.id": f"{self.names.prefix}.others",
            "log_level": 0,
        }
        producer = Producer(config)
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(
                self.names(source), b'{"n": 7, "g": "never"}', b"a", 0, timestamp=self._clock
            )
        producer.flush(30)
        producer.abort_transaction(30)
        self.have_transactions.add(source)
        self._offsets[source] = self._end(source)

    def add_partition(self, source: str) -> int:
        """Add a partition to a source.

        Returns the number of partitions; records are still sent to the first one.
        """
        admin, topic = AdminClient({"bootstrap.servers": self.bootstrap}), self.names(source)
        partitions = len(admin.list_topics(topic, timeout=20).topics[topic].partitions) + 1
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)
        return partitions

    def compact(self, source: str) -> bool:
        """Have the broker compact a topic. Returns whether records have gone."""
        topic, end = self.names(source), self._end(source)
        before = len(self.messages(topic))
        quick = {"log.cleaner.backoff.ms": "100"}
        compacted = {
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0",
        }
        self._alter(ResourceType.BROKER, "1", quick, AlterConfigOpType.SET)
        self._alter(ResourceType.TOPIC, topic, compacted, AlterConfigOpType.SET)

        def is_compacted() -> bool:
            # When the broker has applied the options, a later record begins a segment, before which
            # all is compacted.
            self._clock += 1_000
            self.send_record(
                {"topic": source, "key": "a", "value": None, "ts": self._clock}, is_malformed=False
            )
            assert self.producer.flush(30) == 0
            return sum((message.offset() or 0) < end for message in self.messages(topic)) < before

        try:
            return wait_until(is_compacted, 240, every=0.3)
        finally:
            # Other tests use the broker, too, and looking at the logs of all topics so often takes
            # CPU time.
            self._alter(ResourceType.BROKER, "1", quick, AlterConfigOpType.DELETE)

    def _alter(
        self,
        kind: ResourceType,
        name: str,
        options: Mapping[str, str],
        operation: AlterConfigOpType,
    ) -> None:
        """Change options of the broker or of a topic."""
        entries = [
            ConfigEntry(option, value, incremental_operation=operation)
            for option, value in options.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.incremental_alter_configs([resource])[resource].result(20)

    def note_redriven(self) -> None:
        """Add the records that re-driving has appended to the sources."""
        for source in SOURCES:
            for message in self.messages(self.names(source)):
                offset = message.offset()
                assert offset is not None
                if REDRIVEN in dict(message.headers() or []):
                    self.have_transactions.add(source)
                # The broker may report an aborted transaction's records after those that follow.
                if REDRIVEN in dict(message.headers() or []) and offset >= self._offsets[source]:
                    record = {
                        "topic": source,
                        "key": None,
                        "value": None,
                        "ts": message.timestamp()[1],
                    }
                    self.sent.append(Sent(source, offset, record, is_malformed=True))
            self._offsets[source] = self._end(source)

    def _end(self, source: str) -> int:
        """The offset of a source's next record. The end of a transaction takes an offset, too."""
        # A transaction can end for its producer before its end is in the topic.
        assert wait_until(lambda: self._end_for("read_committed", source) == self._last(source)), (
            f"a transaction of {source} has not ended"
        )
        return self._last(source)

    def _last(self, source: str) -> int:
        return self._end_for("read_uncommitted", source)

    def _end_for(self, isolation: str, source: str) -> int:
        """The offset after the last record that a consumer with this isolation reads."""
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "tests",
            "isolation.level": isolation,
        }
        with closing(Consumer(config)) as consumer:
            _, end = watermark_offsets(consumer, TopicPartition(self.names(source), 0), 20)
            return end

    # --- What must have happened ---

    def batches(self) -> Iterator[list[Input]]:
        """The records of each batch, in the order in which the pipeline has read them."""
        largest: Counter[str] = Counter()
        positions = {}
        for sent in self.sent:
            largest[sent.source] = max(largest[sent.source], sent.input["ts"])
            positions[sent.source, sent.offset] = largest[sent.source]
        begins = dict.fromkeys(SOURCES, 0)
        for ends in self.ends:
            until = {source: ends.get((self.names(source), 0), 0) for source in SOURCES}
            batch = [
                one for one in self.sent if begins[one.source] <= one.offset < until[one.source]
            ]
            batch.sort(key=lambda one: (positions[one.source, one.offset], one.source, one.offset))
            yield [one.input for one in batch if not one.is_malformed]
            begins = {source: max(begins[source], end) for source, end in until.items()}

    def problems(self) -> Iterator[str]:
        """What differs from the model, after a run to the end."""
        batches = [*self.batches()]
        topics = plan(self.pipeline).job.topics
        sent_to_it = [sent for sent in self.sent if self.names(sent.source) in topics]
        readable = sum(not sent.is_malformed for sent in sent_to_it)
        if (read := sum(map(len, batches))) != readable:
            yield f"{read} of {readable} records were read"
        for number, (topology, since) in enumerate(zip(self.topologies, self.since, strict=True)):
            inputs = [*itertools.chain.from_iterable(batches[since:])]
            yield from (
                f"topology {topology.name}: {why}"
                for why in self._different(f"t{number}", topology, inputs)
            )
        if self.has_extras:
            yield from different_extras(self)
        yield from self._audited()
        letters = len(self.dead_letters())
        unreadable = len(sent_to_it) - readable
        if letters != unreadable:
            yield f"{letters} dead letters instead of {unreadable}"

    def _different(self, prefix: str, topology: Topology, inputs: Sequence[Input]) -> Iterator[str]:
        """The outputs and stores that differ from the model's."""
        model = Model(topology.nodes)
        sent = {suffix: model.record_output(node.id) for suffix, node in topology.outputs.items()}
        for one in inputs:
            model.pipe(one["topic"], Record(one["key"], one["value"], one["ts"]))
        for suffix, output in topology.outputs.items():
            wanted, found = (
                by_key(sent[suffix]),
                self._written(f"{prefix}_{suffix}", output.kind == "windowed"),
            )
            for by_keys in (wanted, found):
                by_keys.get(None, []).sort(
                    key=str
                )  # records without a key are in any partition of the output
            if self.is_output_known and (why := difference(output.kind, wanted, found)):
                yield f"output {suffix}: {why}"
        for node in topology.nodes if self.is_history_known else ():
            # Rows of windows are deleted some time after the window's end.
            if node["op"] in STORED and "window" not in node:
                rows = {
                    (key.key, key.start) if isinstance(key, Windowed) else key: row.value
                    for key, row in model.nodes[node["id"]].rows.items()
                }
                stored = self.store(f"{prefix}_{node['id']}")
                if stored != rows:
                    yield f"store of {node['op']} {node['id']}: {stored} instead of {rows}"

    def _written(self, topic: str, is_windowed: bool) -> dict[Any, list[tuple[Any, int]]]:
        sent = []
        for message in self.messages(self.names(topic)):
            name, value = message.key(), message.value()
            key: Any = None if name is None else name.decode()
            if is_windowed:
                headers: dict[str, Any] = dict(message.headers() or [])
                key = Windowed(key, int(headers["window_start"]), int(headers["window_end"]))
            sent.append(
                Record(key, None if value is None else json.loads(value), message.timestamp()[1])
            )
        return by_key(sent)

    def _audited(self) -> Iterator[str]:
        """What is wrong in the audits of the current generation."""
        with self.ledger() as ledger:
            ref = self._published()[-1].ref
            audits: list[Audit] = ledger.audits.all(ref)
            recovered = {batch.number for batch in ledger.history.all(ref) if batch.boundaries_lost}
        ends: dict[tuple[str, int], int] = {}
        for audit in audits:
            if audit.batch in recovered:
                ends.clear()
            if audit.wrong:
                yield f"an audit does not balance: {audit.wrong}"
            for source in audit.sources:
                place = source.topic, source.partition
                if place in ends and source.start != ends[place]:
                    yield f"{place} continues at {source.start} instead of {ends[place]}"
                ends[place] = source.end
        topics = plan(self.pipeline).job.topics
        for name, end in self._offsets.items():
            # The last offset may be that of a transaction's end.
            reached = self.ends[-1].get((self.names(name), 0), 0)
            if self.names(name) in topics and reached < end - 1:
                yield f"the snapshot ends at {reached} of {name} instead of {end}"


def _topology(seed: int) -> Topology:
    """A random topology whose results are the same for each number of workers."""
    topology = Topology.random(seed, operators=5)
    while topology.depends_on_workers:
        seed += 1
        topology = Topology.random(seed, operators=5)
    return topology


def _is_behind(ends: dict[tuple[str, int], int], before: dict[tuple[str, int], int]) -> bool:
    """Whether a batch ends later than another one, in all partitions at least as late."""
    return ends != before and all(ends.get(place, 0) >= end for place, end in before.items())
