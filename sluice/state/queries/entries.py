"""Extracts a store's values from state rows."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sluice.errors import QueryError, StateError
from sluice.state.model import EntryId
from sluice.values.json_text import JSON_TEXT, plain_json

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
    def id(self) -> EntryId:
        return self.key, self.window_start, self.window_end

    def decode(self, kind: type[T]) -> T:
        """Decode the value to a type that msgspec supports.

        Raise QueryError if the value does not match.
        """
        try:
            return msgspec.json.decode(self.value, type=kind)
        except (msgspec.DecodeError, RecursionError):
            raise QueryError(f"The value of {self.key[:100]!r} is not a {kind.__name__}.") from None


def store_value(column: int, values: str | None) -> msgspec.Raw | None:
    """Return a store's value in a state row's JSON array.

    None for a tombstone, or if the value is null. Raise StateError if the array is damaged.
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
