"""Protobuf that is decoded to columns is what the decoder of single values gives, or is left to it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

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
    maybe: int | None = None


SCHEMA = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
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
  oneof means { string card = 18; int64 cash = 19; }
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
        "cash": LONGS,
    },
)


class Reading:
    def __init__(self) -> None:
        pipeline = Pipeline("p")
        pipeline.stream("t", value=Protobuf(Everything))
        (source,) = plan(pipeline).job.streams
        registry = MemoryRegistry()
        schema = registry.register("t-value", SCHEMA, "PROTOBUF")
        self.encode = RegisteredEncoder(schema, in_header=False, record="Everything")
        self.decoder = ValueDecoder(source, registry)

    def columns(self, data: list[bytes]) -> dict[str, list[Any]] | None:
        assert self.decoder._registered_columns is not None
        self.decoder._registered_columns._misses = 0
        (run,) = self.decoder.runs(pa.array(data, pa.binary()))
        return None if run.values is None else run.values.to_pydict()

    def each(self, data: list[bytes]) -> tuple[dict[str, list[Any]], list[str]]:
        _, values, dead_letters = self.decoder.decode([*data])
        columns: dict[str, list[Any]] = {}
        for name in self.decoder.source.types:
            columns[name] = self.decoder.columns.column(values, name).to_pylist()
        return columns, [letter.reason for letter in dead_letters]


READING = Reading()


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
