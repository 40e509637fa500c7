"""Operators on rows with windowed keys: each key and window has its own state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.operators.base import DEFAULT_OUTPUT, Output, Row
from sluice.operators.operator import Operator
from sluice.values.windowed_keys import split_windowed_key
from sluice.values.windows import Bounds


class ByWindow(Operator[Any]):
    """Runs an operator by key and window.

    In the operator's rows, the key is a text that contains the record's key and its window. Each
    result gets the key and the window of its row. The operator must send a result only for a row of
    the same key.
    """

    def __init__(self, make: Callable[[], Operator[Any]]) -> None:
        self.operator = make()
        self.state_type: Any = self.operator.state_type

    def new_state(self) -> Any:
        return self.operator.new_state()

    def process(self, state: Any, row: Row, out: Output) -> None:
        if row.key is not None:
            out = _Results(out, *split_windowed_key(row.key))
        self.operator.process(state, row, out)

    def is_empty(self, state: Any) -> bool:
        return self.operator.is_empty(state)


class _Results:
    """The output of one row: gives each result the row's key and window."""

    def __init__(self, out: Output, key: str, window: Bounds) -> None:
        self._out = out
        self._key = key
        self._window = window

    @property
    def headers(self) -> str | None:
        return self._out.headers

    @headers.setter
    def headers(self, headers: str | None) -> None:
        self._out.headers = headers

    @property
    def cause(self) -> int:
        return self._out.cause

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        old: bool = False,
        to: str = DEFAULT_OUTPUT,
        rank: int | None = None,
    ) -> None:
        self._out.emit(self._key, value, time, window=self._window, old=old, to=to, rank=rank)

    def count(self, reason: str, number: int = 1) -> None:
        self._out.count(reason, number)

    def send_late(self) -> None:
        self._out.send_late()

    def hold(self) -> None:
        self._out.hold()

    def release(self) -> None:
        self._out.release()

    def reject(
        self,
        error: BaseException,
        key: str | None,
        value: str | None,
        time: int,
        timer: str = "",
        window: Bounds | None = None,
    ) -> None:
        self._out.reject(error, self._key, value, time, timer, window)
