"""Sets the time and the headers of records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from sluice.operators.base import Output, Row
from sluice.operators.operator import Operator
from sluice.values.headers import Headers, HeaderValue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
_decode = msgspec.json.Decoder(list[str | None]).decode


@dataclass(frozen=True)
class SetMetadata(Operator[None]):
    """Gives each record a new time, or new headers. It keeps no state.

    `Row.foreign` is a JSON array. With `sets_time`, its first element is the time as ISO 8601 text.
    The other elements are the values of the headers: text, or hexadecimal text for bytes. A null
    value removes the header.
    """

    sets_time: bool
    headers: tuple[tuple[str, bool], ...]
    """The name of each header, and whether its value is bytes."""
    state_type: Any = None

    def new_state(self) -> None:
        pass

    def process(self, state: None, row: Row, out: Output) -> None:
        assert row.foreign is not None
        values = _decode(row.foreign)
        out.hold()
        try:
            if self.sets_time:
                time = _milliseconds(values.pop(0))
            else:
                time = row.time
            if self.headers:
                out.headers = self._changed(row.headers, values).json()
        except ValueError as error:
            out.reject(error, row.key, row.value, row.time)
            return
        out.emit(row.key, row.value, time, window=row.window)
        out.release()

    def _changed(self, text: str | None, values: list[str | None]) -> Headers:
        """Return the headers of a row with the new values."""
        headers = Headers.of_json(text)
        for (name, is_bytes), value in zip(self.headers, values, strict=True):
            if value is None:
                headers = headers.remove(name)
            else:
                new: HeaderValue = bytes.fromhex(value) if is_bytes else value
                headers = headers.set(name, new)
        return headers

    def is_empty(self, state: None) -> bool:
        return True


def _milliseconds(text: str | None) -> int:
    """Return a time in epoch ms. Raises ValueError for a time that a record cannot have."""
    if text is None:
        raise ValueError("the time of the record is null")
    try:
        time = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        # Python cannot represent this time: for example, it is after the year 9999. Use
        # `_BEFORE_ALL`, which the check below rejects.
        time = _BEFORE_ALL
    # Kafka's records have no times before 1970.
    if time < _EPOCH:
        raise ValueError("the time of the record is not in the years 1970 to 9999")
    return (time - _EPOCH) // timedelta(milliseconds=1)
