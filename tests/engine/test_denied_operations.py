"""Kafka denies a run an operation: the error names operation, topic, user and a command."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from sluice.engine.publish.consumer_group import group_of
from sluice.errors import AccessDenied, EngineError
from sluice.kafka.brokers import silent_admin
from sluice.kafka.dead_letter_topic import DeadLetterFilter
from sluice.kafka.redrive import redrive
from sluice.kafka.unread_records import read_lag
from sluice.local.broker import EmbeddedKafka
from sluice.observe.health import input_away
from sluice.settings import Settings
from tests.chaos.actions import POINTS, interrupted
from tests.engine.conftest import Running
from tests.engine.shop import Item, Names, copied
from tests.support.access_control import (
    USER,
    broker_with_access_control,
    forget_rules,
    settings_of_user,
)
from tests.support.spark_in_process import SparkInProcess

TOPIC, TRANSACTIONS = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
Deny = Callable[..., None]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, int]]:
    """A broker with access control, and the port at which the user `sluice` logs in.

    Its other listener allows everything.
    """
    folder = tmp_path_factory.mktemp("secured")
    with broker_with_access_control(
        folder, **{"allow.everyone.if.no.acl.found": "true"}
    ) as broker_and_port:
        yield broker_and_port


@pytest.fixture
def admin(secured: tuple[EmbeddedKafka, int]) -> Iterator[AdminClient]:
    admin = silent_admin({"bootstrap.servers": secured[0].bootstrap})
    yield admin
    forget_rules(admin)


@pytest.fixture
def deny(admin: AdminClient) -> Deny:
    """Deny the user an operation on a resource, and allow everything else on it."""

    def add(kind: ResourceType, name: str, operation: str) -> None:
        of = kind, name, ResourcePatternType.LITERAL
        denied = AclBinding(*of, USER, "*", AclOperation[operation], AclPermissionType.DENY)
        allowed = AclBinding(*of, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for future in admin.create_acls([denied, allowed]).values():
            future.result(20)

    return add


@pytest.fixture
def running(
    secured: tuple[EmbeddedKafka, int],
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> Running:
    """A pipeline that has read one record, and has another one to read."""
    broker, port = secured
    names = Names(fresh_name("denied"))
    broker.create_topics({names("items"): 1})
    kafka = settings_of_user(port)
    about = {"SLUICE_HOME": str(tmp_path / "home"), "SLUICE_KAFKA": json.dumps(kafka)}
    settings = Settings.read(about)
    made = Running(SparkInProcess.session(), names, copied(names), settings, broker)
    made.send("items", b'{"n":0}')
    made.run()
    made.send("items", b'{"n":1}')
    return made


def denied(run: Callable[[], object], *operations: str) -> None:
    """The run ends within ten seconds. The error names the user, and operations with commands."""
    begun = time.monotonic()
    with pytest.raises(AccessDenied) as raised:
        run()
    assert time.monotonic() - begun < 10
    # The error of a task is one text.
    error = str(raised.value)
    assert "denies the user sluice" in error
    assert "--allow-principal User:sluice" in error
    for operation in operations:
        name, _, resource = operation.partition(" on the ")
        kind, _, resource = resource.rpartition(" ")
        assert operation in error
        assert f"--operation {name} --{kind.replace(' ', '-')} {resource}" in error


@pytest.mark.fault("F56", "an operation is denied in the middle of a run")
@pytest.mark.parametrize(
    ("operation", "short"),
    [
        ("READ", "{}.items"),
        ("DESCRIBE", "{}.items"),
        ("WRITE", "{}.copies"),
        ("DESCRIBE", "{}.copies"),
        ("WRITE", "{}_dead_letters"),
        ("READ", "{}_markers"),
        ("WRITE", "{}_markers"),
    ],
)
def test_a_run_does_not_begin_without_a_permission(
    running: Running, deny: Deny, admin: AdminClient, operation: str, short: str
) -> None:
    topic = short.format(running.names.prefix)
    deny(TOPIC, topic, operation)
    denied(running.run, f"{operation} on the topic {topic}")
    assert running.snapshot().batch == 0


def test_all_missing_permissions_are_named_at_once(running: Running, deny: Deny) -> None:
    deny(TOPIC, running.names("items"), "READ")
    deny(TOPIC, running.names("copies"), "WRITE")
    denied(
        running.run,
        f"READ on the topic {running.names('items')}",
        f"WRITE on the topic {running.names('copies')}",
    )


@pytest.mark.parametrize("operation", ["WRITE", "DESCRIBE"])
def test_a_run_does_not_begin_without_its_transactional_id(
    running: Running,
    deny: Deny,
    operation: str,
) -> None:
    name = f"sluice.{running.names.prefix}"
    deny(TRANSACTIONS, name, operation)
    denied(running.run, f"WRITE on the transactional id {name}")


@pytest.mark.parametrize(
    ("point", "kind", "operation", "short"),
    [
        ("after the plan", TOPIC, "READ", "{}.items"),
        ("after the plan", TOPIC, "DESCRIBE", "{}.items"),
        ("before the output", TOPIC, "WRITE", "{}.copies"),
        ("before the output", TOPIC, "DESCRIBE", "{}.copies"),
        ("before the output", TOPIC, "WRITE", "{}_markers"),
        ("before the output", TRANSACTIONS, "WRITE", "sluice.{}"),
    ],
)
def test_a_permission_is_withdrawn_within_a_batch(
    running: Running, deny: Deny, point: str, kind: ResourceType, operation: str, short: str
) -> None:
    name = short.format(running.names.prefix)
    with interrupted(POINTS[point], lambda: deny(kind, name, operation)):
        denied(running.run, f"{operation} on the {kind.name.lower().replace('_', ' ')} {name}")
    assert running.snapshot().batch == 0


def test_the_run_goes_on_when_it_is_allowed_again(
    running: Running,
    deny: Deny,
    admin: AdminClient,
) -> None:
    deny(TOPIC, running.names("copies"), "WRITE")
    denied(running.run)
    forget_rules(admin)
    assert running.run() == 1
    assert [value["n"] for _, value in running.output("copies")] == [0, 1]


@pytest.mark.parametrize("operation", ["READ", "DESCRIBE"])
def test_a_permission_is_withdrawn_while_a_run_lingers(
    running: Running,
    deny: Deny,
    operation: str,
) -> None:
    running.settings = replace(running.settings, linger_ms=60_000)

    def withdraw() -> None:
        while running.snapshot().batch == 0:
            time.sleep(0.05)
        deny(TOPIC, running.names("items"), operation)
        running.send("items", b'{"n":2}')

    other = threading.Thread(target=withdraw)
    other.start()
    denied(running.run, f"{operation} on the topic {running.names('items')}")
    other.join()


def test_a_lingering_run_needs_no_record_to_notice(running: Running, deny: Deny) -> None:
    running.settings = replace(running.settings, linger_ms=60_000)

    def withdraw() -> None:
        while running.snapshot().batch == 0:
            time.sleep(0.05)
        deny(TOPIC, running.names("copies"), "WRITE")

    other = threading.Thread(target=withdraw)
    other.start()
    denied(running.run, f"WRITE on the topic {running.names('copies')}")
    other.join()


def test_one_topic_that_may_not_be_described_hides_no_other(running: Running, deny: Deny) -> None:
    deny(TOPIC, running.names("items"), "DESCRIBE")
    topics = [running.names("items"), running.names("copies"), "nowhere"]
    lag = read_lag(silent_admin(running.settings.kafka), topics, {})
    assert lag.ends == {running.names("copies"): {0: 2}}, "a record and the end of its transaction"
    assert lag.denied == {running.names("items")}
    assert lag.missing(topics) == sorted(["nowhere", running.names("items")])
    away = input_away(lag.missing(topics), read=lag.positions, denied=lag.denied)
    hidden = f"Topic {running.names('items')} cannot be found: Kafka denies Sluice the operation"
    assert hidden in away.detail


def test_a_topic_may_not_be_created(running: Running, deny: Deny) -> None:
    deny(TOPIC, "*", "CREATE")
    deny(ResourceType.BROKER, "kafka-cluster", "CREATE")
    items = running.pipeline.stream(running.names("others"), value=Item)
    items.to(running.names("new"))
    running.kafka.create_topics({running.names("others"): 1})
    with pytest.raises(
        EngineError,
        match=rf"Topic {running.names('new')} was not created.*let the user sluice create",
    ):
        running.run()


def test_a_redrive_names_what_is_denied(running: Running, deny: Deny) -> None:
    running.send("items", b"bad")
    running.run()
    name = running.pipeline.name

    def again() -> object:
        return redrive(running.settings.kafka, name, [running.names("items")], DeadLetterFilter())

    deny(TOPIC, running.names("items"), "WRITE")
    denied(again, f"WRITE on the topic {running.names('items')}")
    deny(TRANSACTIONS, f"sluice.{name}.redrive", "WRITE")
    denied(again, f"WRITE on the transactional id sluice.{name}.redrive")


def warnings_of_offsets(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [entry for entry in logs if entry["event"] == "offsets not committed"]


def test_a_group_that_may_not_be_used_is_a_warning(
    running: Running, deny: Deny, admin: AdminClient
) -> None:
    group = group_of(running.pipeline.name)
    deny(ResourceType.GROUP, group, "READ")
    with structlog.testing.capture_logs() as logs:
        assert running.run() == 1
    assert [value["n"] for _, value in running.output("copies")] == [0, 1]
    (warning,) = warnings_of_offsets(logs)
    assert f"--allow-principal User:sluice --operation READ --group {group}" in warning["next_step"]


def test_a_group_is_denied_while_a_run_lingers(running: Running, deny: Deny) -> None:
    """The run goes on, and warns once."""
    running.settings = replace(running.settings, linger_ms=4_000)

    def withdraw() -> None:
        while running.snapshot().batch == 0:
            time.sleep(0.05)
        deny(ResourceType.GROUP, group_of(running.pipeline.name), "READ")
        for number in (2, 3):
            running.send("items", b'{"n":%d}' % number)
            while running.snapshot().batch < number:
                time.sleep(0.05)

    other = threading.Thread(target=withdraw)
    other.start()
    with structlog.testing.capture_logs() as logs:
        assert running.run() == 3
    other.join()
    assert len(warnings_of_offsets(logs)) == 1
    assert [value["n"] for _, value in running.output("copies")] == [0, 1, 2, 3]
