"""Functions of Arrow arrays of texts, with the same results as in Spark."""

from __future__ import annotations

import hashlib
import re
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_values import Result, Value, array_of, arrays_of, map_present, map_rows
from sluice.sql.rules import is_plain_pattern, plain_pattern

_LINE_END = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z"
"""A pattern for Java's `$`: the end of the text, or just before a line break at the end."""


def change_case(values: pa.Array, *, upper: bool) -> pa.Array:
    """Return the texts in upper or lower case."""
    # Arrow does not change letters, such as ß, that become several letters in the other case. So
    # use Python if a text is not ASCII.
    if pc.all(pc.string_is_ascii(values)).as_py() in (True, None):
        if upper:
            return pc.ascii_upper(values)
        return pc.ascii_lower(values)
    return map_present(_java_upper if upper else _java_lower, values)


def _java_upper(text: str) -> str:
    return text.upper().translate(_NEWER_UPPER)


def _java_lower(text: str) -> str:
    return text.lower().translate(_NEWER_LOWER)


_NEWER = (
    (0x019B, 0xA7DC, 1), (0x0264, 0xA7CB, 1), (0x1C8A, 0x1C89, 1), (0xA7CD, 0xA7CC, 1),
    (0xA7CF, 0xA7CE, 1), (0xA7D3, 0xA7D2, 1), (0xA7D5, 0xA7D4, 1), (0xA7DB, 0xA7DA, 1),
    (0x10D70, 0x10D50, 22), (0x16EBB, 0x16EA0, 25),
)  # fmt: skip
"""Ranges of pairs of a small and a capital letter that Java knows, but Python does not: the first
pair, and the number of consecutive pairs."""
_NEWER_UPPER: dict[int, int] = {}
for _small, _capital, _number in _NEWER:
    for _index in range(_number):
        _NEWER_UPPER[_small + _index] = _capital + _index
_NEWER_LOWER = {capital: small for small, capital in _NEWER_UPPER.items()}


def trim(values: Value, characters: str, position: str) -> Value:
    """Remove these characters from the beginning, the end, or both ends of each text."""
    function = {"LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}.get(position, pc.utf8_trim)
    return function(values, characters)


def join_texts(separator: Value, values: list[Value], count: int) -> Value:
    """Join the texts of each row to one text, ignoring nulls."""
    arrays = arrays_of(values, count)
    # Arrow would leave out a row in which all texts are null.
    is_known = reduce(pc.or_, map(pc.is_valid, arrays))
    arrays[0] = pc.if_else(is_known, arrays[0], "")
    return pc.binary_join_element_wise(*arrays, separator, null_handling="skip")


def substring(arguments: list[Value], count: int) -> Result:
    """Return a part of each text. Positions start at 1; a negative start counts from the end."""
    values, start, *length = arguments
    if isinstance(start, pa.Scalar) and all(isinstance(each, pa.Scalar) for each in length):
        first = start.as_py()
        if first >= 0 and not length:
            return Result(pc.utf8_slice_codeunits(values, max(first - 1, 0)))
        if first >= 0:
            begin = max(first - 1, 0)
            return Result(
                pc.utf8_slice_codeunits(values, begin, max(begin, begin + length[0].as_py()))
            )
    return map_rows(_substring, arguments, pa.string(), count)


def _substring(text: str, start: int, length: int = 2**31 - 1) -> str:
    first = 0
    if start > 0:
        first = start - 1
    elif start < 0:
        first = len(text) + start
    return text[max(first, 0) : max(first + length, 0)]


def left(text: str, length: int) -> str:
    return text[: max(length, 0)]


def right(text: str, length: int) -> str:
    if length > 0:
        return text[-length:]
    return ""


def pad_left(text: str, length: int, pad: str = " ") -> str:
    return _padding(text, length, pad) + text[: max(length, 0)]


def pad_right(text: str, length: int, pad: str = " ") -> str:
    return text[: max(length, 0)] + _padding(text, length, pad)


def _padding(text: str, length: int, pad: str) -> str:
    missing = max(length - len(text), 0)
    if pad:
        return (pad * (missing // len(pad) + 1))[:missing]
    return ""


def split(values: pa.Array, pattern: str) -> pa.Array:
    """Split each text where a pattern matches."""
    if is_plain_pattern(pattern):
        return pc.split_pattern(values, plain_pattern(pattern))
    return pc.split_pattern_regex(values, pattern)


def matches(values: Value, pattern: str) -> Value:
    """Return whether a part of each text matches a regular expression."""
    # Arrow's `$` matches only at the end of the text. Java's `$` also matches before a final line
    # break.
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1] + _LINE_END
    return pc.match_substring_regex(values, pattern)


_HEXADECIMAL = re.compile("[0-9A-Fa-f]*")


def hexadecimal(number: int) -> str:
    return f"{number & (2**64 - 1):X}"


def from_hexadecimal(text: str) -> bytes | None:
    """Decode hexadecimal digits to bytes. Return None for other texts."""
    # `bytes.fromhex` would also accept white space.
    if _HEXADECIMAL.fullmatch(text) is None:
        return None
    return bytes.fromhex(text.zfill(len(text) + len(text) % 2))


def digest(values: Value, name: str, count: int) -> Result:
    """Return a hexadecimal hash of each value. The values are texts or bytes."""

    def of_text(value: Any) -> str:
        content = value.encode() if isinstance(value, str) else value
        return hashlib.new(name, content, usedforsecurity=False).hexdigest()

    return map_rows(of_text, [array_of(values, count)], pa.string(), count)
