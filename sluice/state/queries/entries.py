"""Extracts a store's values from state rows."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from typing_extensions import override

from sluice.errors import QueryError, StateError
from sluice.state.model import EntryId, StateRow
from sluice.values.headers import NO_HEADERS, Headers
from sluice.values.json_text import JSON_TEXT, plain_json
from sluice.values.kept_headers import headers_by_name

T = TypeVar("T")

_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = b"null"
_JSON_TEXT = JSON_TEXT.encode()


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a store: a key, its window if the store has windows, and a value as JSON."""

    key: str
    window_start: int
    """Epoch ms; NO_WINDOW for a store without windows."""
    window_end: int
    value: msgspec.Raw
    """The JSON exactly as published: 27.00 stays 27.00."""

    @property
    def keeps_headers(self) -> bool:
        """Whether the entry has headers, or might have them."""
        return False

    @property
    def headers(self) -> Headers:
        """The headers of the record that has last changed the entry, if the store keeps headers."""
        return NO_HEADERS

    @property
    def headers_by_name(self) -> dict[str, Headers]:
        """In a processor's store that keeps headers: key of a value → the value's headers."""
        return {}

    @property
    def id(self) -> EntryId:
        return self.key, self.window_start, self.window_end

    def decode(self, kind: type[T]) -> T:
        """Return the value, decoded to a type that msgspec supports.

        Raise QueryError if the value does not match.
        """
        try:
            return msgspec.json.decode(self.value, type=kind)
        except (msgspec.DecodeError, RecursionError):
            raise QueryError(
                f"The value of {self.key[:100]!r} is not a {kind.__name__}.",
                next_step="Read it as another type, or as JSON: see its `value`.",
            ) from None


class EntryWithHeaders(Entry, frozen=True, array_like=True):
    """An entry of a store that keeps headers."""

    kept: msgspec.Raw = msgspec.Raw(_NULL)
    """The headers as JSON; null if the entry has no headers. In a processor's store, the JSON is an
    object with the headers of each value."""

    @property
    @override
    def keeps_headers(self) -> bool:
        return self._text is not None

    @property
    @override
    def headers(self) -> Headers:
        return NO_HEADERS if self._is_by_name else Headers.of_json(self._text)

    @property
    @override
    def headers_by_name(self) -> dict[str, Headers]:
        return headers_by_name(self._text) if self._is_by_name else {}

    @property
    def _text(self) -> str | None:
        text = bytes(self.kept)
        return None if text == _NULL else text.decode()

    @property
    def _is_by_name(self) -> bool:
        return (self._text or "").startswith("{")


def entry_with_headers(row: StateRow) -> Entry | None:
    """Return the entry of a state row in a store that keeps headers.

    Return None for a tombstone, or if the value is null.

    Raise StateError if the row is damaged.
    """
    value = store_value(0, row.value)
    if value is None:
        return None
    assert row.value is not None
    headers = store_value(1, row.value) or msgspec.Raw(_NULL)
    return EntryWithHeaders(row.key, row.window_start, row.window_end, value, headers)


def store_value(column: int, values: str | None) -> msgspec.Raw | None:
    """Return a store's value in a state row's JSON array.

    Return None for a tombstone, or if the value is null.

    Raise StateError if the array is damaged.
    """
    if values is None:
        return None
    try:
        value = _VALUES.decode(values)[column]
    except (msgspec.DecodeError, IndexError):
        raise StateError("A value is damaged.") from None
    except RecursionError:
        raise StateError("A value is nested too deeply to be read.") from None
    text = bytes(value)
    if _JSON_TEXT in text:
        text = plain_json(text.decode()).encode()
        value = msgspec.Raw(text)
    return None if text == _NULL else value
