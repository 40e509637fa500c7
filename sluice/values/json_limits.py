"""Limits within which Spark reads JSON, and times in it, back exactly.

Beyond these limits, `from_json` returns null, and `parse_json` rounds a number or ends the run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Context, Decimal, Inexact, InvalidOperation, Rounded, localcontext
from typing import Any

from sluice.values.sql_types import MOST_DIGITS

LONGEST_NAME = 50_000
"""Maximum length of a name in an object, in UTF-16 code units, as Java counts."""
LONGEST_STRING = 20_000_000
"""Maximum length of a string, in UTF-16 code units."""
LONGEST_NUMBER = 1_000
"""Maximum length of a number."""
MOST_UNTYPED_BYTES = 40_000_000
"""Maximum size of JSON without a declared type.

Spark stores it in up to three times as many bytes, and can store at most 128 MiB.
"""
MOST_LEVELS = 100
"""Maximum nesting of arrays and objects. There is a maximum because the programs that read the JSON
later are recursive."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_COLON = re.compile(rb"\s*:")
_BRACKET = re.compile(rb"[\[\]{}]")
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*+")
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""The form of a number in JSON. Python's conversions also accept `1_000`, ` 5 `, digits of other
scripts, and NaN."""
_LARGEST_OFFSET = timedelta(hours=18)


def refuse_long_strings(text: bytes) -> None:
    """Raise ValueError if the JSON has a name or a string that is too long."""
    if len(text) <= LONGEST_NAME:
        return
    # Replace escaped quotation marks. All others begin or end a string, so a part after an odd
    # number of them is a string.
    plain = text
    if b"\\" in text:
        plain = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    for begin, end in _long_parts(plain):
        if plain.count(b'"', 0, begin) % 2:
            refuse_long(text[begin:end], is_name=_COLON.match(text, end + 1) is not None)


def _long_parts(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each part between quotation marks that is too long for a name."""
    begin = 0
    # To read few bytes, jump to the farthest place where a short part could end, and search
    # backwards.
    while len(text) - begin > LONGEST_NAME:
        quote = text.rfind(b'"', begin, begin + LONGEST_NAME + 1)
        if quote < 0:
            quote = text.find(b'"', begin)
            if quote < 0:
                return
            yield begin, quote
        begin = quote + 1


def refuse_long(string: bytes, *, is_name: bool = False, escaped: bool = True) -> None:
    """Raise ValueError if the string, in UTF-8 and without its quotation marks, is too long."""
    limit = LONGEST_STRING
    if is_name:
        limit = LONGEST_NAME
    if len(string) <= limit:
        return
    if escaped:
        text = json.loads(b'"%b"' % string, strict=False)
    else:
        text = string.decode()
    # Java's limits count UTF-16 code units.
    length = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if length > limit:
        what = "the name of a field" if is_name else "a string"
        raise ValueError(
            f"{what} has {length:,} characters; at most {limit:,} are possible: {text[:40]}…"
        )


def refuse_nesting(text: bytes) -> None:
    """Raise ValueError if the JSON is nested more than `MOST_LEVELS` deep."""
    if is_surely_shallow(text):
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_LEVELS:
            raise ValueError(f"nested more than {MOST_LEVELS} levels deep")


def is_surely_shallow(text: bytes) -> bool:
    """Return True if the JSON has too few brackets to be nested too deep."""
    return text.count(b"[") + text.count(b"{") <= MOST_LEVELS


def refuse_inexact_numbers(text: bytes) -> None:
    """Raise ValueError if the JSON has a number that Spark would round if no type is declared."""
    for number in _NUMBER.findall(_STRING.sub(b"", text)):
        if not _is_exact(number.decode()):
            shown = shortened(number.decode())
            raise ValueError(f"{shown} has too many digits; declare its type with Digits")


