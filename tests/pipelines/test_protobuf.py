"""Pipelines that read and write Protobuf, with a schema registry in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from msgspec import Struct

from sluice import Decimal2, Pipeline, Protobuf, TopologyError
from sluice.testing import TopologyTestDriver
from sluice.values.proto_descriptors import message_classes

pytestmark = pytest.mark.pipelines


class Line(Struct):
    item: str
    count: int


class Order(Struct):
    id: int
    shop: str
    amount: Decimal2
    kind: Literal["GENERAL", "RESTAURANT"]
    lines: list[Line]
    tags: dict[str, int]
    at: datetime
    raw: bytes
    note: str | None = None
    pieces: int = 1


ORDER: dict[str, Any] = {
    "id": 1,
    "shop": "é",
    "amount": Decimal("12.50"),
    "kind": "GENERAL",
    "lines": [{"item": "tea", "count": -2}, {"item": "", "count": 0}],
    "tags": {"a": 2**40},
    "at": datetime(2024, 5, 1, 12, 30, 15, 250_001, tzinfo=UTC),
    "raw": b"\0\xff",
    "note": None,
    "pieces": 3,
}
WRITER = """
// The schema of another program.
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
option java_package = "com.example";

message Header { string source = 1; }
message Order {
  reserved 50 to 60;
  enum Kind { GENERAL = 0; RESTAURANT = 1; }
  message Line { string item = 1; sint32 count = 2 [deprecated = true]; }
  fixed32 id = 11;
  string shop = 2;
  string amount = 3;
  Kind kind = 4;
  repeated Line lines = 5;
  map<string, int64> tags = 6;
  google.protobuf.Timestamp at = 7;
  bytes raw = 8;
  google.protobuf.StringValue note = 9;
  optional int32 pieces = 10;
  oneof means { string card = 20; int64 cash = 21; }
  repeated int32 packed = 30;
}
"""


def orders(**options: Any) -> Pipeline:
    pipeline = Pipeline("shop")
    read = pipeline.stream("orders", value=Protobuf(Order), key="shop", event_time="at")
    read.to("copies", value=Protobuf(Order, **options))
    read.group_by_key().aggregate(store="sums", total="sum(amount)")
    return pipeline


@pytest.mark.parametrize("schema_in", ["prefix", "header"])
def test_values_are_read_and_written_exactly(schema_in: str) -> None:
    with TopologyTestDriver(orders(schema_in=schema_in)) as driver:
        driver.pipe("orders", ORDER)
        (copy,) = driver.read("copies")
        assert not driver.dead_letters()
        without_note = {name: each for name, each in ORDER.items() if name != "note"}
        assert copy.value == without_note | {"amount": "12.5"}
        assert driver.store("sums") == {"é": {"total": 12.5}}


def written(**fields: Any) -> bytes:
    """A value of the other program: the id, the place of the second message, and the message."""
    kind = message_classes(WRITER)[1]
    message = kind(id=7, shop="a", amount="2.50", raw=b"x", **fields)
    message.at.FromDatetime(ORDER["at"].replace(tzinfo=None))
    data: bytes = message.SerializeToString()
    return b"\0\0\0\0\2\2\2" + data


def test_messages_of_another_schema_are_matched_by_name() -> None:
    with TopologyTestDriver(orders()) as driver:
        schema = driver.registry.register("others-value", WRITER, "PROTOBUF")
        assert schema.id == 3
        driver.pipe("orders", written(kind=1, cash=5, packed=[1, 2]).replace(b"\2", b"\3", 1))
        (copy,) = driver.read("copies")
        assert not driver.dead_letters()
    assert copy.value == {
        "id": 7, "shop": "a", "amount": "2.5", "kind": "RESTAURANT", "lines": [], "tags": {},
        "at": ORDER["at"], "raw": b"x", "pieces": 1,
    }  # fmt: skip


def test_poison_becomes_dead_letters() -> None:
    with TopologyTestDriver(orders()) as driver:
        schema = driver.registry.register("others-value", WRITER, "PROTOBUF")
        good = written().replace(b"\2", bytes([schema.id]), 1)
        for value in (
            good[:-3],
            b"\0\0\0\0\x09" + good[5:],
            good[:5] + b"\0" + good[7:],
            written(kind=9).replace(b"\2", bytes([schema.id]), 1),
            good[:5] + b"\2\x0a" + good[7:],
        ):
            driver.pipe("orders", value)
        reasons = [letter.headers["sluice.reason"] for letter in driver.dead_letters()]
        details = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    assert reasons == ["malformed", "unknown_schema", "schema", "contract", "malformed"]
    assert "$.id: the field is missing" in details[2]
    assert "$.kind" in details[3]
    assert "no message with the indexes [5]" in details[4]


def test_what_protobuf_lacks_is_an_error_when_the_file_is_loaded() -> None:
    pipeline = Pipeline("p")
    with pytest.raises(TopologyError, match=r"has no type in Protobuf"):
        pipeline.stream("lines", value=Line).to("out", value=Protobuf(Unwritable))


class Unwritable(Struct):
    item: str
    count: Any


class Sum(Struct):
    id: int
    amount: Decimal2


def test_a_number_that_an_enum_lacks_matters_only_if_the_field_is_read() -> None:
    pipeline = Pipeline("sums")
    read = pipeline.stream("orders", value=Protobuf(Sum))
    read.to("copies")
    with TopologyTestDriver(pipeline) as driver:
        schema = driver.registry.register("others-value", WRITER, "PROTOBUF")
        driver.pipe("orders", written(kind=9).replace(b"\2", bytes([schema.id]), 1))
        assert [copy.value for copy in driver.read("copies")] == [{"id": 7, "amount": 2.5}]


PROTO2 = """
message Sum {
  required int64 id = 1;
  optional string amount = 2 [default = "1.25"];
  extensions 100 to max;
}
"""


def test_an_absent_field_of_proto2_has_its_default() -> None:
    pipeline = Pipeline("sums")
    pipeline.stream("sums", value=Protobuf(Sum)).to("copies")
    with TopologyTestDriver(pipeline) as driver:
        schema = driver.registry.register("sums-value", PROTO2, "PROTOBUF")
        for _ in range(60):
            driver.pipe("sums", b"\0\0\0\0" + bytes([schema.id, 0]) + b"\x08\x05")
        copies = [copy.value for copy in driver.read("copies")]
    assert copies == [{"id": 5, "amount": 1.25}] * 60


KEYS = """
syntax = "proto2";
message Keys {
  map<int32, string> by_number = 1;
  map<bool, int64> by_flag = 2;
  optional string text = 3 [default = "a\\"b\\n'"];
  optional bytes data = 4 [default = "\\000\\377'"];
}
"""


class Keys(Struct):
    by_number: dict[str, str]
    by_flag: dict[str, int]
    text: str
    data: bytes


@pytest.mark.parametrize("count", [1, 60])
def test_keys_of_maps_are_texts_and_defaults_have_escapes(count: int) -> None:
    pipeline = Pipeline("p")
    serde = Protobuf(Keys, version="latest")
    pipeline.stream("keys", value=serde).to("copies", value=serde)
    with TopologyTestDriver(pipeline) as driver:
        for subject in ("keys-value", "copies-value"):
            schema = driver.registry.register(subject, KEYS, "PROTOBUF")
        message = message_classes(KEYS)[0](by_number={-7: "x"}, by_flag={True: 1, False: 2})
        data = b"\0\0\0\0" + bytes([schema.id, 0]) + message.SerializeToString()
        for _ in range(count):
            driver.pipe("keys", data)
        copies = driver.read("copies")
        assert not driver.dead_letters()
    assert len(copies) == count
    assert copies[0].value == {
        "by_number": {"-7": "x"},
        "by_flag": {"true": 1, "false": 2},
        "text": "a\"b\n'",
        "data": b"\0\xff'",
    }
