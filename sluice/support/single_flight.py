"""A cache for expensive values that many callers request at the same time.

No library has all that is needed here. A cache with limits of time and size (cachetools) does not
work with coroutines. A cache for coroutines (async-lru) cannot limit the total size of the values,
and cannot decline to keep a certain value.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlightCache(Generic[T]):
    """Caches values for `seconds`. Concurrent callers with the same key share one computation.

    The oldest values are dropped when the total size exceeds `capacity`.
    """

    def __init__(
        self,
        seconds: float,
        capacity: int,
        size: Callable[[T], int] = lambda _: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._capacity = capacity
        self._size = size
        self._clock = clock
        self._used = 0
        self._values: dict[Hashable, tuple[float, T]] = {}
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    async def get(
        self,
        key: Hashable,
        compute: Callable[[], Awaitable[T]],
        keep: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return the cached value, or compute it, and cache it if `keep` returns True."""
        cached = self._values.get(key)
        if cached is not None and cached[0] > self._clock():
            return cached[1]
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(self._compute(key, compute, keep))
        # A cancelled caller must not cancel the computation for other callers.
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Forget all values, because something has changed."""
        self._values.clear()
        self._used = 0

    async def _compute(
        self,
        key: Hashable,
        compute: Callable[[], Awaitable[T]],
        keep: Callable[[T], bool],
    ) -> T:
        try:
            value = await compute()
            self._drop(key)
            if keep(value):
                self._values[key] = self._clock() + self._seconds, value
                self._used += self._size(value)
                # Dictionaries keep their order, so the first value is the oldest.
                while self._used > self._capacity:
                    self._drop(next(iter(self._values)))
            return value
        finally:
            del self._running[key]

    def _drop(self, key: Hashable) -> None:
        if key in self._values:
            _, value = self._values.pop(key)
            self._used -= self._size(value)
