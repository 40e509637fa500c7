"""Protobuf that is decoded to columns is what the decoder of single values gives, or is left to it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from sluice import Decimal2, Pipeline, Protobuf
from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.proto_messages import fill
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.values.proto_descriptors import message_classes

pytestmark = pytest.mark.unit


class Part(Struct):
    name: str
    price: Decimal2
    count: int


class Everything(Struct):
    id: int
    small: int
    signed: int
    unsigned: int
    real: float
    single: float
    flag: bool
    text: str
    data: bytes
    amount: Decimal2
    kind: Literal["A", "B"]
    at: datetime
    parts: list[Part]
    part: Part | None
    names: list[str]
    packed: list[int]
    unpacked: list[int]
    doubles: list[float]
    kinds: list[Literal["A", "B", "C"]]
    flags: list[bool]
    extra: dict[str, int]
    by_name: dict[str, Part]
    fixed: int
    signed_fixed: int
    positive: Annotated[int, Meta(ge=0)]
    short: Annotated[str, Meta(max_length=3)]
    maybe: int | None = None
    card: str | None = None
    cash: int | None = None
    note: str | None = None
    limit: int | None = None
    price: Decimal2 | None = None
    ready: bool | None = None
    added: int = 7
    added_note: str | None = None
    added_kind: Literal["A", "B"] = "B"
    added_parts: list[Part] = []


SCHEMA = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message First { string text = 1; }
message Everything {
  enum Kind { A = 0; B = 1; C = 2; }
  message Part { string name = 1; string price = 2; sint64 count = 3; string more = 9; }
  int64 id = 1;
  int32 small = 20;
  sint32 signed = 3;
  uint64 unsigned = 4;
  double real = 5;
  float single = 6;
  bool flag = 7;
  string text = 8;
  bytes data = 9;
  string amount = 10;
  Kind kind = 11;
  google.protobuf.Timestamp at = 12;
  repeated Part parts = 13;
  Part part = 14;
  repeated string names = 15;
  optional int64 maybe = 16;
  map<string, int64> extra = 17;
  oneof means { string card = 18; int64 cash = 19; bool free = 40; }
  repeated sint64 packed = 21;
  repeated int64 unpacked = 22 [packed = false];
  repeated double doubles = 23;
  repeated Kind kinds = 24;
  repeated bool flags = 25;
  map<string, Part> by_name = 26;
  fixed64 fixed = 27;
  sfixed32 signed_fixed = 28;
  google.protobuf.StringValue note = 29;
  google.protobuf.Int64Value limit = 30;
  google.protobuf.StringValue price = 31;
  google.protobuf.BoolValue ready = 32;
  int64 positive = 33;
  string short = 34;
}
"""
LONGS = st.integers(-(2**63), 2**63 - 1)
AMOUNTS = st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2)
TIMES = st.datetimes(datetime(2, 1, 2), datetime(9998, 12, 30), timezones=st.just(UTC))
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
PARTS = st.fixed_dictionaries(
    {"name": st.text(max_size=9), "price": AMOUNTS, "count": LONGS},
    optional={"more": st.text(max_size=3)},
)
VALUES = st.fixed_dictionaries(
    {"amount": AMOUNTS, "at": TIMES},
    optional={
        "id": LONGS,
        "small": st.integers(-(2**31), 2**31 - 1),
        "signed": st.integers(-(2**31), 2**31 - 1),
        "unsigned": st.integers(0, 2**63 - 1),
        "real": st.floats(allow_nan=False, allow_infinity=False),
        "single": SINGLES,
        "flag": st.booleans(),
        "text": st.text(max_size=20),
        "data": st.binary(max_size=20),
        "kind": st.sampled_from(["A", "B"]),
        "parts": st.lists(PARTS, max_size=3),
        "part": PARTS,
        "names": st.lists(st.text(max_size=3), max_size=3),
        "maybe": LONGS,
        "extra": st.dictionaries(st.text(max_size=3), LONGS, max_size=2),
        "packed": st.lists(LONGS, max_size=4),
        "unpacked": st.lists(LONGS, max_size=4),
        "doubles": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "kinds": st.lists(st.sampled_from(["A", "B", "C"]), max_size=3),
        "flags": st.lists(st.booleans(), max_size=3),
        "by_name": st.dictionaries(st.text(max_size=3), PARTS, max_size=2),
        "fixed": st.integers(0, 2**63 - 1),
        "signed_fixed": st.integers(-(2**31), 2**31 - 1),
        "note": st.text(max_size=3),
        "limit": LONGS,
        "price": AMOUNTS,
        "ready": st.booleans(),
        "positive": st.integers(0, 2**63 - 1),
        "short": st.text(max_size=3),
        "means": st.fixed_dictionaries({"cash": LONGS})
        | st.fixed_dictionaries({"card": st.text(max_size=3)})
        | st.fixed_dictionaries({"free": st.booleans()}),
    },
).map(lambda value: with_means(value))


