"""The end-offset trigger against the real broker: one event for a burst, none when idle, none after a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from sluice.orchestration.trigger import KafkaEndOffsetTrigger
from sluice.orchestration.watch import Watch
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, Snapshot
from tests.faults.world import wait_until
from tests.soak.sizes import assert_flat, is_flat, own_size
from tests.support.ports import free_port

Events = list[dict[str, Any]]
Looks = Callable[..., Awaitable[None]]
SETTLE_S = 0.3


@pytest.fixture
def broker(kafka: EmbeddedKafka) -> EmbeddedKafka:
    return kafka


@pytest.fixture
def ledger(
    broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    monkeypatch.setenv("SLUICE_LEDGER", f"sqlite:///{tmp_path}/ledger.sqlite")
    connect(monkeypatch, broker.bootstrap)
    settings.cache_clear()
    with Ledger.open(settings().ledger) as ledger:
        yield ledger
    settings.cache_clear()


@pytest.fixture
def topic(broker: EmbeddedKafka, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    broker.create_topics({name: 2})
    return name


def connect(monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> None:
    # A client looks for a broker that was away every half second, instead of every ten seconds.
    extra = {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": 2_000,
        "reconnect.backoff.max.ms": 500,
    }
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra})
    )


def send(broker: EmbeddedKafka, topic: str, count: int) -> None:
    produce(
        {"bootstrap.servers": broker.bootstrap}, topic, ((str(n), b"{}", 0) for n in range(count))
    )


def publish(ledger: Ledger, topic: str, batch: int, positions: dict[str, int]) -> None:
    """Publish positions, as a run of the pipeline `p` does."""
    ledger.generations.register(
        GenerationInfo(pipeline="p", generation=1, workers=(), stores=(), topics=(topic,))
    )
    snapshot = Snapshot(
        pipeline="p", generation=1, batch=batch, published_at=datetime.now(UTC),
        positions={topic: positions}, stream_times={}, counts={},
    )  # fmt: skip
    assert ledger.snapshots.publish(snapshot)


def trigger(topic: str, max_wait_seconds: float = 15.0) -> KafkaEndOffsetTrigger:
    """A trigger that fires for records which are at least `SETTLE_S` old, or which keep arriving."""
    return KafkaEndOffsetTrigger(
        "p", [topic], poll_seconds=0.05, settle_seconds=SETTLE_S, max_wait_seconds=max_wait_seconds
    )


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """`await looks()` returns when a trigger has looked long and often enough to fire for all records.

    `await looks(3, seconds=0)` returns when it has looked three times.
    """
    count, look = 0, KafkaEndOffsetTrigger._look

    async def counted(self: KafkaEndOffsetTrigger, *arguments: Any) -> Any:
        nonlocal count
        seen = await look(self, *arguments)
        count += 1
        return seen

    async def enough(times: int = 4, seconds: float = 2 * SETTLE_S) -> None:
        first, began = count, time.monotonic()
        while count < first + times or time.monotonic() < began + seconds:
            await asyncio.sleep(0.02)

    monkeypatch.setattr(KafkaEndOffsetTrigger, "_look", counted)
    return enough


async def watch(watched: KafkaEndOffsetTrigger, events: Events) -> None:
    async for event in watched.run():
        events.append(event.payload)


async def run(watched: KafkaEndOffsetTrigger, story: Any) -> Events:
    """The trigger's events while `story` runs."""
    events: Events = []
    watching = asyncio.create_task(watch(watched, events))
    try:
        await story(events)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await watched.cleanup()
    return events


