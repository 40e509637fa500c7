"""How operators keep their states, and write their results: nothing is guessed, what cannot be written raises."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from sluice.operators.exact import Exact

IMMUTABLE = frozenset(
    {int, float, str, bool, type(None), bytes, Decimal, datetime, date, time, timedelta, UUID},
)
"""Types whose values nobody can change in place."""

_encode_json = msgspec.json.Encoder(decimal_format="number").encode


def to_json(value: Any) -> str:
    """JSON text. Raises ValueError where it would not say what the value is: for NaN and infinity."""
    data = _encode_json(value)
    # msgspec writes NaN and infinity as null; of Decimals it writes the names.
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


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Exact):
        return value.to_bytes()
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Exact:
        return Exact.from_bytes(value)
    raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")


encode_state: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
"""A state, or a part of one, as bytes."""


def state_decoder(kind: Any) -> Callable[[bytes], Any]:
    """What makes a state of that type of its bytes."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook).decode
