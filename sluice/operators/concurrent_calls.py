"""Makes many calls at the same time, each with a time limit, and repeats calls that fail.

All calls of a process run in one event loop, in a separate thread. An author's async
functions can therefore share a client, and the caller itself may run in an event loop, such as a
notebook's.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from sluice.errors import EngineError, SluiceError
from sluice.operators.base import rejects_record
from sluice.values.call_parameters import CallPolicy
from sluice.values.phrases import counted, duration_text

T = TypeVar("T")

_LONGEST_WAIT_SECONDS = 60


class Calls:
    """Makes the calls of one step by the step's policy.

    `step` names the step in errors. `is_async`: the calls return awaitables at once, so they need
    no threads.
    """

    def __init__(self, policy: CallPolicy, step: str, *, is_async: bool = False) -> None:
        self._policy = policy
        self._step = step
        self._is_async = is_async
        self._hanging: set[Thread] = set()
        """The threads that still run although their calls have run out of time. Python cannot end a
        thread."""

    def all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of calls, in their order.

        For a call that has failed, the list has the exception. If a call returns an awaitable, it
        is awaited. If a call fails with an exception that must end the run (see `rejects_record`),
        this exception is raised.
        """
        return asyncio.run_coroutine_threadsafe(self._all(calls), _event_loop()).result()

    async def _all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        limit = asyncio.Semaphore(self._policy.concurrency)

        async def result(call: Callable[[], Any]) -> Any:
            async with limit:
                try:
                    return await self._repeated(call)
                except SluiceError:
                    raise
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) or not rejects_record(error):
                        raise
                    return error

        tasks = [asyncio.create_task(result(call)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def _repeated(self, call: Callable[[], Any]) -> Any:
        """Return the result of the first attempt that succeeds, or the error of the last one."""
        policy = self._policy
        attempts = AsyncRetrying(
            stop=stop_after_attempt(policy.retries + 1),
            wait=wait_exponential(multiplier=policy.backoff_ms / 1_000, max=_LONGEST_WAIT_SECONDS),
            retry=retry_if_exception(_may_succeed_later),
            reraise=True,
        )
        return await attempts(self._timed, call)

    async def _timed(self, call: Callable[[], Any]) -> Any:
        task = asyncio.create_task(self._called(call))
        done, _ = await asyncio.wait({task}, timeout=self._policy.timeout_ms / 1_000)
        if done and not task.cancelled():
            return task.result()
        # A coroutine that suppresses its cancellation must not hold up the batch, so do not wait
        # for the coroutine.
        task.cancel()
        raise TimeoutError(f"no result within {duration_text(self._policy.timeout_ms)}")

    async def _called(self, call: Callable[[], Any]) -> Any:
        try:
            if self._is_async:
                result = call()
            else:
                result = await self._in_thread(call)
            if inspect.isawaitable(result):
                return await result
            return result
        except SystemExit as error:
            # SystemExit would end the event loop. As in any step, it must only reject the record.
            raise RuntimeError(
                f"the function tried to end the process: SystemExit: {error}"
            ) from error
        except KeyboardInterrupt:
            # KeyboardInterrupt would end the event loop, too. As in any step, it must end the run.
            raise EngineError(
                f"{self._step}: the function raised KeyboardInterrupt.",
                next_step="Nothing from the batch was published. "
                "Correct the function, and run again.",
            ) from None

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Return the result of a call that may block its thread."""
        self._require_threads()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                value = call()
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, result, None, error)
            else:
                loop.call_soon_threadsafe(_settle, result, value, None)

        # Make each call in its own daemon thread: a pool's threads would keep the process from
        # ending while a call hangs.
        thread = Thread(target=run, name="sluice-call", daemon=True)
        thread.start()
        try:
            return await result
        except asyncio.CancelledError:
            self._hanging.add(thread)
            raise

    def _require_threads(self) -> None:
        """Raise EngineError if too many calls hang.

        Each hanging call occupies a thread, and perhaps a connection.
        """
        self._hanging = {thread for thread in self._hanging if thread.is_alive()}
        if len(self._hanging) >= self._policy.concurrency:
            raise EngineError(
                f"{self._step}: {counted(len(self._hanging), 'call')} did not end within "
                f"{duration_text(self._policy.timeout_ms)} and still hang.",
                next_step="Set a time limit in the function's client that is shorter than "
                "timeout=, or make the function async. Then run again.",
            )


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a future its result, unless the call has run out of time."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):
        # A future cannot hold a StopIteration.
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)


def _may_succeed_later(error: BaseException) -> bool:
    return rejects_record(error) and not isinstance(error, SluiceError)


_loop: asyncio.AbstractEventLoop | None = None
_lock = Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all calls of this process. The first call starts it."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            Thread(target=_loop.run_forever, name="sluice-calls", daemon=True).start()
        return _loop


def _forget_event_loop() -> None:
    global _loop, _lock
    _loop, _lock = None, Lock()


# A forked process, such as each Python process of a Spark executor, lacks the event loop's thread.
# So the forked process forgets the event loop, and its first call starts a new one.
os.register_at_fork(after_in_child=_forget_event_loop)
