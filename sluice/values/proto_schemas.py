"""Parses the text of Protobuf's schemas, and writes the schema that follows from a contract.

Registries have schemas as text. Of the grammar of proto2 and proto3, only messages and enums are
read. Options, services, extensions and reserved names are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import inspect

from sluice.errors import TopologyError
from sluice.values.avro_schemas import SchemaError
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
from sluice.values.epochs import unit_of
from sluice.values.stored_values import JsonText

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<word>\.?[A-Za-z_][\w.]*|[-+]?(?:0[xX][0-9a-fA-F]+|\d[\w.+-]*))|(?P<sign>[{}\[\]<>()=;,:-])""",
    re.DOTALL,
)
TIMESTAMP = "google.protobuf.Timestamp"


@dataclass
class ProtoField:
    name: str
    type: str
    """A scalar type, or the name of a message or an enum as in the schema's text."""
    number: int
    label: Literal["", "optional", "required", "repeated"] = ""
    key: str = ""
    """The type of a map's keys; empty for other fields."""
    oneof: str = ""
    default: str | None = None


@dataclass
class ProtoEnum:
    name: str
    values: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class ProtoMessage:
    name: str
    fields: list[ProtoField] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)


@dataclass
class ProtoFile:
    syntax: str = "proto2"
    package: str = ""
    imports: list[str] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)


