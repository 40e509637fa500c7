"""Tells why a value cannot be decoded, for its dead letter, and finds fields that occur twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sluice.engine.read.registered_values import RejectedValueError
from sluice.engine.read.value_columns import failing_places
from sluice.errors import error_text
from sluice.values.json_limits import MOST_LEVELS, is_surely_shallow


def refuse_duplicates(text: bytes) -> Any:
    """Decode JSON. Raises DuplicateField, with the field's name, if a field occurs twice.

    Numbers in the result may be numbers or texts.
    """
    try:
        value = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _without_duplicates(text)
    # msgspec takes the last of two fields with the same name. If msgspec's own JSON of the value
    # has as many strings as the text, no field was dropped. This check takes a fifth of the time.
    is_sure = _count_quotes(_encode(value)) == _count_quotes(text)
    return value if is_sure else _without_duplicates(text)


_decode, _encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
_AT_ONCE = 500


def perhaps_ambiguous(texts: Sequence[bytes]) -> Iterator[int]:
    """Return the indices of the texts that may be nested too deep or have a field twice.

    All texts must be valid JSON. Checking many texts at once takes half as long as calling
    `refuse_duplicates` for each of them.
    """

    def are_plain(begin: int, end: int) -> bool:
        return end - begin <= _AT_ONCE and _are_plain(texts[begin:end])

    return failing_places(len(texts), are_plain)


def _are_plain(texts: Sequence[bytes]) -> bool:
    """Return whether certainly no text is nested too deep or has a field twice."""
    if not all(map(is_surely_shallow, texts)):
        return False
    joined = b"[%b]" % b",".join(texts)
    try:
        value = _decode(joined)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return _count_quotes(_encode(value)) == _count_quotes(joined)


def _count_quotes(text: bytes) -> int:
    """Return the number of quotation marks around strings in JSON, not of marks inside them."""
    count = text.count(b'"')
    if b"\\" in text:
        count -= text.replace(b"\\\\", b"").count(b'\\"')
    return count


def _without_duplicates(text: bytes) -> Any:
    """Decode JSON, with numbers as text. Raises DuplicateField if a field occurs twice."""

    def pairs(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        counted = Counter(name for name, _ in fields)
        if len(counted) < len(fields):
            raise DuplicateField(counted.most_common(1)[0][0])
        return dict(fields)

    # Keep numbers as text, because `int` raises an error for thousands of digits.
    return json.loads(text.decode(), object_pairs_hook=pairs, parse_int=str, parse_float=str)


class DuplicateField(ValueError):
    """A JSON object has a field twice. The message is the field's name."""


def reason_of(text: bytes | None, error: BaseException) -> tuple[str, str]:
    """Return the reason code and the detail for a value that could not be decoded."""
    if text is None:
        return "null_value", "the value is null"
    if not text:
        return "empty_value", "the value has no bytes"
    match error:
        case RejectedValueError():
            return error.reason, error_text(error)
        case DuplicateField():
            return "duplicate_field", f"field {str(error)!r} occurs twice"
        case msgspec.ValidationError():
            return "contract", error_text(error)
        case UnicodeDecodeError():
            return "not_utf8", str(error)
        case RecursionError():
            return "malformed", f"nested more than {MOST_LEVELS} levels deep"
        case msgspec.DecodeError() if "utf-8" in str(error).lower():
            return "not_utf8", str(error)
        case msgspec.DecodeError() if _has_unpaired_surrogate(text):
            return "malformed", "a string has an unpaired surrogate"
        case _:
            return "malformed", error_text(error)


def _has_unpaired_surrogate(text: bytes) -> bool:
    """Return whether the text is valid JSON except for an unpaired surrogate.

    msgspec calls such a text truncated or invalid.
    """
    if b"\\u" not in text:
        return False
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        pass
    return False
