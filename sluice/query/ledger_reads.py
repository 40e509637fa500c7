"""Reads the ledger for requests, in separate threads and with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.errors import StateError

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""How long a request waits for the ledger."""

# Only reads of the ledger use these threads. If reads wait for a lost database, they therefore keep
# nothing else waiting.
_THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="sluice-ledger")


async def read_ledger(read: Callable[[], T]) -> T:
    """Return the result of `read`, which runs in another thread.

    Raises StateError after `ANSWER_SECONDS`.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(_THREADS, read)
    except TimeoutError:
        raise StateError(f"The ledger did not answer within {ANSWER_SECONDS:g} s.") from None
