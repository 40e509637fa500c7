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
    """Windows `[start, start + size)`, start a multiple of the advance; each takes records until `end + grace`."""

    size_ms: int
    grace_ms: int

    advance_ms: int = 0
    """From one start to the next; 0 for windows one after the other."""

    @property
    def every_ms(self) -> int:
        """From one window's start to the next one's."""
        return self.advance_ms or self.size_ms

    def __str__(self) -> str:
        if self.advance_ms:
            return f"hopping({self.size_ms} ms, every {self.advance_ms} ms, grace {self.grace_ms} ms)"
        return f"tumbling({self.size_ms} ms, grace {self.grace_ms} ms)"


def tumbling(size: Duration, grace: Duration = 0) -> Window:
    """Windows of `size` one after the other. A record is late for its window once stream time reaches end + grace."""
    return _checked(Window(milliseconds(size), milliseconds(grace)))


def hopping(size: Duration, *, advance: Duration, grace: Duration = 0) -> Window:
    """Windows of `size`, one every `advance`: a record is in all that hold its time, and late for each by itself."""
    window = Window(milliseconds(size), milliseconds(grace), milliseconds(advance))
    if not 0 < window.advance_ms <= window.size_ms:
        raise TopologyError(f"{window} at {line()}: windows must start every 1 ms to {window.size_ms} ms, their size.")
    return _checked(window)


def _checked(window: Window) -> Window:
    if window.size_ms <= 0 or window.grace_ms < 0:
        raise TopologyError(f"{window} at {line()}: the size must be above 0 and grace at least 0.")
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
