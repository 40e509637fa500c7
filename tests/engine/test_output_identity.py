"""A run stops if a topic that it has written was deleted at any moment, and says what leads out."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.run import run_topics
from sluice.errors import EngineError, OutputError
from sluice.kafka.brokers import silent_admin
from sluice.local.broker import EmbeddedKafka
from sluice.operations.accepted_topics import accept_topics
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.settings import Settings
from tests.chaos.actions import POINTS, interrupted
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names
from tests.support.spark_in_process import SparkInProcess


class Item(Struct):
    n: int


def copied(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=1)
    items = pipeline.stream(names("items"), value=Item)
    items.group_by_key().count(store="n")
    items.to(names("copies"))
    return pipeline


def twice_copied(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=1)
    items = pipeline.stream(names("items"), value=Item)
    items.group_by_key().count(store="n")
    items.to(names("copies"))
    items.to(names("more"))
    return pipeline


def send(running: Running, *numbers: int) -> None:
    running.send("items", *(b'{"n":%d}' % number for number in numbers))


def copies(running: Running) -> list[int]:
    return [value["n"] for _, value in running.output("copies")]


def topics(running: Running) -> set[str]:
    return {*silent_admin({"bootstrap.servers": running.bootstrap}).list_topics(timeout=20).topics}


def delete(running: Running, topic: str) -> None:
    admin = silent_admin({"bootstrap.servers": running.bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)


def replace(running: Running, topic: str) -> None:
    delete(running, topic)
    running.kafka.create_topics({topic: 1})


def accept(running: Running) -> list[str]:
    return accept_topics(plan(running.pipeline).job, running.settings)


def refused(running: Running, topic: str, **how: int) -> OutputError:
    """The error of a run: it comes within ten seconds, and names the topic and what leads out."""
    begun = time.monotonic()
    with pytest.raises(
        OutputError,
        match=rf"Topic {topic} was deleted.*sluice topics accept {running.names.prefix}",
    ) as e:
        running.run(**how)
    assert time.monotonic() - begun < 10
    return e.value


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers learn of new topics quickly, because there is only one."""
    monkeypatch.setattr(run_topics, "_SETTLED_S", 0.2)


@pytest.fixture
def running(start: Start) -> Running:
    """A pipeline that has written a batch with the records 0 and 1, and has 2 and 3 to read."""
    made = start(copied)
    send(made, 0, 1)
    made.run()
    send(made, 2, 3)
    return made


@pytest.mark.fault("F55", "an output topic is deleted between or within batches")
def test_a_deleted_output_is_not_created_again_without_a_word(running: Running) -> None:
    topic = running.names("copies")
    delete(running, topic)
    error = refused(running, topic)
    assert "was deleted: the records" in error.detail
    assert topic not in topics(running)
    assert running.snapshot().batch == 0
    assert accept(running) == [topic]
    assert accept(running) == []
    assert running.run() == 2
    assert copies(running) == [2, 3]


def test_an_output_that_was_created_again_is_noticed(running: Running) -> None:
    topic = running.names("copies")
    replace(running, topic)
    error = refused(running, topic)
    assert "was deleted and created again" in error.detail
    assert copies(running) == []
    assert accept(running) == [topic]
    assert running.run() == 2
    assert copies(running) == [2, 3]


def test_a_lost_topic_of_dead_letters_is_noticed(running: Running) -> None:
    delete(running, running.pipeline.dead_letters)
    error = refused(running, running.pipeline.dead_letters)
    assert "the dead letters" in error.detail
    assert accept(running) == [running.pipeline.dead_letters]
    running.send("items", b"bad")
    assert running.run() == 3
    assert running.reasons() == ["malformed"]


def test_a_later_generation_knows_the_topics_of_an_earlier_one(running: Running) -> None:
    topic = running.names("copies")
    delete(running, topic)
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert topic not in topics(running), "a rebuild writes no output, so it creates no topic"
    refused(running, topic)
    assert accept(running) == [topic]
    assert running.run() == 2
    assert copies(running) == [2, 3]


