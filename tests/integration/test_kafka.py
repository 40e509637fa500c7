from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sluice.engine.read.kafka_records import read_ranges
from sluice.errors import EngineError, PreflightError
from sluice.kafka.open_transactions import oldest_held
from sluice.kafka.record_times import OldestUnread
from sluice.kafka.topics import Topic, create_topics, described_topics, produce, read_topic
from sluice.kafka.unread_records import read_lag
from sluice.local import broker as processes
from sluice.local.broker import EmbeddedKafka
from sluice.provision.class_archive import archive_file
from sluice.settings import settings
from sluice.values.record_places import Range
from tests.faults.world import wait_until
from tests.support.ports import free_port

pytestmark = pytest.mark.integration
LONG_AGO = 1_670_230_527_000  # 2022-12-05T08:55:27Z


@pytest.fixture
def broker(kafka: EmbeddedKafka) -> EmbeddedKafka:
    return kafka


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in reader.consume(count, timeout=60)]
    finally:
        reader.close()


def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, timestamp=LONG_AGO)
    assert producer.flush(20) == 0


def test_records_of_any_date_are_kept(broker: EmbeddedKafka) -> None:
    broker.create_topics({"kept": 1})
    write(broker.bootstrap, "kept", [b"1", b"2", b"3"])
    assert read(broker.bootstrap, "kept", 3) == [b"1", b"2", b"3"]


def test_the_oldest_unread_records_are_read_once_for_each_position(broker: EmbeddedKafka) -> None:
    broker.create_topics({"aged": 2})
    kafka = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(kafka)
    for offset in range(3):
        producer.produce("aged", b"x" * 100_000, partition=0, timestamp=LONG_AGO + 1_000 * offset)
    assert producer.flush(20) == 0
    lags = {
        done: read_lag(AdminClient({**kafka}), ["aged"], {"aged": {0: done, 1: 0}})
        for done in (0, 2, 3)
    }
    oldest = OldestUnread(kafka)
    times = {
        (("aged", 0), 0): datetime.fromtimestamp(LONG_AGO / 1_000, UTC),
        (("aged", 0), 2): datetime.fromtimestamp(LONG_AGO / 1_000 + 2, UTC),
    }
    # Two pipelines wait at different offsets, and a third one has read all.
    assert oldest.of(lags.values()) == times
    # What is known needs no broker.
    oldest._kafka = {"bootstrap.servers": "127.0.0.1:1"}
    assert oldest.of([lags[0]]).keys() == {(("aged", 0), 0)}
    assert oldest.of([lags[3]]) == {}


def test_settings_of_other_clients_do_not_change_what_is_read(broker: EmbeddedKafka) -> None:
    """A connection that other programs use may ask for records of aborted transactions, or for no end of a topic."""
    broker.create_topics({"shared": 1})
    kafka = {"bootstrap.servers": broker.bootstrap}
    writer = Producer(kafka | {"transactional.id": "shared"})
    writer.init_transactions(60)
    for value, end in (
        ("aborted", writer.abort_transaction),
        ("committed", writer.commit_transaction),
    ):
        writer.begin_transaction()
        writer.produce("shared", value)
        writer.flush(60)
        end(60)
    others = {
        "isolation.level": "read_uncommitted", "enable.partition.eof": "false", "auto.offset.reset": "latest",
        "group.protocol": "consumer", "session.timeout.ms": "1000", "allow.auto.create.topics": "true",
    }  # fmt: skip
    assert [message.value() for message in read_topic(kafka | others, "shared")] == [b"committed"]
    # Each record is followed by the marker of its transaction.
    others |= {"group.id": "mine", "max.partition.fetch.bytes": "1"}
    batches = read_ranges(kafka | others, [Range("shared", 0, 0, 4)])
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [
        b"committed"
    ]


def test_topics_are_created_once_with_their_partitions(broker: EmbeddedKafka) -> None:
    broker.create_topics({"wide": 3}, {"cleanup.policy": "compact"})
    broker.create_topics({"wide": 3, "narrow": 1})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    # The controller confirms a topic before the broker lists it.
    assert wait_until(lambda: {"wide", "narrow"} <= admin.list_topics(timeout=60).topics.keys())
    topics = admin.list_topics(timeout=60).topics
    assert (len(topics["wide"].partitions), len(topics["narrow"].partitions)) == (3, 1)


def test_topics_are_described_by_name_and_missing_ones_left_out(broker: EmbeddedKafka) -> None:
    broker.create_topics({"described": 3})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = described_topics(admin, ["described", "undescribed", "no topic", "described"])
    assert {name: len(description.partitions) for name, description in described.items()} == {
        "described": 3
    }
    assert described_topics(admin, []) == {}
    assert "undescribed" not in admin.list_topics(timeout=60).topics


def test_an_invalid_topic_is_an_error(broker: EmbeddedKafka) -> None:
    with pytest.raises(EngineError, match="no-such-policy"):
        broker.create_topics({"refused": 1}, {"cleanup.policy": "no-such-policy"})


