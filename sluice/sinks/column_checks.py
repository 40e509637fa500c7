"""Checks that a value of a record fits the type of a table's column, without rounding or shortening.

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
"""A fraction of a second that Python's `datetime` shortens."""


@contextmanager
def column(name: str, type_: str, json: bytes) -> Iterator[None]:
    """Add the column and the value to the errors of checks."""
    try:
        yield
    except (ValueError, OverflowError, InvalidOperation) as error:
        value = json.decode()
        shown = value if len(value) <= 100 else f"{value[:100]}…"
        raise ValueError(f"column {name} ({type_}): {error}: {shown}") from None


def length(value: Any, most: int | None) -> Any:
    """Return the text, if it has at most `most` characters."""
    if most is not None and value is not None and len(value) > most:
        raise ValueError(f"is longer than {most} characters")
    return value


def integer(value: Any, bound: int) -> int:
    """Return a whole number from -bound to bound - 1."""
    # `isinstance` would accept true and false, whose type is a subclass of int.
    if type(value) is not int:
        raise ValueError("is not a whole number")
    if not -bound <= value < bound:
        raise ValueError("is out of range")
    return value


def number(value: Any) -> Decimal:
    """Any finite number."""
    if type(value) not in (int, Decimal):
        raise ValueError("is not a number")
    return Decimal(value)


def decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Return a number of at most `precision` digits, `scale` of them after the point."""
    held = number(value)
    if not held:
        return Decimal(0)
    sign, digits, exponent = held.as_tuple()
    assert isinstance(exponent, int)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    if -(exponent + zeros) > scale:
        raise ValueError(f"has more than {scale} decimal places")
    if held.adjusted() >= precision - scale:
        raise ValueError("is out of range")
    # Arrow counts zeros at the end as digits, and rejects a number with too many digits, so such
    # zeros are removed.
    return Decimal((sign, digits[: len(digits) - zeros], exponent + zeros))


def double(value: Any) -> float:
    """Return a number that a float of 64 bits can hold."""
    held = float(number(value))
    if math.isinf(held) or (held == 0 and value != 0):
        raise ValueError("is out of range")
    # An integer field may have a number with more digits than a float holds.
    if type(value) is int and int(held) != value:
        raise ValueError("has too many digits")
    return held


def single(value: Any) -> float:
    """Return a number that a float of 32 bits can hold."""
    held = double(value)
    # A larger number would become infinite in 32 bits, and a smaller number would become 0.
    if math.isfinite(held) and (abs(held) > 3.4028235e38 or (held != 0 and abs(held) < 1e-45)):
        raise ValueError("is out of range")
    if type(value) is int and int(struct.unpack("f", struct.pack("f", value))[0]) != value:
        raise ValueError("has too many digits")
    return held


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is not a Boolean")
    return value


def text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("is not text")
    return value


def timestamp(value: Any, *, has_zone: bool) -> datetime:
    """Return a moment. With `has_zone`, it has the time zone UTC.

    Without `has_zone`, it has no time zone. A value with a zone is converted to UTC.
    """
    moment = datetime.fromisoformat(text(value))
    if _NANOSECONDS.search(value):
        raise ValueError("has more than 6 decimal places of a second")
    if moment.tzinfo is None:
        if has_zone:
            raise ValueError("has no time zone")
        return moment
    moment = moment.astimezone(UTC)
    return moment if has_zone else moment.replace(tzinfo=None)


def day(value: Any) -> date:
    return date.fromisoformat(text(value))


def binary(value: Any) -> bytes:
    # Without `validate`, Python would skip invalid characters.
    return base64.b64decode(text(value), validate=True)