def _is_exact(number: str) -> bool:
    """Return whether Spark reads a number exactly.

    Spark reads a decimal, or a double if the number has an exponent or too many digits.
    """
    if len(number) > LONGEST_NUMBER:
        return False
    value = Decimal(number)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if "e" not in number.lower() and len(digits) <= MOST_DIGITS and -exponent <= MOST_DIGITS:
        return True
    return Decimal(repr(float(number))) == value


_ADD = Context(prec=200, traps=[Inexact, InvalidOperation])


class Amounts:
    """The decimals that fit a type DECIMAL(precision, scale)."""

    def __init__(self, precision: int, scale: int) -> None:
        self._name = f"decimal({precision},{scale})"
        self._scale = scale
        self._unit = Decimal((0, (1,), -scale))
        self._end = Decimal((0, (1,), precision - scale))
        self._unchanged = Context(prec=precision, traps=[Rounded, InvalidOperation])
        self._equal = Context(prec=precision, traps=[Inexact, InvalidOperation])

    def surely_include(self, amounts: Iterable[Decimal | None]) -> bool:
        """Return whether all amounts certainly fit, by their sum or by the largest amount.

        If the result is False, all amounts may still fit: call `require` for each of them. This
        method takes a quarter of the time that these calls take.
        """
        present = [*filter(None, amounts)]
        try:
            with localcontext(_ADD):
                total = sum(map(abs, present), Decimal(0))
        except ArithmeticError:
            return False
        exponent = total.as_tuple().exponent
        if not isinstance(exponent, int) or -exponent > self._scale:
            return False
        return total < self._end or max(map(abs, present)) < self._end

    def require(self, amount: Decimal, path: str) -> None:
        """Raise ValueError if the amount does not fit without rounding."""
        if not self._fits(amount):
            raise ValueError(f"{path}: {shortened(str(amount))} is not a {self._name}")

    def _fits(self, amount: Decimal) -> bool:
        try:
            return amount.quantize(self._unit, context=self._unchanged).is_finite()
        # The amount has more digits than fit. It still fits if the surplus digits are zeros, which
        # the next test checks.
        except Rounded:
            pass
        except InvalidOperation:
            return False
        try:
            amount.quantize(self._unit, context=self._equal)
        except ArithmeticError:
            return False
        return len(str(amount)) <= LONGEST_NUMBER


def require_finite(number: float | Decimal, path: str) -> None:
    """Raise ValueError for NaN and infinity, which do not exist in JSON."""
    if isinstance(number, Decimal):
        is_finite = number.is_finite()
    else:
        is_finite = math.isfinite(number)
    if not is_finite:
        where = ""
        if path != "$":
            where = f"{path}: "
        raise ValueError(f"{where}{number} cannot be written as JSON")


def require_all_finite(value: Any, path: str = "$") -> None:
    """Raise ValueError if plain data contain NaN or infinity."""
    match value:
        case float() | Decimal():
            require_finite(value, path)
        case dict():
            for name, inner in value.items():
                require_all_finite(inner, f"{path}.{name}")
        case list() | tuple() | set() | frozenset():
            for inner in value:
                require_all_finite(inner, f"{path}[...]")


def require_time(time: datetime, path: str, zone: tzinfo = UTC) -> None:
    """Raise ValueError if Spark cannot read the time, or write it in UTC with a four-digit year.

    `zone` is the time zone of a `time` that names no time zone.
    """
    # In the usual case, no conversion to another zone is needed.
    if 1 < time.year < 9999 and time.tzinfo is UTC:
        return
    zoned = time if time.tzinfo else time.replace(tzinfo=zone)
    if abs(zoned.utcoffset() or timedelta()) > _LARGEST_OFFSET:
        raise ValueError(f"{path}: {time.isoformat()} has an offset of more than 18 hours")
    try:
        zoned.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"{path}: {time.isoformat()} is outside the years 1 to 9999 in UTC"
        ) from None


def shortened(text: str, length: int = 40) -> str:
    """Return the text, cut to `length` characters."""
    if len(text) <= length:
        return text
    return f"{text[:length]}…"
