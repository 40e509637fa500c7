"""Runs log in with OAuth tokens at a real broker, while their endpoint is slow, refuses them or is away."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.engine.read.kafka_records import read_ranges
from sluice.errors import BrokersUnreachable
from sluice.kafka import token_endpoint
from sluice.kafka.brokers import require_brokers, with_certificates
from sluice.kafka.dead_letter_topic import DeadLetterFilter
from sluice.kafka.redrive import redrive
from sluice.kafka.topics import produce, read_topic
from sluice.local.broker import EmbeddedKafka
from sluice.orchestration import watch
from sluice.orchestration.trigger import KafkaEndOffsetTrigger
from sluice.orchestration.watch import Watch
from sluice.settings import Settings, settings
from sluice.values.record_places import Range
from tests.engine.conftest import Running
from tests.engine.shop import Names, copied
from tests.faults.world import wait_until
from tests.support.ports import free_port
from tests.support.spark_in_process import SparkInProcess
from tests.support.token_server import CLIENT_SECRET, TokenServer, oauth_broker
from tests.support.watched import run_watched


@dataclass(frozen=True)
class Platform:
    broker: EmbeddedKafka
    """The broker. Its default listener asks for no token."""
    port: int
    """The port of the listener that asks for tokens."""
    tokens: TokenServer

    @property
    def kafka(self) -> dict[str, str]:
        return self.tokens.client_settings(self.port)

    @property
    def kafka_by_function(self) -> dict[str, str]:
        """The settings of clients whose tokens a function makes, as for AWS."""
        others = {
            name: value
            for name, value in self.kafka.items()
            if not name.startswith("sasl.oauthbearer")
        }
        function = "tests.support.token_functions.from_server"
        return others | {"oauth_cb": function, "sasl.oauthbearer.config": self.tokens.token_url}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    port = free_port()
    with (
        TokenServer() as tokens,
        oauth_broker(tokens, tmp_path_factory.mktemp("oauth"), port) as broker,
    ):
        yield Platform(broker, port, tokens)


@pytest.fixture
def platform(started: Platform, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """The platform, whose endpoint answers at once and issues tokens for an hour."""
    monkeypatch.setattr(token_endpoint, "_KEPT_S", 1)
    yield started
    tokens = started.tokens
    tokens.lifetime_s, tokens.delay_s, tokens.is_revoked = 3_600, 0.0, False


Start = Callable[[dict[str, str]], Running]


@pytest.fixture
def start(platform: Platform, fresh_name: Callable[[str], str], tmp_path: Path) -> Start:
    """Makes a pipeline with settings of Kafka."""

    def make(kafka: dict[str, str]) -> Running:
        names = Names(fresh_name("oauth"))
        platform.broker.create_topics({names("items"): 1})
        variables = {"SLUICE_HOME": str(tmp_path / "home"), "SLUICE_KAFKA": json.dumps(kafka)}
        session = SparkInProcess.session()
        made = Settings.read(variables)
        return Running(session, names, copied(names), made, platform.broker)

    return make


def send(running: Running, *numbers: int) -> None:
    running.send("items", *[b'{"n":%d}' % number for number in numbers])


def copies(running: Running) -> list[int]:
    return [value["n"] for _, value in running.output("copies")]


@pytest.mark.parametrize(
    "way", ["oidc", pytest.param("shared", marks=pytest.mark.heavy), "function"]
)
def test_a_pipeline_runs_with_tokens(platform: Platform, start: Start, way: str) -> None:
    shared = platform.kafka | {"sluice.oauthbearer.shared": "true"}
    ways = {"oidc": platform.kafka, "shared": shared, "function": platform.kafka_by_function}
    running = start(ways[way])
    before = platform.tokens.requests
    send(running, 0, 1)
    running.send("items", b"bad")
    assert running.run() == 3
    assert copies(running) == [0, 1]
    kafka = running.settings.kafka
    assert [letter.value() for letter in running.dead_letters()] == [b"bad"]
    assert [record.value() for record in read_topic(kafka, running.pipeline.dead_letters)] == [
        b"bad"
    ]
    topics = [running.names("items")]
    redrive({**kafka}, running.pipeline.name, topics, DeadLetterFilter())
    if way != "oidc":
        assert platform.tokens.requests - before <= 1, "all clients of a process share a token"


def test_a_task_on_another_host_gets_its_own_tokens(platform: Platform, start: Start) -> None:
    running = start(platform.kafka)
    send(running, 0)
    sent = json.loads(json.dumps(with_certificates(platform.kafka)))
    batches = list(read_ranges(sent, [Range(running.names("items"), 0, 0, 1)]))
    assert sum(batch.num_rows for batch in batches) == 1


@pytest.mark.heavy
def test_a_slow_endpoint_only_delays_a_run(platform: Platform, start: Start) -> None:
    running = start(platform.kafka)
    send(running, 0)
    platform.tokens.delay_s = 1.5
    assert running.run() == 1
    assert copies(running) == [0]


def expired(tokens: TokenServer) -> str:
    tokens.lifetime_s = -60
    return "issues tokens that expired 6. s ago"


def revoked(tokens: TokenServer) -> str:
    tokens.is_revoked = True
    return "answers 401 Unauthorized"


@pytest.mark.parametrize("trouble", [expired, revoked])
def test_a_run_does_not_begin_without_tokens(
    platform: Platform, start: Start, trouble: Callable[[TokenServer], str]
) -> None:
    running = start(platform.kafka)
    send(running, 0)
    reason = trouble(platform.tokens)
    begun = time.monotonic()
    with pytest.raises(BrokersUnreachable, match=reason) as refused:
        require_brokers(platform.kafka)
    assert time.monotonic() - begun < 15
    assert CLIENT_SECRET not in str(refused.value)
    platform.tokens.lifetime_s, platform.tokens.is_revoked = 3_600, False
    assert running.run() == 1


def test_a_token_for_others_is_refused_by_the_broker(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.token_server.AUDIENCE", "another")
    with pytest.raises(BrokersUnreachable, match="SASL authentication error") as refused:
        require_brokers(platform.kafka)
    assert "the audience, the issuer and the scope" in refused.value.next_step


def away(platform: Platform) -> Any:
    return platform.tokens.away()


@pytest.mark.fault("F57", "tokens cannot be renewed while a run goes on")
@pytest.mark.heavy
@pytest.mark.parametrize("way", ["oidc", "function"])
@pytest.mark.parametrize("away_s", [0, 120])
def test_an_endpoint_that_is_away_while_a_run_lingers_loses_nothing(
    platform: Platform, start: Start, way: str, away_s: int
) -> None:
    """The tokens expire while the endpoint is away, and records arrive.

    Either the run reads them with the tokens that it has, or it ends and names the cause. The
    endpoint is away for at least `away_s`.
    """
    platform.tokens.lifetime_s = 6
    running = start(platform.kafka if way == "oidc" else platform.kafka_by_function)
    running.settings = replace(running.settings, linger_ms=10_000)
    send(running, 0)
    ended = threading.Event()
    begun: list[float] = []

    def interrupt() -> None:
        assert wait_until(lambda: bool(running.snapshots()), 60)
        with away(platform):
            begun.append(time.monotonic())
            time.sleep(4)
            send(running, 1, 2)
            ended.wait(60)
            time.sleep(max(0, begun[0] + away_s - time.monotonic()))

    other = threading.Thread(target=interrupt)
    other.start()
    error, seconds = "", 0.0
    try:
        running.run()
    except BrokersUnreachable as away_error:
        error, seconds = away_error.detail, time.monotonic() - begun[0]
    assert seconds < 60, "the cause is named within a minute"
    assert not error or "There is no token for Kafka at" in error
    ended.set()
    other.join()
    send(running, 3)
    running.run()
    assert copies(running) == [0, 1, 2, 3]


@pytest.mark.fault("F57", "tokens cannot be renewed while a run goes on")
def test_a_run_without_tokens_ends_with_the_cause_and_the_next_goes_on(
    platform: Platform, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint goes away in the middle of a run, and stays away."""
    monkeypatch.setattr("sluice.kafka.brokers.ANSWER_SECONDS", 2.0)
    running = start(platform.kafka)
    send(running, 0)
    running.run()
    send(running, 1)
    platform.tokens.lifetime_s = 4
    begun = time.monotonic()
    with away(platform), pytest.raises(BrokersUnreachable, match=platform.tokens.token_url):
        running.run()
    assert time.monotonic() - begun < 60
    platform.tokens.lifetime_s = 3_600
    assert running.run() == 1
    assert copies(running) == [0, 1]


