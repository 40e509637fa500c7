"""Time limits of coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LimitExceeded(Exception):
    """The time limit was exceeded."""


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Await something for at most some seconds. Raises LimitExceeded afterwards.

    Starts no timer unless `awaitable` has to wait, because a timer takes longer than a look-up of a key.
    """
    began = time.monotonic()
    steps = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    try:
        async with asyncio.timeout(seconds - (time.monotonic() - began)) as limit:
            return await _continue(steps, waits_for)
    except TimeoutError as error:
        if limit.expired():
            raise LimitExceeded from error
        raise


@coroutine
def _continue(steps: Generator[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Await the rest of the steps, the first of which waits for `waits_for`."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(sent)
    except StopIteration as end:
        result: T = end.value
        return result
