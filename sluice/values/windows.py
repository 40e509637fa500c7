"""Window definitions over event time, in ms. Authors create them with `tumbling`, `hopping`, `sliding`, `session`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Window:
    """Windows `[start, start + size)`, each start a multiple of the advance; they accept records until end + grace."""

    size_ms: int
    grace_ms: int

    advance_ms: int = 0
    """Time between the starts of hopping windows; 0 for tumbling windows."""

    @property
    def every_ms(self) -> int:
        """Time between the starts of consecutive windows."""
        return self.advance_ms or self.size_ms

    def __str__(self) -> str:
        if self.advance_ms:
            return f"hopping({self.size_ms} ms, every {self.advance_ms} ms, grace {self.grace_ms} ms)"
        return f"tumbling({self.size_ms} ms, grace {self.grace_ms} ms)"


@dataclass(frozen=True)
class SlidingWindow:
    """One window for every distinct set of records within `size`; it ends at a record or begins right after one."""

    size_ms: int
    grace_ms: int

    def __str__(self) -> str:
        return f"sliding({self.size_ms} ms, grace {self.grace_ms} ms)"


@dataclass(frozen=True)
class SessionWindow:
    """Sessions of records with at most `gap` between neighbours; start and end are inclusive."""

    gap_ms: int
    grace_ms: int

    @property
    def size_ms(self) -> None:
        """None: sessions have no fixed size."""
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
    """How long after its end a window accepts records, in ms of stream time."""
    return window.grace_ms + (window.gap_ms if isinstance(window, SessionWindow) else 0)
