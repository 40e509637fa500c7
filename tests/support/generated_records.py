"""Records of every type of a format, in three versions of a schema, and their values as texts."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from sluice.values.avro_schemas import (
    NO_DEFAULT,
    Array,
    Choice,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    present,
)
from sluice.values.avro_values import unit_of_logical
from sluice.values.proto_descriptors import is_entry, is_wrapper
from sluice.values.proto_schemas import TIMESTAMP

_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NULL = Primitive("null")
_FIRST, _LAST = -62_000_000_000, 253_000_000_000
"""The seconds since 1970 between which times are made: years 5 to 9987."""


# -- Avro


def _money(kind: str, precision: int, scale: int, **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "logicalType": "decimal", "precision": precision, "scale": scale, **more,
    }  # fmt: skip


def _logical(kind: str, logical: str) -> dict[str, str]:
    return {"type": kind, "logicalType": logical}


def _record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    made: list[dict[str, Any]] = []
    for field_name, kind, *default in fields:
        made.append({"name": field_name, "type": kind})
        if default:
            made[-1]["default"] = default[0]
    return {"type": "record", "name": name, "fields": made}


def _enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "Level", "symbols": [*symbols], "default": "LOW"}


_ITEM = _record("Item", ("name", "string"), ("price", _money("bytes", 12, 2)))
_CARD = _record("Card", ("digits", "string"), ("holder", ["null", "string"], None))
_CASH = _record("Cash", ("currency", "string"))
_COMMON: list[tuple[Any, ...]] = [
    ("flag", "boolean"),
    ("text", "string"),
    ("data", "bytes"),
    ("amount", _money("bytes", 12, 2)),
    ("large", _money("bytes", 38, 10)),
    ("fixed", _money("fixed", 18, 4, name="Fixed8", size=8)),
    ("day", _logical("int", "date")),
    ("clock", _logical("int", "time-millis")),
    ("exact_clock", _logical("long", "time-micros")),
    ("millis", _logical("long", "timestamp-millis")),
    ("micros", _logical("long", "timestamp-micros")),
    ("nanos", _logical("long", "timestamp-nanos")),
    ("local_millis", _logical("long", "local-timestamp-millis")),
    ("local_micros", _logical("long", "local-timestamp-micros")),
    ("local_nanos", _logical("long", "local-timestamp-nanos")),
    ("id", _logical("string", "uuid")),
    ("bytes_id", {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}),
    ("lasted", {"type": "fixed", "name": "Lasted", "size": 12, "logicalType": "duration"}),
    ("hash", {"type": "fixed", "name": "Hash", "size": 5}),
    ("items", {"type": "array", "items": _ITEM}),
    ("lists", {"type": "array", "items": {"type": "array", "items": ["null", "long"]}}),
    ("by_name", {"type": "map", "values": ["null", "Item"]}),
    ("note", ["null", "string"], None),
    ("at", ["null", _logical("long", "timestamp-micros")], None),
    ("rate", [_money("bytes", 9, 3, name="Rate"), "null"]),
]


def avro_schemas() -> list[str]:
    """Return an older version, that of the contract, and a newer version of a schema."""
    older = [
        ("small", "int"), ("number", "int"), ("real", "float"), ("double", "double"),
        ("level", _enum("LOW", "HIGH")), *_COMMON, ("means", ["null", _CARD, _CASH]),
        ("former", "string"), ("gone", {"type": "map", "values": "double"}),
    ]  # fmt: skip
    own = [
        *_COMMON, ("small", "int"), ("number", "long"), ("real", "double"), ("double", "double"),
        ("level", _enum("LOW", "HIGH")), ("means", ["null", _CARD, _CASH]), ("named", "string"),
        ("added", "string", "none"), ("counted", "long", 7), ("lines", _LINES, []),
    ]  # fmt: skip
    newer = [
        ("level", _enum("NEW", "HIGH", "LOW")), *reversed(_named_first(_COMMON)),
        ("named", "string"), ("means", ["null", _CASH, _CARD]), ("double", "float"),
        ("small", "int"), ("number", "int"), ("real", "long"), ("lines", _LINES),
        ("counted", "int"), ("added", "string"), ("more", ["null", "string", "long"]),
    ]  # fmt: skip
    texts: list[str] = []
    for fields in (older, own, newer):
        schema = _record("Event", *fields)
        for each in schema["fields"]:
            if each["name"] == "named":
                each["aliases"] = ["former"]
        texts.append(json.dumps(schema))
    return texts


_LINES = {"type": "array", "items": "string"}


def _named_first(fields: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the fields with the record Item in the place where it is first named in reverse."""
    changed: list[tuple[Any, ...]] = []
    for field in fields:
        if field[0] == "by_name":
            changed.append(("by_name", {"type": "map", "values": ["null", _ITEM]}))
        elif field[0] == "items":
            changed.append(("items", {"type": "array", "items": "Item"}))
        else:
            changed.append(field)
    return changed


