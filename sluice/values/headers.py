"""The headers of a record: the class that processors use, and the text in rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

HeaderValue: TypeAlias = str | bytes | None


class EncodedHeader(msgspec.Struct):
    """A header in the JSON of a row. As in Spark's JSON, bytes are base64."""

    key: str
    value: bytes | None = None


decode_headers = msgspec.json.Decoder(list[EncodedHeader]).decode
_encode_headers = msgspec.json.Encoder().encode


class Headers:
    """The headers of a record: names with values in bytes, in order.

    A name can occur several times.

    A Headers object does not change: `set`, `add` and `remove` return a new object. A value that
    you pass as text is encoded in UTF-8.
    """

    __slots__ = ("_json", "_pairs")

    def __init__(
        self, pairs: Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] = ()
    ) -> None:
        if isinstance(pairs, Mapping):
            pairs = pairs.items()
        encoded: list[tuple[str, bytes | None]] = []
        for name, value in pairs:
            encoded.append((_name(name), _bytes(name, value)))
        self._pairs: tuple[tuple[str, bytes | None], ...] | None = tuple(encoded)
        self._json: str | None = None

    @classmethod
    def of_json(cls, text: str | None) -> Headers:
        """Return the headers of a row, which are decoded when they are first read."""
        if text is None:
            return NO_HEADERS
        headers = cls.__new__(cls)
        headers._pairs, headers._json = None, text
        return headers

    def json(self) -> str | None:
        """Return the text of the headers in a row; None if there are none."""
        if self._json is None and self._pairs:
            encoded = [EncodedHeader(name, value) for name, value in self._pairs]
            self._json = _encode_headers(encoded).decode()
        return self._json

    def get(self, name: str) -> bytes | None:
        """Return the value of the last header with this name; None if there is no such header."""
        for each, value in reversed(self._decoded):
            if each == name:
                return value
        return None

    def text(self, name: str) -> str | None:
        """Return the value of the last header with this name as text.

        Raises UnicodeDecodeError if the value is not UTF-8.
        """
        value = self.get(name)
        return None if value is None else value.decode()

    def set(self, name: str, value: HeaderValue) -> Headers:
        """Return a copy with one new header, at the end, in place of all headers of this name."""
        return self.remove(name).add(name, value)

    def add(self, name: str, value: HeaderValue) -> Headers:
        """Return a copy of these headers, with a new header at the end."""
        return Headers((*self._decoded, (name, value)))

    def remove(self, name: str) -> Headers:
        """Return a copy of these headers, without the headers of this name."""
        return Headers(pair for pair in self._decoded if pair[0] != name)

    @property
    def _decoded(self) -> tuple[tuple[str, bytes | None], ...]:
        if self._pairs is None:
            decoded = decode_headers(self._json or "[]")
            self._pairs = tuple((header.key, header.value) for header in decoded)
        return self._pairs

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)

    def __contains__(self, name: object) -> bool:
        return any(each == name for each, _ in self._decoded)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._decoded == other._decoded
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._decoded)

    def __repr__(self) -> str:
        return f"Headers({list(self._decoded)!r})"


NO_HEADERS = Headers()


def _name(name: object) -> str:
    if type(name) is not str:
        raise TypeError(f"the name of a header must be a str, not {type(name).__name__}")
    name.encode()  # Raises an error if the name has an unpaired surrogate.
    return name


def _bytes(name: str, value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    raise TypeError(
        f"header {name!r}: the value must be str, bytes or None, not {type(value).__name__}"
    )
