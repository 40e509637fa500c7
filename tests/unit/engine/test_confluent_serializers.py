"""Confluent's serializers and Sluice read what the other has written."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Literal
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Avro, Decimal2, Pipeline, Protobuf
from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.decode import ValueDecoder
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.values.proto_descriptors import message_classes

pytestmark = pytest.mark.unit


class Item(Struct):
    name: str
    price: Decimal2


class Event(Struct):
    number: int
    small: int
    real: float
    flag: bool
    text: str
    data: bytes
    amount: Decimal2
    level: Literal["LOW", "HIGH"]
    day: date
    at: datetime
    millis: datetime
    items: list[Item]
    by_name: dict[str, int]
    item: Item | None
    note: str | None = None


def decimal(kind: str = "bytes", **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": "decimal", "precision": 12, "scale": 2, **more}


ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "price", "type": decimal("fixed", name="Price", size=6)},
    ],
}
FIELDS: dict[str, Any] = {
    "number": "long",
    "small": "int",
    "real": "double",
    "flag": "boolean",
    "text": "string",
    "data": "bytes",
    "amount": decimal(),
    "level": {"type": "enum", "name": "Level", "symbols": ["LOW", "HIGH"]},
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "millis": {"type": "long", "logicalType": "timestamp-millis"},
    "items": {"type": "array", "items": ITEM},
    "by_name": {"type": "map", "values": "long"},
    "item": ["null", "Item"],
    "note": ["null", "string"],
}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "namespace": "shops",
        "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
    }
)
LONGS = st.integers(-(2**63), 2**63 - 1)
AMOUNTS = st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2)
TIMES = st.datetimes(datetime(1700, 1, 1), datetime(2900, 1, 1), timezones=st.just(UTC))
MILLIS = TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))
ITEMS = st.fixed_dictionaries({"name": st.text(max_size=9), "price": AMOUNTS})
EVENTS = st.fixed_dictionaries({
    "number": LONGS, "small": st.integers(-(2**31), 2**31 - 1),
    "real": st.floats(allow_nan=False, allow_infinity=False), "flag": st.booleans(),
    "text": st.text(max_size=20), "data": st.binary(max_size=20), "amount": AMOUNTS,
    "level": st.sampled_from(["LOW", "HIGH"]), "day": st.dates(date(1700, 1, 1), date(2900, 1, 1)),
    "at": TIMES, "millis": MILLIS, "items": st.lists(ITEMS, max_size=3),
    "by_name": st.dictionaries(st.text(max_size=5), LONGS, max_size=3),
    "item": st.none() | ITEMS, "note": st.none() | st.text(max_size=5),
})  # fmt: skip


class Sides:
    """The same registry for Confluent's serializers and for Sluice."""

    def __init__(self) -> None:
        self.client = SchemaRegistryClient.new_client({"url": f"mock://{uuid4()}"})
        schema_id = self.client.register_schema("events-value", Schema(SCHEMA, "AVRO"))
        registry = MemoryRegistry()
        registered = registry.register("events-value", SCHEMA)
        assert registered.id == schema_id
        pipeline = Pipeline("p")
        pipeline.stream("events", value=Avro(Event))
        (source,) = plan(pipeline).job.streams
        self.decoder = ValueDecoder(source, registry)
        self.encode = RegisteredEncoder(registered, in_header=False)
        self.serialize = AvroSerializer(self.client, SCHEMA)
        self.deserialize = AvroDeserializer(self.client)
        self.context = SerializationContext("events", MessageField.VALUE)


both_sides = cache(Sides)


@given(st.lists(EVENTS, min_size=1, max_size=10))
def test_values_are_the_same_on_both_sides(events: list[dict[str, Any]]) -> None:
    sides = both_sides()
    serialized = [sides.serialize(event, sides.context) for event in events]
    _, values, dead_letters = sides.decoder.decode(pa.array(serialized, pa.binary()).to_pylist())
    assert not dead_letters
    assert values == [msgspec.convert(event, Event) for event in events]

    for event in events:
        assert sides.deserialize(sides.encode(event), sides.context) == event


ITEMS_PROTO = """
syntax = "proto3";
package shops;
message First { string text = 1; }
message Item { string name = 1; sint64 count = 2; repeated double sizes = 3; bytes data = 4; }
"""


class ProtoItem(Struct):
    name: str
    count: int
    sizes: list[float]
    data: bytes


PROTO_ITEMS = st.fixed_dictionaries({
    "name": st.text(max_size=9), "count": LONGS, "data": st.binary(max_size=9),
    "sizes": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
})  # fmt: skip


@given(st.lists(PROTO_ITEMS, min_size=1, max_size=10))
def test_messages_of_confluents_serializer_are_read(items: list[dict[str, Any]]) -> None:
    kind = message_classes(ITEMS_PROTO)[1]
    client = SchemaRegistryClient.new_client({"url": f"mock://{uuid4()}"})
    serialize = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
    context = SerializationContext("items", MessageField.VALUE)
    data = [serialize(kind(**item), context) or b"" for item in items]
    registry = MemoryRegistry()
    text = client.get_latest_version("items-value").schema.schema_str
    registry.register("items-value", text or "", "PROTOBUF")
    pipeline = Pipeline("p")
    pipeline.stream("items", value=Protobuf(ProtoItem))
    (source,) = plan(pipeline).job.streams
    _, values, dead_letters = ValueDecoder(source, registry).decode([*data])
    assert not dead_letters
    assert values == [ProtoItem(**item) for item in items]

    encode = RegisteredEncoder(registry.schema(1), in_header=False, record="Item")
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
    for item, message in zip(items, data, strict=True):
        assert encode(item)[:7] == message[:7]
        assert read(encode(item), context) == kind(**item)
