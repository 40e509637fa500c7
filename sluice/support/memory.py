"""Memory that a process has freed, but not returned to the operating system yet."""

from __future__ import annotations

import ctypes

import pyarrow as pa


def release_unused_memory() -> None:
    """Return freed memory to the operating system. Otherwise, Arrow and the C library keep it for later use."""
    pa.default_memory_pool().release_unused()
    # `malloc_trim` returns memory that glibc keeps. Other C libraries do not have it, nor need it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
