"""How a topic's values are read and written: JSON that keeps to a contract, plain text, or an author's functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from sluice.errors import TopologyError
from sluice.values import contracts
from sluice.values.records import TEXT_FIELD


@dataclass(frozen=True)
class Serde:
    """Values of type `contract`, or text if that is `str`.

    `decode` makes such a value of a record's bytes, and raises whatever it likes for those that are none: they are set
    aside as dead letters, with what it says. `encode` makes a record's bytes of a value, for sinks.
    """

    contract: type
    decode: Callable[[bytes], Any] | None = None
    encode: Callable[[Any], bytes] | None = None

    @property
    def is_text(self) -> bool:
        """Whether the values are plain text."""
        return self.contract is str

    @property
    def name(self) -> str:
        """The contract in words."""
        return self.contract.__name__ if isinstance(self.contract, type) else str(self.contract)


Value: TypeAlias = type | Serde
"""What an author says of a topic's values: a msgspec Struct, `str`, or a Serde."""


def serde_of(value: Value) -> Serde:
    """The serde that an author means."""
    return value if isinstance(value, Serde) else Serde(value)


def fields_of(contract: type | None) -> dict[str, str]:
    """The fields of a value of this type, each with its Spark SQL type; of one that is no object just `value`."""
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
    """Whether values of this type have fields."""
    return isinstance(contract, type) and issubclass(contract, msgspec.Struct)