def generated(node: Node, chosen: Random) -> Any:  # noqa: C901  (a table)
    """Return a random value of a schema as plain data."""
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            digits = chosen.randrange(node.precision + 1)
            unscaled = chosen.randrange(-(10**digits) + 1, 10**digits)
            return Decimal(unscaled).scaleb(-node.scale)
        case Primitive(logical="date"):
            return date(1970, 1, 1) + timedelta(days=chosen.randrange(-700_000, 2_900_000))
        case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
            return _time(logical, chosen)
        case Primitive(logical="time-millis"):
            return chosen.randrange(86_400_000)
        case Primitive(logical="time-micros"):
            return chosen.randrange(86_400_000_000)
        case Primitive(kind="string", logical="uuid") | Fixed(logical="uuid"):
            return str(UUID(int=chosen.getrandbits(128)))
        case Primitive(kind="null"):
            return None
        case Primitive(kind=kind):
            return GENERATORS[kind](chosen)
        case Fixed(size=size):
            return chosen.randbytes(size)
        case Choice(symbols=symbols):
            return chosen.choice(symbols)
        case Array(items=items):
            return [generated(items, chosen) for _ in range(chosen.choice([0, 0, 1, 2, 7]))]
        case Map(values=values):
            names = [_text(chosen) for _ in range(chosen.choice([0, 0, 1, 3]))]
            return {name: generated(values, chosen) for name in names}
        case Union(branches=branches):
            branch = chosen.choice(branches)
            value = generated(branch, chosen)
            if isinstance(branch, Record) and len(node.branches_with_values) > 1:
                return {"type": branch.short_name, **value}
            return value
        case Record(fields=fields):
            return {each.name: generated(each.type, chosen) for each in fields}


def _time(logical: str, chosen: Random) -> Any:
    seconds = chosen.randrange(_FIRST, _LAST)
    if logical.endswith("nanos"):
        return chosen.randrange(-9_000_000_000, 9_000_000_000) * 10**9 + chosen.randrange(10**9)
    micros = chosen.randrange(1_000_000)
    if logical.endswith("millis"):
        micros -= micros % 1_000
    time = _1970 + timedelta(seconds=seconds, microseconds=micros)
    return time.replace(tzinfo=None) if logical.startswith("local") else time


def _whole(bits: int) -> Callable[[Random], int]:
    def whole(chosen: Random) -> int:
        size = chosen.randrange(bits + 1)
        numbers: list[int] = [2**bits - 1, -(2**bits), chosen.getrandbits(size), -size, 0]
        return chosen.choice(numbers)

    return whole


def _float(chosen: Random) -> float:
    while True:
        (number,) = struct.unpack("<f", chosen.randbytes(4))
        if abs(number) <= 3.4e38:
            return float(number)


def _double(chosen: Random) -> float:
    while True:
        (number,) = struct.unpack("<d", chosen.randbytes(8))
        if abs(number) <= 1.7e308:
            return float(number)


def _text(chosen: Random) -> str:
    letters = 'aZ0 "\\\n\0é漢🎉ß,;:{}'
    return "".join(chosen.choices(letters, k=chosen.choice([0, 1, 5, 9, 70])))


GENERATORS: dict[str, Callable[[Random], Any]] = {
    "boolean": lambda chosen: chosen.random() < 0.5,
    "int": _whole(31),
    "long": _whole(63),
    "float": _float,
    "double": _double,
    "string": _text,
    "bytes": lambda chosen: chosen.randbytes(chosen.choice([0, 1, 9, 70])),
}


# -- Protobuf

