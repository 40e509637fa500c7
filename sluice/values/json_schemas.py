"""Parses JSON Schemas to trees of nodes, as far as they name the types of a contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from sluice.values.avro_schemas import (
    NO_DEFAULT,
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
from sluice.values.registered_schemas import ReferredSchema

_NULL = Primitive("null")
_PRIMITIVES = {
    "null": _NULL,
    "boolean": Primitive("boolean"),
    "integer": Primitive("long"),
    "number": Primitive("double"),
    "string": Primitive("string"),
}
_FORMATS = {
    "date-time": Primitive("long", "timestamp-micros"),
    "date": Primitive("int", "date"),
}
"""Format of a string → the node with the same type in a contract."""
_MOST_DIGITS = 38


def parse_json_schema(text: str, references: Iterable[ReferredSchema] = ()) -> Node:
    """Parse a schema. Raises SchemaError for one that has no type in SQL.

    `references` are the schemas to which it refers.
    """
    try:
        documents = {each.name: json.loads(each.text) for each in references}
        parsed = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"the schema is invalid: {error}") from None
    for document in [*documents.values()]:
        address = identifier_of(document)
        if address:
            documents[address] = document
    base = identifier_of(parsed)
    parser = _Parser({**documents, base: parsed}, [(base, "")])
    return parser.parse(parsed, base, "$", "Value")


def identifier_of(schema: Any) -> str:
    """Return the address in a schema's own identifier; empty if it has none."""
    identifier = schema.get("$id", "") if isinstance(schema, dict) else ""
    return urldefrag(identifier).url if isinstance(identifier, str) else ""


