"""Runs, triggers, queries and re-drives need exactly the operations that the documentation lists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from sluice.commands.topics_commands import topics_of
from sluice.errors import AccessDenied
from sluice.kafka.brokers import silent_admin
from sluice.kafka.dead_letter_topic import DeadLetterFilter, find_dead_letters
from sluice.kafka.redrive import redrive
from sluice.kafka.topics import create_topics
from sluice.kafka.unread_records import read_lag
from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings
from tests.docs.pages import read
from tests.engine.conftest import Running
from tests.engine.shop import Names, copied
from tests.support.access_control import (
    USER,
    broker_with_access_control,
    forget_rules,
    settings_of_user,
)
from tests.support.spark_in_process import SparkInProcess

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

TOPIC, GROUP, TRANSACTIONS = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
)
Rule = tuple[ResourceType, str, str]
"""The kind and the name of a resource, and an operation on it."""
_RESOURCES: dict[str, tuple[ResourceType, tuple[str, ...]]] = {
    "the topics that the pipeline reads": (TOPIC, ("{}.items",)),
    "outputs, `PIPELINE_dead_letters`": (TOPIC, ("{}.copies", "{}_dead_letters")),
    "`PIPELINE_markers`": (TOPIC, ("{}_markers",)),
    "the transactional id `sluice.PIPELINE`": (TRANSACTIONS, ("sluice.{}",)),
    "the group `sluice-PIPELINE`": (GROUP, ("sluice-{}",)),
    "topics that do not exist yet": (TOPIC, ()),
    "`PIPELINE_dead_letters`, `PIPELINE_redriven`": (TOPIC, ("{}_dead_letters", "{}_redriven")),
    "the transactional id `sluice.PIPELINE.redrive`": (TRANSACTIONS, ("sluice.{}.redrive",)),
}
"""A resource in the documentation → its kind and names."""
_ROW = re.compile(r"^\| ([^|]+) \| (`[A-Z`, ]+) \| ([^|]+) \|$", re.MULTILINE)


def listed(pipeline: str, purpose: str) -> list[Rule]:
    """Return the operations that the documentation lists for `runs` or `re-drives`."""
    page = read("docs/how-to/kafka-security.md")
    rows = _ROW.findall(page)
    assert {resource for resource, _, _ in rows} == set(_RESOURCES)
    rules: list[Rule] = []
    for resource, operations, needed_for in rows:
        if purpose not in needed_for:
            continue
        kind, names = _RESOURCES[resource]
        for name in names:
            for operation in re.findall(r"[A-Z]+", operations):
                rules.append((kind, name.format(pipeline), operation))
    return rules


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, int]]:
    """A broker that allows the user `sluice` only what a rule allows, and the port for this user."""
    with broker_with_access_control(tmp_path_factory.mktemp("secured")) as broker_and_port:
        yield broker_and_port


@pytest.fixture
def admin(secured: tuple[EmbeddedKafka, int]) -> Iterator[AdminClient]:
    admin = silent_admin({"bootstrap.servers": secured[0].bootstrap})
    yield admin
    forget_rules(admin)


def allow(admin: AdminClient, rules: list[Rule]) -> None:
    bindings: list[AclBinding] = []
    for kind, name, operation in rules:
        of = kind, name, ResourcePatternType.LITERAL, USER, "*"
        bindings.append(AclBinding(*of, AclOperation[operation], AclPermissionType.ALLOW))
    for future in admin.create_acls(bindings).values():
        future.result(20)


@pytest.fixture
def running(
    secured: tuple[EmbeddedKafka, int], fresh_name: Callable[[str], str], tmp_path: Path
) -> Running:
    """A pipeline that has never run. Another user has created its topics."""
    broker, port = secured
    names = Names(fresh_name("allowed"))
    pipeline = copied(names)
    create_topics({"bootstrap.servers": broker.bootstrap}, topics_of(pipeline, 1, 0))
    kafka = settings_of_user(port)
    about = {"SLUICE_HOME": str(tmp_path / "home"), "SLUICE_KAFKA": json.dumps(kafka)}
    made = Running(SparkInProcess.session(), names, pipeline, Settings.read(about), broker)
    made.send("items", b'{"n":0}', b"bad")
    return made


def test_what_is_listed_is_enough(running: Running, admin: AdminClient) -> None:
    name, kafka = running.pipeline.name, running.settings.kafka
    allow(admin, listed(name, "runs"))
    assert running.run() == 2
    assert [value["n"] for _, value in running.output("copies")] == [0]
    assert running.reasons() == ["malformed"]
    assert running.store("n") == {"key": 1}

    # What the trigger and the page ask.
    lag = read_lag(silent_admin(kafka), [running.names("items")], {})
    assert lag.ends == {running.names("items"): {0: 2}}

    allow(admin, listed(name, "re-drives"))
    assert len(find_dead_letters(kafka, name, DeadLetterFilter(), 10).letters) == 1
    assert redrive(kafka, name, [running.names("items")], DeadLetterFilter()).redriven == 1
    assert running.run() == 1
    assert running.reasons() == ["malformed", "malformed"]


def test_the_trigger_needs_only_describe(running: Running, admin: AdminClient) -> None:
    topic = running.names("items")
    allow(admin, [(TOPIC, topic, "DESCRIBE")])
    assert read_lag(silent_admin(running.settings.kafka), [topic], {}).ends == {topic: {0: 2}}


_NEEDED = [
    ("{}.items", "READ"),
    ("{}.copies", "WRITE"),
    ("{}_dead_letters", "WRITE"),
    ("{}_markers", "READ"),
    ("{}_markers", "WRITE"),
    ("sluice.{}", "WRITE"),
]


@pytest.mark.parametrize(("resource", "operation"), _NEEDED)
def test_a_right_that_is_missing_is_named(
    running: Running, admin: AdminClient, resource: str, operation: str
) -> None:
    name = resource.format(running.names.prefix)
    rules = [
        rule for rule in listed(running.pipeline.name, "runs") if rule[1:] != (name, operation)
    ]
    allow(admin, rules)
    with pytest.raises(AccessDenied) as denied:
        running.run()
    error = str(denied.value)
    # Without any right on a topic, Kafka does not even describe it.
    named = "|".join({operation, "DESCRIBE"})
    assert re.search(rf"denies the user sluice ({named}) on the [a-z ]+{name}\.", error)
    assert re.search(rf"--operation ({named}) --[a-z-]+ {name}", error)


def test_the_table_lists_nothing_that_a_run_does_not_need(running: Running) -> None:
    name = running.pipeline.name
    tried = {(resource.format(running.names.prefix), operation) for resource, operation in _NEEDED}
    rules = {rule[1:] for rule in listed(name, "runs") if rule[0] is not GROUP}
    assert rules == tried