_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
message Event {
  enum Level { LOW = 0; HIGH = 1; MIDDLE = -5; }
  message Item { string name = 1; optional sint32 count = 2; repeated double prices = 3; }
  oneof means { string card = 40; Item cash = 41; bool free = 42; }
  double real = 1; float single = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5;
  uint64 u64 = 6; sint32 s32 = 7; sint64 s64 = 8; fixed32 f32 = 9; fixed64 f64 = 10;
  sfixed32 sf32 = 11; sfixed64 sf64 = 12; bool flag = 13; string text = 14; bytes data = 15;
  Level level = 16;
  Item item = 17;
  repeated Item items = 18;
  repeated int64 packed = 19;
  repeated sint32 unpacked = 20 [packed = false];
  repeated string texts = 21;
  repeated Level levels = 22;
  map<string, int64> counts = 23;
  map<string, Item> by_name = 24;
  google.protobuf.Timestamp at = 25;
  google.protobuf.StringValue note = 26;
  google.protobuf.Int64Value limit = 27;
  google.protobuf.DoubleValue rate = 28;
  google.protobuf.BoolValue ready = 29;
  google.protobuf.Duration lasted = 30;
  optional string maybe = 31;
  optional int32 pieces = 32;
  MORE
}
"""


def proto_schemas() -> list[str]:
    """Return an older version, that of the contract, and a newer version of a schema."""
    older = _PROTO.replace("MORE", "string gone = 50;").replace("optional int32 pieces = 32;", "")
    own = _PROTO.replace("MORE", "string added = 51; repeated int32 numbers = 52;")
    newer = _PROTO.replace("MORE", "string added = 51; repeated int32 numbers = 52; Item new = 60;")
    return [older.replace("bool flag = 13;", ""), own, newer]


_BITS = {
    3: 63, 4: 62, 5: 31, 6: 62, 7: 31, 13: 31, 15: 31, 16: 63, 17: 31, 18: 63,
}  # fmt: skip
_UNSIGNED = (4, 6, 7, 13)


def generated_message(descriptor: Any, chosen: Random) -> Any:
    """Return a random message as plain data."""
    if descriptor.full_name == TIMESTAMP:
        return _time("timestamp-micros", chosen)
    if is_wrapper(descriptor):
        return _single(descriptor.fields_by_name["value"], chosen)
    value: dict[str, Any] = {}
    of_choices = {each.name: chosen.choice(each.fields).name for each in descriptor.oneofs}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None and (of_choices[oneof.name] != field.name or chosen.random() < 0.3):
            continue
        if field.has_presence and chosen.random() < 0.3:
            continue
        if field.message_type is not None and is_entry(field.message_type):
            of_value = field.message_type.fields_by_name["value"]
            names = [_text(chosen) for _ in range(chosen.choice([0, 1, 3]))]
            value[field.name] = {name: _single(of_value, chosen) for name in names}
        elif field.is_repeated:
            count = chosen.choice([0, 0, 1, 4])
            value[field.name] = [_single(field, chosen) for _ in range(count)]
        else:
            value[field.name] = _single(field, chosen)
    return value


def _single(field: Any, chosen: Random) -> Any:
    if field.message_type is not None:
        return generated_message(field.message_type, chosen)
    if field.enum_type is not None:
        return chosen.choice(field.enum_type.values).name
    if field.type in _BITS:
        number = _whole(_BITS[field.type])(chosen)
        return abs(number) if field.type in _UNSIGNED else number
    kinds = {1: "double", 2: "float", 8: "boolean", 9: "string", 12: "bytes"}
    return GENERATORS[kinds[field.type]](chosen)


# -- JSON Schema


def json_schemas() -> list[str]:
    """Return an older version, that of the contract, and a newer version of a schema."""
    item = {
        "title": "Item",
        "type": "object",
        "properties": {"name": {"type": "string"}, "price": {"type": "number"}},
        "required": ["name", "price"],
    }
    properties: dict[str, Any] = {
        "flag": {"type": "boolean"},
        "number": {"type": "integer"},
        "real": {"type": "number"},
        "text": {"type": "string"},
        "amount": {"type": "number", "format": "decimal", "precision": 12, "scale": 2},
        "level": {"enum": ["LOW", "HIGH"]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "data": {"type": "string", "contentEncoding": "base64"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
        "by_name": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Item"}},
        "maybe": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/Item"}]},
        "note": {"type": ["string", "null"]},
    }
    texts: list[str] = []
    added = {"added": {"type": "string", "default": "none"}, "free": {"type": "integer"}}
    for more in ({"gone": {"type": "string"}}, added, {**added, "new": {"type": "integer"}}):
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Event",
            "type": "object",
            "properties": {**properties, **more},
            "required": [name for name in properties if name != "note"],
            "$defs": {"Item": item},
        }
        texts.append(json.dumps(schema))
    return texts


# -- Values as texts


def resolved(reader: Node, written: Node, value: Any, enum_default: str = "LOW") -> Any:
    """Return a value of a writer's schema as that of the reader's, by Avro's rules."""
    if value is None:
        return None
    if isinstance(reader, Union):
        for branch in reader.branches_with_values:
            is_tagged = len(reader.branches_with_values) > 1
            if is_tagged and value.get("type") != getattr(branch, "short_name", None):
                continue
            inner = _branch(written, branch)
            made = resolved(branch, inner, value)
            return {"type": value["type"], **made} if is_tagged else made
    written = present(written)
    match reader, written:
        case Record(), Record():
            return _resolved_record(reader, written, value)
        case Array(), Array():
            return [resolved(reader.items, written.items, each) for each in value]
        case Map(), Map():
            values: dict[str, Any] = {}
            for name, each in value.items():
                values[name] = resolved(reader.values, written.values, each)
            return values
        case Choice(), Choice():
            return value if value in reader.symbols else enum_default
        case Primitive(kind="float" | "double"), _:
            return float(value)
        case _:
            return value


