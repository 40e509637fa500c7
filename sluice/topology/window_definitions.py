"""Functions that define windows of event time."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeVar

from sluice.errors import TopologyError
from sluice.topology.source_line import source_line
from sluice.values.phrases import duration_text
from sluice.values.windows import AnyWindow, JoinWindow, SessionWindow, SlidingWindow, Window

Duration = str | timedelta
"""`"15 seconds"`, `"1 minute"`, `"250 ms"`, or a timedelta. A number without a unit is an error."""

_UNITS = {"ms": 1, "millisecond": 1, "s": 1_000, "second": 1_000, "m": 60_000, "minute": 60_000}
_UNITS |= {"h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000}


def tumbling(size: Duration, grace: Duration = "0 s") -> Window:
    """Adjacent windows of `size`. A record is late once stream time has reached its window's end + `grace`."""
    return _valid_window(Window(milliseconds(size), milliseconds(grace)))


def hopping(size: Duration, *, advance: Duration, grace: Duration = "0 s") -> Window:
    """Windows of `size` that start every `advance` and overlap; a record can be late for some of its windows only."""
    window = Window(milliseconds(size), milliseconds(grace), milliseconds(advance))
    if not 0 < window.advance_ms <= window.size_ms:
        raise TopologyError(f"{window} at {source_line()}: the advance must be at least 1 ms and at most the size.")
    return _valid_window(window)


def sliding(size: Duration, grace: Duration = "0 s") -> SlidingWindow:
    """Windows that slide over time: one for each distinct set of a key's records within `size`."""
    return _valid_window(SlidingWindow(milliseconds(size), milliseconds(grace)))


def session(gap: Duration, grace: Duration = "0 s") -> SessionWindow:
    """Sessions of activity: records at most `gap` apart share a session, and a record can merge two sessions."""
    window = SessionWindow(milliseconds(gap), milliseconds(grace))
    if window.gap_ms < 1 or window.grace_ms < 0:
        raise TopologyError(f"{window} at {source_line()}: gap must be at least 1 ms, and grace at least 0.")
    return window


def within(
    size: Duration = "0 s",
    *,
    before: Duration | None = None,
    after: Duration | None = None,
    grace: Duration = "0 s",
) -> JoinWindow:
    """The window of a stream join: how far apart in event time two records may be.

    The right record is at most `size` before or after the left record; `before` and `after` override `size` in one
    direction.
    """
    window = JoinWindow(
        milliseconds(size if before is None else before),
        milliseconds(size if after is None else after),
        milliseconds(grace),
    )
    if window.before_ms + window.after_ms < 0 or window.grace_ms < 0:
        raise TopologyError(
            f"{window} at {source_line()}: the window must not end before it starts, and grace must be at least 0."
        )
    return window


def retention_in_ms(window: AnyWindow, retention: Duration) -> int:
    """Return the retention in ms. Raises TopologyError if a window would expire while it still accepts records."""
    retention_ms = milliseconds(retention)
    needed = window.open_ms
    if retention_ms < needed:
        raise TopologyError(
            f"The retention of {window} at {source_line()} is {duration_text(retention_ms)}, but a "
            f"window accepts records for {duration_text(needed)} after its end.",
            next_step=f"Set the retention to at least {duration_text(needed)}.",
        )
    return retention_ms


W = TypeVar("W", Window, SlidingWindow)


def _valid_window(window: W) -> W:
    if window.size_ms <= 0 or window.grace_ms < 0:
        raise TopologyError(f"{window} at {source_line()}: the size must be above 0 and grace at least 0.")
    return window


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds. Raises TopologyError for anything else, such as a number without a unit."""
    if isinstance(duration, timedelta):
        return _within_limit(duration, duration // timedelta(milliseconds=1))
    text = str(duration).strip().lower()
    match = re.fullmatch(r"([0-9]+)\s*([a-z]+?)s?", text.replace("ms", "millisecond"))
    if match is None or match[2] not in _UNITS:
        number = text if text.isascii() and text.isdecimal() else "15"
        raise TopologyError(
            f"{duration!r} at {source_line()} is not a duration.",
            next_step=f'Write for example "{number} seconds" or "{number} ms".',
        )
    return _within_limit(duration, int(match[1][:_DIGITS]) * _UNITS[match[2]])


_LONGEST_DAYS = 100_000_000
"""With longer windows, the ends of windows in microseconds would not fit into 64 bits."""
_DIGITS = 30
"""Digits after which a number is too large in every unit; Python refuses to parse thousands of digits."""


def _within_limit(duration: Duration, ms: int) -> int:
    if abs(ms) > _LONGEST_DAYS * _UNITS["day"]:
        raise TopologyError(
            f"{str(duration)[:100]!r} at {source_line()} is too long.",
            next_step=f"A duration has at most {_LONGEST_DAYS} days.",
        )
    return ms