async def until(events: Events, count: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while len(events) < count and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


def test_200_records_make_one_event(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    async def story(events: Events) -> None:
        await asyncio.to_thread(send, broker, topic, 200)
        await until(events, 1)
        await looks()

    (event,) = asyncio.run(run(trigger(topic), story))
    assert event["records"] == 200
    assert sum(event["ends"][topic].values()) == 200


def test_a_stream_without_pauses_makes_an_event_after_a_while(
    broker: EmbeddedKafka, ledger: Ledger, topic: str
) -> None:
    async def story(events: Events) -> None:
        began = time.monotonic()
        while not events and time.monotonic() - began < 60:
            await asyncio.to_thread(send, broker, topic, 1)
            await asyncio.sleep(0.1)

    assert len(asyncio.run(run(trigger(topic, max_wait_seconds=1.0), story))) == 1


def test_read_records_make_no_event_even_after_a_restart(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    events: Events = []

    async def first(events: Events) -> None:
        await asyncio.to_thread(send, broker, topic, 10)
        await until(events, 1)
        ends = {str(partition): end for partition, end in events[0]["ends"][topic].items()}
        publish(ledger, topic, 0, ends)
        await looks()

    async def idle(_: Events) -> None:
        await looks()

    events = asyncio.run(run(trigger(topic), first))
    assert len(events) == 1
    assert asyncio.run(run(trigger(topic), idle)) == []


def test_a_restart_before_the_run_makes_the_event_again(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    async def story(events: Events) -> None:
        await until(events, 1)
        await looks()

    send(broker, topic, 10)
    assert len(asyncio.run(run(trigger(topic), story))) == 1
    assert len(asyncio.run(run(trigger(topic), story))) == 1


def test_records_during_a_run_make_one_event_after_it(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    async def story(events: Events) -> None:
        await asyncio.to_thread(send, broker, topic, 10)
        await until(events, 1)
        await asyncio.to_thread(send, broker, topic, 5)
        await looks()
        assert len(events) == 1, "the started run has not ended yet"
        publish(
            ledger,
            topic,
            0,
            {str(partition): end for partition, end in events[0]["ends"][topic].items()},
        )
        await until(events, 2)
        await looks()

    events = asyncio.run(run(trigger(topic), story))
    assert [event["records"] for event in events] == [10, 5]


def test_an_open_transaction_makes_no_event_before_its_commit(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(20)

    async def story(events: Events) -> None:
        producer.begin_transaction()
        producer.produce(topic, b"{}")
        producer.flush()
        await looks()
        assert events == []
        await asyncio.to_thread(producer.commit_transaction)
        await until(events, 1)

    assert len(asyncio.run(run(trigger(topic), story))) == 1


@pytest.mark.fault("F47", "a topic that never existed is created")
def test_the_trigger_waits_for_a_missing_topic(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    later = f"{topic}_later"

    async def story(events: Events) -> None:
        await looks(2)
        assert events == []
        (waiting,) = ledger.failures.all()
        never_read = f"Topic {later} does not exist. The pipeline has never read from there."
        assert (waiting.kind, waiting.detail) == ("input", never_read)
        assert waiting.next_step.startswith("Create it, or correct the pipeline.")
        broker.create_topics({later: 1})
        await asyncio.to_thread(send, broker, later, 3)
        await until(events, 1)
        assert ledger.failures.all() == []

    assert len(asyncio.run(run(trigger(later), story))) == 1


@pytest.mark.fault("F47", "the broker is away while the pipeline is idle, and comes back")
def test_the_trigger_waits_for_the_broker_and_logs_it_once(
    tmp_path: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    looks: Looks,
) -> None:
    kafka = EmbeddedKafka(tmp_path / "kafka", free_port())
    connect(monkeypatch, kafka.bootstrap)
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 1.0)
    watched = trigger("wanted")

    async def story(events: Events) -> None:
        while not watched.trouble:
            await asyncio.sleep(0.1)
        await looks(2)
        assert [failure.kind for failure in ledger.failures.all()] == ["input"]
        await asyncio.to_thread(kafka.start)
        kafka.create_topics({"wanted": 1})
        await asyncio.to_thread(send, kafka, "wanted", 3)
        await until(events, 1, 40)

    try:
        assert len(asyncio.run(run(watched, story))) == 1
    finally:
        kafka.stop()
    said = capsys.readouterr()
    assert said.out.count(f"Kafka at {kafka.bootstrap} does not answer") == 1
    assert "%3|" not in said.err


def test_fifty_triggers_share_a_client_and_read_once_a_period(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {f"{topic}_{number}": f"p{number}" for number in range(50)}
    broker.create_topics(dict.fromkeys(topics, 1))
    clients, rounds, read = set[int](), list[float](), Watch._read_round

    def counted(self: Watch, admin: AdminClient, *arguments: Any) -> Any:
        clients.add(id(admin))
        rounds.append(time.monotonic())
        return read(self, admin, *arguments)

    monkeypatch.setattr(Watch, "_read_round", counted)
    triggers = [
        KafkaEndOffsetTrigger(pipeline, [name], poll_seconds=0.5, settle_seconds=SETTLE_S)
        for name, pipeline in topics.items()
    ]

    async def story() -> Events:
        events: Events = []
        watching = [asyncio.create_task(watch(each, events)) for each in triggers]
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for name in topics:
            producer.produce(name, b"{}")
        await asyncio.to_thread(producer.flush, 20)
        await until(events, len(topics), 40)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        for each in triggers:
            await each.cleanup()
        return events

    events = asyncio.run(story())
    assert sorted(event["pipeline"] for event in events) == sorted(topics.values())
    assert {name for event in events for name in event["ends"]} == topics.keys()
    assert len(clients) == 1
    assert len(rounds) <= (rounds[-1] - rounds[0]) / 0.5 + 2


def test_polls_and_restarted_triggers_leave_no_threads_and_files(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    def watched() -> KafkaEndOffsetTrigger:
        return KafkaEndOffsetTrigger("p", [topic], poll_seconds=0.01)

    async def many_polls(_: Events) -> None:
        await looks(50)
        before = own_size()
        await looks(200)
        assert_flat(before, own_size())

    async def one_poll(_: Events) -> None:
        await looks(1, seconds=0)

    asyncio.run(run(watched(), many_polls))
    before = own_size()
    for _ in range(20):
        asyncio.run(run(watched(), one_poll))
    # Kafka's clients close their connections in threads of their own, on a busy machine a moment
    # later.
    wait_until(lambda: is_flat(before, own_size()), 20)
    assert_flat(before, own_size())


def test_connections_are_closed_if_the_last_trigger_leaves_while_they_are_used(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_read, goes_on = Watch._read_round, Event(), Event()
    used: list[Ledger] = []

    def slow(self: Watch, admin: AdminClient, ledger: Ledger, topics: frozenset[str]) -> Any:
        used.append(ledger)
        is_read.set()
        assert goes_on.wait(20)
        return read(self, admin, ledger, topics)

    async def leave_while_reading(_: Events) -> None:
        assert await asyncio.to_thread(is_read.wait, 20)
        Timer(0.3, goes_on.set).start()

    monkeypatch.setattr(Watch, "_read_round", slow)
    asyncio.run(run(trigger(topic), leave_while_reading))
    (closed,) = used
    # A closed engine that is used again opens another connection, and keeps it in its pool.
    assert closed.engine.pool.checkedin() == 0  # type: ignore[attr-defined]


def test_connections_are_not_opened_after_the_last_trigger_has_left(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "_read_round", lambda *_: pytest.fail("no trigger needs this"))

    async def leave_at_once() -> None:
        watch, one = Watch.shared("kafka_default", 0.05), object()
        watch.join(one, frozenset([topic]))
        observed = asyncio.create_task(watch.observe("p", frozenset([topic])))
        await asyncio.sleep(0)
        await watch.leave(one)
        with pytest.raises(asyncio.CancelledError):
            await observed

    asyncio.run(leave_at_once())


def test_a_trigger_can_be_serialized() -> None:
    path, arguments = trigger("t", max_wait_seconds=3.0).serialize()
    assert path == "sluice.orchestration.trigger.KafkaEndOffsetTrigger"
    assert KafkaEndOffsetTrigger(**arguments).serialize() == (path, arguments)


def test_a_paused_pipeline_is_started_once_it_is_resumed(
    broker: EmbeddedKafka, ledger: Ledger, topic: str, looks: Looks
) -> None:
    ledger.pauses.pause("p", "new prices", "ann")
    send(broker, topic, 10)

    async def story(events: Events) -> None:
        await looks()
        assert events == []
        ledger.pauses.resume("p")
        await until(events, 1)
        ledger.pauses.pause("p", "again", "ann")
        await looks()

    assert len(asyncio.run(run(trigger(topic), story))) == 1
