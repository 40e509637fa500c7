"""Writes strings in JSON as Spark's `to_json` does, and plain text for topics whose values are not JSON."""

from __future__ import annotations

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
    """The text as a string of JSON."""
    return f'"{text.translate(ESCAPES)}"'


def encode_text(json: str) -> bytes:
    """The encoder of `to(topic, value=str)`: writes a string without quotation marks, and any other value as JSON."""
    text: str = msgspec.json.decode(json) if json.startswith('"') else json
    return text.encode()
