"""Runs with a real schema registry, and with Confluent's own serializers on the other side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice import Avro, JsonSchema, Pipeline
from sluice.engine.run import registry_wait
from sluice.errors import EngineError, Refused, RegistryAway, SettingsError
from sluice.local.registry import LocalRegistry
from sluice.operations.registered_topics import compare, push
from sluice.plan import plan
from sluice.registry.http_registry import HttpRegistry
from sluice.registry.registry import UnknownSchemaError
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.run_ends import note_failure
from sluice.state.ledger.snapshots import Snapshots
from sluice.topology import load_pipeline
from sluice.topology.pulled_schemas import write_file
from sluice.values.registered_schemas import SchemaKind
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, Sale, Shop
from tests.faults.world import wait_until

SALE = {"shop": "a", "amount": Decimal("2.50"), "quantity": 2}
AT = datetime(2024, 5, 1, tzinfo=UTC)
SCHEMA = {
    "type": "record",
    "name": "Sale",
    "namespace": "shops",
    "fields": [
        {"name": "shop", "type": "string"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "quantity", "type": "int"},
    ],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with LocalRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def sales(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=1)
    read = pipeline.stream(names("sales"), value=Avro(Sale), key="shop", event_time="at")
    read.to(names("copies"), value=Avro(Sale, namespace="shops"))
    read.select("shop", city="'x'").to(names("shops"), value=JsonSchema(Shop))
    read.group_by_key().aggregate(store="revenue", total="sum(amount)")
    return pipeline


class Shops:
    """A pipeline with a registry, and a producer and a consumer of Confluent's."""

    def __init__(self, running: Running, registry: LocalRegistry) -> None:
        self.running = running
        self.client = SchemaRegistryClient({"url": registry.url})
        self.registry = HttpRegistry({"url": registry.url})
        running.settings = replace(running.settings, registry={"url": registry.url})

    def send(self, count: int, schema: dict[str, Any] = SCHEMA, **more: Any) -> None:
        topic = self.running.names("sales")
        serialize = AvroSerializer(self.client, json.dumps(schema))
        context = SerializationContext(topic, MessageField.VALUE)
        for number in range(count):
            value = SALE | more | {"at": AT + timedelta(seconds=number)}
            self.running.send("sales", serialize(value, context))

    def copies(self) -> list[Any]:
        topic = self.running.names("copies")
        deserialize = AvroDeserializer(self.client)
        context = SerializationContext(topic, MessageField.VALUE)
        return [deserialize(each.value(), context) for each in self.running.messages(topic)]


@pytest.fixture
def shops(start: Start, registry: LocalRegistry) -> Iterator[Shops]:
    made = Shops(start(sales), registry)
    yield made
    made.client.close()


def register_outputs(shops: Shops) -> None:
    assert len([*push(plan(shops.running.pipeline).job, shops.registry)]) == 2


def test_values_of_confluents_serializer_are_read_and_its_deserializer_reads_the_results(
    shops: Shops,
) -> None:
    register_outputs(shops)
    shops.send(120)
    shops.send(1, quantity=7)
    assert shops.running.run() == 121
    expected = [SALE | {"at": AT + timedelta(seconds=number)} for number in range(120)]
    assert shops.copies() == [*expected, SALE | {"at": AT, "quantity": 7}]
    assert shops.running.store("revenue") == {"a": {"total": 302.5}}
    (first, *_) = shops.running.messages(shops.running.names("shops"))
    data = first.value() or b""
    schema = shops.registry.schema(int.from_bytes(data[1:5], "big"))
    assert (schema.kind, json.loads(data[5:])) == ("JSON", {"shop": "a", "city": "x"})


def test_a_run_says_which_schema_is_not_registered(shops: Shops) -> None:
    shops.send(1)
    with pytest.raises(EngineError, match="sluice schema push"):
        shops.running.run()
    assert not shops.running.snapshots()
    register_outputs(shops)
    assert shops.running.run() == 1


