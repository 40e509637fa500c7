"""Parses Avro schemas to trees of nodes, and makes the schema that follows from a contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from sluice.errors import TopologyError
from sluice.values.contract_parts import digits_of
from sluice.values.contracts import (
    ObjectType,
    choice_type,
    members_of,
    name_of,
    sql_type,
    type_info,
    variants,
)
from sluice.values.epochs import Unit, unit_of
from sluice.values.registered_schemas import ReferredSchema
from sluice.values.stored_values import JsonText


class SchemaError(ValueError):
    """A schema is invalid, or has a part that Sluice cannot read."""


class RecursiveSchemaError(SchemaError):
    """A record contains itself, so not even a part of it can be read."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} contains itself, and has no type in SQL")


@dataclass(frozen=True)
class Primitive:
    """`null`, `boolean`, `int`, `long`, `float`, `double`, `bytes` or `string`."""

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Fixed:
    name: str
    size: int
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Choice:
    """An enum."""

    name: str
    symbols: tuple[str, ...]
    default: str = ""
    """The symbol that a reader uses for unknown symbols; empty if there is none."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Array:
    items: Node


@dataclass(frozen=True)
class Map:
    values: Node


@dataclass(frozen=True)
class Union:
    branches: tuple[Node, ...]

    @property
    def branches_with_values(self) -> list[Node]:
        """The types other than null."""
        return [branch for branch in self.branches if branch != Primitive("null")]


NO_DEFAULT = msgspec.NODEFAULT


@dataclass(frozen=True)
class Field:
    name: str
    type: Node
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    name: str
    """The full name, with the namespace."""
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()
    may_lack_fields: bool = False
    """Whether a value may omit fields that may be null, as in Protobuf."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


Node: TypeAlias = Primitive | Fixed | Choice | Array | Map | Union | Record
Decimals: TypeAlias = Primitive | Fixed

_PRIMITIVES = frozenset({
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
})  # fmt: skip
_LOGICAL = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
}
"""Logical type → the types that it annotates. Other logical types are ignored, as Avro's
specification requires."""


@dataclass
class _Parser:
    names: dict[str, Node | None] = field(default_factory=dict)
    """Full name → the node; None while the node is being parsed."""

    def parse(self, schema: Any, namespace: str = "") -> Node:
        match schema:
            case str() if schema in _PRIMITIVES:
                return Primitive(schema)
            case str():
                return self._named(schema, namespace)
            case list():
                return Union(tuple([self.parse(branch, namespace) for branch in schema]))
            case {"type": "record" | "error"}:
                return self._record(schema, namespace)
            case {"type": "enum", "symbols": list(symbols)}:
                name = _full_name(schema, namespace)
                default = schema.get("default")
                known = default if default in symbols else ""
                return self._added(name, Choice(name, tuple(symbols), known))
            case {"type": "fixed", "size": int(size)}:
                name = _full_name(schema, namespace)
                return self._added(name, Fixed(name, size, *_logical(schema, "fixed", size)))
            case {"type": "array", "items": items}:
                return Array(self.parse(items, namespace))
            case {"type": "map", "values": values}:
                return Map(self.parse(values, namespace))
            case {"type": str(kind)} if kind in _PRIMITIVES:
                return Primitive(kind, *_logical(schema, kind))
            case {"type": inner}:
                return self.parse(inner, namespace)
            case _:
                raise SchemaError(f"{json.dumps(schema)[:80]} is not an Avro schema")

    def _named(self, name: str, namespace: str) -> Node:
        full = name
        if "." not in name:
            full = _within(namespace, name)
        for each in (full, name):
            if each in self.names:
                node = self.names[each]
                if node is None:
                    raise RecursiveSchemaError(each)
                return node
        raise SchemaError(f"{name} is not defined")

    def _record(self, schema: Mapping[str, Any], namespace: str) -> Node:
        name = _full_name(schema, namespace)
        self.names[name] = None
        own = name.rpartition(".")[0]
        fields: list[Field] = []
        for each in schema.get("fields", ()):
            node = self.parse(each["type"], own)
            aliases = tuple(each.get("aliases", ()))
            fields.append(Field(each["name"], node, each.get("default", NO_DEFAULT), aliases))
        return self._added(name, Record(name, tuple(fields), tuple(schema.get("aliases", ()))))

    def _added(self, name: str, node: Node) -> Node:
        self.names[name] = node
        return node


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a type of {schema['type']} has no name")
    if "." in name:
        return name
    own = schema.get("namespace", namespace)
    return _within(own, name)


def _within(namespace: str, name: str) -> str:
    """Return the full name of a name in a namespace, which may be empty."""
    if not namespace:
        return name
    return f"{namespace}.{name}"


def _logical(schema: Mapping[str, Any], kind: str, size: int = 0) -> tuple[str, int, int]:
    """Return the logical type and its digits.

    The type is empty if there is none, or if Avro's specification says to ignore it.
    """
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or kind not in _LOGICAL.get(logical, ()):
        return "", 0, 0
    if kind == "fixed" and {"duration": 12, "uuid": 16}.get(logical, size) != size:
        return "", 0, 0
    if logical != "decimal":
        return logical, 0, 0
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    are_numbers = isinstance(precision, int) and isinstance(scale, int)
    if not are_numbers or not precision or not 0 <= scale <= precision:
        return "", 0, 0
    return "decimal", precision, scale


