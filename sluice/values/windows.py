"""Windows over event time, and which records belong to them. All times are in ms.

`operators/lateness.py` decides when records are late. Functions of times also take NumPy arrays of times.
Authors create windows with `tumbling`, `hopping`, `sliding`, `session` and `within`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sluice.values.phrases import duration_text

Bounds = tuple[int, int]
"""Start and end of a window. The end is exclusive for tumbling and hopping windows, inclusive for the others."""

T = TypeVar("T", int, Any)
"""A time, or an array of times."""


@dataclass(frozen=True)
class Window:
    """Windows `[start, start + size)`, each start a multiple of the advance; they accept records until end + grace."""

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

    def first_start(self, time: T) -> T:
        """Start of the earliest window that contains `time`. Windows with a negative start do not exist."""
        every = self.advance_ms or self.size_ms
        return (time - self.size_ms + every) // every * every

    def starts(self, time: int) -> range:
        """Starts of the windows that contain `time`, the earliest first."""
        every = self.advance_ms or self.size_ms
        # `first_start`, written out because this runs for each record
        first = (time - self.size_ms + every) // every * every
        return range(first if first > 0 else 0, time + 1, every)

    def __str__(self) -> str:
        size, grace = duration_text(self.size_ms), duration_text(self.grace_ms)
        if self.advance_ms:
            return f"hopping({size}, every {duration_text(self.advance_ms)}, grace {grace})"
        return f"tumbling({size}, grace {grace})"


@dataclass(frozen=True)
class SlidingWindow:
    """One window `[start, start + size]` for every distinct set of records within `size`.

    It ends at a record or begins right after one. It accepts records while stream time is at most end + grace.
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
    """Sessions `[first, last]` of records with at most `gap` between neighbours; open until last + gap + grace."""

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


AnyWindow: TypeAlias = Window | SlidingWindow | SessionWindow


@dataclass(frozen=True)
class JoinWindow:
    """Records match if the right one is at most `before` before the left one and at most `after` after it."""

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    @property
    def reach_ms(self) -> int:
        """How long a record can be matched: until its own stream's largest time is this far past the record."""
        return self.before_ms + self.after_ms + self.grace_ms

    def __str__(self) -> str:
        before, after, grace = map(duration_text, (self.before_ms, self.after_ms, self.grace_ms))
        return f"within({before} before, {after} after, grace {grace})"
