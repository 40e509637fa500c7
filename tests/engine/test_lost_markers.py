"""The markers of written batches are lost: runs stop, and a command says whether output may be written twice."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.publish.markers import Marker
from sluice.errors import EngineError, Refused
from sluice.operations.accepted_topics import accept_topics
from sluice.operations.rebuild import Rebuild
from sluice.operations.repartition import repartition
from sluice.plan import plan
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names
from tests.support.sqlite_copies import Replicas


class Item(Struct):
    n: int


def copied(names: Names, workers: int = 1) -> Pipeline:
    pipeline = names.pipeline(workers=workers)
    items = pipeline.stream(names("items"), value=Item)
    items.group_by_key().count(store="n")
    items.to(names("copies"))
    return pipeline


def delete(running: Running) -> None:
    admin, markers = AdminClient({"bootstrap.servers": running.bootstrap}), running.pipeline.markers
    admin.delete_topics([markers])[markers].result(20)
    while markers in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)


def replace_by_older(running: Running) -> None:
    """Restore a copy of the topic in which only the first batch has a marker."""
    markers = running.pipeline.markers
    first = running.messages(markers)[0]
    delete(running)
    running.kafka.create_topics({markers: 1})
    running.producer.produce(markers, first.value(), first.key())
    assert running.producer.flush(20) == 0


def rebuild(running: Running, *, from_topics: bool = False) -> int:
    return Rebuild(
        running.spark, plan(running.pipeline).job, running.settings, from_topics=from_topics
    ).run()


def copies(running: Running) -> list[int]:
    return [value["n"] for _, value in running.output("copies")]


def accept(running: Running, *, may_repeat: bool = False) -> list[str]:
    return accept_topics(plan(running.pipeline).job, running.settings, may_repeat=may_repeat)


def forget_items(running: Running, before: int) -> None:
    """Let the source lose its first records, as by retention."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    end = TopicPartition(running.names("items"), 0, before)
    admin.delete_records([end])[end].result(20)


@pytest.mark.parametrize("lose", [delete, replace_by_older])
def test_output_of_a_killed_driver_is_not_repeated_silently(
    start: Start, lose: Callable[[Running], None]
) -> None:
    running = start(copied)
    for value in (b'{"n":0}', b'{"n":1}'):
        running.send("items", value)
        running.run()
    running.send("items", b'{"n":2}')
    running.crash_before_publishing()
    assert copies(running) == [0, 1, 2]
    lose(running)
    with pytest.raises(
        EngineError,
        match=rf"{running.pipeline.markers} lacks the marker of batch 1.* sluice topics accept",
    ):
        running.run()
    with pytest.raises(
        EngineError,
        match=r"Batch 2 .* began but was not published, and its marker is missing.*may-repeat",
    ):
        rebuild(running)
    assert copies(running) == [0, 1, 2]
    assert rebuild(running, from_topics=True) == 2
    running.send("items", b'{"n":3}')
    assert running.run() == 2
    assert running.store("n") == {"key": 4}
    assert copies(running) == [0, 1, 2, 2, 3], "which the user has accepted"
    assert running.run() == 0


def test_a_rebuild_repeats_nothing_if_every_batch_was_published(start: Start) -> None:
    running = start(copied)
    running.send("items", b'{"n":1}')
    running.run()
    delete(running)
    running.send("items", b'{"n":2}')
    with pytest.raises(EngineError, match="lacks the marker of batch 0"):
        running.run()
    assert rebuild(running) == 2
    assert running.run() == 1
    delete(running)
    with pytest.raises(EngineError, match="lacks the marker"):
        running.run()
    running.pipeline = copied(running.names, workers=2)  # the topics are not needed for this
    assert repartition(plan(running.pipeline).job, running.settings).generation == 3
    running.send("items", b'{"n":3}')
    assert running.run() == 1
    assert running.store("n") == {"key": 3}
    assert copies(running) == [1, 2, 3]


def test_a_rebuilt_generation_has_no_markers_before_its_first_batch(start: Start) -> None:
    running = start(copied)
    running.send("items", b'{"n":1}')
    running.run()
    rebuild(running)
    delete(running)
    assert running.run() == 0
    running.send("items", b'{"n":2}')
    assert running.run() == 1
    assert copies(running) == [1, 2]


@pytest.mark.fault("F55", "the markers are lost, and the source no longer has all records")
@pytest.mark.parametrize("lose", [delete, replace_by_older])
def test_a_pipeline_goes_on_without_its_markers_and_keeps_its_state(
    start: Start, lose: Callable[[Running], None]
) -> None:
    running = start(copied)
    for value in (b'{"n":0}', b'{"n":1}'):
        running.send("items", value)
        running.run()
    before = running.messages(running.pipeline.markers)[-1].value()
    lose(running)
    forget_items(running, 2)
    assert accept(running) == [running.pipeline.markers]
    assert accept(running) == []
    after = running.messages(running.pipeline.markers)[-1].value()
    assert _what_was_written(after) == _what_was_written(before)
    running.send("items", b'{"n":2}')
    assert running.run() == 1
    assert running.store("n") == {"key": 3}
    assert copies(running) == [0, 1, 2]


def _what_was_written(text: bytes | None) -> Marker:
    """A marker without the identities of topics, and without topics that got no record."""
    marker = msgspec.json.decode(text or b"", type=Marker)
    outputs = {topic: count for topic, count in marker.outputs.items() if count}
    return msgspec.structs.replace(marker, checksums={}, ids={}, outputs=outputs)


@pytest.mark.fault("F55", "the markers are lost after a batch was begun")
def test_a_batch_that_was_begun_is_written_again_only_if_the_user_accepts_it(start: Start) -> None:
    running = start(copied)
    running.send("items", b'{"n":0}')
    running.run()
    running.send("items", b'{"n":1}')
    running.crash_before_publishing()
    delete(running)
    forget_items(running, 1)
    with pytest.raises(Refused, match=r"batch 1 .* was begun but not published.*--may-repeat"):
        accept(running)
    with pytest.raises(EngineError, match="lacks the marker"):
        running.run()
    assert accept(running, may_repeat=True) == [running.pipeline.markers]
    assert running.run() == 1
    assert running.store("n") == {"key": 2}
    assert copies(running) == [0, 1, 1], "which the user has accepted"


@pytest.mark.fault("F55", "the markers are lost, and the ledger has lost its newest commits")
def test_batches_that_only_the_shards_know_may_be_written_already(start: Start) -> None:
    running = start(copied)
    running.send("items", b'{"n":0}')
    running.run()
    replicas = Replicas([running.settings.home / "ledger.sqlite"])
    replicas.lag()
    for number in (1, 2):
        running.send("items", b'{"n":%d}' % number)
        running.run()
    replicas.fail_over()
    delete(running)
    with pytest.raises(Refused, match=r"batches 1 to 2 .* were begun but not"):
        accept(running)
    assert accept(running, may_repeat=True) == [running.pipeline.markers]
    assert running.run() == 2
    assert running.store("n") == {"key": 3}
    assert copies(running) == [0, 1, 2, 1, 2], "which the user has accepted"