def with_means(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value with a field of its oneof."""
    means = value.pop("means", {})
    return {**value, **means}


def without_order(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns with dicts in place of maps, because Protobuf gives maps no order."""
    for name in {"extra", "by_name"} & columns.keys():
        columns[name] = [dict(entries) for entries in columns[name]]
    return columns


class Reading:
    def __init__(self, contract: type[Struct]) -> None:
        pipeline = Pipeline("p")
        pipeline.stream("t", value=Protobuf(contract))
        (source,) = plan(pipeline).job.streams
        registry = MemoryRegistry()
        schema = registry.register("t-value", SCHEMA, "PROTOBUF")
        self.encode = RegisteredEncoder(schema, in_header=False, record="Everything")
        self.decoder = ValueDecoder(source, registry)

    def columns(self, data: list[bytes]) -> dict[str, list[Any]] | None:
        assert self.decoder._registered_columns is not None
        self.decoder._registered_columns._misses = 0
        (run,) = self.decoder.runs(pa.array(data, pa.binary()))
        return None if run.values is None else without_order(run.values.to_pydict())

    def each(self, data: list[bytes]) -> tuple[dict[str, list[Any]], list[str]]:
        _, values, dead_letters = self.decoder.decode([*data])
        columns: dict[str, list[Any]] = {}
        for name in self.decoder.source.types:
            columns[name] = self.decoder.columns.column(values, name).to_pylist()
        return without_order(columns), [letter.reason for letter in dead_letters]


READING = Reading(Everything)


def repeated(values: list[bytes]) -> list[bytes]:
    return values * (1 + 60 // len(values))


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_columns_are_those_of_single_values(values: list[Any]) -> None:
    data = repeated([READING.encode(value) for value in values])
    columns = READING.columns(data)
    assert columns is not None
    assert (columns, []) == READING.each(data)
    assert columns["amount"][: len(values)] == [value["amount"] for value in values]
    assert columns["maybe"][: len(values)] == [value.get("maybe") for value in values]


@given(
    st.lists(VALUES, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.integers(0, 255)), min_size=1),
    st.booleans(),
)
def test_damaged_values_never_become_columns_that_single_values_are_not(
    values: list[Any], damages: list[tuple[int, int, int]], is_cut: bool
) -> None:
    data = [bytearray(READING.encode(value)) for value in values]
    for number, place, byte in damages:
        damaged = data[number % len(data)]
        at = 7 + place % max(len(damaged) - 7, 1)
        if is_cut:
            del damaged[at:]
        elif at < len(damaged):
            damaged[at] = byte
    texts = repeated([bytes(each) for each in data])
    columns = READING.columns(texts)
    if columns is not None:
        assert (columns, []) == READING.each(texts)


@given(VALUES, VALUES)
def test_fields_in_another_order_and_twice_are_as_protobuf_says(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    kind = message_classes(SCHEMA)[1]
    parts: list[bytes] = []
    for value in (first, second):
        message = kind()
        fill(message, value)
        parts.append(message.SerializeToString(deterministic=True))
    texts = repeated([READING.encode(first)[:7] + part for part in (parts[1] + parts[0], *parts)])
    columns = READING.columns(texts)
    if columns is not None:
        assert (columns, []) == READING.each(texts)


class Choices(Struct):
    kind: Literal["B", "C"]
    text: Literal["x", "y"]
    short: Annotated[str, Meta(min_length=1)]
    positive: Annotated[int, Meta(gt=0)]


@pytest.mark.parametrize("missing", ["kind", "text", "short", "positive"])
def test_a_default_that_the_contract_does_not_take_is_rejected(missing: str) -> None:
    reading = Reading(Choices)
    value = {"kind": "B", "text": "x", "short": "a", "positive": 1}
    good = reading.encode(value)
    assert reading.columns([good] * 60) is not None
    del value[missing]
    data = [good] * 59 + [reading.encode(value)]
    assert reading.columns(data) is None
    assert reading.each(data)[1] == ["contract"]
