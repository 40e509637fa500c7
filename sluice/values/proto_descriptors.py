"""Turns Protobuf schemas into message classes of Protobuf's library, and into trees of nodes."""

from __future__ import annotations

import importlib
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from sluice.errors import missing_extra
from sluice.values.avro_schemas import (
    NO_DEFAULT,
    Array,
    Choice,
    Field,
    Map,
    Node,
    Primitive,
    Record,
    RecursiveSchemaError,
    SchemaError,
    Union,
)
from sluice.values.proto_schemas import TIMESTAMP, ProtoEnum, ProtoField, ProtoMessage, parse_proto
from sluice.values.registered_schemas import ReferredSchema

_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7,
    "bool": 8, "string": 9, "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16,
    "sint32": 17, "sint64": 18,
}  # fmt: skip
"""Scalar type → its number in Protobuf's descriptors."""
_MESSAGE, _ENUM = 11, 14
_LABELS = {"": 1, "optional": 1, "required": 2, "repeated": 3}
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in (
        "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes",
    )
)  # fmt: skip
_KNOWN_FILES = {
    "google/": "google.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}
"""Folder of files that schemas import without a reference → the package with these files."""


@cache
def message_classes(text: str, references: tuple[ReferredSchema, ...] = ()) -> tuple[Any, ...]:
    """Return the classes of a schema's messages, in the order in which they are declared.

    Raises SchemaError.
    """
    try:
        from google.protobuf import descriptor_pool, message_factory
    except ImportError as error:
        raise missing_extra(error) from None
    files = _Files(descriptor_pool.DescriptorPool(), {each.name: each.text for each in references})
    file = files.added("schema.proto", text)
    prefix = f"{file.package}." if file.package else ""
    classes: list[Any] = []
    for message in file.message_type:
        descriptor = files.pool.FindMessageTypeByName(f"{prefix}{message.name}")
        classes.append(message_factory.GetMessageClass(descriptor))
    return tuple(classes)


def message_named(text: str, references: tuple[ReferredSchema, ...], name: str) -> Any:
    """Return the class of the message with this name, or of the first message if the name is empty.

    Raises SchemaError.
    """
    classes = message_classes(text, references)
    for each in classes:
        if name in ("", each.DESCRIPTOR.name, each.DESCRIPTOR.full_name):
            return each
    if not classes:
        raise SchemaError("the schema has no message")
    names = ", ".join(each.DESCRIPTOR.name for each in classes)
    raise SchemaError(f"the schema has no message {name}, but {names}")


class _Files:
    """The files of a schema: its own file, and the files that this file imports."""

    def __init__(self, pool: Any, referred: dict[str, str]) -> None:
        self.pool = pool
        self._referred = referred
        self._added: dict[str, Any] = {}

    def added(self, name: str, text: str) -> Any:
        """Add a file and those that it imports to the pool. Raises SchemaError."""
        from google.protobuf import descriptor_pb2

        file = descriptor_pb2.FileDescriptorProto()
        if _BASE64.fullmatch(text):
            _parse_descriptor(file, text)
            self._import(file.dependency)
        else:
            self._parse_text(file, text)
        file.name = name
        try:
            self.pool.Add(file)
        except TypeError as error:
            raise SchemaError(f"the schema is invalid: {error}") from None
        self._added[name] = file
        return file

    def _parse_text(self, file: Any, text: str) -> None:
        parsed = parse_proto(text)
        file.package, file.syntax = parsed.package, parsed.syntax
        file.dependency.extend(parsed.imports)
        # Make all imports public: in Sluice, a file can use everything that its imports import.
        file.public_dependency.extend(range(len(parsed.imports)))
        self._import(parsed.imports)
        scope = _Scope(parsed.package, parsed.messages, parsed.enums)
        for imported in self._added.values():
            scope.add_file(imported)
        for message in parsed.messages:
            _fill(file.message_type.add(), message, scope, scope.package, parsed.syntax)
        for enum in parsed.enums:
            _fill_enum(file.enum_type.add(), enum)

    def _import(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._added:
                continue
            if name in self._referred:
                # `pop` keeps a file that imports itself from being added again.
                self.added(name, self._referred.pop(name))
            else:
                self._add_known(name)

    def _add_known(self, name: str) -> None:
        """Add a file of Protobuf's library, to which a registry's schemas need no reference."""
        from google.protobuf import descriptor_pb2

        file = descriptor_pb2.FileDescriptorProto()
        file.MergeFromString(_known_file(name))
        self._import(file.dependency)
        self.pool.Add(file)
        self._added[name] = file


def _known_file(name: str) -> bytes:
    """Return the descriptor of a library's file. Raises SchemaError."""
    for folder, package in _KNOWN_FILES.items():
        if name.startswith(folder):
            inner = name.removeprefix(folder).removesuffix(".proto").replace("/", ".")
            try:
                module = importlib.import_module(f"{package}{inner}_pb2")
            except ImportError:
                break
            serialized: bytes = module.DESCRIPTOR.serialized_pb
            return serialized
    raise SchemaError(
        f"the schema imports {name}, which is neither a reference of the schema nor a file of "
        "Protobuf"
    )


_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


def _parse_descriptor(file: Any, text: str) -> None:
    """Fill a descriptor from its serialized form, in which some serializers register schemas."""
    from google.protobuf.message import DecodeError

    try:
        file.MergeFromString(b64decode(text, validate=False))
    except (ValueError, DecodeError) as error:
        raise SchemaError(f"this is not a Protobuf schema: {error}") from None


class _Scope:
    """The names of the messages and enums that a file may use, each with a dot before it."""

    def __init__(
        self, package: str, messages: Iterable[ProtoMessage], enums: Iterable[ProtoEnum]
    ) -> None:
        self.package = f".{package}" if package else ""
        self._kinds: dict[str, int] = {}
        for enum in enums:
            self._kinds[f"{self.package}.{enum.name}"] = _ENUM
        for message in messages:
            self._add(message, self.package)

    def _add(self, message: ProtoMessage, outer: str) -> None:
        name = f"{outer}.{message.name}"
        self._kinds[name] = _MESSAGE
        for enum in message.enums:
            self._kinds[f"{name}.{enum.name}"] = _ENUM
        for inner in message.messages:
            self._add(inner, name)

    def add_file(self, file: Any) -> None:
        """Add the names of a file that is imported."""
        package = f".{file.package}" if file.package else ""
        for enum in file.enum_type:
            self._kinds[f"{package}.{enum.name}"] = _ENUM
        for message in file.message_type:
            self._kinds |= _names_within(message, package)

    def find(self, name: str, within: str) -> tuple[int, str]:
        """Return the kind and the full name of a type that is named within a message.

        If several enclosing messages or packages have a type of this name, the innermost one is
        meant.
        """
        if name.startswith("."):
            if name in self._kinds:
                return self._kinds[name], name
            raise SchemaError(f"the type {name} is not defined")
        for outer in _from_inner(within):
            full = f"{outer}.{name}"
            if full in self._kinds:
                return self._kinds[full], full
        raise SchemaError(f"the type {name} is not defined")


def _names_within(message: Any, outer: str) -> dict[str, int]:
    """Return the full names of a message, and of the types within it, with their kinds."""
    name = f"{outer}.{message.name}"
    kinds = {name: _MESSAGE}
    for enum in message.enum_type:
        kinds[f"{name}.{enum.name}"] = _ENUM
    for inner in message.nested_type:
        kinds |= _names_within(inner, name)
    return kinds


def _from_inner(within: str) -> Iterator[str]:
    """Yield a full name, then the name of each enclosing scope, and finally the empty name."""
    while within:
        yield within
        within = within.rpartition(".")[0]
    yield ""


def _fill(made: Any, message: ProtoMessage, scope: _Scope, outer: str, syntax: str) -> None:
    made.name = message.name
    path = f"{outer}.{message.name}"
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
            added.default_value = _default_text(each)
    # Like Protobuf's own compiler, put each optional field of proto3 into a separate oneof.
    for added, name in synthetic:
        added.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add().name = name
    for inner in message.messages:
        _fill(made.nested_type.add(), inner, scope, path, syntax)
    for enum in message.enums:
        _fill_enum(made.enum_type.add(), enum)


def _default_text(field: ProtoField) -> str:
    """Return the default of a field in the form of descriptors.

    Only defaults of bytes have escapes.
    """
    text = field.default or ""
    if text[:1] not in ('"', "'"):
        return text
    if field.type != "string":
        return text[1:-1]
    from google.protobuf import text_encoding

    unescaped: bytes = text_encoding.CUnescape(text[1:-1])
    return unescaped.decode()


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
    added.type, added.type_name = _MESSAGE, f"{path}.{entry}"


def _fill_enum(made: Any, enum: ProtoEnum) -> None:
    made.name = enum.name
    for name, number in enum.values:
        made.value.add(name=name, number=number)
    if len({number for _, number in enum.values}) < len(enum.values):
        made.options.allow_alias = True


def is_entry(descriptor: Any) -> bool:
    """Return whether a message is the entry type of a map. A schema does not name such messages."""
    return bool(descriptor.GetOptions().map_entry)


def message_class(classes: tuple[Any, ...], places: tuple[int, ...]) -> Any:
    """Return the class of the message with these indexes. Raises ValueError."""
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
        raise ValueError(f"the schema has no message with the indexes {[*places]}") from None
    return found


def node_of(descriptor: Any, within: tuple[str, ...] = ()) -> Node:
    """Return the type of the results of `plain_reader`. A contract is resolved against this type.

    Raises SchemaError for a message that contains itself.
    """
    if descriptor.full_name == TIMESTAMP:
        return Primitive("long", "timestamp-nanos")
    if is_wrapper(descriptor):
        return Primitive(_NODES[descriptor.fields_by_name["value"].type])
    if descriptor.full_name in within:
        raise RecursiveSchemaError(descriptor.full_name)
    inner = (*within, descriptor.full_name)
    fields: list[Field] = []
    for field in descriptor.fields:
        node = _node_of_field(field, inner)
        if field.has_presence and not field.is_repeated:
            node = Union((Primitive("null"), node))
        fields.append(Field(field.name, node, _default_of(field)))
    return Record(descriptor.full_name, tuple(fields), may_lack_fields=True)


def _default_of(field: Any) -> Any:
    """Return the value of a field that a message lacks, as plain data of Avro's schemas."""
    if field.is_required:
        return NO_DEFAULT
    if field.message_type is not None and is_entry(field.message_type):
        return {}
    if field.is_repeated:
        return []
    if field.has_presence and not field.has_default_value:
        return None
    if field.enum_type is not None:
        return field.enum_type.values_by_number[field.default_value].name
    if isinstance(field.default_value, bytes):
        return field.default_value.decode("latin-1")
    return field.default_value


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


def is_wrapper(descriptor: Any) -> bool:
    """Return whether a message is one of Protobuf's wrappers of a single value."""
    return descriptor.full_name in _WRAPPERS
