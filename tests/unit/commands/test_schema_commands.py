"""`sluice schema`, with a registry in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
from typer.testing import CliRunner, Result

from sluice.commands.cli import app
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.registry.opening import forget, memory_registry
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from sluice.topology.pulled_schemas import read_file
from sluice.values.pipeline_modules import load_module
from sluice.values.registered_schemas import SchemaKind
from tests.support.states import States

pytestmark = pytest.mark.unit

URL = "memory:commands"
PIPELINE = """
from msgspec import Struct

from sluice import Avro, Decimal2, Pipeline


class Payment(Struct):
    payer: str
    amount: Decimal2


pipeline = Pipeline("bank")
payments = pipeline.stream("payments", value=Avro(Payment), key="payer")
payments.filter("amount > 1").to("large", value=Avro(Payment))
"""
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
SCHEMA = {
    "type": "record",
    "name": "Payment",
    "namespace": "bank",
    "fields": [
        {"name": "payer", "type": "string"},
        {"name": "amount", "type": MONEY},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["LOW", "HIGH"]}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "item", "type": ["null", "string"], "default": None}],
                },
            },
        },
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("SLUICE_REGISTRY", json.dumps({"url": URL}))
    settings.cache_clear()
    (tmp_path / "bank.py").write_text(PIPELINE)
    yield tmp_path
    settings.cache_clear()
    forget(URL)


@pytest.fixture
def registry(folder: Path) -> MemoryRegistry:
    return memory_registry(URL)


def schema(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["schema", *arguments])


def test_a_schema_is_pulled_for_the_pipelines(folder: Path, registry: MemoryRegistry) -> None:
    registry.register("payments-value", json.dumps(SCHEMA))
    result = schema("pull", "payments-value")
    assert result.exit_code == 0
    assert "schema 1 (payments-value, version 1)" in result.output
    assert json.loads(read_file(folder / "schemas" / "payments-value.json").text) == SCHEMA
    text = PIPELINE.replace("Avro(Payment)", 'Avro("payments-value")')
    (folder / "bank.py").write_text(text)
    with TopologyTestDriver(load_pipeline(folder, "bank")) as driver:
        payment = {"payer": "a", "amount": 2, "at": 0, "level": "LOW", "lines": [{"item": "x"}]}
        driver.pipe("payments", payment)
        assert driver.read("large")[0].value["lines"] == [{"item": "x"}]


def test_a_pipeline_follows_a_schema_that_is_pulled_anew(
    folder: Path, registry: MemoryRegistry
) -> None:
    (folder / "bank.py").write_text(PIPELINE.replace("Avro(Payment)", 'Avro("payments-value")'))
    registry.register("payments-value", json.dumps(SCHEMA))
    schema("pull", "payments-value")
    assert "more" not in plan(load_pipeline(folder, "bank")).job.streams[0].types
    more = {"name": "more", "type": "int", "default": 0}
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], more]}
    registry.register("payments-value", json.dumps(newer))
    schema("pull", "payments-value")
    assert "more" in plan(load_pipeline(folder, "bank")).job.streams[0].types


def test_the_printed_structs_are_those_of_the_schema(
    folder: Path, registry: MemoryRegistry
) -> None:
    registry.register("payments-value", json.dumps(SCHEMA))
    file = folder / "payment_structs.py"
    file.write_text(schema("pull", "payments-value", "--structs").output)
    module = load_module(file)
    assert module.Payment.__struct_fields__ == ("payer", "amount", "at", "level", "lines")
    assert module.Line().item is None


PROTO = """
syntax = "proto3";
package bank;
import "google/protobuf/timestamp.proto";
message Payment {
  enum Level { LOW = 0; HIGH = 1; }
  string payer = 1;
  google.protobuf.Timestamp at = 2;
  Level level = 3;
  repeated Line lines = 4;
  bytes from = 5;
  optional double rate = 6;
}
message Line { string item = 1; }
"""
JSON_SCHEMA = {
    "title": "Payment",
    "type": "object",
    "properties": {
        "payer": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "level": {"enum": ["LOW", "HIGH"], "default": "LOW"},
        "lines": {"type": "array", "default": [], "items": {"$ref": "#/$defs/Line"}},
        "from": {"type": "string", "contentEncoding": "base64", "default": ""},
        "rate-of-tax": {"type": "number"},
        "more": {},
    },
    "required": ["payer", "at"],
    "$defs": {"Line": {"type": "object", "properties": {"item": {"type": "string"}}}},
}


@pytest.mark.parametrize(("kind", "text"), [("PROTOBUF", PROTO), ("JSON", json.dumps(JSON_SCHEMA))])
def test_structs_are_printed_for_each_format(
    folder: Path, registry: MemoryRegistry, kind: SchemaKind, text: str
) -> None:
    registry.register("payments-value", text, kind)
    file = folder / "printed_structs.py"
    file.write_text(schema("pull", "payments-value", "--structs").output)
    module = load_module(file)
    annotations = get_type_hints(module.Payment)
    assert annotations["at"] in (datetime, datetime | None)
    assert get_args(annotations["lines"]) == (module.Line,)
    assert module.Line(item="tea").item == "tea"
    payment = module.Payment(payer="a", at=datetime.now(UTC), from_=b"")
    assert (payment.level, payment.lines) == ("LOW", [])
    assert b'"from":""' in msgspec.json.encode(payment)


def test_unknown_subjects_are_an_error(folder: Path) -> None:
    result = schema("pull", "nothing-value")
    assert result.exit_code == 1
    assert "no such version of nothing-value" in result.output


def test_check_and_push_go_together(folder: Path, registry: MemoryRegistry) -> None:
    registry.register("payments-value", json.dumps(SCHEMA))
    before = schema("check")
    assert before.exit_code == 1
    assert "right   bank reads payments (payments-value, version 1)" in before.output
    assert "missing bank writes large (large-value): register it" in before.output
    pushed = schema("push", "bank")
    assert "large: schema 2 (large-value, version 1)" in pushed.output
    after = schema("check", "bank")
    assert (after.exit_code, after.output.count("right")) == (0, 2)


def test_check_names_what_cannot_be_read(folder: Path, registry: MemoryRegistry) -> None:
    text = json.dumps(SCHEMA).replace('"name": "payer"', '"name": "who"')
    registry.register("payments-value", text)
    assert "$.payer: the field is missing and has no default" in schema("check").output


def test_what_does_not_fit_is_recorded_until_a_later_check_passes(
    folder: Path, registry: MemoryRegistry
) -> None:
    schema("push", "bank")
    registry.register("payments-value", json.dumps(SCHEMA).replace('"amount"', '"price"'))
    assert schema("check").exit_code == 1
    with Ledger.open(settings().ledger) as ledger:
        assert not ledger.failures.all(), "the pipeline has never run"

    database = f"sqlite:///{folder / 'states'}"
    states = States(database, pipeline="bank", ledger_at=settings().ledger)
    assert schema("check").exit_code == 1
    (failure,) = states.ledger.failures.of("bank")
    assert failure.kind == "schemas"
    assert "payments (payments-value): $.amount: the field is missing" in failure.detail
    assert "Compared on 20" in failure.detail

    registry.register("payments-value", json.dumps(SCHEMA))
    schema("push", "bank")
    schema("check")
    assert not states.ledger.failures.of("bank")
