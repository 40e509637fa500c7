"""Writes Python code of Structs for the values of a registered schema. Authors keep the code."""

from __future__ import annotations

from dataclasses import dataclass, field

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
from sluice.values.avro_values import unit_of_logical
from sluice.values.schema_structs import SIMPLE, SchemaText, identifier

_HEAD = '''"""The values of {subject}, version {version}. Written by sluice schema pull."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from sluice import Digits
'''


def python_code(schema: SchemaText, subject: str, version: int) -> str:
    """Return a module with a Struct for each record of a schema. Raises SchemaError."""
    writer = _Writer(schema.keeps_nanoseconds)
    writer.type_of(schema.node)
    head = _HEAD.format(subject=subject, version=version)
    return "\n\n".join([head, *writer.classes.values()])


_NULL = Primitive("null")


@dataclass
class _Writer:
    keeps_nanoseconds: bool
    classes: dict[str, str] = field(default_factory=dict)
    """Name of a record → the code of its class. A class comes after the classes of its fields."""

    def type_of(self, node: Node) -> str:  # noqa: C901  (a table)
        match node:
            case Primitive(logical="decimal") | Fixed(logical="decimal"):
                return f"Annotated[Decimal, Digits({node.precision}, {node.scale})]"
            case Primitive(kind="int", logical="date"):
                return "date"
            case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
                is_number = logical.endswith("nanos") and self.keeps_nanoseconds
                return "int" if is_number else "datetime"
            case Primitive(kind="null"):
                return "None"
            case Primitive(kind=kind):
                return str(SIMPLE[kind].__name__)
            case Fixed(logical="uuid"):
                return "str"
            case Fixed():
                return "bytes"
            case Choice(symbols=symbols):
                return f"Literal[{', '.join(map(repr, symbols))}]".replace("'", '"')
            case Array(items=items):
                return f"list[{self.type_of(items)}]"
            case Map(values=values):
                return f"dict[str, {self.type_of(values)}]"
            case Union(branches=branches):
                inner = present(node)
                if isinstance(inner, Union):
                    if not all(isinstance(each, Record) for each in inner.branches_with_values):
                        raise SchemaError("a union with types that are not records has no class")
                    return " | ".join(self.type_of(branch) for branch in branches)
                null = " | None" if _NULL in branches else ""
                return f"{self.type_of(inner)}{null}"
            case Record():
                if node.short_name not in self.classes:
                    self.classes[node.short_name] = ""
                    body = [self._field(each) for each in node.fields] or ["    pass"]
                    head = f"class {node.short_name}(msgspec.Struct, kw_only=True):"
                    # A class must come after the classes of its fields.
                    del self.classes[node.short_name]
                    self.classes[node.short_name] = "\n".join([head, *body]) + "\n"
                return node.short_name

    def _field(self, each: Field) -> str:
        name = identifier(each.name)
        text = f"    {name}: {self.type_of(each.type)}"
        default = ""
        if each.default is not NO_DEFAULT and (each.default in ([], {}) or _is_plain(each)):
            default = repr(each.default)
        if name == each.name:
            return f"{text} = {default}" if default else text
        options = f"default={default}, " if default else ""
        return f"{text} = msgspec.field({options}name={each.name!r})"


def _is_plain(each: Field) -> bool:
    """Return whether a schema's default has the same notation in Python."""
    if isinstance(each.default, str):
        return each.type in (Primitive("string"), Primitive("string", "uuid")) or isinstance(
            present(each.type), Choice
        )
    return not isinstance(each.default, dict | list)
