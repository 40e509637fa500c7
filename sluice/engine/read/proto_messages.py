"""Messages of Protobuf, made of the text of a schema, and their values as plain data."""

from __future__ import annotations

import importlib
import re
from base64 import b64decode
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

from sluice.registry.http_registry import missing_extra
from sluice.values.avro_schemas import (
    Array,
    Choice,
    Field,
    Map,
    Node,
    Primitive,
    Record,
    SchemaError,
    Union,
)
from sluice.values.avro_written import UnwritableError
from sluice.values.json_limits import shortened
from sluice.values.proto_schemas import TIMESTAMP, ProtoEnum, ProtoField, ProtoMessage, parse_proto

_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7,
    "bool": 8, "string": 9, "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16,
    "sint32": 17, "sint64": 18,
}  # fmt: skip
"""Scalar type → its number in Protobuf's descriptors."""
_MESSAGE, _ENUM = 11, 14
_LABELS = {"": 1, "optional": 1, "required": 2, "repeated": 3}
_WRAPPERS = "google.protobuf."
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
Plain: TypeAlias = Callable[[Any], Any]


@cache
def message_classes(text: str) -> tuple[Any, ...]:
    """Return the classes of a schema's messages, in the order in which they are declared.

    Raises SchemaError.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise missing_extra(error) from None
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto")
    if _BASE64.fullmatch(text):
        _parse_descriptor(file, text)
    else:
        _parse_text(file, text)
    pool = descriptor_pool.DescriptorPool()
    for name in file.dependency:
        _add_import(pool, name)
    prefix = f"{file.package}." if file.package else ""
    try:
        pool.Add(file)
        found = [pool.FindMessageTypeByName(f"{prefix}{each.name}") for each in file.message_type]
    except (TypeError, KeyError) as error:
        raise SchemaError(f"the schema is invalid: {error}") from None
    return tuple(message_factory.GetMessageClass(each) for each in found)


_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


def _parse_descriptor(file: Any, text: str) -> None:
    """Fill a descriptor from its serialized form, which some serializers register."""
    from google.protobuf.message import DecodeError

    try:
        file.MergeFromString(b64decode(text, validate=False))
    except (ValueError, DecodeError) as error:
        raise SchemaError(f"the schema is no schema of Protobuf: {error}") from None


def _parse_text(file: Any, text: str) -> None:
    parsed = parse_proto(text)
    file.package, file.syntax = parsed.package, parsed.syntax
    file.dependency.extend(parsed.imports)
    scope = _Scope(parsed.package, parsed.messages, parsed.enums)
    for message in parsed.messages:
        _fill(file.message_type.add(), message, scope, "", parsed.syntax)
    for enum in parsed.enums:
        _fill_enum(file.enum_type.add(), enum)


def _add_import(pool: Any, name: str) -> None:
    if not name.startswith("google/protobuf/"):
        raise SchemaError(f"the schema imports {name}, and only google/protobuf/ can be imported")
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise SchemaError(f"the schema imports {name}, which is unknown") from None
    for dependency in module.DESCRIPTOR.dependencies:
        _add_import(pool, dependency.name)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


class _Scope:
    """The names of a file's messages and enums."""

    def __init__(
        self, package: str, messages: Iterable[ProtoMessage], enums: Iterable[ProtoEnum]
    ) -> None:
        self._prefix = f".{package}." if package else "."
        self._kinds: dict[str, int] = {}
        for enum in enums:
            self._kinds[enum.name] = _ENUM
        for message in messages:
            self._add(message, "")

    def _add(self, message: ProtoMessage, outer: str) -> None:
        name = f"{outer}{message.name}"
        self._kinds[name] = _MESSAGE
        for enum in message.enums:
            self._kinds[f"{name}.{enum.name}"] = _ENUM
        for inner in message.messages:
            self._add(inner, f"{name}.")

    def find(self, name: str, within: str) -> tuple[int, str]:
        """Return the kind and the full name of a type that is named within a message."""
        bare = name.removeprefix(".")
        own = bare.removeprefix(self._prefix.strip(".") + ".")
        while True:
            inner = f"{within}.{own}" if within else own
            if inner in self._kinds:
                return self._kinds[inner], f"{self._prefix}{inner}"
            if not within:
                break
            within = within.rpartition(".")[0]
        if bare.startswith(_WRAPPERS):
            return _MESSAGE, f".{bare}"
        raise SchemaError(f"the type {name} is not defined")


