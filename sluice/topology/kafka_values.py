"""The plain values and keys that Kafka's own serializers write: numbers, UUIDs, booleans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct, error
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

from sluice.errors import TopologyError
from sluice.topology.serdes import Serde

KafkaKind: TypeAlias = Literal["long", "integer", "short", "double", "float", "boolean", "uuid"]
_STRUCTS = {
    "long": Struct(">q"),
    "integer": Struct(">i"),
    "short": Struct(">h"),
    "double": Struct(">d"),
    "float": Struct(">f"),
    "boolean": Struct(">?"),
}
_TYPES: dict[str, Any] = {
    "long": int, "integer": int, "short": int, "double": float, "float": float, "boolean": bool,
    "uuid": str,
}  # fmt: skip


def kafka_value(kind: KafkaKind) -> Serde[Any]:
    """Return a serde of values as Kafka's `Serdes` write them, such as `kafka_value("long")`.

    Kafka's String and Bytes are `value=str` and `value=bytes`, and its Void is a null value.
    """
    _require_kind("kafka_value", kind)
    return Serde(_TYPES[kind], decode=KafkaDecoder(kind), encode=KafkaEncoder(kind))


def kafka_key(kind: KafkaKind) -> Callable[[Any], Any]:
    """Return a format of keys as Kafka's `Serdes` write them, for `key=` of a source or an output.

    Inside a pipeline, a key is a text: the digits of a number.
    """
    _require_kind("kafka_key", kind)
    return KafkaKey(kind)


def _require_kind(name: str, kind: object) -> None:
    if kind not in get_args(KafkaKind):
        raise TopologyError(
            f"{name}({kind!r}): there is no such type.",
            next_step=f"Write one of {', '.join(get_args(KafkaKind))}.",
        )


@dataclass(frozen=True)
class KafkaDecoder:
    kind: str

    def __call__(self, data: bytes) -> Any:
        if self.kind == "uuid":
            return str(UUID(data.decode()))
        try:
            (value,) = _STRUCTS[self.kind].unpack(data)
        except error:
            size = _STRUCTS[self.kind].size
            raise ValueError(f"expected {size} bytes for {self.kind}, got {len(data)}") from None
        return value


@dataclass(frozen=True)
class KafkaEncoder:
    kind: str

    def __call__(self, data: Any) -> bytes:
        if self.kind == "uuid":
            return str(UUID(data)).encode()
        expected = _TYPES[self.kind]
        value = data
        if expected is float and not isinstance(data, bool | str):
            value = float(data)
        if not isinstance(value, expected) or isinstance(value, bool) != (expected is bool):
            raise TypeError(f"{data!r} is not a valid {self.kind}")
        try:
            return _STRUCTS[self.kind].pack(value)
        except (error, OverflowError) as problem:
            raise ValueError(f"{data!r} is not a valid {self.kind}: {problem}") from None


@dataclass(frozen=True)
class KafkaKey:
    """Decodes the bytes of a key to a text, and encodes a text to the bytes of a key."""

    kind: str

    def __call__(self, key: bytes | str) -> str | bytes:
        if isinstance(key, bytes):
            value = KafkaDecoder(self.kind)(key)
            return str(value).lower() if self.kind == "boolean" else str(value)
        if self.kind == "uuid":
            return KafkaEncoder("uuid")(key)
        if self.kind == "boolean":
            return KafkaEncoder("boolean")({"true": True, "false": False}[key])
        return KafkaEncoder(self.kind)(_TYPES[self.kind](key))
