"""A run rejects a changed topic, with the exact gap and the options.

It reads new partitions automatically.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from sluice.engine.read.source_identity import InputError, SourceIdentity
from sluice.engine.run.driver_lease import Lease, this_process
from sluice.kafka.brokers import silent_admin
from sluice.kafka.topics import records_at
from sluice.local.broker import EmbeddedKafka
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.sources import note_last_records
from sluice.state.model import GenerationRef
from sluice.values.record_metadata import record_fingerprint
from tests.engine.conftest import Start
from tests.engine.shop import sale, shop
from tests.support.ports import free_port
from tests.support.states import make_audit, make_snapshot

REF = GenerationRef("shop", 1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as opened:
        yield opened


class Input:
    """A topic with two partitions and ten records in the first, which a pipeline has begun to read."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, ledger: Ledger) -> None:
        self.kafka, self.topic = kafka, topic
        self.config = {"bootstrap.servers": kafka.bootstrap}
        self.admin = silent_admin(self.config)
        self.guard = SourceIdentity(self.config, ledger.sources, REF, (topic,), ledger.audits)
        kafka.create_topics({topic: 2})
        self.send(10)

    def send(self, number: int) -> None:
        producer = Producer(self.config)
        for _ in range(number):
            producer.produce(self.topic, b"{}", partition=0)
        assert producer.flush(20) == 0

    def delete(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(20)
        while self.topic in self.admin.list_topics(timeout=20).topics:
            time.sleep(0.02)

    def forget(self, before: int) -> None:
        """Delete records, like Kafka's retention."""
        place = TopicPartition(self.topic, 0, before)
        self.admin.delete_records([place])[place].result(20)

    def check(self, done: int | None = None, begun: int | None = None) -> dict[str, dict[str, int]]:
        def at(offset: int | None) -> dict[str, dict[str, int]]:
            return {} if offset is None else {self.topic: {"0": offset, "1": 0}}

        return self.guard.check(at(done), at(done if begun is None else begun))


@pytest.fixture
def topic(kafka: EmbeddedKafka, fresh_name: Callable[[str], str], ledger: Ledger) -> Input:
    made = Input(kafka, fresh_name("guarded"), ledger)
    assert made.check() == {made.topic: {"0": 0, "1": 0}}
    return made


def test_an_unchanged_topic_is_accepted(topic: Input) -> None:
    topic.send(5)
    topic.forget(before=10)
    assert topic.check(done=10) == {topic.topic: {"0": 0, "1": 0}}
    topic.guard.check_batch(())


@pytest.mark.parametrize("records", [5, 10, 50])
def test_a_recreated_topic_is_rejected_whether_shorter_or_longer(
    topic: Input, records: int
) -> None:
    topic.delete()
    topic.kafka.create_topics({topic.topic: 2})
    topic.send(records)
    for check in (lambda: topic.check(done=10), lambda: topic.guard.check_batch(())):
        with pytest.raises(
            InputError,
            match=r"was deleted and created again: its id is \S+, but 'shop' has read.*Either stop running",
        ):
            check()


def test_a_deleted_topic_is_rejected(topic: Input) -> None:
    topic.delete()
    with pytest.raises(InputError, match=r"Topic guarded_gw\d+_\d+ was deleted\. Either stop"):
        topic.check(done=10)


def test_a_missing_topic_is_named(kafka: EmbeddedKafka, ledger: Ledger) -> None:
    guard = SourceIdentity(
        {"bootstrap.servers": kafka.bootstrap},
        ledger.sources,
        GenerationRef("shop", 1),
        ("nowhere",),
    )
    with pytest.raises(InputError, match=r"Topic nowhere does not exist\. Create the topic"):
        guard.check({}, {})


def test_deleted_unread_records_are_reported_with_their_offsets(topic: Input) -> None:
    topic.forget(before=9)
    with pytest.raises(
        InputError,
        match=r"partition 0, offsets 4 to 8 \(at most 5 records; some offsets may be transaction markers\)\."
        ".* sluice rebuild shop --from-topics",
    ):
        topic.check(done=4)


def test_the_identity_is_checked_after_an_unfinished_first_batch(topic: Input) -> None:
    topic.forget(before=3)
    with pytest.raises(InputError, match="partition 0, offsets 0 to 2"):
        topic.check(begun=10)


@pytest.mark.parametrize(("done", "begun"), [(12, 12), (10, 12)])
def test_a_truncated_topic_is_rejected(topic: Input, done: int, begun: int) -> None:
    with pytest.raises(
        InputError,
        match=r"partition 0 ends at offset 10, but was read up to 12\. Records 10 to 11 are in the state but no longer",
    ):
        topic.check(done, begun)


def test_new_partitions_are_recorded(topic: Input) -> None:
    topic.admin.create_partitions([NewPartitions(topic.topic, 4)])[topic.topic].result(20)
    while len(topic.admin.list_topics(timeout=20).topics[topic.topic].partitions) < 4:
        time.sleep(0.02)
    assert topic.check(done=10) == {topic.topic: {"0": 0, "1": 0, "2": 0, "3": 0}}


def note(ledger: Ledger, topic: str, offset: int, fingerprint: str) -> None:
    """Note the last record that the pipeline has read of partition 0."""
    source = SourceAudit(
        topic=topic, partition=0, start=0, end=offset + 1, last=offset, fingerprint=fingerprint
    )
    with ledger.engine.begin() as connection:
        note_last_records(connection, REF, [source])


def fingerprint_at(guard: SourceIdentity, offset: int) -> str:
    (topic,) = guard.topics
    ((_, record),) = records_at(guard.kafka, [(topic, 0, offset)])
    return record_fingerprint(record.key(), record.value(), record.timestamp()[1])


@pytest.mark.fault(
    "F40", "another record, or none, where the last one was that a pipeline has read"
)
def test_the_last_record_that_was_read_has_to_be_there(topic: Input, ledger: Ledger) -> None:
    note(ledger, topic.topic, 9, fingerprint_at(topic.guard, 9))
    topic.send(3)
    topic.check(done=10)
    note(ledger, topic.topic, 9, record_fingerprint(None, b"another", 5))
    with pytest.raises(
        InputError, match=r"at offset 9, .* there is now another record\. The records from"
    ) as no:
        topic.check(done=10)
    assert "from offset 0 at the earliest to 9 were replaced" in no.value.detail
    assert "Either stop running the pipeline" in no.value.next_step
    assert "sluice rebuild shop --from-topics" in no.value.next_step

    # Deleted records tell nothing, as long as no unread one is among them.
    topic.forget(before=10)
    topic.check(done=10)


@pytest.mark.fault(
    "F40",
    "the last record that a pipeline has read is gone: compacted, or replaced by an aborted one",
)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_record_that_compaction_may_have_removed_is_no_sign_of_another_log(
    policy: str, kafka: EmbeddedKafka, fresh_name: Callable[[str], str], ledger: Ledger
) -> None:
    name = fresh_name(policy)
    kafka.create_topics({name: 1}, {"cleanup.policy": policy})
    config = {"bootstrap.servers": kafka.bootstrap}
    guard = SourceIdentity(config, ledger.sources, REF, (name,), ledger.audits)
    guard.check({}, {})
    producer = Producer({**config, "transactional.id": name})
    producer.init_transactions(20)
    for is_committed in (True, False, True):  # offset 1 is a marker, offset 2 an aborted record
        producer.begin_transaction()
        producer.produce(name, b"{}", b"key")
        producer.flush(20)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(20)
    note(ledger, name, 2, "0")
    at_the_end = {name: {"0": 5}}
    if policy == "compact":
        guard.check(at_the_end, at_the_end)
    else:
        with pytest.raises(InputError, match=r"at offset 2, .* there is now no record"):
            guard.check(at_the_end, at_the_end)


@pytest.mark.heavy  # other tests note another record, which is all that a pipeline sees of a replaced log
@pytest.mark.fault(
    "F40",
    "a broker's disk is restored from a copy; then the topic grows past the offset that was read",
)
def test_a_partition_that_went_back_is_rejected_with_the_gap(
    tmp_path: Path, ledger: Ledger
) -> None:
    broker, copy = EmbeddedKafka(tmp_path / "kafka", free_port()), tmp_path / "copy"
    data = tmp_path / "kafka" / "data" / "restored-0"
    with broker:
        made = Input(broker, "restored", ledger)
        made.check()
        broker.stop()
        shutil.copytree(data, copy)
        broker.start()
        made.send(5)
        with Lease(ledger.leases, REF, this_process("")) as lease:
            for batch, last in enumerate((9, 14)):
                source = SourceAudit(
                    topic="restored", partition=0, start=0, end=last + 1, last=last,
                    fingerprint=fingerprint_at(made.guard, last),
                )  # fmt: skip
                audit = msgspec.structs.replace(
                    make_audit(batch, lease.epoch, source), pipeline="shop"
                )
                ledger.snapshots.publish(make_snapshot(batch, pipeline="shop"), audit)
        made.check(done=15)
        broker.stop()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        broker.start()
        made.send(12)
        with pytest.raises(
            InputError, match=r"at offset 14, .* from offset 10 to 14 were replaced"
        ):
            made.check(done=15)


def test_a_pipeline_does_not_read_a_recreated_topic(start: Start, kafka: EmbeddedKafka) -> None:
    running = start(shop)
    running.send("sales", sale("a"), sale("b"))
    running.run()
    before = running.everything()
    admin = silent_admin({"bootstrap.servers": kafka.bootstrap})
    sales = running.names("sales")
    admin.delete_topics([sales])[sales].result(20)
    while sales in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    kafka.create_topics({sales: 1})
    running.send("sales", *(sale("c") for _ in range(9)))
    with pytest.raises(InputError, match="created again"):
        running.run()
    assert running.everything() == before


def test_a_run_and_a_rebuild_refuse_a_partition_that_went_back(start: Start) -> None:
    running = start(shop, sales=2)
    sales = running.names("sales")
    running.send("sales", sale("a"), sale("b"))
    running.run()
    running.send("sales", sale("c"))
    running.run()
    config, ref = {"bootstrap.servers": running.bootstrap}, GenerationRef(running.pipeline.name, 1)
    with running.ledger() as ledger:
        noted = {(each.topic, each.partition): each for each in ledger.sources.get(ref)}[sales, 0]
        assert (noted.last, noted.fingerprint) == (
            2,
            fingerprint_at(SourceIdentity(config, ledger.sources, ref, (sales,)), 2),
        )
        assert {
            each.last for each in ledger.sources.get(ref) if each.topic != sales or each.partition
        } == {-1}
        with ledger.engine.begin() as connection:
            other = SourceAudit(
                topic=sales, partition=0, start=0, end=3, last=2, fingerprint="another"
            )
            note_last_records(connection, ref, [other])
    running.send("sales", sale("d"))
    before = running.everything()
    job = plan(running.pipeline).job
    for command in (running.run, Rebuild(running.spark, job, running.settings).run):
        with pytest.raises(
            InputError, match=r"offset 2, .* from offset 2 to 2 were replaced"
        ) as refused:
            command()
        assert running.everything() == before
    assert "--from-topics" in refused.value.next_step
    Rebuild(running.spark, job, running.settings, from_topics=True).run()
    assert running.run() == 1
    assert running.store("n") == {"a": 1, "b": 1, "c": 1, "d": 1}
