"""Encodes operators' states as MessagePack and results as JSON. Values that cannot be encoded exactly raise errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from sluice.operators.exact_sums import Exact
from sluice.values.records import MOST_KEY_BYTES

IMMUTABLE = frozenset(
    {int, float, str, bool, type(None), bytes, Decimal, datetime, date, time, timedelta, UUID},
)
"""Types whose values cannot be modified in place."""

_encode_json = msgspec.json.Encoder(decimal_format="number").encode


def to_json(value: Any) -> str:
    """Encode as JSON text. Raises ValueError for NaN and infinity, which JSON cannot express."""
    data = _encode_json(value)
    # msgspec writes a float's NaN and infinity as null, and a Decimal's by name.
    if b"null" in data or b"NaN" in data or b"Infinity" in data:
        _require_finite(msgspec.to_builtins(value, builtin_types=(Decimal,), str_keys=True))
    return data.decode()


def _require_finite(value: Any) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} cannot be written as JSON")
        case Decimal() if not value.is_finite():
            raise ValueError(f"{value} cannot be written as JSON")
        case dict():
            for inner in value.values():
                _require_finite(inner)
        case list() | tuple() | set() | frozenset():
            for inner in value:
                _require_finite(inner)


def require_key(key: str) -> None:
    """Raise ValueError for a key that is too long or has no UTF-8 encoding."""
    if len(key) * 4 > MOST_KEY_BYTES or not key.isascii():
        size = len(key.encode())
        if size > MOST_KEY_BYTES:
            raise ValueError(f"the key has {size} bytes; a key has at most {MOST_KEY_BYTES}")


class Declared:
    """A type declared by an author. Later steps decode values as this type, so each value is checked against it."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(kind).decode if kind is not Any and kind is not None else None
        self._plain = kind if kind in IMMUTABLE else None

    def require(self, value: Any, text: str) -> None:
        """Raise unless the value's JSON text decodes as the type and its integers fit 64 bits."""
        if self._decode is None:
            return
        if type(value) is not self._plain:
            value = self._decode(text)
        if not _fits_64_bits(value):
            raise OverflowError(f"{text[:100]} contains an integer of more than 64 bits")


def _fits_64_bits(value: Any) -> bool:
    match value:
        case str() | float():
            return True
        case int():
            return -(1 << 63) <= value < 1 << 63
        case msgspec.Struct():
            return all(_fits_64_bits(getattr(value, name)) for name in value.__struct_fields__)
        case list() | tuple() | set() | frozenset():
            return all(map(_fits_64_bits, value))
        case dict():
            return all(map(_fits_64_bits, value.values()))
        case _:
            return True


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Exact):
        return value.to_bytes()
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Exact:
        return Exact.from_bytes(value)
    raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")


encode_state: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
"""Encode a state, or a part of it, as bytes."""


def state_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a decoder for states of type `kind`."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook).decode