def _fill(made: Any, message: ProtoMessage, scope: _Scope, outer: str, syntax: str) -> None:
    made.name = message.name
    path = f"{outer}.{message.name}" if outer else message.name
    oneofs = list(dict.fromkeys(each.oneof for each in message.fields if each.oneof))
    for name in oneofs:
        made.oneof_decl.add().name = name
    synthetic: list[tuple[Any, str]] = []
    for each in message.fields:
        added = made.field.add(name=each.name, number=each.number, label=_LABELS[each.label])
        if each.key:
            _fill_map(made, added, each, scope, path)
            continue
        _set_type(added, each.type, scope, path)
        if each.oneof:
            added.oneof_index = oneofs.index(each.oneof)
        elif each.label == "optional" and syntax == "proto3":
            added.proto3_optional = True
            synthetic.append((added, f"_{each.name}"))
        if each.default is not None:
            added.default_value = each.default.strip("\"'")
    # Protobuf's own compiler puts each optional field of proto3 into a oneof of its own.
    for added, name in synthetic:
        added.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add().name = name
    for inner in message.messages:
        _fill(made.nested_type.add(), inner, scope, path, syntax)
    for enum in message.enums:
        _fill_enum(made.enum_type.add(), enum)


def _set_type(added: Any, name: str, scope: _Scope, path: str) -> None:
    if name in _SCALARS:
        added.type = _SCALARS[name]
    else:
        added.type, added.type_name = scope.find(name, path)


def _fill_map(made: Any, added: Any, each: ProtoField, scope: _Scope, path: str) -> None:
    entry = "".join(part.capitalize() for part in each.name.split("_")) + "Entry"
    nested = made.nested_type.add(name=entry)
    nested.options.map_entry = True
    nested.field.add(name="key", number=1, label=1, type=_SCALARS[each.key])
    _set_type(nested.field.add(name="value", number=2, label=1), each.type, scope, path)
    added.type, added.type_name = _MESSAGE, f"{scope._prefix}{path}.{entry}"


def _fill_enum(made: Any, enum: ProtoEnum) -> None:
    made.name = enum.name
    for name, number in enum.values:
        made.value.add(name=name, number=number)
    if len({number for _, number in enum.values}) < len(enum.values):
        made.options.allow_alias = True


# -- Message indexes


def read_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return which message a value is, as the places of messages within messages.

    Raises ValueError.
    """
    count, at = _zigzag(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count < 100:
        raise ValueError(f"the value names a message by {count} places")
    places: list[int] = []
    for _ in range(count):
        place, at = _zigzag(data, at)
        places.append(place)
    return tuple(places), at


def is_entry(descriptor: Any) -> bool:
    """Return whether a message is that of a map's entries, which a schema does not name."""
    return bool(descriptor.GetOptions().map_entry)


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the value ends within the place of its message")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def message_class(classes: tuple[Any, ...], places: tuple[int, ...]) -> Any:
    """Return the class of the message at these places. Raises ValueError."""
    try:
        found = classes[places[0]] if places[0] >= 0 else None
        if found is None:
            raise IndexError
        for place in places[1:]:
            nested = [each for each in found.DESCRIPTOR.nested_types if not is_entry(each)]
            if place < 0:
                raise IndexError
            found = getattr(found, nested[place].name)
    except (IndexError, AttributeError):
        raise ValueError(f"the schema has no message at {[*places]}") from None
    return found


# -- Values


def node_of(descriptor: Any, within: tuple[str, ...] = ()) -> Node:
    """Return what `plain_reader` gives as a type, against which a contract is resolved.

    Raises SchemaError for a message that contains itself.
    """
    if descriptor.full_name == TIMESTAMP:
        return Primitive("long", "timestamp-nanos")
    if is_wrapper(descriptor):
        return Primitive(_NODES[descriptor.fields_by_name["value"].type])
    if descriptor.full_name in within:
        raise SchemaError(f"{descriptor.full_name} contains itself, and has no type in SQL")
    inner = (*within, descriptor.full_name)
    fields: list[Field] = []
    for field in descriptor.fields:
        node = _node_of_field(field, inner)
        if field.has_presence and not field.is_repeated:
            node = Union((Primitive("null"), node))
        fields.append(Field(field.name, node))
    return Record(descriptor.full_name, tuple(fields), may_lack_fields=True)


def _node_of_field(field: Any, within: tuple[str, ...]) -> Node:
    if field.message_type is not None and is_entry(field.message_type):
        return Map(_node_of_single(field.message_type.fields_by_name["value"], within))
    node = _node_of_single(field, within)
    return Array(node) if field.is_repeated else node


def _node_of_single(field: Any, within: tuple[str, ...]) -> Node:
    if field.message_type is not None:
        return node_of(field.message_type, within)
    if field.enum_type is not None:
        names = tuple(value.name for value in field.enum_type.values)
        return Choice(field.enum_type.full_name, names)
    return Primitive(_NODES[field.type])


_NODES = {
    1: "double", 2: "float", 3: "long", 4: "long", 5: "long", 6: "long", 7: "long", 8: "boolean",
    9: "string", 12: "bytes", 13: "long", 15: "long", 16: "long", 17: "long", 18: "long",
}  # fmt: skip
"""Number of a scalar type in Protobuf's descriptors → the type in Avro with the same values."""


