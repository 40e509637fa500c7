"""Deadlines of queries, set for the thread that executes a query and enforced by the databases."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import TooSlow

_OF_THREAD = threading.local()


@contextmanager
def deadline(until: float, seconds: float) -> Iterator[None]:
    """Make this thread's shard queries within the block raise TooSlow after `until` on the monotonic clock.

    `seconds` is the query's time limit, which the error quotes.
    """
    _OF_THREAD.until, _OF_THREAD.seconds = until, seconds
    try:
        check_deadline()
        yield
    finally:
        del _OF_THREAD.until


def seconds_left() -> float | None:
    """Seconds until the deadline; zero or negative after it, None without a deadline."""
    until: float | None = getattr(_OF_THREAD, "until", None)
    return None if until is None else until - time.monotonic()


def is_over() -> bool:
    """Whether a deadline is set and has passed."""
    left = seconds_left()
    return left is not None and left <= 0


def too_slow() -> TooSlow:
    return TooSlow(f"The query exceeded the limit of {_OF_THREAD.seconds:g} s.")


def check_deadline() -> None:
    """Raise TooSlow if the deadline has passed."""
    if is_over():
        raise too_slow()