@pytest.mark.parametrize("lose", [delete, replace])
def test_the_batch_of_a_killed_driver_is_written_again_to_an_accepted_topic(
    running: Running, lose: Callable[[Running, str], None]
) -> None:
    topic = running.names("copies")
    running.crash_before_publishing()
    assert copies(running) == [0, 1, 2, 3]
    lose(running, topic)
    refused(running, topic)
    accept(running)
    assert running.run() == 2
    assert copies(running) == [2, 3]
    assert running.store("n") == {"key": 4}


def test_a_restored_topic_gets_no_record_twice(running: Running) -> None:
    topic = running.names("copies")
    running.crash_before_publishing()
    records = running.messages(topic)
    delete(running, topic)
    with pytest.raises(EngineError, match=rf"no topic {topic}.*without --restored"):
        accept_topics(plan(running.pipeline).job, running.settings, restored=True)
    running.kafka.create_topics({topic: 1})
    for record in records:
        running.producer.produce(topic, record.value(), record.key())
    assert running.producer.flush(20) == 0
    refused(running, topic)
    assert accept_topics(plan(running.pipeline).job, running.settings, restored=True) == [topic]
    assert running.run() == 2
    assert copies(running) == [0, 1, 2, 3]


@pytest.mark.parametrize("lose", [delete, pytest.param(replace, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    "point",
    [
        "before the output",
        pytest.param("after the output", marks=pytest.mark.heavy),
        "before the ledger",
        pytest.param("after the ledger", marks=pytest.mark.heavy),
    ],
)
def test_an_output_that_is_lost_within_a_batch_ends_the_run(
    running: Running, point: str, lose: Callable[[Running, str], None]
) -> None:
    topic = running.names("copies")
    with interrupted(POINTS[point], lambda: lose(running, topic)):
        refused(running, topic)
    refused(running, topic)
    assert accept(running) == [topic]
    send(running, 4)
    running.run()
    published_after = [2, 3] if running.snapshots()[1].counts["read"] == 3 else []
    assert copies(running)[-1] == 4
    assert copies(running)[:-1] in ([2, 3], published_after, [])
    assert running.store("n") == {"key": 5}


@pytest.mark.parametrize("lose", [delete, replace])
def test_an_output_that_is_lost_between_two_batches_ends_the_run(
    running: Running, lose: Callable[[Running, str], None]
) -> None:
    topic = running.names("copies")
    with interrupted(POINTS["after the ledger"], lambda: lose(running, topic)):
        refused(running, topic, max_records=1)
    assert running.snapshot().batch == 1
    accept(running)
    assert running.run() == 1
    assert copies(running) == [3]


def test_a_lingering_run_notices_a_lost_output(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_topics, "_WATCH_S", 0.3)
    running.settings = dataclasses.replace(running.settings, linger_ms=60_000)
    topic = running.names("copies")

    def lose() -> None:
        while running.snapshot().batch == 0:
            time.sleep(0.05)
        delete(running, topic)

    other = threading.Thread(target=lose)
    other.start()
    refused(running, topic)
    other.join()
    assert running.snapshot().batch == 1


def test_lost_markers_are_named_within_a_run(running: Running) -> None:
    markers = running.pipeline.markers
    with (
        interrupted(POINTS["before the output"], lambda: delete(running, markers)),
        pytest.raises(
            OutputError, match=rf"{markers} was deleted during the run.*sluice topics accept"
        ),
    ):
        running.run()
    assert copies(running) == [0, 1]


def test_a_new_output_is_created(running: Running) -> None:
    running.pipeline = twice_copied(running.names)
    assert running.run() == 2
    assert [value["n"] for _, value in running.output("more")] == [2, 3]
    delete(running, running.names("more"))
    refused(running, running.names("more"))


def test_a_broker_that_creates_topics_by_itself_hides_no_loss(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", config={"auto.create.topics.enable": "true"}) as kafka:
        names = Names("shop")
        kafka.create_topics({names("items"): 1})
        brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
        settings = Settings.read({"SLUICE_HOME": str(tmp_path / "home"), "SLUICE_KAFKA": brokers})
        running = Running(SparkInProcess.session(), names, copied(names), settings, kafka)
        send(running, 0, 1)
        running.run()
        send(running, 2, 3)
        topic = names("copies")
        with interrupted(POINTS["before the output"], lambda: delete(running, topic)):
            refused(running, topic)
        refused(running, topic)
        assert accept(running) == [topic]
        send(running, 4)
        assert running.run() in (1, 3)
        assert running.store("n") == {"key": 5}
