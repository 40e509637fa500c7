"""Structs for the values of a registered schema."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from sluice.values.avro_schemas import (
    NO_DEFAULT,
    Array,
    Choice,
    Field,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    SchemaError,
    Union,
    parse,
)
from sluice.values.avro_values import unit_of_logical
from sluice.values.contracts import Digits
from sluice.values.json_schemas import parse_json_schema
from sluice.values.proto_descriptors import message_named, node_of
from sluice.values.registered_schemas import ReferredSchema, SchemaKind
from sluice.values.sql_types import MOST_DIGITS

SIMPLE: dict[str, Any] = {
    "any": Any,
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
}
"""Primitive type → the type of its values."""


@dataclass(frozen=True)
class SchemaText:
    """The text of a schema. The same nodes and Structs can always be made again from this text."""

    kind: SchemaKind
    text: str
    references: tuple[ReferredSchema, ...] = ()
    message: str = ""
    """The name of the Protobuf message; empty for the first message."""

    @property
    def node(self) -> Node:
        """The schema as a tree of nodes. Raises SchemaError."""
        return _node(self)

    @property
    def keeps_nanoseconds(self) -> bool:
        """Whether a time with nanoseconds is a number in the contract, which is exact.

        In Protobuf, all times have nanoseconds, but most programs use only microseconds.
        """
        return self.kind == "AVRO"


@cache
def _node(schema: SchemaText) -> Node:
    match schema.kind:
        case "AVRO":
            return parse(schema.text, schema.references)
        case "JSON":
            return parse_json_schema(schema.text, schema.references)
        case "PROTOBUF":
            message = message_named(schema.text, schema.references, schema.message)
            return node_of(message.DESCRIPTOR)


def struct_of_schema(schema: SchemaText, name: str = "") -> Any:
    """Return the type of a schema's values, or the Struct of its record `name`, if a name is given.

    The same schema gives the same Structs, so a task makes the Structs that the driver has. Raises
    SchemaError for a schema that has no type in SQL.
    """
    structs = _structs(schema)
    if name:
        return structs.made[name]
    return structs.top


@cache
def _structs(schema: SchemaText) -> _Structs:
    return _Structs(schema)


class _Structs:
    def __init__(self, schema: SchemaText) -> None:
        self._schema = schema
        self.made: dict[str, Any] = {}
        self.top = self.type_of(schema.node, "$")

    def type_of(self, node: Node, path: str) -> Any:  # noqa: C901  (a table)
        match node:
            case Primitive(logical="decimal") | Fixed(logical="decimal"):
                if node.precision > MOST_DIGITS:
                    raise SchemaError(f"{path}: a decimal has at most {MOST_DIGITS} digits in SQL")
                return Annotated[Decimal, Digits(node.precision, node.scale)]
            case Primitive(kind="int", logical="date"):
                return date
            case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
                # SQL's times have only microseconds, so nanoseconds need a number.
                is_number = logical.endswith("nanos") and self._schema.keeps_nanoseconds
                return int if is_number else datetime
            case Primitive(kind="null"):
                raise SchemaError(f"{path}: a field that is always null has no type in SQL")
            case Primitive(kind=kind):
                return SIMPLE[kind]
            case Fixed(logical="uuid"):
                return str
            case Fixed():
                return bytes
            case Choice(symbols=symbols):
                return Literal[symbols]
            case Array(items=items):
                return list[self.type_of(items, f"{path}[...]")]  # type: ignore[misc]
            case Map(values=values):
                return dict[str, self.type_of(values, f"{path}[...]")]  # type: ignore[misc]
            case Union():
                return self._union(node, path)
            case Record(fields=()) if path != "$":
                raise SchemaError(f"{path}: a record without fields has no type in SQL")
            case Record():
                if node.name not in self.made:
                    self.made[node.name] = self._struct(node, path)
                return self.made[node.name]

    def _union(self, node: Union, path: str) -> Any:
        present = node.branches_with_values
        if not present:
            raise SchemaError(f"{path}: a union without types other than null has no type in SQL")
        if len(present) > 1 and not all(isinstance(branch, Record) for branch in present):
            raise SchemaError(
                f"{path}: a union of several types, of which some are not records, has no type in "
                "SQL"
            )
        kinds = self.type_of(present[0], path)
        for branch in present[1:]:
            kinds = kinds | self.type_of(branch, path)
        if len(present) < len(node.branches):
            return kinds | None
        return kinds

    def _struct(self, record: Record, path: str) -> Any:
        fields: list[Any] = []
        for each in record.fields:
            kind = self.type_of(each.type, f"{path}.{each.name}")
            fields.append((identifier(each.name), kind, _declared(each)))
        tag = None
        if self._is_in_union(record):
            tag = record.short_name
        struct: Any = msgspec.defstruct(
            re.sub(r"\W", "_", record.short_name),
            fields,
            module=__name__,
            namespace={"__registered_schema__": (self._schema, record.name)},
            kw_only=True,
            tag=tag,
        )
        return struct

    def _is_in_union(self, record: Record) -> bool:
        return any(each.name == record.name for each in _in_unions(self._schema.node))


def _in_unions(node: Node) -> Iterator[Record]:
    """Yield the records of each union that has more than one record."""
    match node:
        case Union(branches=branches):
            records: list[Record] = []
            for branch in branches:
                yield from _in_unions(branch)
                if isinstance(branch, Record):
                    records.append(branch)
            if len(records) > 1:
                yield from records
        case Record(fields=fields):
            for each in fields:
                yield from _in_unions(each.type)
        case Array(items=inner) | Map(values=inner):
            yield from _in_unions(inner)


def identifier(name: str) -> str:
    """Return a Python name for a field."""
    bare = re.sub(r"\W", "_", name)
    if not bare[:1] or bare[0].isdigit():
        bare = f"_{bare}"
    if keyword.iskeyword(bare):
        return f"{bare}_"
    return bare


def _declared(each: Field) -> Any:
    renamed = None
    if identifier(each.name) != each.name:
        renamed = each.name
    if each.default is NO_DEFAULT:
        return msgspec.field(name=renamed)
    if each.default is None:
        return msgspec.field(default=None, name=renamed)
    inner = each.type
    if isinstance(each.type, Union):
        inner = each.type.branches[0]
    match inner, each.default:
        case Primitive(logical="", kind=kind), str() | bool() | int() | float():
            default: Any = each.default
            if kind == "bytes":
                default = str(each.default).encode("latin-1")
            elif kind in ("float", "double"):
                default = float(each.default)
            return msgspec.field(default=default, name=renamed)
        case Choice(), str():
            return msgspec.field(default=each.default, name=renamed)
        case Array(), []:
            return msgspec.field(default_factory=list, name=renamed)
        case Map(), {} if not each.default:
            return msgspec.field(default_factory=dict, name=renamed)
        case _:
            # Other defaults are rare, so leave them out. If a writer omits the field, the writer's
            # records become dead letters that name the field.
            return msgspec.field(name=renamed)


def aliases_of(node: Node) -> dict[str, tuple[str, ...]]:
    """Return `Record.field` → the aliases of the field, for all fields with aliases."""
    aliases: dict[str, tuple[str, ...]] = {}
    for part in _parts(node):
        if not isinstance(part, Record):
            continue
        for each in part.fields:
            if each.aliases:
                aliases[f"{part.short_name}.{each.name}"] = each.aliases
    return aliases


def enum_defaults_of(node: Node) -> dict[str, str]:
    """Return name of an enum → the symbol that is its default.

    Leaves out enums without a default.
    """
    defaults: dict[str, str] = {}
    for each in _parts(node):
        if isinstance(each, Choice) and each.default:
            defaults[each.short_name] = each.default
    return defaults


def _parts(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes within it."""
    yield node
    match node:
        case Record(fields=fields):
            for each in fields:
                yield from _parts(each.type)
        case Array(items=inner) | Map(values=inner):
            yield from _parts(inner)
        case Union(branches=branches):
            for branch in branches:
                yield from _parts(branch)
