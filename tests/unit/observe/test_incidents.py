"""Staged incidents: the page, REST, `sluice status` and the metrics all name each, since when and the next step."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sluice.answers import FailureKind
from sluice.api import services
from sluice.commands.cli import app
from sluice.engine.publish.max_failures import notable_rejections
from sluice.errors import (
    EngineError,
    ExpectationBroken,
    Overdue,
    RecordsRejected,
    RegistryAway,
    TopologyError,
)
from sluice.kafka.open_transactions import HeldPartitions
from sluice.kafka.unread_records import Lag
from sluice.observe.budgets import note_budgets
from sluice.observe.health import input_away
from sluice.observe.host_checks import check_hosts, needed_bytes
from sluice.observe.metrics import gauges, of_pipeline, prometheus
from sluice.observe.monitoring import LedgerFigures
from sluice.operations import state_growth
from sluice.operations.registered_topics import Comparison, RegisteredTopic, note
from sluice.operations.snapshot_retention import note_retention
from sluice.operations.state_growth import note_size
from sluice.orchestration.trigger import KafkaEndOffsetTrigger, held_back
from sluice.settings import settings
from sluice.state.ledger.failures import KINDS, Failure
from sluice.state.ledger.finished_runs import FinishedRun
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.run_ends import note_failure, note_killed
from sluice.values.budgets import Allowance, Budget
from sluice.values.registry_formats import RegistryFormat
from tests.docs.pages import read
from tests.servers.hosts import TOKEN, placed
from tests.support.api_client import Api
from tests.support.ports import free_port
from tests.support.prometheus import RULES
from tests.support.states import States

pytestmark = pytest.mark.unit

ENDS = {"orders": {0: 10, 1: 5}}
READ = Lag(ENDS, ENDS, {})
HELD = Lag(ENDS, ENDS, {}, {"orders": {0: 17, 1: 5}})


@dataclass
class Stage:
    """A pipeline that has published a snapshot and read everything, and what tests change about it."""

    states: States
    patch: pytest.MonkeyPatch
    lag: Lag = READ
    stack: ExitStack = field(default_factory=ExitStack)

    def keep(self, failure: Failure | None) -> None:
        assert failure is not None
        self.states.ledger.failures.keep(failure)

    def observe(self) -> None:
        """Check the hosts as a triggerer does."""
        check_hosts(self.states.ledger, LedgerFigures.read(self.states.ledger), settings())


@pytest.fixture
def stage(states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for name, value in {
        "HOME": str(tmp_path),
        "SERVER_TOKEN": TOKEN,
        "PIPELINES": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(f"SLUICE_{name}", value)
    settings.cache_clear()
    (tmp_path / "none").mkdir()
    states.publish({"a": "[1,2]"}, published_at=datetime.now(UTC) - timedelta(minutes=1))
    staged = Stage(states, monkeypatch)

    def read_lag(*_: object) -> Lag:
        return staged.lag

    monkeypatch.setattr(services, "read_lag", read_lag)
    monkeypatch.setattr("sluice.kafka.unread_records.read_lag", read_lag)
    monkeypatch.setattr("sluice.kafka.brokers.require_brokers", lambda *_: None)
    monkeypatch.setattr("sluice.commands.status_command._WATCH_SECONDS", 0.01)
    monkeypatch.setattr("sluice.kafka.open_transactions.oldest_held", lambda *_: None)
    with staged.stack:
        yield staged
    settings.cache_clear()


def run_failed(stage: Stage) -> None:
    stage.keep(Failure.of(EngineError("Kafka is away.", next_step="Start it."), "orders"))


def driver_killed(stage: Stage) -> None:
    error = EngineError("The driver ended without an error.")
    note_killed(settings(), "orders", "orders/manual__1/main", datetime.now(UTC), error)


def registry_away(stage: Stage) -> None:
    began = datetime.now(UTC)
    error = RegistryAway.of("registry:8081", "Connection refused")
    with pytest.raises(RegistryAway), note_failure(settings(), "orders", run="orders/scheduled__1"):
        raise error
    # The task's process, which has waited for the driver, has no error of its own.
    silent = EngineError("The driver ended without an error message.")
    note_killed(settings(), "orders", "orders/scheduled__1", began, silent)


def file_broken(stage: Stage) -> None:
    stage.keep(
        Failure.of(TopologyError("orders.py:3: no", next_step="Correct it."), "orders", kind="file")
    )


def overdue(stage: Stage) -> None:
    stage.keep(
        Failure.of(
            Overdue("5 records have been unread for more than 10 min."), "orders", kind="overdue"
        )
    )


def brokers_away(stage: Stage) -> None:
    stage.keep(
        Failure.of(input_away([], "Kafka at b:9092 does not answer."), "orders", kind="input")
    )


def topic_deleted(stage: Stage) -> None:
    """Nobody has recorded it: the readers themselves see that the topic is missing."""
    stage.lag = Lag({}, {}, {})


def no_slot(stage: Stage) -> None:
    stage.keep(KafkaEndOffsetTrigger("orders", ["orders"])._no_slot(75.0, None))


def another_lease(stage: Stage) -> None:
    from sluice.engine.run import driver_lease

    stage.patch.setattr(driver_lease, "NOTED_AFTER_S", 0.0)
    ledger = stage.states.ledger
    ledger.leases.take(stage.states.ref, Holder(host="far", pid=7, process="", run="r"), None)
    patience = driver_lease.Patience(beat_s=0.02, silence_s=0.2)
    notes = ledger.failures.clear
    stage.patch.setattr(ledger.failures, "clear", lambda *_: None)  # the driver still waits
    with driver_lease.current_lease(ledger, "orders", driver_lease.this_process("r2"), patience):
        pass
    stage.patch.setattr(ledger.failures, "clear", notes)


def records_held(stage: Stage) -> None:
    held = HeldPartitions()
    held._seen[("orders", 0)] = 10, datetime.now(UTC) - timedelta(seconds=90)
    stage.keep(held_back("orders", HELD, held))


def flood(stage: Stage) -> None:
    detail = notable_rejections({"read": 20_000, "dead_letter/contract": 19_406}, [])
    assert detail
    stage.keep(
        Failure.of(RecordsRejected(detail, next_step="Look at them."), "orders", kind="rejections")
    )


def unexpected(stage: Stage) -> None:
    error = ExpectationBroken("amount >= 0 is not true for 5 of 20 records; at_most allows 0.")
    stage.keep(Failure.of(error, "orders", kind="expectations"))


def host_silent(stage: Stage) -> None:
    from sluice.state.ledger.placement import Placement

    placed(stage.states, Placement("orders", 0, "127.0.0.1", free_port()))
    stage.observe()


def host_hangs(stage: Stage) -> None:
    from sluice.state.ledger.placement import Placement

    hanging = stage.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    stage.patch.setattr("sluice.state.remote.server_identity._ANSWER_SECONDS", 0.3)
    placed(stage.states, Placement("orders", 0, "127.0.0.1", hanging.getsockname()[1]))
    stage.observe()


def disk_full(stage: Stage) -> None:
    usage = shutil.disk_usage("/")._replace(free=300 * 2**20)
    stage.patch.setattr("sluice.observe.host_checks.shutil.disk_usage", lambda _: usage)
    stage.observe()


def clock_off(stage: Stage) -> None:
    stage.states.publish({"a": "[1,3]"}, published_at=datetime.now(UTC) + timedelta(hours=1))
    stage.observe()


def retention_failed(stage: Stage) -> None:
    note_retention(stage.states.ledger, "orders", ["Worker 1: The shard is locked."])


def state_grows(stage: Stage) -> None:
    stage.patch.setattr(state_growth, "_SMALL", 1)
    today = datetime.now(UTC).date()
    for days_ago, size in zip(range(7, 0, -1), (1, 2, 3, 4, 5, 6, 7), strict=True):
        stage.states.ledger.sizes.note("orders", today - timedelta(days=days_ago), size)
    note_size(stage.states.ledger, "orders", today)


def over_budget(stage: Stage) -> None:
    now = datetime.now(UTC)
    run = FinishedRun(
        pipeline="orders", began_at=now, ended_at=now, outcome="succeeded", host="host", version="1",
        cpu_seconds=9_000,
    )  # fmt: skip
    stage.states.ledger.finished_runs.add(run)
    allowance = Allowance(Budget(cpu_hours_per_day=2), "orders", frozenset({"orders"}))
    note_budgets(settings(), "orders", [allowance])


def schemas_differ(stage: Stage) -> None:
    of_topic = RegisteredTopic("orders", True, RegistryFormat(kind="AVRO"), None)
    problem = "$.amount: the field is missing and has no default"
    note(stage.states.ledger, "orders", [Comparison(of_topic, "2", "wrong", problem)])


INCIDENTS: dict[Callable[[Stage], None], tuple[FailureKind, str]] = {
    run_failed: ("run", "Kafka is away. Start it."),
    driver_killed: ("run", "The driver ended without an error."),
    file_broken: ("file", "orders.py:3: no"),
    overdue: ("overdue", "5 records have been unread for more than 10 min."),
    brokers_away: ("input", "Kafka at b:9092 does not answer. The pipeline starts by itself"),
    topic_deleted: (
        "input",
        "Topic orders was deleted. The pipeline has read orders/0 up to 10, orders/1 up to 5.",
    ),
    no_slot: ("slot", "UTC, but no driver has started. Look at the DAG in Airflow"),
    another_lease: ("lease", "waits for host far, process 7"),
    registry_away: ("registry", "The schema registry at registry:8081 does not answer"),
    records_held: (
        "held",
        "The transaction holds back 7 records of orders/0. Find the producer and stop it",
    ),
    flood: ("rejections", "19,406"),
    unexpected: ("expectations", "amount >= 0 is not true for 5 of 20 records"),
    host_silent: (
        "host",
        "no program listens at this port. Start the state server again on its host",
    ),
    host_hangs: (
        "host",
        "accepts connections, but has not answered within 0.3 s. End the state server's process",
    ),
    disk_full: ("disk", "GiB left for"),
    clock_off: ("clock", "ahead of the clock of"),
    over_budget: ("budget", "orders used 2.50 CPU hours of 2 today. See Costs on the page."),
    state_grows: (
        "growth",
        "KiB. Of its 1 rows, 1 belong to the store",
    ),
    schemas_differ: ("schemas", "orders (orders-value): $.amount: the field is missing"),
    retention_failed: ("retention", "Worker 1: The shard is locked. Remove the cause."),
}
"""How to stage an incident → the kind of the failure, and a part of its text."""

ROW = re.compile(r"^\| [^|]+ \| `(\w+)` \| `(\w+)` \| `(\w+)` \|", re.MULTILINE)
HEALTH = {
    kind: (health, alert) for kind, health, alert in ROW.findall(read("docs/how-to/operations.md"))
}
"""FailureKind → health and alert, from the table in the documentation."""


@pytest.mark.fault("F45", "a producer's transaction holds back records")
@pytest.mark.fault("F47", "all brokers are away while idle, a topic is deleted")
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.__name__)
def test_page_rest_status_and_metrics_name_it(
    stage: Stage, api: Api, incident: Callable[[Stage], None]
) -> None:
    kind, text = INCIDENTS[incident]
    incident(stage)
    health, _ = HEALTH[kind]

    (overview,) = api.get("/v1/overview")
    (failure,) = overview["failures"]
    assert (overview["health"], failure["kind"]) == (health, kind)
    assert text in f"{failure['detail']} {failure['next_step']}"
    assert failure["age_seconds"] < 3_600

    if incident is not topic_deleted:  # this route does not ask the broker
        (status,) = api.get("/v1/pipelines")
        assert (status["status"], [each["kind"] for each in status["failures"]]) == (health, [kind])

    if kind != "file":  # the command loads the files itself
        said = CliRunner().invoke(app, ["status"])
        line = " ".join(said.stdout.split())
        assert (said.exit_code, f"orders {health} 1." in line) == (1, True)
        assert f"UTC: {failure['title']}. " in re.sub(r", run [^:]+:", ":", line)
        assert text in line

    figures = LedgerFigures.read(stage.states.ledger)
    page = prometheus(of_pipeline("orders", gauges(figures, "orders", stage.lag)))
    assert f'sluice_condition{{pipeline="orders",kind="{kind}"}} 1\n' in page
    assert f'sluice_condition_age_seconds{{pipeline="orders",kind="{kind}"}}' in page


def test_a_healthy_pipeline_has_no_condition(stage: Stage, api: Api) -> None:
    stage.observe()
    (overview,) = api.get("/v1/overview")
    assert (overview["health"], overview["failures"]) == ("idle", [])
    assert CliRunner().invoke(app, ["status"]).exit_code == 0
    page = prometheus(
        of_pipeline("orders", gauges(LedgerFigures.read(stage.states.ledger), "orders", READ))
    )
    assert re.findall(r"sluice_condition\{.*\} (\d)", page) == ["0"] * len(KINDS)


@pytest.mark.parametrize("incident", [host_silent, disk_full])
def test_what_a_host_has_seen_keeps_its_beginning_and_passes(
    stage: Stage, incident: Callable[[Stage], None]
) -> None:
    incident(stage)
    (first,) = stage.states.ledger.failures.of("orders")
    stage.observe()
    (again,) = stage.states.ledger.failures.of("orders")
    assert again.at == first.at
    other = Failure.of(EngineError("x"), "orders", kind="disk", host="another host")
    stage.keep(other)
    space = shutil.disk_usage("/")._replace(free=2**40)
    stage.patch.setattr("sluice.observe.host_checks.shutil.disk_usage", lambda _: space)
    stage.patch.setattr("sluice.observe.host_checks.fetch_card", lambda *_, **__: None)
    stage.observe()
    assert [failure.host for failure in stage.states.ledger.failures.of("orders")] == [
        "another host"
    ]
    later = datetime.now(UTC) + timedelta(minutes=16)
    assert stage.states.ledger.failures.all(later) == [], (
        "nobody has seen it for a quarter of an hour"
    )


def test_a_process_without_the_servers_token_does_not_say_that_they_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_silent(stage)
    monkeypatch.delenv("SLUICE_SERVER_TOKEN")
    settings.cache_clear()
    stage.observe()
    assert [failure.kind for failure in stage.states.ledger.failures.of("orders")] == ["host"]


def test_every_kind_is_staged_and_has_a_health_and_an_alert() -> None:
    assert {kind for kind, _ in INCIDENTS.values()} == {*KINDS} == {*HEALTH}
    alerts = {
        rule["alert"]: rule["expr"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    }
    for kind, (_, alert) in HEALTH.items():
        (kinds,) = re.findall(r'sluice_condition\{kind=~?"([^"]+)"\}', alerts[alert])
        assert kind in kinds.split("|")


@pytest.mark.parametrize(
    ("gib", "grows"),
    [
        ((1, 2, 3, 4, 5, 6, 7), True),
        ((1, 2, 3, 4, 5, 6), False),
        ((1, 2, 3, 3, 5, 6, 7), False),
        ((5, 6, 7, 8, 9, 9.5, 9.9), False),
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), False),
    ],
)
def test_state_grows_if_it_does_so_every_day_of_a_week_and_doubles(
    gib: tuple[float, ...], grows: bool
) -> None:
    assert state_growth.is_growing([round(size * 2**30) for size in gib]) == grows


@pytest.mark.parametrize(
    ("free", "size", "is_full"),
    [
        (3, 100, True),
        (6, 100, False),
        (0.9, 10, True),
        (1.1, 10, False),
        (30, 10_000, False),
        (19, 10_000, True),
    ],
)
def test_a_disk_is_nearly_full_by_its_size(free: float, size: float, is_full: bool) -> None:
    assert (free * 2**30 < needed_bytes(round(size * 2**30))) == is_full