@pytest.mark.parametrize(
    ("name", "why"), [("missing", "Unknown topic"), ("no topic", "Invalid topic")]
)
def test_writing_to_a_topic_that_does_not_exist_is_an_error(
    broker: EmbeddedKafka, name: str, why: str
) -> None:
    with pytest.raises(EngineError, match=f"Topic {name} cannot be written: .*{why}") as refused:
        produce({"bootstrap.servers": broker.bootstrap}, name, [(None, b"1", 0)])
    assert "sluice topics create NAME" in refused.value.next_step


def test_topics_are_not_created_automatically(broker: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert admin.list_topics("asked", timeout=60).topics["asked"].error is not None
    assert "asked" not in admin.list_topics(timeout=60).topics


def test_readers_see_all_of_a_transaction_or_nothing(broker: EmbeddedKafka) -> None:
    broker.create_topics({"whole": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "test"})
    producer.init_transactions(20)
    for value, end in (
        (b"aborted", producer.abort_transaction),
        (b"committed", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce("whole", value)
        producer.flush(20)
        end(20)
    assert read(broker.bootstrap, "whole", 1) == [b"committed"]


@pytest.mark.fault("F45", "a producer leaves a transaction open")
def test_the_lag_includes_records_that_an_open_transaction_holds_back(
    broker: EmbeddedKafka,
) -> None:
    clients = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient({**clients})
    broker.create_topics({"held": 2})
    others = Producer({**clients})
    hanging = Producer({**clients, "transactional.id": "hanging"})
    others.produce("held", b"before", partition=0)
    others.flush(20)
    hanging.init_transactions(20)
    hanging.begin_transaction()
    hanging.produce("held", b"never committed", partition=0, timestamp=LONG_AGO)
    hanging.flush(20)
    for _ in range(10):
        others.produce("held", b"after", partition=0)
    others.flush(20)
    lag = read_lag(admin, ["held"], {"held": {0: 1, 1: 0}})
    assert (lag.unread, lag.readable, lag.held_ends) == (11, 0, {"held": {0: 1}})
    assert oldest_held(clients, lag) == datetime.fromtimestamp(LONG_AGO / 1_000, UTC)
    hanging.abort_transaction(20)
    # The broker writes the end of the transaction after it has answered the producer.
    assert wait_until(lambda: not read_lag(admin, ["held"], {}).held_ends)
    lag = read_lag(admin, ["held"], {"held": {0: 1, 1: 0}})
    assert (lag.unread, lag.readable, lag.held_ends, oldest_held(clients, lag)) == (
        12,
        12,
        {},
        None,
    )


def test_it_listens_on_loopback_only(broker: EmbeddedKafka) -> None:
    running = processes.running(broker.folder)
    assert running is not None
    listens = [
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(running.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listens) == 2
    assert set(listens) == {"127.0.0.1"}


def test_a_second_broker_on_the_same_folder_is_rejected(broker: EmbeddedKafka) -> None:
    with pytest.raises(PreflightError, match=f"is already running in .*, on port {broker.port}"):
        processes.start(broker.folder, free_port())


def test_a_broker_outlives_its_command_keeps_its_data_and_says_why_it_cannot_start(
    tmp_path: Path,
) -> None:
    jars = (settings().jars / "broker").resolve()
    archive = archive_file(jars.parent, sorted(jars.glob("*.jar")))
    first = processes.start(tmp_path, free_port())
    assert processes.running(tmp_path) == first
    create_topics({"bootstrap.servers": first.bootstrap}, [Topic("stays")])
    write(first.bootstrap, "stays", [b"here"])
    assert processes.stop(tmp_path) == first
    assert not psutil.pid_exists(first.pid)
    assert processes.running(tmp_path) is None

    # The first broker of all writes the archive of classes, perhaps in another process that started
    # at the same time.
    assert wait_until(archive.is_file, 60)
    second = processes.start(tmp_path, free_port())
    try:
        assert str(archive) in {file.path for file in psutil.Process(second.pid).memory_maps()}
        assert read(second.bootstrap, "stays", 1) == [b"here"]
    finally:
        processes.stop(tmp_path)

    (tmp_path / "data" / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=2\n")
    with pytest.raises(PreflightError, match="Kafka ended while it was starting") as problem:
        processes.start(tmp_path, free_port())
    assert "Stored node id 2" in problem.value.detail
    assert problem.value.next_step
    assert processes.running(tmp_path) is None


def test_a_port_in_use_suggests_choosing_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PreflightError, match=rf"Port {port} .* sluice kafka start --port \d+"):
            processes.start(tmp_path, port)
    assert processes.stop(tmp_path) is None


def test_a_reused_process_id_is_not_killed(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(f'{{"pid":{os.getpid()},"port":9092}}')
    assert processes.running(tmp_path) is None
    assert processes.stop(tmp_path) is None
    assert not (tmp_path / "broker.json").exists()