def test_a_trigger_names_the_endpoint(
    platform: Platform, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(platform.kafka)
    monkeypatch.setattr(watch, "kafka_config", lambda _: platform.kafka)
    monkeypatch.setattr(watch, "settings", lambda: running.settings)
    monkeypatch.setattr("sluice.orchestration.trigger.settings", lambda: running.settings)
    topic = running.names("items")

    async def look() -> tuple[float, str]:
        trigger = KafkaEndOffsetTrigger(running.pipeline.name, [topic])
        shared = Watch("kafka_default", 0.5)
        shared.join(trigger, frozenset([topic]))
        begun = time.monotonic()
        try:
            assert await trigger._look(shared, None) is None
        finally:
            await shared.leave(trigger)
        return time.monotonic() - begun, trigger.trouble

    with away(platform):
        seconds, trouble = asyncio.run(look())
    assert (trouble, seconds < 30) == ("no broker", True)
    with running.ledger() as ledger:
        (failure,) = ledger.failures.of(running.pipeline.name)
    assert failure.kind == "input"
    assert f"There is no token for Kafka at 127.0.0.1:{platform.port}" in failure.detail
    assert platform.tokens.token_url in failure.detail
    assert CLIENT_SECRET not in failure.detail


PIPELINE = """from sluice import Pipeline

pipeline = Pipeline("NAME", workers=1)
sales = pipeline.stream("NAME_sales", value=str)
sales.to("NAME_copies")
sales.group_by("value").count(store="counts")
"""


@pytest.mark.heavy
@pytest.mark.spark
def test_a_whole_run_on_spark_keeps_the_secret(
    platform: Platform, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    name = fresh_name("whole")
    platform.broker.create_topics({f"{name}_sales": 1})
    home, pipelines = tmp_path / "home", tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / f"{name}.py").write_text(PIPELINE.replace("NAME", name))
    variables = os.environ | {
        "SLUICE_HOME": str(home),
        "SLUICE_PIPELINES": str(pipelines),
        "SLUICE_KAFKA": json.dumps(platform.kafka),
        "SLUICE_JARS": str(settings().jars),
    }
    produce(platform.kafka, f"{name}_sales", [(None, b"one", 0)])
    seen = run_watched(
        [f"run {name}", f"audit {name} --verify", "status", f"dead-letters list {name}"],
        variables,
        tmp_path / "log",
    )
    assert "spark" in seen
    assert CLIENT_SECRET not in seen
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert CLIENT_SECRET.encode() not in file.read_bytes(), f"{file} contains the secret"
