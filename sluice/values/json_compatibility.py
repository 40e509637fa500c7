"""Decides whether JSON with a given schema can be read by a contract."""

from __future__ import annotations

from msgspec import inspect

from sluice.values.avro_schemas import (
    NO_DEFAULT,
    Array,
    Choice,
    Field,
    Map,
    Node,
    Primitive,
    Record,
    may_be_null,
    present,
)
from sluice.values.contract_parts import digits_of
from sluice.values.contracts import ObjectType, members_of, type_info
from sluice.values.stored_values import JsonText

_NUMBERS = frozenset({"long", "double"})
_TEXTS = frozenset({"string", "bytes"})


def json_problem(node: Node, contract: object) -> str:
    """Return why values of a schema may violate a contract; empty if no reason is known.

    A schema says less than a contract: for example, it may not name the form of a text. So this
    compares only the properties that the schema has.
    """
    return _problem(node, type_info(contract), "$")


def _problem(node: Node, declared: inspect.Type, path: str) -> str:
    if isinstance(declared, inspect.UnionType):
        members = members_of(declared)
        if len(members) != 1:
            return ""
        return _problem(present(node), members[0], path)
    if may_be_null(node) and not isinstance(declared, inspect.NoneType):
        return f"{path}: the schema allows null, and the contract does not"
    if node == Primitive("any") or getattr(declared, "cls", None) is JsonText:
        return ""
    match declared, node:
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType(), Record():
            return _problem_of_fields(node, declared, path)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType(), Array(items=items):
            return _problem(items, declared.item_type, f"{path}[...]")
        case inspect.DictType(), Map(values=values):
            return _problem(values, declared.value_type, f"{path}[...]")
        case inspect.DictType(), Record():
            return ""
    wanted, given = _form(declared), _form_of_node(node)
    if wanted in ("", given) or not given:
        return ""
    return f"{path}: the schema has {given}, and the contract {wanted}"


def _problem_of_fields(node: Record, kind: ObjectType, path: str) -> str:
    by_name: dict[str, Field] = {each.name: each for each in node.fields}
    for each in kind.fields:
        place = f"{path}.{each.encode_name}"
        field = by_name.get(each.encode_name)
        if field is None:
            if each.required:
                return f"{place}: the contract requires this field, but the schema lacks it"
            continue
        if each.required and field.default is not NO_DEFAULT:
            return f"{place}: the contract requires this field, but the schema does not"
        # That a property may be missing does not mean that it may be null.
        inner = present(field.type) if field.default is None else field.type
        problem = _problem(inner, each.type, place)
        if problem:
            return problem
    return ""


def _form(declared: inspect.Type) -> str:
    """Return the JSON form of a type's values; empty if they have several forms."""
    match declared:
        case inspect.Metadata() if digits_of(declared) is not None:
            return ""
        case inspect.Metadata():
            return _form(declared.type)
        case inspect.IntType() | inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "a bool"
        case inspect.StrType() | inspect.BytesType() | inspect.DateType():
            return "a text"
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            return "a list"
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            return "an object"
        case inspect.DictType():
            return "an object"
        case _:
            return ""


def _form_of_node(node: Node) -> str:
    match node:
        case Primitive(logical="decimal"):
            return "a number"
        case Primitive(logical=logical) if logical:
            return "a text"
        case Primitive(kind=kind) if kind in _NUMBERS:
            return "a number"
        case Primitive(kind="boolean"):
            return "a bool"
        case Primitive(kind=kind) if kind in _TEXTS:
            return "a text"
        case Choice():
            return "a text"
        case Array():
            return "a list"
        case Map() | Record():
            return "an object"
        case _:
            return ""
