"""`finish_within` does what `asyncio.timeout` does, for coroutines that wait and for coroutines that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sluice.errors import TooSlow
from sluice.support.time_limit import finish_within

pytestmark = pytest.mark.unit


def too_slow() -> TooSlow:
    return TooSlow("Too slow.")


def finish(coroutine: Coroutine[Any, Any, Any], seconds: float = 10) -> Any:
    return asyncio.run(finish_within(seconds, coroutine, too_slow))


def test_a_coroutine_returns_its_result_and_raises_its_errors_whether_it_waits_or_not() -> None:
    async def run(waits: int, error: Exception | None) -> str:
        task = asyncio.current_task()
        for number in range(waits):
            # A wait of no time yields None instead of a future.
            await asyncio.sleep(number * 0.001)
            assert asyncio.current_task() is task
        if error is not None:
            raise error
        return "done"

    for waits in (0, 1, 3):
        assert finish(run(waits, None)) == "done"
        for error in (KeyError("x"), TimeoutError("its own")):
            with pytest.raises(type(error), match=str(error)):
                finish(run(waits, error))


def test_an_error_of_what_it_waits_for_reaches_the_coroutine() -> None:
    async def fail() -> None:
        raise ValueError("No.")

    async def run() -> str:
        try:
            await asyncio.create_task(fail())
        except ValueError as error:
            await asyncio.sleep(0)
            return f"caught: {error}"
        return ""

    assert finish(run()) == "caught: No."


def test_a_coroutine_that_waits_too_long_is_cancelled_and_cleans_up() -> None:
    cleaned: list[str] = []

    async def run() -> None:
        try:
            await asyncio.sleep(0.001)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(TooSlow):
        finish(run(), 0.05)
    assert cleaned == ["up"]


def test_a_cancelled_caller_cancels_the_coroutine() -> None:
    cancelled: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def run() -> None:
        task = asyncio.create_task(finish_within(60, wait(), too_slow))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cancelled == [True]
