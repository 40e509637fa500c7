"""Until when a query may take: kept for the thread that works on it, and heeded by the databases themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import TooSlow

_OF_THREAD = threading.local()


@contextmanager
def deadline(until: float, seconds: float) -> Iterator[None]:
    """Let what this thread asks shards in the block end at `until`, by the monotonic clock, with TooSlow.

    `seconds` is how long that was in all, for people.
    """
    _OF_THREAD.until, _OF_THREAD.seconds = until, seconds
    try:
        demand_time()
        yield
    finally:
        del _OF_THREAD.until


def seconds_left() -> float | None:
    """How much time there is; 0 or less if it is over, None without a deadline."""
    until: float | None = getattr(_OF_THREAD, "until", None)
    return None if until is None else until - time.monotonic()


def is_over() -> bool:
    """Whether there is a deadline, and it has passed."""
    left = seconds_left()
    return left is not None and left <= 0


def too_slow() -> TooSlow:
    """The error of a query whose time is over."""
    return TooSlow(f"The query took longer than the {_OF_THREAD.seconds:g} s that a query may take.")


def demand_time() -> None:
    """Raise TooSlow if the deadline has passed."""
    if is_over():
        raise too_slow()
