"""Contracts for the cases' topics, made of the fields that each case has.

Spark's tasks find a contract by its name in this module, so the name contains the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from keyword import iskeyword
from types import NoneType
from typing import Any, TypeAlias

import msgspec

Kind: TypeAlias = "str | list[Any] | dict[str, Any] | None"
"""A value's type as JSON: `int`, `float`, `bool`, `str`, a list of its element's type, an object of its fields; None if
unknown.
"""

_NAMES = {bool: "bool", int: "int", float: "float", str: "str", NoneType: None}
_TYPES: dict[str | None, Any] = {"bool": bool, "int": int, "float": float, "str": str, None: int}
_PREFIX = "Fields_"
_UNSEEN = {"n": "int", "g": "str"}
"""The types of the cases' fields."""


def kind_of(values: Iterable[Any]) -> Kind:
    """The type that all values have."""
    kind: Kind = None
    for value in values:
        kind = _common(kind, _kind(value))
    return kind


def contract(kind: Kind) -> Any:
    """The type of a topic's values: a Struct if they are objects."""
    if isinstance(kind, dict):
        return _struct(_PREFIX + json.dumps(kind).encode().hex())
    return list[contract(kind[0]) | None] if isinstance(kind, list) else _TYPES[kind]  # type: ignore[misc]


def __getattr__(name: str) -> Any:
    if name.startswith(_PREFIX):
        return _struct(name)
    raise AttributeError(name)


@cache
def _struct(name: str) -> type[msgspec.Struct]:
    fields: Mapping[str, Kind] = json.loads(bytes.fromhex(name.removeprefix(_PREFIX)))
    # A field can have the name of a keyword, such as `from`, but an attribute cannot.
    attributes = {field: f"{field}_" if iskeyword(field) else field for field in fields}
    declared = [(attributes[field], contract(kind) | None, None) for field, kind in fields.items()]
    names = {attribute: field for field, attribute in attributes.items()}
    return msgspec.defstruct(name, declared, module=__name__, rename=names)


def _kind(value: Any) -> Kind:
    if isinstance(value, dict):
        return {name: _kind(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [kind_of(value)]
    return _NAMES[type(value)]


def completed(kind: Kind, other: Kind) -> Kind:
    """The first type. Its unknown parts come from the second type, or are guessed from a field's name."""
    if isinstance(kind, dict):
        others = other if isinstance(other, dict) else {}
        return {
            name: completed(inner, others.get(name) or _UNSEEN.get(name))
            for name, inner in kind.items()
        }
    return other if kind is None else kind


def _common(one: Kind, other: Kind) -> Kind:
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _common(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_common(one[0], other[0])]
    if (one, other) in (("int", "float"), ("float", "int")):
        return "float"
    return other if one is None else one
