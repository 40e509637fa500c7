"""JSON that is encoded many values at once has the bytes of single values, or is left to them."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import Avro, Pipeline
from sluice.engine.batch.dead_letters import RejectedOutput
from sluice.engine.publish import json_column_encoder
from sluice.engine.publish.encode import _decode, encode_records
from sluice.engine.publish.encode_registered import RegisteredEncoder, encoder_of
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.values.proto_descriptors import message_classes
from sluice.values.registered_schemas import RegisteredSchema, SchemaKind
from tests.engine.shop import Shop

pytestmark = pytest.mark.unit
MANY = 200


@pytest.fixture(autouse=True)
def _any_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_column_encoder, "_FEWEST", 1)
    monkeypatch.setattr(json_column_encoder, "_MOST_MISSES", 1_000_000)


class LeftToSingleValuesError(Exception):
    """The values were not encoded as columns."""


_encode = msgspec.json.Encoder(decimal_format="number").encode


def json_of(value: Any) -> str:
    return _encode(value).decode()


def encoder(text: str, kind: SchemaKind = "AVRO", **more: Any) -> RegisteredEncoder:
    schema = RegisteredSchema(id=7, text=text, kind=kind)
    return RegisteredEncoder(schema, in_header=False, **more)


def at_once(encode: RegisteredEncoder, texts: list[str]) -> list[bytes]:
    def fail(start: int, piece: pa.Array) -> pa.Array:
        raise LeftToSingleValuesError

    encoded: list[bytes] = encode.encode_texts(pa.array(texts, pa.string()), fail).to_pylist()
    return encoded


def one_by_one(encode: RegisteredEncoder, texts: list[str]) -> list[bytes]:
    return [encode(_decode(text)) for text in texts]


def avro(logical: str, kind: str = "long", **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


def amount(kind: str = "bytes", precision: int = 12, scale: int = 2, **more: Any) -> dict[str, Any]:
    return avro("decimal", kind, precision=precision, scale=scale, **more)


ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "price", "type": amount("fixed", name="Price", size=6)},
        {"name": "at", "type": avro("timestamp-millis")},
    ],
}
FIELDS: dict[str, Any] = {
    "number": "long",
    "small": "int",
    "real": "double",
    "single": "float",
    "flag": "boolean",
    "text": "string",
    "data": "bytes",
    "amount": amount(),
    "wide": amount(precision=38, scale=4),
    "large": amount("fixed", name="Large", size=16, precision=20),
    "level": {"type": "enum", "name": "Level", "symbols": ["LOW", "HIGH"]},
    "day": avro("date", "int"),
    "of_day": avro("time-micros"),
    "micros": avro("timestamp-micros"),
    "millis": avro("timestamp-millis"),
    "local": avro("local-timestamp-micros"),
    "id": avro("uuid", "string"),
    "hash": {"type": "fixed", "name": "Hash", "size": 3},
    "items": {"type": "array", "items": ITEM},
    "names": {"type": "array", "items": ["null", "string"]},
    "item": ["null", "Item"],
    "note": ["string", "null"],
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        *({"name": name, "type": kind} for name, kind in FIELDS.items()),
        {"name": "more", "type": ["null", "long"], "default": None},
        {"name": "count", "type": "long", "default": 7},
    ],
}
LONGS = st.integers(-(2**63), 2**63 - 1)
AMOUNTS = st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2)
WIDE = st.decimals(Decimal(-(10**14)), Decimal(10**14), places=4)
LARGE = st.integers(-(2**40), 2**40).map(lambda number: Decimal(number).scaleb(-2))
TIMES = st.datetimes(datetime(2, 1, 2), datetime(9998, 12, 30), timezones=st.just(UTC))
MILLIS = TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))
REALS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda real: str(real) != "-0.0")
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(
    lambda real: str(real) != "-0.0"
)
ITEMS = st.fixed_dictionaries({"name": st.text(max_size=9), "price": AMOUNTS, "at": MILLIS})
EVENTS = st.fixed_dictionaries(
    {
        "number": LONGS,
        "small": st.integers(-(2**31), 2**31 - 1),
        "real": REALS,
        "single": SINGLES,
        "flag": st.booleans(),
        "text": st.text(max_size=20),
        "data": st.binary(max_size=20),
        "amount": AMOUNTS,
        "wide": WIDE,
        "large": LARGE,
        "level": st.sampled_from(["LOW", "HIGH"]),
        "day": st.dates(date(2, 1, 1), date(9998, 12, 30)),
        "of_day": st.integers(0, 86_399_999_999),
        "micros": TIMES,
        "millis": MILLIS,
        "local": TIMES,
        "id": st.uuids(),
        "hash": st.binary(min_size=3, max_size=3),
        "items": st.lists(ITEMS, max_size=3),
        "names": st.lists(st.none() | st.text(max_size=5), max_size=3),
        "item": st.none() | ITEMS,
        "note": st.none() | st.text(max_size=5),
        "count": LONGS,
    },
    optional={"more": st.none() | LONGS},
)
PARSED = fastavro.parse_schema(SCHEMA)


@given(st.lists(EVENTS, min_size=1, max_size=10))
def test_avro_is_that_of_single_values_and_of_fastavro(events: list[dict[str, Any]]) -> None:
    encode = encoder(json.dumps(SCHEMA))
    texts = [json_of(event) for event in events]
    data = at_once(encode, texts)
    assert data == one_by_one(encode, texts)
    for event, written in zip(events, data, strict=True):
        value = event | {"local": event["local"].replace(tzinfo=None), "id": str(event["id"])}
        value["of_day"] = micros_to_time(event["of_day"])
        # Not the bytes: fastavro writes -128 in two bytes, Java and Sluice in one.
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, PARSED, value)
        assert read_by_fastavro(written[5:]) == read_by_fastavro(buffer.getvalue())


def read_by_fastavro(data: bytes) -> Any:
    buffer = io.BytesIO(data)
    value = fastavro.schemaless_reader(buffer, PARSED, None)
    assert buffer.tell() == len(data)
    return value


def test_the_least_number_of_a_byte_takes_one_byte() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    record = {"type": "record", "name": "R", "fields": [{"name": "amount", "type": schema}]}
    encode = encoder(json.dumps(record))
    texts = [json.dumps({"amount": amount}) for amount in ("-1.28", "1.27", "1.28", "-327.68")]
    data = [b"\x02\x80", b"\x02\x7f", b"\x04\x00\x80", b"\x04\x80\x00"]
    assert [written[5:] for written in at_once(encode, texts)] == data
    assert [written[5:] for written in one_by_one(encode, texts)] == data


def micros_to_time(micros: int) -> Any:
    seconds, micros = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return datetime(1, 1, 1, hour, minute, second, micros).time()


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message First { string text = 1; }
message Everything {
  enum Kind { A = 0; B = 1; C = -2; }
  message Part {
    string name = 1; string price = 2; sint64 count = 3; google.protobuf.Timestamp at = 4;
  }
  int64 number = 1;
  int32 small = 200;
  sint32 signed = 3;
  sint64 long_signed = 30;
  uint64 unsigned = 4;
  uint32 small_unsigned = 40;
  fixed64 of_eight = 41;
  sfixed64 signed_of_eight = 42;
  fixed32 of_four = 43;
  sfixed32 signed_of_four = 44;
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
  repeated int64 numbers = 21;
  repeated double reals = 22;
  optional int64 maybe = 16;
  google.protobuf.Int64Value wrapped = 17;
  oneof means { string card = 18; int64 cash = 19; }
}
"""
UNSIGNED = st.integers(0, 2**64 - 1)
PARTS = st.fixed_dictionaries({
    "name": st.text(max_size=9), "price": AMOUNTS, "count": LONGS, "at": st.none() | TIMES,
})  # fmt: skip
MESSAGES = st.fixed_dictionaries({
    "number": LONGS, "small": st.integers(-(2**31), 2**31 - 1),
    "signed": st.integers(-(2**31), 2**31 - 1), "long_signed": LONGS, "unsigned": UNSIGNED,
    "small_unsigned": st.integers(0, 2**32 - 1), "of_eight": UNSIGNED, "signed_of_eight": LONGS,
    "of_four": st.integers(0, 2**32 - 1), "signed_of_four": st.integers(-(2**31), 2**31 - 1),
    "real": REALS, "single": SINGLES, "flag": st.booleans(), "text": st.text(max_size=20),
    "data": st.binary(max_size=20), "amount": AMOUNTS, "kind": st.sampled_from(["A", "B", "C"]),
    "at": TIMES, "parts": st.lists(PARTS, max_size=3), "part": st.none() | PARTS,
    "names": st.lists(st.text(max_size=5), max_size=3),
    "numbers": st.lists(LONGS, max_size=3), "reals": st.lists(REALS, max_size=3),
    "maybe": st.none() | LONGS, "wrapped": st.none() | LONGS,
}, optional={"card": st.none() | st.text(max_size=5)})  # fmt: skip


