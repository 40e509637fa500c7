"""Serdes: how a topic's values are read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, Generic, TypeAlias, TypeVar

from sluice.errors import TopologyError
from sluice.values import contracts
from sluice.values.change_values import Change, DebeziumEnvelope, encode_debezium, row_type
from sluice.values.shapes import Shape

V = TypeVar("V")


Contract: TypeAlias = type | UnionType
"""The declared type of values: a class, or a union of classes."""


@dataclass(frozen=True)
class Serde(Generic[V]):
    """A format of values of type `contract`.

    By default, values are JSON, and a str or bytes are written as they are.

    For a source, `decode` converts the bytes of a record's value to a value of the type. `decode`
    may take the record's `Headers` as a second parameter. If `decode` raises an error, `on_error`
    decides what happens to the record. For an output, `encode` converts a value to bytes.
    """

    contract: type[V] | UnionType
    decode: Callable[..., V] | None = None
    encode: Callable[[Any], bytes] | None = None

    @property
    def is_text(self) -> bool:
        return self.contract is str

    @property
    def is_bytes(self) -> bool:
        """Whether values are bytes, which are read and written as they are."""
        return contracts.is_bytes(self.contract) and self.decode is None

    @property
    def name(self) -> str:
        return contracts.name_of(self.contract)


Value: TypeAlias = type[V] | UnionType | Serde[V]
"""The type of a topic's values: a msgspec Struct, a dataclass, a TypedDict, a pydantic model, a
union of tagged Structs or of models, `str`, `bytes`, `Any` for JSON of any form, or a Serde."""


def debezium(changes: type[Change[V]]) -> Serde[Change[V]]:
    """Return a serde of changes in Debezium's JSON, with or without its schema.

    `changes` is a class for the type of the rows, such as `class ShopChange(Change[Shop]): pass`.
    Rows are decoded like the values of other topics. Values are written without the schema. `old`
    is None if the database sends only the key of the old row, or too few columns for the type.
    """
    if not (isinstance(changes, type) and issubclass(changes, Change)):
        raise TopologyError(
            f"debezium({contracts.name_of(changes)}): expected a class of changes.",
            next_step="Declare a class with the type of the rows: "
            "class ShopChange(Change[Shop]): pass.",
        )
    row_type(changes)
    return Serde(changes, decode=DebeziumEnvelope(changes), encode=encode_debezium)


def serde_of(value: Value[V]) -> Serde[V]:
    if isinstance(value, Serde):
        return value
    return Serde(value)


def shape_of(contract: Contract | None) -> Shape:
    """Return the shape of a value of type `contract`."""
    if contract is None:
        return Shape.single()
    if contract is Any:
        raise TopologyError(
            "Any is a type only of topics' values and of fields.",
            next_step="Leave it out: without a declared type, values are plain JSON data.",
        )
    return topic_shape(contract)


def topic_shape(contract: Contract) -> Shape:
    """Return the shape of a topic's values of type `contract`, which may be Any."""
    if contracts.has_fields(contract):
        shape = Shape(contracts.fields(contract))
    else:
        shape = Shape.single(contracts.sql_type(contract))
    contracts.require_importable(contract)
    return shape
