"""Values as plain text, for topics with `value=str`."""

from __future__ import annotations

import msgspec


def encode_text(json: str) -> bytes:
    """The encoder of `to(topic, value=str)`: a text without its quotation marks, any other value as JSON writes it."""
    text: str = msgspec.json.decode(json) if json.startswith('"') else json
    return text.encode()