def test_the_comparison_names_what_does_not_fit(shops: Shops) -> None:
    job = plan(shops.running.pipeline).job
    assert {each.verdict for each in compare(job, shops.registry)} == {"missing"}
    register_outputs(shops)
    shops.send(1)
    assert {each.verdict for each in compare(job, shops.registry)} == {"right"}
    subject = f"{shops.running.names('sales')}-value"
    narrow = {**SCHEMA, "fields": SCHEMA["fields"][:2]}
    shops.registry.register(subject, json.dumps(narrow), "AVRO")
    (wrong,) = [each for each in compare(job, shops.registry) if each.verdict == "wrong"]
    assert (wrong.version, wrong.detail) == (
        "2",
        "$.at: the field is missing and has no default",
    )


def test_a_run_waits_for_a_registry_that_is_killed_and_loses_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a registry of its own, the schemas get the same ids again after the registry's start.
    with LocalRegistry(tmp_path / "registry") as registry:
        shops = Shops(start(sales), registry)
        register_outputs(shops)
        shops.send(10)
        # A batch may be read while the one before it is written, so the third has a new schema.
        for quantity in (3, 4):
            more = {"name": f"more{quantity}", "type": ["null", "int"]}
            later = {**SCHEMA, "fields": [*SCHEMA["fields"], more]}
            shops.send(10, later, quantity=quantity, **{f"more{quantity}": None})
        kill_with_first_batch(registry, monkeypatch)
        with ThreadPoolExecutor(1) as restarter:
            failure = restarter.submit(
                restart_when_waited_for, shops, registry, stored(shops.client)
            )
            assert shops.running.run(max_records=10) == 30
        assert f"127.0.0.1:{registry.port}" in failure.result().detail
        # The broker marks the records of a transaction as committed a moment after the commit.
        wait_until(lambda: len(shops.copies()) >= 30, 10)
        quantities = [copy["quantity"] for copy in shops.copies()]
        shops.client.close()
    assert quantities == [2] * 10 + [3] * 10 + [4] * 10
    assert not shops.running.dead_letters()
    with shops.running.ledger() as ledger:
        assert not ledger.failures.of(shops.running.names.prefix)


def test_a_run_fails_when_the_registry_stays_away(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_wait, "PATIENCE_S", 1.0)
    with LocalRegistry(tmp_path / "registry") as registry:
        shops = Shops(start(sales), registry)
        register_outputs(shops)
        shops.send(10)
        registry.kill()
        name = shops.running.names.prefix
        with pytest.raises(RegistryAway), note_failure(shops.running.settings, name):
            shops.running.run()
        shops.client.close()
    with shops.running.ledger() as ledger:
        (failure,) = ledger.failures.of(name)
    assert failure.kind == "registry"
    assert not shops.running.dead_letters()


def kill_with_first_batch(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Snapshots.publish

    def publish_and_kill(*arguments: Any, **named: Any) -> Any:
        published = publish(*arguments, **named)
        monkeypatch.setattr(Snapshots, "publish", publish)
        registry.kill()
        return published

    monkeypatch.setattr(Snapshots, "publish", publish_and_kill)


def restart_when_waited_for(
    shops: Shops, registry: LocalRegistry, content: list[dict[str, Any]]
) -> Failure:
    """Restart the registry as soon as the ledger says that the run waits, and return the failure."""
    failures: list[Failure] = []
    while not failures:
        time.sleep(0.2)
        with shops.running.ledger() as ledger:
            failures = ledger.failures.of(shops.running.names.prefix)
    registry.stop()
    # The schemas were in the registry's memory. Until it has them again, it counts as away.
    known = HttpRegistry.schema

    def still_away(*_: Any, **__: Any) -> Any:
        raise RegistryAway.of(registry.url, "it has no schemas yet")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HttpRegistry, "schema", still_away)
        registry.start()
        restore(shops.client, content)
    assert HttpRegistry.schema is known
    return failures[0]


