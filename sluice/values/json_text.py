"""Strings of JSON, in the form in which Spark's `to_json` writes them."""

from __future__ import annotations

ESCAPES = {number: f"\\u{number:04X}" for number in range(32)} | {
    ord(sign): escaped
    for sign, escaped in {
        '"': '\\"',
        "\\": "\\\\",
        "\b": "\\b",
        "\t": "\\t",
        "\n": "\\n",
        "\f": "\\f",
        "\r": "\\r",
    }.items()
}
"""The characters that JSON escapes in a string, for `str.translate`."""


def json_string(text: str) -> str:
    """The text as a string of JSON."""
    return f'"{text.translate(ESCAPES)}"'