def plain_reader(descriptor: Any) -> Plain:
    """Return the function that turns a message into plain data.

    A field that the message does not have, and that says whether it is there, is left out.
    """
    if descriptor.full_name == TIMESTAMP:
        return _nanoseconds
    if is_wrapper(descriptor):
        return lambda message: message.value
    parts: list[tuple[str, bool, Plain | None]] = []
    for field in descriptor.fields:
        # A message that contains itself is refused when the schema is resolved.
        # An absent field with a default of its own, as in proto2, has this default.
        may_be_absent = field.has_presence and not field.is_repeated
        is_left_out = may_be_absent and not field.has_default_value
        parts.append((field.name, is_left_out, _part(field)))

    def read(message: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, is_left_out, convert in parts:
            if is_left_out and not message.HasField(name):
                continue
            value = getattr(message, name)
            values[name] = value if convert is None else convert(value)
        return values

    return read


def _part(field: Any) -> Plain | None:
    if field.message_type is not None and is_entry(field.message_type):
        inner = _single(field.message_type.fields_by_name["value"])
        if inner is None:
            return dict
        return lambda entries: {name: inner(value) for name, value in entries.items()}
    convert = _single(field)
    if field.is_repeated:
        return list if convert is None else lambda values: [*map(convert, values)]
    return convert


def _single(field: Any) -> Plain | None:
    if field.message_type is not None:
        return plain_reader(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        # A number without a name stays a number, which the contract refuses only if it reads it.
        return lambda number: names.get(number, number)
    return None


def _nanoseconds(message: Any) -> int:
    return int(message.seconds) * 1_000_000_000 + int(message.nanos)


def is_wrapper(descriptor: Any) -> bool:
    return bool(descriptor.full_name.startswith(_WRAPPERS)) and descriptor.name.endswith("Value")


def index_bytes(classes: tuple[Any, ...], name: str) -> tuple[Any, bytes]:
    """Return the class of the first message, or of the one with this name, and its place."""
    for number, each in enumerate(classes):
        if each.DESCRIPTOR.name == name and number:
            return each, bytes([2, 2 * number])
    return classes[0], b"\0"


def fill(message: Any, value: Any, path: str = "$") -> None:
    """Set the fields of a message to those of plain data. Raises UnwritableError."""
    if not isinstance(value, dict):
        raise UnwritableError(f"{path}: {shortened(str(value))} is no object")
    fields = message.DESCRIPTOR.fields_by_name
    for name, each in value.items():
        if each is None:
            continue
        if name not in fields:
            raise UnwritableError(f"{path}.{name}: the schema lacks this field of the value")
        try:
            _set(message, fields[name], each, f"{path}.{name}")
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, UnwritableError):
                raise
            raise UnwritableError(f"{path}.{name}: {error}") from None


def _set(message: Any, field: Any, value: Any, path: str) -> None:
    if field.message_type is not None and is_entry(field.message_type):
        inner = field.message_type.fields_by_name["value"]
        entries = getattr(message, field.name)
        for key, each in value.items():
            if inner.message_type is not None:
                _fill_inner(entries[key], each, f"{path}[{key}]")
            else:
                entries[key] = _scalar(inner, each, path)
    elif field.is_repeated:
        items = getattr(message, field.name)
        for number, each in enumerate(value):
            if field.message_type is not None:
                _fill_inner(items.add(), each, f"{path}[{number}]")
            else:
                items.append(_scalar(field, each, f"{path}[{number}]"))
    elif field.message_type is not None:
        inner_message = getattr(message, field.name)
        inner_message.SetInParent()
        _fill_inner(inner_message, value, path)
    else:
        setattr(message, field.name, _scalar(field, value, path))


def _fill_inner(message: Any, value: Any, path: str) -> None:
    descriptor = message.DESCRIPTOR
    if descriptor.full_name == TIMESTAMP:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        seconds, rest = divmod((time - _1970) // timedelta(microseconds=1), 1_000_000)
        message.seconds, message.nanos = seconds, rest * 1_000
    elif is_wrapper(descriptor):
        message.value = _scalar(descriptor.fields_by_name["value"], value, path)
    else:
        fill(message, value, path)


def _digits(number: float | Decimal) -> str:
    """Return a number as a text, without an exponent and without zeros at the end."""
    exact = number if isinstance(number, Decimal) else Decimal(repr(number))
    text = f"{exact:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if exact else "0"


def _scalar(field: Any, value: Any, path: str) -> Any:
    match field.type:
        case 9:
            if isinstance(value, date):
                return value.isoformat()
            if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
                # A decimal of the contract is a number in plain data, and a text in Protobuf.
                return _digits(value)
            return value
        case 12 if isinstance(value, str):
            return b64decode(value, validate=True)
        case 14 if isinstance(value, str):
            if value not in field.enum_type.values_by_name:
                raise UnwritableError(f"{path}: {shortened(value)} is no {field.enum_type.name}")
            return field.enum_type.values_by_name[value].number
        case 1 | 2 if isinstance(value, Decimal | int) and not isinstance(value, bool):
            return float(value)
        case _:
            if isinstance(value, bool) and field.type != 8:
                raise UnwritableError(f"{path}: {value} is no number")
            return value
