"""Durations, as authors and files `sluice.toml` write them."""

from __future__ import annotations

import re
from datetime import timedelta

from sluice.errors import TopologyError
from sluice.topology.source_line import source_line

Duration = str | timedelta
"""`"15 seconds"`, `"1 minute"`, `"250 ms"`, or a timedelta. A number without a unit is an error."""

UNITS = {"ms": 1, "millisecond": 1, "s": 1_000, "second": 1_000, "m": 60_000, "minute": 60_000}
UNITS |= {"h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000}
CALENDAR_SIZE = re.compile(r"([0-9]+)\s*(week|month|year)s?")


def milliseconds_if_given(duration: Duration | None) -> int | None:
    """Return a duration in ms; None for None."""
    if duration is None:
        return None
    return milliseconds(duration)


def milliseconds(duration: Duration) -> int:
    """Return a duration in whole milliseconds.

    Raises TopologyError for anything else, such as a number without a unit.
    """
    if isinstance(duration, timedelta):
        ms, rest = divmod(duration, timedelta(milliseconds=1))
        within_limit(duration, ms)
        if rest:
            raise TopologyError(
                f"{duration!r} at {source_line()} is not a whole number of milliseconds.",
                next_step=f"Write for example timedelta(milliseconds={max(ms, 1)}).",
            )
        return ms
    text = str(duration).strip().lower()
    # Replace `ms`: the pattern would read `250 ms` as the plural of `250 m`, which is 250 minutes.
    match = re.fullmatch(r"([0-9]+)\s*([a-z]+?)s?", text.replace("ms", "millisecond"))
    if match is None or match[2] not in UNITS:
        if CALENDAR_SIZE.fullmatch(text):
            advice = (
                "Only sizes, advances and offsets of tumbling and hopping windows "
                "can be weeks, months or years."
            )
        else:
            number = "15"
            if text.isascii() and text.isdecimal():
                number = text
            advice = f'Write for example "{number} seconds" or "{number} ms".'
        raise TopologyError(f"{duration!r} at {source_line()} is not a duration.", next_step=advice)
    return within_limit(duration, int(match[1][:DIGITS]) * UNITS[match[2]])


_LONGEST_DAYS = 100_000_000
"""The longest duration. The ends of longer windows, in microseconds, would not fit into 64 bits."""
DIGITS = 30
"""The maximum number of digits of a number that is parsed. A longer number is too large in every
unit, and Python refuses to parse thousands of digits."""


def within_limit(duration: Duration, ms: int) -> int:
    if abs(ms) > _LONGEST_DAYS * UNITS["day"]:
        raise TopologyError(
            f"{str(duration)[:100]!r} at {source_line()} is too long.",
            next_step=f"A duration has at most {_LONGEST_DAYS} days.",
        )
    return ms
