"""Writes JSON strings as Spark's `to_json` does, and plain text for topics without JSON."""

from __future__ import annotations

import re

import msgspec

ESCAPES = {number: f"\\u{number:04X}" for number in range(32)} | {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    ord("\b"): "\\b",
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\f"): "\\f",
    ord("\r"): "\\r",
}
"""Code of a character that JSON escapes in a string → the escape, for `str.translate`."""


def json_string(text: str) -> str:
    """Encode the text as a JSON string."""
    return f'"{text.translate(ESCAPES)}"'


JSON_FIELD = "_json"
"""If a value has the type Any, Sluice stores an object with only this field: a string that holds
the value's JSON."""
JSON_TEXT = f'{{"{JSON_FIELD}":"'
"""The beginning of such an object."""
_TEXT_OF_JSON = re.compile(rf'\{{"{JSON_FIELD}":("(?:[^"\\]|\\.)*+")\}}')


def plain_json(json: str) -> str:
    """Convert Sluice's JSON to plain JSON for other programs.

    In Sluice's JSON, an object stands for a value of type Any.
    """
    if JSON_TEXT in json:
        return _TEXT_OF_JSON.sub(_put_back, json)
    return json


def _put_back(match: re.Match[str]) -> str:
    text: str = msgspec.json.decode(match[1])
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return match[0]  # The author's object has a field that happens to have this name.
    return text


def encode_bytes(json: str) -> bytes:
    """Encode for `to(topic, value=bytes)`: decode the JSON string from base64."""
    return msgspec.json.decode(json, type=bytes)


def encode_text(json: str) -> bytes:
    """Encode for `to(topic, value=str)`: a string without quotation marks, all else as JSON."""
    text: str = msgspec.json.decode(json) if json.startswith('"') else json
    return text.encode()
