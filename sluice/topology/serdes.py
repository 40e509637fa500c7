"""Serdes: how a topic's values are read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from sluice.values import contracts
from sluice.values.shapes import Shape

V = TypeVar("V")


@dataclass(frozen=True)
class Serde(Generic[V]):
    """Decodes a topic's bytes to values of type `contract`, and encodes values: as JSON, or a str as plain text.

    `decode` converts a record's bytes to a value; if it raises an error, the record becomes a dead letter. `encode`
    converts a value to bytes, for sinks.
    """

    contract: type[V]
    decode: Callable[[bytes], V] | None = None
    encode: Callable[[Any], bytes] | None = None

    @property
    def is_text(self) -> bool:
        return self.contract is str

    @property
    def name(self) -> str:
        return self.contract.__name__ if isinstance(self.contract, type) else str(self.contract)


Value: TypeAlias = type[V] | Serde[V]
"""The type of a topic's values: a msgspec Struct, `str`, or a Serde."""


def serde_of(value: Value[V]) -> Serde[V]:
    return value if isinstance(value, Serde) else Serde(value)


def shape_of(contract: type | None) -> Shape:
    """The shape of a value of type `contract`. Only a Struct is an object with fields."""
    if contract is None:
        return Shape.single()
    is_object = isinstance(contract, type) and issubclass(contract, msgspec.Struct)
    shape = Shape(contracts.fields(contract)) if is_object else Shape.single(contracts.sql_type(contract))
    contracts.require_importable(contract)
    return shape
