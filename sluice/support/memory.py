"""Memory that a process has freed, but not returned to the operating system yet."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pyarrow as pa

_MANY_ROWS = 50_000
_MUCH_BYTES = 300_000_000
"""A worker with less memory keeps the memory that it has freed.

If the operating system gave fresh pages to each task, the tasks of ten million orders would take
7 % more CPU time."""
_RESIDENT_PAGES = Path("/proc/self/statm")


def release_unused_memory() -> None:
    """Return freed memory to the operating system.

    Otherwise, Arrow and the C library keep it for later use.
    """
    pa.default_memory_pool().release_unused()
    # `malloc_trim` returns memory that glibc keeps. Other C libraries neither have it nor need it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def release_memory_after_rows(count: int) -> None:
    """Return freed memory to the operating system if copies of many rows have been freed."""
    if count >= _MANY_ROWS:
        release_unused_memory()


def release_much_memory() -> None:
    """Return freed memory to the operating system if this process has much memory.

    If the amount of the process's memory is unknown, also return freed memory.
    """
    if _resident_bytes() > _MUCH_BYTES:
        release_unused_memory()


def _resident_bytes() -> int:
    try:
        # The second number counts the pages that are in memory.
        return int(_RESIDENT_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # Only Linux has this file.
        return sys.maxsize


def release_memory_after_task(phase: str, info: dict[str, int]) -> None:
    """Return much freed memory to the system after PySpark's garbage collection for a task.

    A worker waits for its next task while other workers, or the driver, need memory for the same
    batch.
    """
    if phase == "stop" and info["generation"] == 2:
        release_much_memory()
