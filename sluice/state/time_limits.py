"""The time limit of a query, and other limits of the thread that uses a database.

A query has `QUERY_SECONDS` at each worker. The thread that executes it sets a deadline, which the
databases themselves enforce: SQLite's progress handler calls `is_over`, and PostgreSQL gets a
statement timeout. The process that asks a worker on another host waits a little longer
(`query.workers.WORKER_SECONDS`), and scans first wait for a slot (`query.scan_slots`).

`waits_limited` ends waits for PostgreSQL servers that no longer answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sluice.errors import TooSlow

QUERY_SECONDS = 10.0
"""Time limit of a query at one worker, including the wait for a thread."""
_GRACE_SECONDS = 0.5
"""A query's thread waits for PostgreSQL this much longer than the query's deadline, because
PostgreSQL enforces the deadline itself."""

_THREAD = threading.local()
"""The limits of this thread: `until`, `seconds` and `waits_until`.

Each is set only within a block of one of the context managers below."""


@contextmanager
def query_deadline(until: float, seconds: float) -> Iterator[None]:
    """Make this thread's queries in the block raise TooSlow after `until` (monotonic).

    `seconds` is the query's time limit, which the error quotes.
    """
    _THREAD.until, _THREAD.seconds = until, seconds
    try:
        check_deadline()
        yield
    finally:
        del _THREAD.until


def seconds_left() -> float | None:
    """Return the seconds until the deadline: at most zero after it; None if there is none."""
    until: float | None = getattr(_THREAD, "until", None)
    return None if until is None else until - time.monotonic()


def is_over() -> bool:
    """Return whether a deadline is set and has passed."""
    left = seconds_left()
    return left is not None and left <= 0


def too_slow() -> TooSlow:
    """Return the error of a query that has exceeded its time limit."""
    return TooSlow(f"The query exceeded its time limit of {_THREAD.seconds:g} s.")


def check_deadline() -> None:
    """Raise TooSlow if the deadline has passed."""
    if is_over():
        raise too_slow()


class Lock(Protocol):
    """A lock of the module `threading`: a `Lock` or an `RLock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


def acquire(lock: Lock) -> None:
    """Take a lock. Raise TooSlow if another thread still holds the lock at the deadline."""
    if lock.acquire(blocking=False):
        return
    left = seconds_left()
    # A timeout of -1 means no limit.
    timeout = -1 if left is None else max(left, 0)
    if not lock.acquire(timeout=timeout):
        raise too_slow()


@contextmanager
def held(lock: Lock) -> Iterator[None]:
    """Hold a lock within the block. Raise TooSlow like `acquire`."""
    acquire(lock)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def waits_limited(seconds: float | None) -> Iterator[None]:
    """End this thread's waits for PostgreSQL within the block after `seconds` in total.

    If `seconds` is None, a wait ends only if the server is down. If the block is within another
    block of this kind, the waits end at the earlier of the two times.
    """
    before: float | None = getattr(_THREAD, "waits_until", None)
    until = None if seconds is None else time.monotonic() + seconds
    _THREAD.waits_until = _earlier(before, until)
    try:
        yield
    finally:
        _THREAD.waits_until = before


def wait_limit() -> float | None:
    """Return when this thread's waits for PostgreSQL end, on the monotonic clock.

    Return None without a limit.
    """
    waits_until: float | None = getattr(_THREAD, "waits_until", None)
    until: float | None = getattr(_THREAD, "until", None)
    if until is not None:
        until += _GRACE_SECONDS
    return _earlier(waits_until, until)


def _earlier(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two times; None means never."""
    if first is None:
        return second
    return first if second is None else min(first, second)
