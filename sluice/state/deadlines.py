"""Deadlines of queries: kept for the thread that executes a query, and enforced by the databases themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import TooSlow

_OF_THREAD = threading.local()


@contextmanager
def deadline(until: float, seconds: float) -> Iterator[None]:
    """Within the block, this thread's queries to shards raise TooSlow after `until`, by the monotonic clock.

    `seconds` is the whole time limit, for the error's text.
    """
    _OF_THREAD.until, _OF_THREAD.seconds = until, seconds
    try:
        check_deadline()
        yield
    finally:
        del _OF_THREAD.until


def seconds_left() -> float | None:
    """The time until the deadline, 0 or less after it; None without a deadline."""
    until: float | None = getattr(_OF_THREAD, "until", None)
    return None if until is None else until - time.monotonic()


def is_over() -> bool:
    """Whether there is a deadline, and it has passed."""
    left = seconds_left()
    return left is not None and left <= 0


def too_slow() -> TooSlow:
    return TooSlow(f"The query exceeded the limit of {_OF_THREAD.seconds:g} s.")


def check_deadline() -> None:
    """Raise TooSlow if the deadline has passed."""
    if is_over():
        raise too_slow()
