"""Serdes: how a topic's values are read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from sluice.errors import TopologyError
from sluice.values import contracts
from sluice.values.records import TEXT_FIELD

V = TypeVar("V")


@dataclass(frozen=True)
class Serde(Generic[V]):
    """How values of type `contract` are read from a topic and written to one: by default as JSON, a str as plain text.

    `decode` makes a value of a record's bytes; a record for which it raises an error becomes a dead letter. `encode`
    makes bytes of a value, for sinks.
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


def fields_of(contract: type | None) -> dict[str, str]:
    """The fields of such a value, each with its Spark SQL type; just `value` if it is not an object."""
    if contract is None:
        return {TEXT_FIELD: ""}
    if isinstance(contract, type) and issubclass(contract, msgspec.Struct):
        if "<locals>" in contract.__qualname__:
            raise TopologyError(
                f"The contract {contract.__qualname__} is defined in a function.",
                next_step="Define it in its module, where Spark's tasks can find it by name.",
            )
        return contracts.fields(contract)
    return {TEXT_FIELD: contracts.sql_type(contract)}


def is_object(contract: type | None) -> bool:
    return isinstance(contract, type) and issubclass(contract, msgspec.Struct)
