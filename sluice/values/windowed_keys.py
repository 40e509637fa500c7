"""Keys of windowed tables. Authors see a key and its window; within Sluice, both are one text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from sluice.values.function_wrappers import WithoutKey, Wrapper
from sluice.values.windows import Bounds

K = TypeVar("K")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, order=True)
class Windowed(Generic[K]):
    """The key of a windowed table's row: its records' key, and the bounds of their window, in UTC.

    The end is exclusive for tumbling and hopping windows, inclusive for sliding windows and
    sessions.
    """

    key: K
    start: datetime
    end: datetime

    @property
    def start_ms(self) -> int:
        """The start in epoch ms."""
        return (self.start - _EPOCH) // _MILLISECOND

    @property
    def end_ms(self) -> int:
        """The end in epoch ms."""
        return (self.end - _EPOCH) // _MILLISECOND


def windowed(key: str, bounds: Bounds) -> Windowed[str]:
    """Return a key with the bounds of its window.

    Raises OverflowError for a time after the year 9999.
    """
    start, end = bounds
    try:
        return Windowed(key, _EPOCH + start * _MILLISECOND, _EPOCH + end * _MILLISECOND)
    except OverflowError:
        raise OverflowError(
            "the key's window ends after the year 9999, the last of Python's datetimes"
        ) from None


def windowed_json(key: Windowed[Any]) -> bytes:
    """Return a key as JSON, with bounds in epoch ms: `{"key":"home","start":0,"end":60000}`."""
    return msgspec.json.encode({"key": key.key, "start": key.start_ms, "end": key.end_ms})


def time_windowed_bytes(key: Windowed[str]) -> bytes:
    """Serialize like Kafka Streams' `TimeWindowedSerializer`: key, then start in 8 bytes."""
    return key.key.encode() + _eight_bytes(key.start_ms)


def session_windowed_bytes(key: Windowed[str]) -> bytes:
    """Serialize like Kafka Streams' `SessionWindowedSerializer`: key, then end, then start."""
    return key.key.encode() + _eight_bytes(key.end_ms) + _eight_bytes(key.start_ms)


def _eight_bytes(ms: int) -> bytes:
    return ms.to_bytes(8, "big", signed=True)


# Within Sluice, a windowed key is one text. An operator thus keeps a state for each key and window.


def windowed_key_sql(key: str) -> str:
    """Return SQL for a windowed key's text, given SQL for its key.

    The window comes from the row.
    """
    parts = ("CAST(window_start AS STRING)", "':'", "CAST(window_end AS STRING)", "':'", key)
    return f"concat({', '.join(parts)})"


def split_windowed_key(text: str) -> tuple[str, Bounds]:
    """Divide a windowed key's text into the key and the bounds of its window."""
    start, end, key = text.split(":", 2)
    return key, (int(start), int(end))


def windowed_key_text(key: str, bounds: Bounds) -> str:
    """Return the text of a windowed key."""
    return f"{bounds[0]}:{bounds[1]}:{key}"


def windowed_of_text(text: str) -> Windowed[str]:
    """Parse a windowed key's text. Raises OverflowError for a time after the year 9999."""
    return windowed(*split_windowed_key(text))


def key_and_window(key: Windowed[str] | str | None) -> tuple[str | None, Bounds | None]:
    """Return a key without its window, as authors see it, and the window's bounds, if any."""
    if isinstance(key, Windowed):
        return (key.key, (key.start_ms, key.end_ms))
    return (key, None)


def of_windowed_key(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt a function that takes a `Windowed`, so that it takes a windowed key's text."""
    if isinstance(function, WithoutKey):
        return function
    return OfWindowedKey(function)


class OfWindowedKey(Wrapper):
    """Calls the author's function with a `Windowed` instead of a windowed key's text."""

    def __call__(self, key: str | None, *arguments: Any) -> Any:
        return self.function(None if key is None else windowed_of_text(key), *arguments)