def parse_proto(text: str) -> ProtoFile:
    """Parse a schema. Raises SchemaError."""
    try:
        return _Parser([*_tokens(text)]).file()
    except (IndexError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"the schema is not a Protobuf schema: {error}") from None


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaError(f"the schema has an unexpected character: {text[at : at + 20]!r}")
        at = match.end()
        token = match["text"] or match["word"] or match["sign"]
        if token:
            yield token


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def file(self) -> ProtoFile:
        file = ProtoFile()
        while self._at < len(self._tokens):
            match self._next():
                case "syntax":
                    self._expect("=")
                    file.syntax = self._next().strip("\"'")
                    self._expect(";")
                case "package":
                    file.package = self._next()
                    self._expect(";")
                case "import":
                    name = self._next()
                    if name in ("public", "weak"):
                        name = self._next()
                    file.imports.append(name.strip("\"'"))
                    self._expect(";")
                case "message":
                    file.messages.append(self._message())
                case "enum":
                    file.enums.append(self._enum())
                case "option":
                    self._skip_statement()
                case "service" | "extend":
                    self._skip_block()
                case ";":
                    pass
                case token:
                    raise SchemaError(f"the schema has an unexpected {token!r}")
        return file

    def _message(self) -> ProtoMessage:
        message = ProtoMessage(self._next())
        self._expect("{")
        self._fields(message, "")
        return message

    def _fields(self, message: ProtoMessage, oneof: str) -> None:
        """Read a message or a oneof up to its closing bracket."""
        while (token := self._next()) != "}":
            match token:
                case "message":
                    message.messages.append(self._message())
                case "enum":
                    message.enums.append(self._enum())
                case "oneof":
                    name = self._next()
                    self._expect("{")
                    self._fields(message, name)
                case "option" | "reserved" | "extensions":
                    self._skip_statement()
                case "extend":
                    self._skip_block()
                case "map":
                    message.fields.append(self._map())
                case "optional" | "required" | "repeated":
                    message.fields.append(self._field(self._next(), token, oneof))
                case ";":
                    pass
                case _:
                    message.fields.append(self._field(token, "", oneof))

    def _field(self, kind: str, label: Any, oneof: str) -> ProtoField:
        if kind == "group":
            raise SchemaError("Sluice cannot read groups of proto2")
        name = self._next()
        self._expect("=")
        made = ProtoField(name, kind, int(self._next(), 0), label, oneof=oneof)
        made.default = self._options()
        return made

    def _map(self) -> ProtoField:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._next()
        self._expect("=")
        made = ProtoField(name, value, int(self._next(), 0), "repeated", key=key)
        self._options()
        return made

    def _options(self) -> str | None:
        """Read a field's options up to its semicolon. Return its default."""
        default: str | None = None
        while (token := self._next()) != ";":
            if token == "default":
                self._expect("=")
                default = self._next()
        return default

    def _enum(self) -> ProtoEnum:
        enum = ProtoEnum(self._next())
        self._expect("{")
        while (token := self._next()) != "}":
            if token in ("option", "reserved"):
                self._skip_statement()
            elif token != ";":
                self._expect("=")
                enum.values.append((token, int(self._next(), 0)))
                self._options()
        return enum

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise SchemaError("the schema ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        token = self._next()
        if token != sign:
            raise SchemaError(f"the schema has {token!r} where {sign!r} is expected")

    def _skip_statement(self) -> None:
        depth = 0
        while (token := self._next()) != ";" or depth:
            depth += (token == "{") - (token == "}")

    def _skip_block(self) -> None:
        depth = 0
        while True:
            token = self._next()
            depth += (token == "{") - (token == "}")
            if token == "}" and not depth:
                return


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def proto_of_contract(contract: Any, package: str = "") -> str:
    """Return the schema of a contract's values in proto3, with fields numbered in their order.

    Raises TopologyError if a part of the contract has no type in Protobuf.
    """
    sql_type(contract)
    kind = type_info(contract)
    if not isinstance(kind, ObjectType):
        raise TopologyError(
            f"{name_of(contract)} is not a class with fields, which Protobuf needs.",
            next_step="Declare a class with the value as a field.",
        )
    deriving = _Deriving()
    deriving.message(kind, name_of(contract))
    head = ['syntax = "proto3";']
    if package:
        head.append(f"package {package};")
    if deriving.has_times:
        head.append('import "google/protobuf/timestamp.proto";')
    # The message of the values must come first, because the wire format refers to messages by
    # number.
    return "\n".join([*head, *reversed(deriving.messages.values())]) + "\n"


@dataclass
class _Deriving:
    messages: dict[str, str] = field(default_factory=dict)
    has_times: bool = False

    def message(self, kind: ObjectType, where: str) -> str:
        name = re.sub(r"\W+", "_", kind.cls.__name__).strip("_")
        if name in self.messages:
            return name
        lines: list[str] = []
        for number, each in enumerate(kind.fields, 1):
            place = f"{where}.{each.encode_name}"
            if not _NAME.fullmatch(each.encode_name):
                raise TopologyError(
                    f"{place}: this is not a valid name in Protobuf.",
                    next_step="Rename the field: use letters, digits and _, and do not begin "
                    "with a digit.",
                )
            lines.append(f"  {self._declared(each.type, place)} {each.encode_name} = {number};")
        self.messages[name] = "\n".join([f"message {name} {{", *lines, "}"])
        return name

    def _declared(self, kind: inspect.Type, where: str) -> str:
        if isinstance(kind, inspect.UnionType):
            members = members_of(kind)
            if len(members) == 1:
                inner = self._declared(members[0], where)
                if inner.startswith(("repeated ", "map<")):
                    return inner
                return f"optional {inner}"
            if variants(kind):
                raise _missing(where, "a union of classes")
        match kind:
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
                return f"repeated {self._single(kind.item_type, where)}"
            case inspect.DictType():
                return f"map<string, {self._single(kind.value_type, where)}>"
            case _:
                return self._single(kind, where)

    def _single(self, kind: inspect.Type, where: str) -> str:
        if digits_of(kind) is not None:
            return "string"
        if isinstance(kind, inspect.StructType) and kind.cls is JsonText:
            raise _missing(where, "Any")
        match kind:
            case inspect.Metadata() if unit_of(kind.extra) is None:
                return self._single(kind.type, where)
            case inspect.Metadata() | inspect.DateTimeType():
                self.has_times = True
                return TIMESTAMP
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                return self.message(kind, where)
            case inspect.LiteralType() | inspect.EnumType():
                return "int64" if choice_type(kind) is int else "string"
            case inspect.IntType():
                return "int64"
            case inspect.FloatType():
                return "double"
            case inspect.BoolType():
                return "bool"
            case inspect.StrType() | inspect.DateType():
                return "string"
            case inspect.BytesType():
                return "bytes"
            case _:
                raise _missing(where, type(kind).__name__.removesuffix("Type"))


def _missing(where: str, what: str) -> TopologyError:
    return TopologyError(
        f"{where}: {what} has no type in Protobuf.",
        next_step='Declare another type, or write with a schema of the registry: version="latest".',
    )