def _branch(written: Node, wanted: Node) -> Node:
    if isinstance(wanted, Record) and isinstance(written, Union):
        for branch in written.branches:
            if isinstance(branch, Record) and branch.name == wanted.name:
                return branch
    return present(written)


def _resolved_record(reader: Record, written: Record, value: Any) -> dict[str, Any]:
    by_name = {each.name: each for each in written.fields}
    made: dict[str, Any] = {}
    for field in reader.fields:
        names = [name for name in (field.name, *field.aliases) if name in by_name]
        if names and names[0] in value:
            made[field.name] = resolved(field.type, by_name[names[0]].type, value[names[0]])
        else:
            assert field.default is not NO_DEFAULT, field
            made[field.name] = field.default
    return made


def as_text(node: Node, value: Any) -> str:  # noqa: C901  (a table)
    """Return a value as a text, in the way of FormatsPeer.java."""
    if value is None:
        return "null"
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            exact = value if isinstance(value, Decimal) else Decimal(repr(value))
            return f"n{exact:.{node.scale}f}"
        case Primitive(logical="date"):
            return f"D{(value - date(1970, 1, 1)).days}"
        case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
            if isinstance(value, int):
                return f"t{value}"
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return f"t{(aware - _1970) // _MICROSECOND * 1_000}"
        case Primitive(kind="boolean"):
            return str(value).lower()
        case Primitive(kind="int" | "long"):
            return str(value)
        case Primitive(kind="float" | "double"):
            (bits,) = struct.unpack("<Q", struct.pack("<d", value))
            return f"d{bits:x}"
        case Primitive(kind="bytes") | Fixed():
            if isinstance(value, str):
                return f"s{value.encode().hex()}" if value else "b"
            return f"b{value.hex()}"
        case Primitive() | Choice():
            return f"s{value.encode().hex()}"
        case Array(items=items):
            return f"[{''.join(as_text(items, each) + ',' for each in value)}]"
        case Map(values=values):
            entries: dict[str, str] = {}
            for name, each in value.items():
                entries[f"s{name.encode().hex()}"] = as_text(values, each)
            return f"{{{''.join(f'{name}:{entries[name]},' for name in sorted(entries))}}}"
        case Union():
            branch = present(node)
            if isinstance(branch, Union):
                by_name = {each.short_name: each for each in node.branches_with_values}  # type: ignore[union-attr]
                branch = by_name[value["type"]]
            return as_text(branch, value)
        case Record(fields=fields):
            parts: list[str] = []
            for each in fields:
                parts.append(f"{each.name}={as_text(each.type, value.get(each.name))};")
            return f"({''.join(parts)})"
    raise AssertionError(node)
