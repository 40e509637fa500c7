"""Structs for the values of an Avro schema."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
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
from sluice.values.sql_types import MOST_DIGITS

SIMPLE: dict[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
}
"""Primitive type → the type of its values."""


def struct_of_schema(text: str, references: tuple[str, ...] = (), name: str = "") -> Any:
    """Return the type of a schema's values; the Struct of its record `name`, if that is given.

    The same schema gives the same Structs, so a task makes the Structs that the driver has.
    Raises SchemaError for a schema that has no type in SQL.
    """
    structs = _structs(text, references)
    if name:
        return structs.made[name]
    return structs.top


@cache
def _structs(text: str, references: tuple[str, ...]) -> _Structs:
    return _Structs(text, references)


class _Structs:
    def __init__(self, text: str, references: tuple[str, ...]) -> None:
        self._origin = text, references
        self.made: dict[str, Any] = {}
        self.top = self.type_of(parse(text, references), "$")

    def type_of(self, node: Node, path: str) -> Any:
        match node:
            case Primitive(logical="decimal") | Fixed(logical="decimal"):
                if node.precision > MOST_DIGITS:
                    raise SchemaError(f"{path}: a decimal has at most {MOST_DIGITS} digits in SQL")
                return Annotated[Decimal, Digits(node.precision, node.scale)]
            case Primitive(kind="int", logical="date"):
                return date
            case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
                # SQL's times have microseconds.
                return int if logical.endswith("nanos") else datetime
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
            case Record():
                if node.name not in self.made:
                    self.made[node.name] = self._struct(node, path)
                return self.made[node.name]

    def _union(self, node: Union, path: str) -> Any:
        present = node.branches_with_values
        if not present:
            raise SchemaError(f"{path}: a union without types")
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
            fields.append((_identifier(each.name), kind, _declared(each)))
        tag = None
        if self._is_in_union(record):
            tag = record.short_name
        struct: Any = msgspec.defstruct(
            re.sub(r"\W", "_", record.short_name),
            fields,
            module=__name__,
            namespace={"__avro_schema__": (*self._origin, record.name)},
            kw_only=True,
            tag=tag,
        )
        return struct

    def _is_in_union(self, record: Record) -> bool:
        return any(each.name == record.name for each in _in_unions(parse(*self._origin)))


def _in_unions(node: Node) -> Iterator[Record]:
    """Yield the records that are one of several in a union."""
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


def _identifier(name: str) -> str:
    if keyword.iskeyword(name):
        return f"{name}_"
    return name


def _declared(each: Field) -> Any:
    renamed = None
    if _identifier(each.name) != each.name:
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
            # Such a default is rare. Without it, a record of a writer without the field is a dead
            # letter that names the field.
            return msgspec.field(name=renamed)


def aliases_of(node: Node) -> dict[str, tuple[str, ...]]:
    """Return `Record.field` → the aliases of the field, for all fields that have some."""
    aliases: dict[str, tuple[str, ...]] = {}
    for record in _records(node):
        for each in record.fields:
            if each.aliases:
                aliases[f"{record.short_name}.{each.name}"] = each.aliases
    return aliases


def _records(node: Node) -> Iterator[Record]:
    match node:
        case Record(fields=fields):
            yield node
            for each in fields:
                yield from _records(each.type)
        case Array(items=inner) | Map(values=inner):
            yield from _records(inner)
        case Union(branches=branches):
            for branch in branches:
                yield from _records(branch)
