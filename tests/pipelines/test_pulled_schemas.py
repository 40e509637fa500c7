"""Pipelines whose contracts are pulled schemas of Protobuf and JSON Schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice import TopologyError
from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from sluice.topology.pulled_schemas import write_file
from sluice.values.proto_descriptors import message_classes
from sluice.values.registered_schemas import ReferredSchema, RegisteredSchema, SchemaKind

pytestmark = pytest.mark.pipelines

AT = datetime(2024, 5, 1, 12, 30, 15, 250_001, tzinfo=UTC)
PIPELINE = """
from sluice import JsonSchema, Pipeline, Protobuf


def name(order):
    return type(order.customer).__name__


pipeline = Pipeline("shop")
orders = pipeline.stream("orders", value=SERDE, key="shop", event_time="at")
orders.filter("amount > 1").to("large", value=SERDE)
orders.map_values(name, returns=str).to("names")
orders.group_by_key().aggregate(store="paid", total="sum(amount)", cities="max(customer.city)")
"""
CUSTOMER_PROTO = """
syntax = "proto3";
package shop.customers;
message Customer {
  message Phone { string number = 1; }
  string city = 1;
  repeated Phone phones = 2;
  Rank rank = 3;
}
enum Rank { NONE = 0; GOLD = 1; }
"""
ORDER_PROTO = """
syntax = "proto3";
package shop;
import "shop/customer.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
message Order {
  enum Kind { SALE = 0; RETURN = 1; }
  string shop = 1;
  int64 amount = 2;
  google.protobuf.Timestamp at = 3;
  customers.Customer customer = 4;
  .shop.customers.Rank rank = 5;
  google.protobuf.StringValue note = 6;
  google.protobuf.Duration lasted = 7;
  map<string, customers.Customer.Phone> phones = 8;
  Kind kind = 9;
  oneof means { string card = 10; int32 cash = 11; }
  optional int32 pieces = 12;
  double class = 13;
}
message Other { string shop = 1; google.protobuf.Timestamp at = 2; }
"""
PROTO_REFERENCES = (ReferredSchema("shop/customer.proto", CUSTOMER_PROTO),)
PROTO_ORDER: dict[str, Any] = {
    "shop": "a",
    "amount": 5,
    "at": AT,
    "customer": {"city": "Köln", "phones": [{"number": "1"}], "rank": "GOLD"},
    "rank": "GOLD",
    "note": "x",
    "lasted": {"seconds": 3, "nanos": 1},
    "phones": {"home": {"number": "2"}},
    "kind": "RETURN",
    "card": "42",
    "pieces": 0,
    "class": 1.5,
}

CUSTOMER_JSON = {
    "$id": "https://example.com/customer.json",
    "title": "Customer",
    "type": "object",
    "properties": {"city": {"type": "string"}, "phones": {"$ref": "#/definitions/Phones"}},
    "required": ["city"],
    "definitions": {"Phones": {"type": "array", "items": {"type": "string"}}},
}
ORDER_JSON: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.com/order.json",
    "title": "Order",
    "type": "object",
    "properties": {
        "shop": {"type": "string", "minLength": 1},
        "amount": {"type": "number", "format": "decimal", "precision": 12, "scale": 2},
        "at": {"type": "string", "format": "date-time"},
        "customer": {"$ref": "customer.json"},
        "day": {"type": ["string", "null"], "format": "date"},
        "kind": {"enum": ["SALE", "RETURN"], "default": "SALE"},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/Line"}, "default": []},
        "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "order-id": {"type": "integer"},
    },
    "required": ["shop", "amount", "at", "customer"],
    "definitions": {
        "Line": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "price": {"type": "number"}},
            "required": ["item"],
        }
    },
}
JSON_REFERENCES = (ReferredSchema("customer.json", json.dumps(CUSTOMER_JSON)),)
JSON_ORDER: dict[str, Any] = {
    "shop": "a",
    "amount": 12.5,
    "at": "2024-05-01T12:30:15.250001Z",
    "customer": {"city": "Köln", "phones": ["1"]},
    "day": "2024-05-01",
    "kind": "RETURN",
    "lines": [{"item": "tea", "price": 1.5}],
    "sizes": {"a": 1},
    "note": None,
    "order-id": 7,
}


def shop(
    folder: Path, serde: str, kind: SchemaKind, text: str, references: tuple[ReferredSchema, ...]
) -> TopologyTestDriver:
    """Return a driver of the pipeline whose contract is this schema."""
    (folder / "shop.py").write_text(PIPELINE.replace("SERDE", serde))
    pulled = RegisteredSchema(
        id=7, text=text, kind=kind, subject="orders-value", version=3, references=references
    )
    write_file(folder, pulled)
    return TopologyTestDriver(load_pipeline(folder, "shop"))


def of_protobuf(folder: Path, text: str = ORDER_PROTO, more: str = "") -> TopologyTestDriver:
    return shop(folder, f'Protobuf("orders-value"{more})', "PROTOBUF", text, PROTO_REFERENCES)


def of_json(folder: Path, schema: Any = ORDER_JSON, more: str = "") -> TopologyTestDriver:
    text = json.dumps(schema)
    return shop(folder, f'JsonSchema("orders-value"{more})', "JSON", text, JSON_REFERENCES)


def test_a_schema_of_protobuf_with_imports_is_the_contract(tmp_path: Path) -> None:
    with of_protobuf(tmp_path) as driver:
        driver.pipe("orders", PROTO_ORDER)
        assert not driver.dead_letters()
        assert driver.store("paid") == {"a": {"total": 5, "cities": "Köln"}}
        assert [output.value for output in driver.read("names")] == ["Customer"]
        (large,) = driver.read("large")
        assert large.value == PROTO_ORDER


def test_a_field_that_a_message_lacks_has_the_default_of_its_type(tmp_path: Path) -> None:
    with of_protobuf(tmp_path) as driver:
        earlier = ORDER_PROTO.replace("double class = 13;", "").replace("Kind kind = 9;", "")
        driver.registry.register("orders-value", earlier, "PROTOBUF", PROTO_REFERENCES)
        order = {name: PROTO_ORDER[name] for name in ("shop", "amount", "at", "customer")}
        driver.pipe("orders", order)
        assert not driver.dead_letters()
        (large,) = driver.read("large")
        assert large.value["kind"] == "SALE"
        assert large.value["class"] == 0


def test_a_message_of_the_schema_is_named(tmp_path: Path) -> None:
    pipeline = """
