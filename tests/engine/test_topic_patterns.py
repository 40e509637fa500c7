"""A stream of all topics that match a pattern, on a broker where topics come and go."""

from __future__ import annotations

import re

import pytest
from confluent_kafka.admin import AdminClient

from sluice import Pipeline
from sluice.engine.read.source_identity import InputError
from sluice.errors import InputAway
from sluice.kafka.dead_letter_topic import DeadLetterFilter
from sluice.kafka.redrive import redrive
from sluice.kafka.unread_records import read_lag
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names


def tenants(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=2)
    amounts = pipeline.stream(
        re.compile(names("tenant_[a-z]+").replace(".", "[.]", 1)), value=Amount
    )
    amounts.group_by_key().aggregate(
        list, lambda numbers, amount: [*numbers, amount.n], store="amounts", returns=list[int]
    )
    amounts.select(origin="_topic", n="n").to(names("all"))
    return pipeline


def create(running: Running, topic: str, partitions: int = 1, *numbers: int) -> None:
    running.kafka.create_topics({running.names(topic): partitions})
    running.send(topic, *(b'{"n":%d}' % number for number in numbers), partition=partitions - 1)


def missing(running: Running) -> list[str]:
    """The topics that the health of the pipeline, and the trigger, call missing."""
    with running.ledger() as ledger:
        positions = ledger.positions(running.pipeline.name)
        topics = [topic for info in ledger.generations.all_current() for topic in info.topics]
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    declared = plan(running.pipeline).job.topics
    gone = read_lag(admin, declared, positions).missing(declared)
    assert not topics or read_lag(admin, topics, positions).missing(topics) == gone
    return [topic.removeprefix(f"{running.names.prefix}.") for topic in gone]


def test_each_run_finds_new_topics_and_reports_topics_that_are_gone(start: Start) -> None:
    running = start(tenants)
    with pytest.raises(InputAway, match="No topic matches"):
        running.run()
    (pattern,) = plan(running.pipeline).job.topics
    assert missing(running) == [pattern]
    create(running, "tenant_b", 1, 1, 2)
    create(running, "another", 1, 9)
    assert running.run() == 2
    # The interrupted batch reads a new topic with more partitions. When it is repeated, there is
    # another topic.
    create(running, "tenant_c", 2, 3)
    running.crash_before_publishing()
    create(running, "tenant_a", 3, 4)
    assert running.run() == 2
    assert running.store("amounts") == {"key": [1, 2, 3, 4]}
    assert [value["n"] for _, value in running.output("all")] == [1, 2, 3, 4]
    assert [sorted(snapshot.positions) for snapshot in running.snapshots()] == [
        [running.names(topic) for topic in topics]
        for topics in (["tenant_b"], ["tenant_b", "tenant_c"], ["tenant_a", "tenant_b", "tenant_c"])
    ]
    with running.ledger() as ledger:
        (info,) = ledger.generations.all_current()
    # A topic keeps its number when others are found.
    assert info.topics == (
        pattern,
        *(running.names(topic) for topic in ("tenant_b", "tenant_c", "tenant_a")),
    )
    assert missing(running) == []
    Rebuild(
        running.spark, plan(running.pipeline).job, running.settings
    ).run()  # compares the checksums
    assert running.run() == 0
    admin, gone = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("tenant_c")
    admin.delete_topics([gone])[gone].result(20)
    assert missing(running) == ["tenant_c"]
    with pytest.raises(InputError, match=r"tenant_c was deleted"):
        running.run()
    Rebuild(running.spark, plan(running.pipeline).job, running.settings, from_topics=True).run()
    assert running.store("amounts") == {"key": [1, 2, 4]}
    assert (running.run(), missing(running)) == (0, [])


def test_dead_letters_of_a_matching_topic_are_written_again(start: Start) -> None:
    running = start(tenants)
    create(running, "tenant_b", 1, 1)
    running.send("tenant_b", b"no json")
    assert running.run() == 2
    topics = plan(running.pipeline).job.topics
    outcome = redrive(running.settings.kafka, running.pipeline.name, topics, DeadLetterFilter())
    assert (outcome.redriven, dict(outcome.skipped)) == (1, {})
    assert running.run() == 1
    assert running.store("amounts") == {"key": [1]}
