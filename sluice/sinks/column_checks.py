"""Checks that a record's value fits the type of a column without being rounded or truncated.

Values are decoded JSON with numbers as `int` or `Decimal`. Each check returns the value to store,
and raises ValueError with the reason if the value does not fit.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

decode = msgspec.json.Decoder(float_hook=Decimal).decode
"""Decodes JSON without losing digits of its numbers."""

_NANOSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
"""Matches a fraction of a second that Python's `datetime` would truncate."""


@contextmanager
def naming_column(name: str, type_: str, json: bytes) -> Iterator[None]:
    """Add the column and the value to the error that a check raises."""
    try:
        yield
    except (ValueError, OverflowError, InvalidOperation) as error:
        value = json.decode()
        if len(value) > 100:
            value = f"{value[:100]}…"
        raise ValueError(f"column {name} ({type_}): {error}: {value}") from None


def require_length(value: Any, most: int | None) -> None:
    """Raise ValueError if the value is a text with more than `most` characters."""
    if most is not None and value is not None and len(value) > most:
        raise ValueError(f"is longer than {most} characters")


def to_integer(value: Any, bound: int) -> int:
    """Return a whole number from -bound to bound - 1."""
    # `isinstance` would accept true and false, whose type is a subclass of int.
    if type(value) is not int:
        raise ValueError("is not a whole number")
    if not -bound <= value < bound:
        raise ValueError("is out of range")
    return value


def to_number(value: Any) -> Decimal:
    """Return a finite number."""
    if type(value) not in (int, Decimal):
        raise ValueError("is not a number")
    return Decimal(value)


def to_decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Return a number of at most `precision` digits, `scale` of them after the point."""
    held = to_number(value)
    if not held:
        return Decimal(0)
    sign, digits, exponent = held.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).rstrip("0")
    zeros = len(digits) - len(significant)
    if -(exponent + zeros) > scale:
        raise ValueError(f"has more than {scale} decimal places")
    if held.adjusted() >= precision - scale:
        raise ValueError("is out of range")
    # Remove trailing zeros, because Arrow counts them as digits, and rejects a number with too many
    # digits.
    return Decimal((sign, digits[: len(digits) - zeros], exponent + zeros))


def to_double(value: Any) -> float:
    """Return a number as a float of 64 bits.

    Raises ValueError if it is out of range, or an integer that would lose digits.
    """
    held = float(to_number(value))
    if math.isinf(held) or (held == 0 and value != 0):
        raise ValueError("is out of range")
    # An integer may have more digits than a float can hold.
    if type(value) is int and int(held) != value:
        raise ValueError("has too many digits")
    return held


def to_single(value: Any) -> float:
    """Return a number that fits a float of 32 bits."""
    held = to_double(value)
    if math.isfinite(held) and held != 0:
        # A larger number would become infinite in 32 bits, and a smaller number would become 0.
        if not 1e-45 <= abs(held) <= 3.4028235e38:
            raise ValueError("is out of range")
    if type(value) is int:
        (packed,) = struct.unpack("f", struct.pack("f", value))
        if int(packed) != value:
            raise ValueError("has too many digits")
    return held


def to_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is not a Boolean")
    return value


def to_text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("is not text")
    return value


def to_timestamp(value: Any, *, has_zone: bool) -> datetime:
    """Return a time, in UTC with `has_zone`, and otherwise without a time zone.

    A value with a zone is converted to UTC.
    """
    moment = datetime.fromisoformat(to_text(value))
    if _NANOSECONDS.search(value):
        raise ValueError("has more than 6 decimal places of a second")
    if moment.tzinfo is None:
        if has_zone:
            raise ValueError("has no time zone")
        return moment
    moment = moment.astimezone(UTC)
    return moment if has_zone else moment.replace(tzinfo=None)


def to_date(value: Any) -> date:
    return date.fromisoformat(to_text(value))


def to_bytes(value: Any) -> bytes:
    # Without `validate`, Python would skip invalid characters.
    return base64.b64decode(to_text(value), validate=True)