from sluice import Pipeline, Protobuf
pipeline = Pipeline("shop")
others = pipeline.stream("orders", value=Protobuf("orders-value", message="Other"), key="shop")
others.to("copies", value=Protobuf("orders-value", message="Other"))
"""
    of_protobuf(tmp_path)
    (tmp_path / "shop.py").write_text(pipeline)
    with TopologyTestDriver(load_pipeline(tmp_path, "shop")) as driver:
        message = message_classes(ORDER_PROTO, PROTO_REFERENCES)[1](shop="b")
        message.at.FromDatetime(AT.replace(tzinfo=None))
        data = b"\0\0\0\0\1\2\2" + message.SerializeToString()
        driver.pipe("orders", data)
        assert not driver.dead_letters()
        (copy,) = driver.read("copies")
        assert copy.value == {"shop": "b", "at": AT}
    (tmp_path / "shop.py").write_text(pipeline.replace("Other", "Odd"))
    with pytest.raises(TopologyError, match="no message Odd, but Order, Other"):
        load_pipeline(tmp_path, "shop")


def test_a_json_schema_with_references_is_the_contract(tmp_path: Path) -> None:
    with of_json(tmp_path) as driver:
        driver.pipe("orders", JSON_ORDER)
        assert not driver.dead_letters()
        assert driver.store("paid") == {"a": {"total": 12.5, "cities": "Köln"}}
        assert [output.value for output in driver.read("names")] == ["Customer"]
        (large,) = driver.read("large")
        assert large.value == JSON_ORDER


def test_fields_that_json_need_not_have_have_defaults(tmp_path: Path) -> None:
    with of_json(tmp_path) as driver:
        required = {name: JSON_ORDER[name] for name in ORDER_JSON["required"]}
        driver.pipe("orders", required)
        driver.pipe("orders", {**required, "customer": {}})
        (large,) = driver.read("large")
        assert large.value["kind"] == "SALE"
        assert large.value["lines"] == []
        assert large.value["day"] is None
        (letter,) = driver.dead_letters()
        assert "customer" in str(letter.headers["sluice.detail"])


def test_values_are_validated_by_a_schema_with_references(tmp_path: Path) -> None:
    with of_json(tmp_path, more=", validate=True") as driver:
        valid = JSON_ORDER
        driver.pipe("orders", valid)
        driver.pipe("orders", {**valid, "shop": ""})
        driver.pipe("orders", {**valid, "customer": {"city": "a", "phones": "1"}})
        details = [str(letter.headers["sluice.detail"]) for letter in driver.dead_letters()]
    assert len(details) == 2
    assert "$.shop" in details[0]
    assert "$.customer.phones" in details[1]


def test_times_and_decimals_of_pulled_schemas_are_those_of_sql(tmp_path: Path) -> None:
    of_json(tmp_path)
    (source,) = plan(load_pipeline(tmp_path, "shop")).job.streams
    types = [source.types[name] for name in ("at", "day", "amount")]
    assert types == ["TIMESTAMP", "DATE", "DECIMAL(12,2)"]


RECURSIVE_PROTO = 'syntax = "proto3"; message Tree { string shop = 1; repeated Tree children = 2; }'
RECURSIVE_JSON = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}},
}


def test_schemas_that_contain_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"Tree contains itself.* Write a Serde"):
        of_protobuf(tmp_path, RECURSIVE_PROTO)
    with pytest.raises(TopologyError, match=r"\$\.left: # contains itself"):
        of_json(tmp_path, RECURSIVE_JSON)


def test_a_missing_reference_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"imports shop/other\.proto"):
        of_protobuf(tmp_path, ORDER_PROTO.replace("shop/customer.proto", "shop/other.proto"))
    odd = json.loads(json.dumps(ORDER_JSON).replace('"customer.json"', '"other.json"'))
    with pytest.raises(TopologyError, match=r"\$\.customer: other\.json is neither"):
        of_json(tmp_path, odd)


def test_values_of_several_types_are_refused_with_their_path(tmp_path: Path) -> None:
    odd = {"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}
    with pytest.raises(TopologyError, match=r"\$\.a: values of several types"):
        of_json(tmp_path, odd)


def test_a_message_without_fields_is_refused_with_its_path(tmp_path: Path) -> None:
    with_empty = ORDER_PROTO.replace("double class = 13;", "Nothing nothing = 13;")
    with pytest.raises(TopologyError, match=r"\$\.nothing: a record without fields"):
        of_protobuf(tmp_path, f"{with_empty} message Nothing {{ }}")


def test_a_property_with_a_default_that_python_shares_may_be_missing(tmp_path: Path) -> None:
    schema = json.loads(json.dumps(ORDER_JSON))
    schema["properties"]["sizes"]["default"] = {"a": 1}
    with of_json(tmp_path, schema) as driver:
        driver.pipe("orders", {name: JSON_ORDER[name] for name in ORDER_JSON["required"]})
        assert driver.read("large")[0].value["sizes"] is None


def test_a_run_registers_a_pulled_schema_that_refers_to_no_other(tmp_path: Path) -> None:
    alone = 'syntax = "proto3"; message Order { string shop = 1; }'
    pipeline = """
from sluice import Pipeline, Protobuf
pipeline = Pipeline("shop")
serde = Protobuf("orders-value", register=True)
pipeline.stream("orders", value=serde).to("copies", value=serde)
"""
    for text, references, registers in ((alone, (), True), (ORDER_PROTO, PROTO_REFERENCES, False)):
        write_file(
            tmp_path,
            RegisteredSchema(
                id=7, text=text, kind="PROTOBUF", subject="orders-value", references=references
            ),
        )
        (tmp_path / "shop.py").write_text(pipeline)
        ((_, of_sink),) = plan(load_pipeline(tmp_path, "shop")).job.registered_sinks()
        assert of_sink.registers == registers
