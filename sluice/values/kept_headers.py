"""The state rows of stores that keep headers: JSON arrays of a value and its record's headers.

The state row of any other store of an operator is an array of the value alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sluice.values.dead_letter_headers import PREFIX
from sluice.values.headers import Headers

KEEPS_HEADERS = ", with the headers of records"
"""The suffix of the definition of a store that keeps headers."""
_IN_JSON = f'"key":"{PREFIX}'

_decode_by_name = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(tuple[msgspec.Raw, msgspec.Raw]).decode


def kept_headers(text: str | None) -> str | None:
    """Return the headers that a store keeps, as JSON.

    Leaves out Sluice's own headers: a record that was re-driven from a dead letter has some.
    """
    if text is None or _IN_JSON not in text:
        return text
    kept = [(name, value) for name, value in Headers.of_json(text) if not name.startswith(PREFIX)]
    return Headers(kept).json()


def headers_by_name(text: str | None) -> dict[str, Headers]:
    """Return the headers that a processor's store keeps: key of a value → its headers.

    `text`: a JSON object, in which values without headers are missing.
    """
    headers: dict[str, Headers] = {}
    for name, raw in _decode_by_name(text or "{}").items():
        headers[name] = Headers.of_json(bytes(raw).decode())
    return headers


def headers_by_name_json(headers: Mapping[str, str | None]) -> str:
    """Do the inverse of `headers_by_name`, for headers as JSON."""
    texts: dict[str, msgspec.Raw] = {}
    for name, text in headers.items():
        if text is not None:
            texts[name] = msgspec.Raw(text.encode())
    return msgspec.json.encode(texts).decode()


def value_of_row(row: str) -> str:
    """Return the JSON of the value in the state row of a store that keeps headers."""
    value, _ = _elements(row)
    return bytes(value).decode()
