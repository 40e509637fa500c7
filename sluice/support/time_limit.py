"""A time limit for a coroutine, which costs nothing if the coroutine does not wait."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_within(
    seconds: float, coroutine: Coroutine[Any, Any, T], overdue: Callable[[], Exception]
) -> T:
    """Return the result of `coroutine`.

    Raise the error of `overdue` if the coroutine waits for longer than `seconds`.

    An `asyncio.timeout` takes 4 us, almost as long as a look-up in a shard. Most coroutines on a
    request's way have their result without waiting, so the limit begins with the first wait.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    try:
        async with asyncio.timeout(seconds) as limit:
            return await _resume(coroutine, awaited)
    except TimeoutError:
        if not limit.expired():
            # The limit has not passed, so the coroutine itself has raised this error.
            raise
        raise overdue() from None


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Run the rest of a coroutine that waits for `awaited`, as `await` runs a whole coroutine."""
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:
                # The task throws a cancellation into the coroutine that waits.
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result
