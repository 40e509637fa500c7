"""A worker behind a state server, asked over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

import msgspec

from sluice.errors import StateError
from sluice.query.questions import ANSWERS, Question, Value, Values
from sluice.query.wire import Poster
from sluice.state.remote import BadAnswer, checked, shown_token, trusted

T = TypeVar("T")

CALLS_AT_ONCE = 1
"""How many calls for single keys one worker gets at the same time; keys that come meanwhile go together in the next."""


class RemoteWorker:
    """The worker at one address of a state server. A key costs one call at most; the server never asks on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._poster: Poster | None = None
        self._waiting: dict[tuple[int, int, int], dict[str, asyncio.Future[msgspec.Raw | None]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question[T]) -> T:
        """Its answer; StateError if the server gives none."""
        if isinstance(question, Value):
            return cast("T", await self._value(question))
        return await self._call(question)

    async def close(self) -> None:
        """Close the connections."""
        if self._poster is not None:
            await self._poster.close()

    async def _value(self, question: Value) -> msgspec.Raw | None:
        """Keys that are asked for while calls are on their way travel together."""
        of = question.group_id, question.store_column, question.as_of
        future = self._waiting.setdefault(of, {}).get(question.key)
        if future is None:
            future = self._waiting[of][question.key] = asyncio.get_running_loop().create_future()
            if len(self._calls) < CALLS_AT_ONCE:
                self._start()
        return await asyncio.shield(future)

    def _start(self) -> None:
        call = asyncio.get_running_loop().create_task(self._send())
        self._calls.add(call)
        call.add_done_callback(self._done)

    def _done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and len(self._calls) < CALLS_AT_ONCE:
            self._start()

    async def _send(self) -> None:
        if not self._waiting:
            return
        of = next(iter(self._waiting))
        asked = self._waiting.pop(of)
        try:
            found = await self._call(Values(*of, list(asked)))
        except Exception as error:
            for future in asked.values():
                _fail(future, error)
        else:
            for key, future in asked.items():
                if not future.done():
                    future.set_result(found.get(key))

    async def _call(self, question: Question[T]) -> T:
        if self._poster is None:
            self._poster = Poster(self._address, shown_token(), trusted())
        try:
            status, content = await self._poster.post("/ask", msgspec.json.encode(question))
        except OSError as error:
            raise StateError(f"Its state server cannot be reached ({type(error).__name__}).") from None
        try:
            found: Any = ANSWERS[type(question).__name__].decode(checked(status, content))
            if isinstance(question, Values) and not found.keys() <= set(question.keys):
                raise BadAnswer
            return cast("T", found)
        except (BadAnswer, msgspec.DecodeError, RecursionError):
            raise StateError("Its state server gave no answer that can be understood.") from None


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # whoever asked may have gone meanwhile
