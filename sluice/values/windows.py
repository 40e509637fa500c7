"""Windows of event time, in milliseconds, as values; `topology.windows` makes them for authors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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


@dataclass(frozen=True)
class SlidingWindow:
    """A window for every distinct set of records within `size`: ends with a record, or begins right after one."""

    size_ms: int
    grace_ms: int

    def __str__(self) -> str:
        return f"sliding({self.size_ms} ms, grace {self.grace_ms} ms)"


@dataclass(frozen=True)
class SessionWindow:
    """A window of records with no more than `gap` between each and the next; both ends belong to it."""

    gap_ms: int
    grace_ms: int

    @property
    def size_ms(self) -> None:
        """A session has no size of its own."""
        return

    def __str__(self) -> str:
        return f"session(gap {self.gap_ms} ms, grace {self.grace_ms} ms)"


AnyWindow: TypeAlias = Window | SlidingWindow | SessionWindow


@dataclass(frozen=True)
class JoinWindow:
    """Records match if the right one is at most `before` before the left one and at most `after` after it."""

    before_ms: int
    after_ms: int
    grace_ms: int

    def __str__(self) -> str:
        return f"within({self.before_ms} ms before, {self.after_ms} ms after, grace {self.grace_ms} ms)"


def open_for(window: AnyWindow) -> int:
    """How long after its end a window takes records, in ms of stream time."""
    return window.grace_ms + (window.gap_ms if isinstance(window, SessionWindow) else 0)
