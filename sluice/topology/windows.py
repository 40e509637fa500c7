"""Windows of event time, in milliseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from sluice.errors import TopologyError
from sluice.topology.author import line

Duration = str | int | timedelta
"""`"15 seconds"`, `"1 minute"`, `"250 ms"`, a timedelta, or a whole number of milliseconds."""

_UNITS = {"ms": 1, "millisecond": 1, "s": 1_000, "second": 1_000, "m": 60_000, "minute": 60_000}
_UNITS |= {"h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000}


@dataclass(frozen=True)
class Window:
    """A tumbling window: `[start, start + size)`, start a multiple of size; it takes records until `end + grace`."""

    size_ms: int
    grace_ms: int

    def __str__(self) -> str:
        return f"tumbling({self.size_ms} ms, grace {self.grace_ms} ms)"


def tumbling(size: Duration, grace: Duration = 0) -> Window:
    """Windows of `size` one after the other. A record is late for its window once stream time reaches end + grace."""
    window = Window(milliseconds(size), milliseconds(grace))
    if window.size_ms <= 0 or window.grace_ms < 0:
        raise TopologyError(
            f"tumbling({size!r}, grace={grace!r}) at {line()}: the size must be above 0 and grace at least 0."
        )
    return window


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds; TopologyError if it cannot be read as one."""
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    if isinstance(duration, int):
        return duration
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", duration.lower().replace("ms", "millisecond"))
    if match is None or match[2] not in _UNITS:
        raise TopologyError(
            f"{duration!r} at {line()} is not a duration.", next_step='Write for example "15 seconds" or "250 ms".'
        )
    return int(match[1]) * _UNITS[match[2]]