def stored(client: SchemaRegistryClient) -> list[dict[str, Any]]:
    """The schemas of a registry, in the order of their ids."""
    found: dict[int, dict[str, Any]] = {}
    for subject in client.get_subjects():
        for version in client.get_versions(subject):
            each = client.get_version(subject, version)
            assert each.schema_id is not None
            schema = {"id": each.schema_id, "subject": subject, "schema": each.schema}
            found.setdefault(each.schema_id, schema)
    return [found[number] for number in sorted(found)]


def restore(client: SchemaRegistryClient, content: list[dict[str, Any]]) -> None:
    client.clear_caches()  # type: ignore[no-untyped-call]
    for each in content:
        assert client.register_schema(each["subject"], each["schema"]) == each["id"]


def test_errors_of_the_registry_are_told_apart(
    registry: LocalRegistry, fresh_name: Callable[[str], str]
) -> None:
    client = HttpRegistry({"url": registry.url})
    subject = fresh_name("errors")
    with pytest.raises(UnknownSchemaError):
        client.schema(99_999)
    with pytest.raises(UnknownSchemaError):
        client.version(subject)
    assert client.find(subject, json.dumps(SCHEMA), "AVRO") is None
    with pytest.raises(Refused):
        client.register(subject, '{"type": "recard"}', "AVRO")
    wrong_path = HttpRegistry({"url": registry.url.removesuffix("/ccompat/v7")})
    with pytest.raises(RegistryAway):
        wrong_path.schema(1)
    with pytest.raises(SettingsError, match="SLUICE_REGISTRY"):
        HttpRegistry({}).schema(1)


def test_secrets_are_in_no_error(registry: LocalRegistry) -> None:
    closed = HttpRegistry(
        {
            "url": "http://127.0.0.1:1",
            "basic.auth.user.info": "me:geheimnis-123",
            "max.retries": "0",
        }
    )
    with pytest.raises(RegistryAway) as failed:
        closed.version("x")
    assert "geheimnis" not in f"{failed.value} {closed!r}"


CUSTOMER = 'syntax = "proto3";\npackage shop;\nmessage Customer { string city = 1; }\n'
ORDER = """syntax = "proto3";
package shop;
import "shop/customer.proto";
import "google/protobuf/timestamp.proto";
message Order { string id = 1; Customer customer = 2; google.protobuf.Timestamp at = 3; }
"""
CUSTOMER_JSON = {"title": "Customer", "type": "object", "properties": {"city": {"type": "string"}}}
ORDER_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "string"}, "customer": {"$ref": "customer.json"}},
    "required": ["id"],
}


@pytest.mark.parametrize(
    ("kind", "serde", "name", "referred", "text"),
    [
        ("PROTOBUF", "Protobuf", "shop/customer.proto", CUSTOMER, ORDER),
        ("JSON", "JsonSchema", "customer.json", json.dumps(CUSTOMER_JSON), json.dumps(ORDER_JSON)),
    ],
)
def test_a_schema_is_pulled_with_those_to_which_it_refers(
    registry: LocalRegistry,
    tmp_path: Path,
    kind: SchemaKind,
    serde: str,
    name: str,
    referred: str,
    text: str,
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema(f"customers-{kind}", Schema(referred, kind))
    reference = SchemaReference(name, f"customers-{kind}", 1)
    client.register_schema(f"orders-{kind}", Schema(text, kind, [reference]))

    pulled = HttpRegistry({"url": registry.url}).version(f"orders-{kind}")
    assert [each.name for each in pulled.references] == [name]
    write_file(tmp_path, pulled)
    (tmp_path / "shop.py").write_text(
        f"from sluice import Pipeline, {serde}\n"
        'pipeline = Pipeline("shop")\n'
        f'orders = pipeline.stream("orders", value={serde}("orders-{kind}"), key="id")\n'
        'orders.filter("customer.city = \'Bonn\'").to("copies", '
        f'value={serde}("orders-{kind}"))\n'
    )
    job = plan(load_pipeline(tmp_path, "shop")).job
    (source,) = job.streams
    assert source.types["customer"] == "STRUCT<city: STRING>"
    comparisons = [*compare(job, HttpRegistry({"url": registry.url}))]
    assert [each.verdict for each in comparisons] == ["right", "right"], comparisons
