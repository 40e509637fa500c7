"""Memory that a process has freed, but not returned to the operating system yet."""

from __future__ import annotations

import ctypes

import pyarrow as pa


def release_unused_memory() -> None:
    """Return freed memory to the operating system. Otherwise, Arrow and the C library keep it for later use."""
    pa.default_memory_pool().release_unused()
    # Only glibc keeps memory that this function returns, and only glibc has the function.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