@given(st.lists(MESSAGES, min_size=1, max_size=10))
def test_protobuf_is_that_of_protobufs_own_classes(messages: list[dict[str, Any]]) -> None:
    encode = encoder(PROTO, "PROTOBUF", record="Everything")
    texts = [json_of(message) for message in messages]
    data = at_once(encode, texts)
    assert data == one_by_one(encode, texts)
    kind = message_classes(PROTO)[1]
    for message, written in zip(messages, data, strict=True):
        # The prefix, and the place of the second message.
        read = kind.FromString(written[7:])
        assert read.SerializeToString(deterministic=True) == written[7:]
        assert read.number == message["number"]
        assert Decimal(read.amount) == message["amount"]


ODD = st.sampled_from([
    None, True, 0, -1, 2**31, 2**63, 2**70, 0.5, 1e300, 1e-9, -0.0, 12.345, 123456789012.5,
    Decimal("0.1234567890123456789"), "", "A", "LOW", "\ud7ff\0", "é", "12.50", "1e5", "QQ==", "QQ",
    "2024-01-01", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00.1234Z",
    "2024-01-01T00:00:00", "0001-01-01T00:00:00Z", [], [1], [None], ["x", None], {}, {"name": "x"},
    {"seconds": 1}, "d4a7c1e0-0000-4000-8000-000000000000",
])  # fmt: skip


