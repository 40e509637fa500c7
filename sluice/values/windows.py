"""Windows of records, with rules for which records belong to them. All times are in ms.

`operators/lateness.py` decides when records are late. Authors create windows with the functions of
`topology/window_definitions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sluice.values.calendar_windows import CalendarWindow
from sluice.values.phrases import duration_text
from sluice.values.references import Reference

Bounds = tuple[int, int]
"""Start and end of a window. The end is inclusive for sliding windows and sessions, and exclusive
for others."""

T = TypeVar("T", int, Any)
"""A time, or an array of times."""


@dataclass(frozen=True)
class Window:
    """Windows `[start, start + size)`, as made by `tumbling` and `hopping`.

    The windows begin at multiples of `advance_ms` (for tumbling windows: of `size_ms`), and accept
    records until stream time reaches their end + grace.
    """

    size_ms: int
    grace_ms: int = 0

    advance_ms: int = 0
    """Time between the starts of hopping windows; 0 for tumbling windows."""

    @property
    def every_ms(self) -> int:
        """Time between the starts of consecutive windows."""
        return self.advance_ms or self.size_ms

    @property
    def open_ms(self) -> int:
        """How long after its end a window accepts records, in stream time."""
        return self.grace_ms

    @property
    def overlap(self) -> int:
        """The largest number of windows that can contain one time."""
        return -(-self.size_ms // self.every_ms)

    def bounds_of(self, time: int) -> list[Bounds]:
        """Return the windows that contain `time`, the earliest first.

        Windows with a negative start do not exist. For many times at once,
        `operators.aggregation.window_bounds` computes the same windows.
        """
        size, every = self.size_ms, self.advance_ms or self.size_ms
        first = (time - size + every) // every * every
        if first < 0:
            first = 0
        return [(start, start + size) for start in range(first, time + 1, every)]

    def end_of(self, start: int) -> int:
        """Return the end of the window that begins at `start`."""
        return start + self.size_ms

    def __str__(self) -> str:
        size, grace = duration_text(self.size_ms), duration_text(self.grace_ms)
        if self.advance_ms:
            return f"hopping({size}, every {duration_text(self.advance_ms)}, grace {grace})"
        return f"tumbling({size}, grace {grace})"


@dataclass(frozen=True)
class SlidingWindow:
    """Windows `[start, start + size]`: one for every distinct set of records within `size`.

    A window ends at a record or begins right after a record, and accepts records while stream time
    is at most end + grace.
    """

    size_ms: int
    grace_ms: int = 0

    @property
    def open_ms(self) -> int:
        """How long after its end a window accepts records, in stream time."""
        return self.grace_ms

    def __str__(self) -> str:
        return f"sliding({duration_text(self.size_ms)}, grace {duration_text(self.grace_ms)})"


@dataclass(frozen=True)
class SessionWindow:
    """Sessions `[first, last]` whose consecutive records are at most `gap` apart.

    A session is open until last + gap + grace.
    """

    gap_ms: int
    grace_ms: int = 0

    @property
    def size_ms(self) -> None:
        """None: sessions have no fixed size."""
        return

    @property
    def open_ms(self) -> int:
        """How long after its end a session can still grow, in stream time."""
        return self.gap_ms + self.grace_ms

    def __str__(self) -> str:
        return f"session(gap {duration_text(self.gap_ms)}, grace {duration_text(self.grace_ms)})"


TimeWindow: TypeAlias = Window | CalendarWindow
"""Windows `[start, end)` whose bounds depend only on a record's time."""


@dataclass(frozen=True)
class CustomWindow:
    """Windows `[start, end)` that an author's function gives for a record's time.

    The function takes the time and returns pairs of start and end. Windows accept records until end
    + grace.
    """

    function: Reference
    grace_ms: int = 0

    @property
    def size_ms(self) -> None:
        """None: the function decides the size of each window."""
        return

    @property
    def open_ms(self) -> int:
        """How long after its end a window accepts records, in stream time."""
        return self.grace_ms

    def bounds_of(self, time: int) -> list[Bounds]:
        """Return the windows that contain `time`, the earliest first.

        Raises ValueError if the function returns anything else, and passes on the function's own
        errors.
        """
        returned = self.function.value(time)
        if not isinstance(returned, Iterable):
            raise ValueError(
                f"the window function returned {returned!r} for {time}, not a list of (start, end)"
            )
        windows: list[Bounds] = []
        for window in returned:
            match window:
                # The pattern `int()` would also match a bool, which is not a time.
                case (start, end) if (
                    type(start) is type(end) is int and 0 <= start <= time < end <= _LAST_END
                ):
                    windows.append((start, end))
                case _:
                    raise ValueError(
                        f"the window function returned {window!r} for {time}; "
                        "a window is (start, end) in epoch ms, with 0 <= start <= time < end"
                    )
        windows.sort()
        if len({*windows}) < len(windows):
            raise ValueError(f"the window function returned a window twice for {time}: {windows}")
        return windows

    def __str__(self) -> str:
        return f"custom_windows({self.function.name}, grace {duration_text(self.grace_ms)})"


_LAST_END = 8_640_000_000_000_000
"""The latest end of a window. In microseconds, a later end would not fit into 64 bits."""

AnyWindow: TypeAlias = TimeWindow | SlidingWindow | SessionWindow | CustomWindow
"""Windows of event time."""


@dataclass(frozen=True)
class CountWindow:
    """Windows of a key's records, in order: a new window after every `records` records.

    If `slides`, each record has a window of the last `records` records. If `only_complete`, only
    windows with this number of records have a result.
    """

    records: int
    slides: bool = False
    only_complete: bool = False

    def __str__(self) -> str:
        complete = ""
        if self.only_complete:
            complete = ", when complete"
        name = "every_records"
        if self.slides:
            name = "last_records"
        return f"{name}({self.records}{complete})"


@dataclass(frozen=True)
class JoinWindow:
    """The right record is at most `before` before, or `after` after, the left record."""

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    def __str__(self) -> str:
        before, after, grace = map(duration_text, (self.before_ms, self.after_ms, self.grace_ms))
        return f"within({before} before, {after} after, grace {grace})"