def parse(text: str, references: Iterable[ReferredSchema] = ()) -> Node:
    """Parse a schema. Raises SchemaError.

    `references` are the schemas to which it refers. Each comes after its own references.
    """
    parser = _Parser()
    try:
        for reference in references:
            parser.parse(json.loads(reference.text))
        return parser.parse(json.loads(text))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"the schema is invalid: {type(error).__name__}: {error}") from None


def present(node: Node) -> Node:
    """For a union of null and one other type, return the other type's node.

    Otherwise, return the node.
    """
    if isinstance(node, Union):
        branches = node.branches_with_values
        if len(branches) == 1:
            return branches[0]
    return node


def may_be_null(node: Node) -> bool:
    if isinstance(node, Union):
        return Primitive("null") in node.branches
    return node == Primitive("null")


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def schema_of_contract(contract: Any, namespace: str = "") -> str:
    """Return the Avro schema of a contract's values, as JSON.

    Raises TopologyError if a part of the contract has no type in Avro.
    """
    sql_type(contract)  # Raise TopologyError if this is not a contract.
    return json.dumps(_Deriving(namespace).schema(type_info(contract), name_of(contract)))


@dataclass
class _Deriving:
    namespace: str
    named: set[str] = field(default_factory=set)

    def schema(self, kind: inspect.Type, where: str) -> Any:
        digits = digits_of(kind)
        if digits is not None:
            precision, scale = digits
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": precision,
                "scale": scale,
            }
        match kind:
            case inspect.Metadata():
                return self._metadata(kind, where)
            case inspect.UnionType():
                return self._union(kind, where)
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                return self._record(kind, where)
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
                return {"type": "array", "items": self.schema(kind.item_type, f"{where}[]")}
            case inspect.DictType():
                return {"type": "map", "values": self.schema(kind.value_type, f"{where}[]")}
            case inspect.LiteralType() | inspect.EnumType():
                return "long" if choice_type(kind) is int else "string"
            case inspect.DateTimeType():
                return {"type": "long", "logicalType": "timestamp-micros"}
            case inspect.DateType():
                return {"type": "int", "logicalType": "date"}
            case inspect.IntType():
                return "long"
            case inspect.FloatType():
                return "double"
            case inspect.BoolType():
                return "boolean"
            case inspect.StrType():
                return "string"
            case inspect.BytesType():
                return "bytes"
            case _:
                raise TopologyError(
                    f"{where}: {type(kind).__name__.removesuffix('Type')} has no type in Avro.",
                    next_step="Declare the field's type, or leave the field out.",
                )

    def _metadata(self, kind: inspect.Metadata, where: str) -> Any:
        match unit_of(kind.extra):
            case Unit.MILLISECONDS:
                return {"type": "long", "logicalType": "timestamp-millis"}
            case Unit.MICROSECONDS | Unit.SECONDS:
                return {"type": "long", "logicalType": "timestamp-micros"}
            case _:
                return self.schema(kind.type, where)

    def _union(self, kind: inspect.UnionType, where: str) -> Any:
        members = members_of(kind)
        if len(members) > 1:
            self._require_tags(members, where)
        branches = [self.schema(member, where) for member in members]
        if len(members) < len(kind.types):
            return ["null", *branches]
        return branches

    def _require_tags(self, members: Sequence[inspect.Type], where: str) -> None:
        """Raise TopologyError unless all members of a union are classes with tags."""
        if not variants(inspect.UnionType(tuple(members))):
            raise TopologyError(
                f"{where}: only a union of classes with tags has a type in Avro.",
                next_step="Declare a single type, or give each class a tag.",
            )
        for member in members:
            tag = getattr(member, "tag", None)
            if not (isinstance(tag, str) and _NAME.fullmatch(tag)):
                raise TopologyError(
                    f"{where}: the tag {tag!r} is not a valid name in Avro, where tags name "
                    "records.",
                    next_step="Give each class a tag of letters, digits and _.",
                )

    def _record(self, kind: ObjectType, where: str) -> Any:
        if kind.cls is JsonText:
            raise TopologyError(
                f"{where}: Any has no type in Avro.",
                next_step="Declare the field's type. To write with a schema of the registry, add "
                'version="latest".',
            )
        # The tag of a member of a union is the name of its record.
        tag = getattr(kind, "tag", None)
        name = kind.cls.__name__
        if isinstance(tag, str):
            name = tag
        if not _NAME.fullmatch(name):
            name = re.sub(r"\W+", "_", kind.cls.__name__).strip("_")
        full = _within(self.namespace, name)
        if full in self.named:
            return full
        self.named.add(full)
        fields: list[dict[str, Any]] = []
        for each in kind.fields:
            if not _NAME.fullmatch(each.encode_name):
                raise TopologyError(
                    f"{where}.{each.encode_name}: this is not a valid name in Avro.",
                    next_step="Rename the field: use letters, digits and _, and do not begin "
                    "with a digit.",
                )
            schema = self.schema(each.type, f"{where}.{each.encode_name}")
            declared = {"name": each.encode_name, "type": schema}
            if isinstance(schema, list) and schema[0] == "null" and not each.required:
                declared["default"] = None
            elif isinstance(each.default, str | bool | int | float) and isinstance(schema, str):
                declared["default"] = each.default
            fields.append(declared)
        record: dict[str, Any] = {"type": "record", "name": name, "fields": fields}
        if self.namespace:
            record["namespace"] = self.namespace
        return record
