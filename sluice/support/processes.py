"""Ends processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil


def end(processes: Callable[[], Sequence[psutil.Process]], patience_s: float) -> None:
    """End processes. `processes` is a function that returns the processes that still run.

    Send SIGTERM once, and wait up to `patience_s` for all of them to end. Then send SIGKILL to the
    rest. If an exception ends the wait, such as one that a signal's handler raises, send SIGKILL at
    once.
    """
    _send(processes(), signal.SIGTERM)
    until = time.monotonic() + patience_s
    try:
        while processes() and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        # SIGKILL is sent even if the wait was interrupted, because a process must not outlive the
        # program that started it.
        _send(processes(), signal.SIGKILL)


def with_descendants(pid: int) -> list[psutil.Process]:
    """Return a process and all of its descendants; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, even if its parent has not asked for its status yet."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
