"""A run rejects a changed topic, with the exact gap and the options; it reads new partitions automatically."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sluice.engine.read.identity import InputError, SourceIdentity
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef
from sluice.testing.kafka import EmbeddedKafka
from tests.engine.conftest import Start
from tests.engine.shop import sale, shop


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as opened:
        yield opened


class Input:
    """A topic with two partitions and ten records in the first, which a job has begun to read."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, ledger: Ledger) -> None:
        self.kafka, self.topic = kafka, topic
        self.config = {"bootstrap.servers": kafka.bootstrap}
        self.admin = AdminClient({**self.config})
        self.guard = SourceIdentity(self.config, ledger.sources, JobRef("shop", "main", 1), (topic,))
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
    topic.guard.check_identity()


@pytest.mark.parametrize("records", [5, 10, 50])
def test_a_recreated_topic_is_rejected_whether_shorter_or_longer(topic: Input, records: int) -> None:
    topic.delete()
    topic.kafka.create_topics({topic.topic: 2})
    topic.send(records)
    for check in (lambda: topic.check(done=10), topic.guard.check_identity):
        with pytest.raises(
            InputError, match=r"was deleted and created again: its id is \S+, and job 'main'.*Either stop running"
        ):
            check()


def test_a_deleted_topic_is_rejected(topic: Input) -> None:
    topic.delete()
    with pytest.raises(InputError, match=r"Topic guarded_gw\d+_\d+ was deleted\. Either stop"):
        topic.check(done=10)


def test_a_missing_topic_is_named(kafka: EmbeddedKafka, ledger: Ledger) -> None:
    guard = SourceIdentity(
        {"bootstrap.servers": kafka.bootstrap}, ledger.sources, JobRef("shop", "main", 1), ("nowhere",)
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


def test_a_job_does_not_read_a_recreated_topic(start: Start, kafka: EmbeddedKafka) -> None:
    running = start(shop)
    running.send("sales", sale("a"), sale("b"))
    running.run()
    before = running.everything()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    sales = running.names("sales")
    admin.delete_topics([sales])[sales].result(20)
    while sales in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    kafka.create_topics({sales: 1})
    running.send("sales", *(sale("c") for _ in range(9)))
    with pytest.raises(InputError, match="created again"):
        running.run()
    assert running.everything() == before
