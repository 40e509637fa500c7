"""Serdes: how a topic's values are read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, Generic, TypeAlias, TypeVar

from sluice.values import contracts
from sluice.values.shapes import Shape

V = TypeVar("V")


Contract: TypeAlias = type | UnionType
"""A type of values."""


@dataclass(frozen=True)
class Serde(Generic[V]):
    """Decodes a topic's bytes to values of type `contract`, and encodes values: as JSON, or a str as plain text.

    `decode` converts a record's bytes to a value; if it raises an error, the record becomes a dead letter. `encode`
    converts a value to bytes, for sinks.
    """

    contract: type[V] | UnionType
    decode: Callable[[bytes], V] | None = None
    encode: Callable[[Any], bytes] | None = None

    @property
    def is_text(self) -> bool:
        return self.contract is str

    @property
    def name(self) -> str:
        return contracts.name_of(self.contract)


Value: TypeAlias = type[V] | UnionType | Serde[V]
"""The type of a topic's values: a msgspec Struct, a dataclass, a TypedDict, a union of tagged Structs, `str`, or a
Serde."""


def serde_of(value: Value[V]) -> Serde[V]:
    return value if isinstance(value, Serde) else Serde(value)


def shape_of(contract: Contract | None) -> Shape:
    """The shape of a value of type `contract`."""
    if contract is None:
        return Shape.single()
    if contracts.has_fields(contract):
        shape = Shape(contracts.fields(contract))
    else:
        shape = Shape.single(contracts.sql_type(contract))
    contracts.require_importable(contract)
    return shape
