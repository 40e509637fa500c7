from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluice.time_limits import LimitExceeded, within

VALUE = contextvars.ContextVar[int]("VALUE")


async def at_once() -> str:
    return "at once"


async def later() -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    return await asyncio.to_thread(lambda: "later")


async def concurrent() -> tuple[str, str]:
    return await asyncio.gather(later(), at_once())


async def fails() -> None:
    raise KeyError("fails")


async def fails_later() -> None:
    await asyncio.sleep(0)
    raise KeyError("fails later")


async def recovers() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError:
        await asyncio.sleep(0)
        return "recovered"
    return "slept"


async def in_one_context() -> int:
    token = VALUE.set(7)
    await asyncio.sleep(0)
    found = VALUE.get()
    VALUE.reset(token)
    return found


async def in_one_task() -> bool:
    before = asyncio.current_task()
    await asyncio.sleep(0)
    return before is asyncio.current_task()


async def times_out() -> None:
    await asyncio.sleep(0)
    raise TimeoutError("another limit")


@pytest.mark.parametrize(
    "function",
    [at_once, later, concurrent, fails, fails_later, recovers, in_one_context, in_one_task, times_out],
)
def test_the_limit_changes_nothing(function: Callable[[], Awaitable[Any]]) -> None:
    async def outcome(limited: bool) -> Any:
        try:
            return await (within(60, function()) if limited else function())
        except Exception as error:
            return repr(error)

    assert asyncio.run(outcome(limited=True)) == asyncio.run(outcome(limited=False))


def test_what_takes_too_long_is_cancelled() -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("slow")

    with pytest.raises(LimitExceeded):
        asyncio.run(within(0.01, slow()))
    assert ended == ["slow"]


def test_a_cancelled_caller_cancels_what_it_awaits() -> None:
    async def run() -> list[str]:
        ended = []

        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("slow")
                raise

        task = asyncio.create_task(within(60, slow()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended

    assert asyncio.run(run()) == ["slow"]