@dataclass
class _Parser:
    documents: dict[str, Any]
    """Name or address → schema. A schema without an address has the empty address."""
    within: list[tuple[str, str]]
    """The places that are being parsed, each with its document. They reveal a schema that contains
    itself."""
    records: dict[str, Record] = field(default_factory=dict)

    def parse(  # noqa: C901  (a table)
        self, schema: Any, base: str, path: str, name: str
    ) -> Node:
        """Return the node of a schema that is part of the document with the address `base`.

        `name` is the name of the schema's record, unless the schema has a title.
        """
        match schema:
            case True | {} if not schema or schema is True:
                return Primitive("any")
            case {"$ref": str(reference)}:
                return self._referred(reference, base, path)
            case {"const": constant}:
                return _choice([constant], path, name)
            case {"enum": list(values)}:
                return _choice(values, path, name)
            case {"oneOf": list(branches)} | {"anyOf": list(branches)}:
                return self._union(branches, base, path, name)
            case {"allOf": [only]}:
                return self.parse({**_without(schema, "allOf"), **only}, base, path, name)
            case {"allOf": list(parts)}:
                return self._merged(schema, parts, base, path, name)
            case {"type": list(kinds)}:
                branches = [{**schema, "type": kind} for kind in kinds]
                return self._union(branches, base, path, name)
            case {"type": "object"} | {"properties": dict()}:
                return self._object(schema, base, path, name)
            case {"type": "array", "items": dict() | bool() as items}:
                return Array(self.parse(items, base, f"{path}[...]", name))
            case {"format": "decimal"}:
                return _decimal(schema, path)
            case {"type": "string", "format": str(kind)} if kind in _FORMATS:
                return _FORMATS[kind]
            case {"type": "string", "contentEncoding": "base64"}:
                return Primitive("bytes")
            case {"type": str(kind)} if kind in _PRIMITIVES:
                return _PRIMITIVES[kind]
            case dict() if "type" not in schema:
                return Primitive("any")
            case _:
                raise SchemaError(f"{path}: {json.dumps(schema)[:80]} has no type in SQL")

    def _referred(self, reference: str, base: str, path: str) -> Node:
        document, pointer = self._document(reference, base, path)
        if (document, pointer) in self.within:
            raise SchemaError(f"{path}: {reference} contains itself, and has no type in SQL")
        schema = self.documents[document]
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(key)] if isinstance(schema, list) else schema[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(f"{path}: the schema has no {reference}") from None
        self.within.append((document, pointer))
        last = pointer.rpartition("/")[2] or document.rpartition("/")[2].partition(".")[0]
        node = self.parse(schema, document, path, last or "Value")
        self.within.pop()
        return node

    def _document(self, reference: str, base: str, path: str) -> tuple[str, str]:
        """Return the document to which a reference refers, and the place within it."""
        bare, pointer = urldefrag(reference)
        if not bare:
            return base, pointer
        for name in (bare, urljoin(base, bare)):
            if name in self.documents:
                return name, pointer
        raise SchemaError(
            f"{path}: {reference} is neither in the schema nor a reference of it in the registry"
        )

    def _union(self, schemas: list[Any], base: str, path: str, name: str) -> Node:
        branches: list[Node] = []
        for each in schemas:
            node = self.parse(each, base, path, name)
            if node not in branches:
                branches.append(node)
        present = Union(tuple(branches)).branches_with_values
        if len(present) > 1:
            raise SchemaError(f"{path}: values of several types have no type in SQL")
        if not present:
            raise SchemaError(f"{path}: a field that is always null has no type in SQL")
        if len(present) == len(branches):
            return present[0]
        return Union((_NULL, *present))

    def _merged(
        self, schema: dict[str, Any], parts: list[Any], base: str, path: str, name: str
    ) -> Node:
        """Return a record with the fields of all parts of an `allOf`."""
        if "properties" in schema:
            parts = [*parts, _without(schema, "allOf")]
        fields: dict[str, Field] = {}
        for part in parts:
            node = self.parse(part, base, path, name)
            if not isinstance(node, Record):
                raise SchemaError(f"{path}: Sluice reads allOf only if all its parts are objects")
            for each in node.fields:
                fields[each.name] = each
        return self._record(_name(schema, name), tuple(fields.values()))

    def _record(self, name: str, fields: tuple[Field, ...]) -> Record:
        """Return a record whose name no other record has."""
        free, number = name, 1
        while True:
            record = Record(free, fields)
            if self.records.setdefault(free, record) == record:
                return record
            number += 1
            free = f"{name}{number}"

    def _object(self, schema: dict[str, Any], base: str, path: str, name: str) -> Node:
        properties = schema.get("properties")
        if not properties:
            entries = schema.get("additionalProperties", True)
            return Map(self.parse(entries, base, f"{path}[...]", name))
        required = schema.get("required", ())
        fields: list[Field] = []
        for key, each in properties.items():
            node = self.parse(each, base, f"{path}.{key}", _capitalized(key))
            default: Any = NO_DEFAULT
            if isinstance(each, dict):
                default = each.get("default", NO_DEFAULT)
            is_nested = isinstance(default, dict | list) and bool(default)
            if key not in required and (default is NO_DEFAULT or is_nested):
                default = None
            if default is None and not isinstance(node, Union):
                node = Union((_NULL, node))
            fields.append(Field(key, node, default))
        return self._record(_name(schema, name), tuple(fields))


def _without(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: each for name, each in schema.items() if name != key}


def _name(schema: dict[str, Any], name: str) -> str:
    """Return the name of a record: the last part of the title, or the name of its place."""
    title = schema.get("title")
    if isinstance(title, str):
        name = title.rpartition(".")[2]
    bare = re.sub(r"\W+", "_", name).strip("_")
    if not re.match(r"[^\W\d]", bare):
        return f"Value{bare}"
    return bare


def _capitalized(key: str) -> str:
    return key[:1].upper() + key[1:]


def _choice(values: list[Any], path: str, name: str) -> Node:
    """Return the node for a schema that lists its allowed values."""
    present = [value for value in values if value is not None]
    kinds = set(map(type, present))
    if kinds == {str}:
        node: Node = Choice(_capitalized(name), tuple(present))
    elif kinds == {int}:
        node = Primitive("long")
    elif kinds == {bool}:
        node = Primitive("boolean")
    else:
        raise SchemaError(f"{path}: {json.dumps(values)[:80]} have no common type in SQL")
    if len(present) == len(values):
        return node
    return Union((_NULL, node))


def _decimal(schema: dict[str, Any], path: str) -> Node:
    """Return the node of a decimal. Sluice writes a decimal's digits beside its format."""
    precision, scale = schema.get("precision"), schema.get("scale")
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise SchemaError(f"{path}: the schema does not say how many digits a decimal has")
    if not 0 <= scale <= precision <= _MOST_DIGITS:
        raise SchemaError(f"{path}: a decimal has at most {_MOST_DIGITS} digits in SQL")
    return Primitive("bytes", "decimal", precision, scale)