def with_changes(values: Any, names: list[str]) -> Any:
    changes = st.lists(st.tuples(st.sampled_from([*names, "unknown"]), ODD), max_size=2)
    removed = st.none() | st.sampled_from(names)
    return st.tuples(values, changes, removed).map(changed)


def changed(case: tuple[dict[str, Any], list[tuple[str, Any]], str | None]) -> dict[str, Any]:
    value, changes, removed = case
    kept = {name: each for name, each in value.items() if name != removed}
    return {**kept, **dict(changes)}


def require_same(encode: RegisteredEncoder, texts: list[str]) -> None:
    """Assert that the values of texts have the bytes of single values, or are left to them."""
    try:
        data = at_once(encode, texts)
    except LeftToSingleValuesError:
        return
    assert data == one_by_one(encode, texts)


@given(st.lists(with_changes(EVENTS, [*FIELDS, "more", "count"]), min_size=1, max_size=4))
def test_avro_of_values_that_may_not_fit_is_that_of_single_values(
    events: list[dict[str, Any]],
) -> None:
    require_same(encoder(json.dumps(SCHEMA)), [json_of(event) for event in events])


NAMES = [field.name for field in message_classes(PROTO)[1].DESCRIPTOR.fields]


@given(st.lists(with_changes(MESSAGES, NAMES), min_size=1, max_size=4))
def test_protobuf_of_values_that_may_not_fit_is_that_of_single_values(
    messages: list[dict[str, Any]],
) -> None:
    encode = encoder(PROTO, "PROTOBUF", record="Everything")
    require_same(encode, [json_of(message) for message in messages])


ONE_FIELD = """{"type": "record", "name": "R", "fields": [{"name": "a", "type": %s}]}"""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ('"long"', '{"a": 1, "a": 2}'),
        ('"long"', '{"a": 1.0}'),
        ('"long"', '{"a": 1} {"a": 2}'),
        ('"long"', "[1]"),
        ('"double"', '{"a": 1e999}'),
        ('"double"', '{"a": -0}'),
        ('"string"', '{"a": "\\ud800"}'),
        ('"string"', '{"a": "x", "b": 1}'),
        ('["null", "long", "string"]', '{"a": 1}'),
        ('{"type": "map", "values": "long"}', '{"a": {"b": 1}}'),
        ('"float"', '{"a": 1e39}'),
        ('{"type": "enum", "name": "E", "symbols": ["X"]}', '{"a": "Y"}'),
        ('{"type": "fixed", "name": "F", "size": 2}', '{"a": "QQ=="}'),
        ('{"type": "long", "logicalType": "timestamp-nanos"}', '{"a": "2400-01-01T00:00:00Z"}'),
        ('{"type": "long", "logicalType": "timestamp-millis"}', '{"a": "2024-01-01T00:00:00.0001Z"}'),
    ],
)  # fmt: skip
def test_values_in_doubt_are_left_to_single_values(kind: str, text: str) -> None:
    with pytest.raises(LeftToSingleValuesError):
        at_once(encoder(ONE_FIELD % kind), [text])


