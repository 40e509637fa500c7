"""Converts values of contracts: from JSON, and to JSON data with every field and sorted sets, unlike msgspec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_origin

import msgspec
from msgspec import inspect

from sluice.values.contracts import types_within
from sluice.values.keys import sorted_items
from sluice.values.pydantic_models import has_models, stored_type, with_models


def value_decoder(kind: Any) -> Callable[[str | bytes], Any]:
    """The function that decodes JSON that Sluice has written, for an author's functions."""
    decode = msgspec.json.Decoder(stored_type(kind)).decode
    return (lambda text: with_models(decode(text))) if has_models(kind) else decode


def needs_plain_data(kind: Any) -> bool:
    """Whether msgspec may encode a value of this type differently from `plain_data`.

    msgspec omits the field names or the default values of some Structs, and encodes the items of a set in any order.
    """

    def differs(part: inspect.Type) -> bool:
        match part:
            case inspect.StructType(cls=cls, array_like=array_like):
                return array_like or (get_origin(cls) or cls).__struct_config__.omit_defaults
            case _:
                return isinstance(part, inspect.SetType | inspect.FrozenSetType)

    return any(map(differs, types_within(kind)))


def has_dicts(kind: Any) -> bool:
    """Whether values of this type may contain dicts."""
    return any(isinstance(part, inspect.DictType) for part in types_within(kind))


def plain_data(value: Any) -> Any:
    """The value as plain data: a Struct becomes a dict of its tag and fields, a set a sorted list."""
    match value:
        case msgspec.Struct():
            fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            named = {name: plain_data(getattr(value, attribute)) for name, attribute in fields}
            config = value.__struct_config__
            return named if config.tag_field is None else {config.tag_field: config.tag, **named}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case list() | tuple():
            return [*map(plain_data, value)]
        # A set's order changes from process to process, but equal values need equal JSON.
        case set() | frozenset():
            return sorted_items(map(plain_data, value))
        case dict():
            return {name: plain_data(inner) for name, inner in value.items()}
        case _:
            return value
