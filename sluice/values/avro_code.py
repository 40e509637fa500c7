"""Writes Structs for the values of an Avro schema as Python code, for an author to keep."""

from __future__ import annotations

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
    present,
)
from sluice.values.avro_structs import SIMPLE
from sluice.values.avro_values import unit_of_logical

_HEAD = '''"""The values of {subject}, version {version}. Written by sluice schema pull."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from sluice import Digits
'''


def python_code(node: Node, subject: str, version: int) -> str:
    """Return a module with a Struct for each record of a schema."""
    classes: dict[str, str] = {}
    _type(node, classes)
    return "\n\n".join([_HEAD.format(subject=subject, version=version), *classes.values()])


def _type(node: Node, classes: dict[str, str]) -> str:  # noqa: C901  (a table)
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            return f"Annotated[Decimal, Digits({node.precision}, {node.scale})]"
        case Primitive(kind="int", logical="date"):
            return "date"
        case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
            return "int" if logical.endswith("nanos") else "datetime"
        case Primitive(kind="null"):
            return "None"
        case Primitive(kind=kind):
            return SIMPLE[kind].__name__
        case Fixed(logical="uuid"):
            return "str"
        case Fixed():
            return "bytes"
        case Choice(symbols=symbols):
            return f"Literal[{', '.join(map(repr, symbols))}]".replace("'", '"')
        case Array(items=items):
            return f"list[{_type(items, classes)}]"
        case Map(values=values):
            return f"dict[str, {_type(values, classes)}]"
        case Union(branches=branches):
            inner = present(node)
            if isinstance(inner, Union):
                for each in inner.branches:
                    if each != _NULL and not isinstance(each, Record):
                        raise SchemaError("a union of types that are not all records has no class")
                return " | ".join(_type(branch, classes) for branch in branches)
            null = " | None" if _NULL in branches else ""
            return f"{_type(inner, classes)}{null}"
        case Record():
            if node.short_name not in classes:
                classes[node.short_name] = ""
                body = [_field(each, classes) for each in node.fields] or ["    pass"]
                head = f"class {node.short_name}(msgspec.Struct, kw_only=True):"
                # A class comes after those that its fields have.
                del classes[node.short_name]
                classes[node.short_name] = "\n".join([head, *body]) + "\n"
            return node.short_name


_NULL = Primitive("null")


def _field(each: Field, classes: dict[str, str]) -> str:
    text = f"    {each.name}: {_type(each.type, classes)}"
    if each.default is NO_DEFAULT or isinstance(each.default, dict | list):
        return text
    return f"{text} = {each.default!r}"
