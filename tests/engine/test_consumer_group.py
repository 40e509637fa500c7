"""A pipeline's progress is shown by a consumer group, which no run reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from sluice.engine.publish import consumer_group
from sluice.engine.publish.consumer_group import group_of
from sluice.kafka.unread_records import read_lag
from tests.engine.conftest import Running, Start
from tests.engine.shop import copied
from tests.faults.world import wait_until

pytestmark = pytest.mark.engine


def committed(running: Running) -> dict[int, int]:
    """Return partition → the offset that the group has committed for the topic `items`."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    asked = [ConsumerGroupTopicPartitions(group_of(running.pipeline.name))]
    (future,) = admin.list_consumer_group_offsets(asked, require_stable=True).values()
    found = future.result(20).topic_partitions
    assert {place.topic for place in found} <= {running.names("items")}
    return {place.partition: place.offset for place in found}


def ends(running: Running) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    return read_lag(admin, [running.names("items")], {}).ends[running.names("items")]


def test_a_group_has_the_offsets_of_the_published_batches(start: Start) -> None:
    running = start(copied, items=3)
    running.send("items", b'{"n":0}', b'{"n":1}')
    running.send("items", b'{"n":2}', partition=1)
    running.run()
    assert committed(running) == {0: 2, 1: 1, 2: 0} == ends(running)
    running.send("items", b'{"n":3}', partition=2)
    assert committed(running) == {0: 2, 1: 1, 2: 0}, "the lag is 1"
    running.run()
    assert committed(running) == {0: 2, 1: 1, 2: 1}


def test_tools_find_the_group_without_members(start: Start) -> None:
    running = start(copied)
    running.send("items", b'{"n":0}')
    running.run()
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    group = group_of(running.pipeline.name)
    assert group in {found.group_id for found in admin.list_consumer_groups().result(20).valid}
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert (described.state.name, described.members) == ("EMPTY", [])


def test_a_batch_that_was_not_published_shows_its_output(start: Start) -> None:
    """The offsets are those of the output: they are committed in its transaction."""
    running = start(copied)
    running.send("items", b'{"n":0}')
    running.crash_before_publishing()
    assert committed(running) == {0: 1}
    assert [value["n"] for _, value in running.output("copies")] == [0]
    running.run()
    assert committed(running) == {0: 1}
    assert [value["n"] for _, value in running.output("copies")] == [0]


@pytest.mark.parametrize("offset", [0, 2])
def test_no_run_reads_the_offsets(start: Start, offset: int) -> None:
    running = start(copied)
    running.send("items", b'{"n":0}', b'{"n":1}')
    running.run()
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    place = TopicPartition(running.names("items"), 0, offset)
    moved = ConsumerGroupTopicPartitions(group_of(running.pipeline.name), [place])
    (future,) = admin.alter_consumer_group_offsets([moved]).values()
    future.result(20)
    running.send("items", b'{"n":2}')
    assert running.run() == 1
    assert [value["n"] for _, value in running.output("copies")] == [0, 1, 2]
    assert committed(running) == {0: 3}


def test_a_deleted_group_is_made_again_with_all_partitions(start: Start) -> None:
    running = start(copied, items=2)
    running.send("items", b'{"n":0}')
    running.run()
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (future,) = admin.delete_consumer_groups([group_of(running.pipeline.name)]).values()
    future.result(20)
    assert committed(running) == {}
    running.send("items", b'{"n":1}')
    running.run()
    assert committed(running) == {0: 2, 1: 0}


def test_a_setting_turns_the_group_off(start: Start) -> None:
    running = start(copied)
    running.settings = replace(running.settings, commit_offsets=False)
    running.send("items", b'{"n":0}')
    running.run()
    assert committed(running) == {}


@pytest.fixture
def member(start: Start) -> Iterator[tuple[Running, Consumer]]:
    """A pipeline, and a consumer of another program that has joined its group."""
    running = start(copied)
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "group.id": group_of(running.pipeline.name),
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([running.names("items")])
    yield running, consumer
    consumer.close()


def test_a_member_of_the_group_does_not_disturb_a_run(member: tuple[Running, Consumer]) -> None:
    running, consumer = member

    def has_joined() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    assert wait_until(has_joined, 30)
    running.send("items", b'{"n":0}')
    running.run()
    assert [value["n"] for _, value in running.output("copies")] == [0]


def test_a_coordinator_that_does_not_answer_costs_one_wait_and_no_batch(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_group, "_TIMEOUT_S", 0.0)
    running = start(copied)
    running.send("items", b'{"n":0}')
    with structlog.testing.capture_logs() as logs:
        running.run()
    assert [value["n"] for _, value in running.output("copies")] == [0]
    (warning,) = [entry for entry in logs if entry["event"] == "offsets not committed"]
    assert warning["group"] == group_of(running.pipeline.name)
    assert "The pipeline goes on" in warning["next_step"]