def test_times_may_be_numbers() -> None:
    encode = encoder(ONE_FIELD % '{"type": "long", "logicalType": "timestamp-nanos"}')
    texts = ['{"a": 1714521600000000001}', '{"a": -1}']
    assert at_once(encode, texts) == one_by_one(encode, texts)


def test_a_text_of_digits_keeps_its_zeros() -> None:
    encode = encoder('syntax = "proto3"; message M { string a = 1; }', "PROTOBUF")
    numbers = ['{"a": 12.50}', '{"a": 3}', '{"a": 0.000001}', '{"a": -0.5}', '{"a": 0}']
    assert [each[8:] for each in at_once(encode, numbers)] == [
        b"12.5", b"3", b"0.000001", b"-0.5", b"0",
    ]  # fmt: skip
    assert at_once(encode, numbers) == one_by_one(encode, numbers)
    with pytest.raises(LeftToSingleValuesError):
        at_once(encode, ['{"a": 12.50}', '{"a": "12.50"}'])
    with pytest.raises(LeftToSingleValuesError):
        at_once(encode, ['{"a": 12.50}', '{"\\u0061": "12.50"}'])


def test_only_the_values_that_do_not_fit_are_rejected() -> None:
    pipeline = Pipeline("p")
    pipeline.stream("shops", value=Shop).to("copies", value=Avro(Shop))
    (sink,) = plan(pipeline).job.stream_sinks
    registry = MemoryRegistry()
    assert sink.encode is not None
    registry.register("copies-value", sink.encode.value.schema)
    texts: list[str | None] = ['{"shop":"a","city":"b"}'] * MANY
    texts[3] = None
    texts[70] = '{"shop":"a"}'
    texts[90] = '{"shop":"a","city":9}'
    rejected = RejectedOutput()
    table = pa.table({"key": [str(number) for number in range(MANY)], "value": texts})
    records = encode_records(
        sink, table, rejected, lambda values, topic: encoder_of(values, topic, registry)
    )
    assert rejected.counts == {"copies": 2}
    written: list[bytes | None] = [b"\0\0\0\0\1\2a\2b"] * (MANY - 2)
    written[3] = None
    assert records.column("value").to_pylist() == written
    missing = {"70", "90"}
    assert records.column("key").to_pylist() == [
        str(number) for number in range(MANY) if str(number) not in missing
    ]


@pytest.mark.parametrize("texts", [[], [None, None]])
def test_there_may_be_no_value(texts: list[str | None]) -> None:
    pipeline = Pipeline("p")
    pipeline.stream("shops", value=Shop).to("copies", value=Avro(Shop))
    (sink,) = plan(pipeline).job.stream_sinks
    registry = MemoryRegistry()
    assert sink.encode is not None
    registry.register("copies-value", sink.encode.value.schema)
    values = pa.chunked_array([texts] if texts else [], pa.string())
    table = pa.table({"key": pa.nulls(len(texts), pa.string()), "value": values})
    records = encode_records(
        sink,
        table,
        RejectedOutput(),
        lambda values, topic: encoder_of(values, topic, registry),
    )
    assert records.column("value").to_pylist() == texts


def test_pieces_are_tried_again_after_many_that_did_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_column_encoder, "_MOST_MISSES", 2)
    monkeypatch.setattr(json_column_encoder, "_TRIED_AGAIN", 3)
    encode = encoder(ONE_FIELD % '"long"')

    def is_at_once(text: str) -> bool:
        try:
            at_once(encode, [text])
        except LeftToSingleValuesError:
            return False
        return True

    assert not is_at_once('{"a": 1.0}')
    assert is_at_once('{"a": 1}')
    assert [is_at_once('{"a": 1.0}'), is_at_once('{"a": 1.0}')] == [False, False]
    assert [is_at_once('{"a": 1}') for _ in range(5)] == [False, False, True, True, True]


def test_uuids_are_sixteen_bytes() -> None:
    encode = encoder(
        ONE_FIELD % '{"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}'
    )
    own = "d4a7c1e0-0000-4000-8000-000000000000"
    assert at_once(encode, [f'{{"a": "{own}"}}']) == [b"\0\0\0\0\7" + UUID(own).bytes]
