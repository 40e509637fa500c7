"""Aggregations over windows that contain a fixed number of a key's records.

The order of the records decides which window they belong to; their times do not matter. The result
is a table by key: the result of each window replaces the previous window's result. A result's time
is the largest time of the window's records. Records without a key or a value are dropped and not
counted.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

import msgspec
from typing_extensions import override

from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.base import Output, Row
from sluice.operators.operator import Operator
from sluice.values.windows import CountWindow

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class CountedAggregation(Operator[S]):
    """Base class of these aggregations. If a record fails, it belongs to no window."""

    def __init__(
        self,
        calculation: Calculation,
        window: CountWindow,
        *,
        sends_old_values: bool = False,
    ) -> None:
        self.calculation = calculation
        self.window = window
        self.sends_old_values = sends_old_values

    def process(self, state: S, row: Row, out: Output) -> None:
        if row.key is None or row.value is None:
            out.count("null_key" if row.key is None else "null_value")
            return
        before = msgspec.structs.replace(state)
        self.calculation.keep_changes()
        out.hold()
        try:
            self._add(state, row.key, row.value, row.time, out)
        except BaseException as error:
            self._restore(state, before)
            out.reject(error, row.key, row.value, row.time)
        else:
            out.release()

    @abstractmethod
    def _add(self, state: S, key: str, value: str, time: int, out: Output) -> None:
        """Add a record and send the result. Raises the calculation's errors."""

    @abstractmethod
    def _restore(self, state: S, before: S) -> None:
        """Undo `_add`; `before` is a copy of the state from before `_add`."""

    def _send(self, key: str, old: str | None, new: str | None, time: int, out: Output) -> None:
        if self.sends_old_values and old is not None:
            out.emit(key, old, time, old=True)
        out.emit(key, new, time)


class CurrentWindow(msgspec.Struct, Generic[T], array_like=True):
    """A key's newest window."""

    count: int = 0
    """The number of records in the window; 0 before a key's first record."""
    time: int = -1
    aggregate: T | None = None
    complete: str | None = None
    """The result of the last complete window, if only complete windows have results."""


class EveryRecordsAggregate(CountedAggregation[CurrentWindow[Any]]):
    """One aggregate for each key's first `records` records, for the next `records`, and so on."""

    def __init__(
        self,
        calculation: Calculation,
        window: CountWindow,
        *,
        sends_old_values: bool = False,
    ) -> None:
        super().__init__(calculation, window, sends_old_values=sends_old_values)
        self.state_type: Any = CurrentWindow[calculation.kind]  # type: ignore[name-defined]

    def new_state(self) -> CurrentWindow[Any]:
        return CurrentWindow()

    @override
    def _add(self, state: CurrentWindow[Any], key: str, value: str, time: int, out: Output) -> None:
        calculation, only_complete = self.calculation, self.window.only_complete
        old = state.complete
        if self.sends_old_values and not only_complete and state.count:
            old = calculation.result(state.aggregate)
        if state.count in (0, self.window.records):
            state.count, state.time = 0, time
            state.aggregate = calculation.new_aggregate()
        elif state.aggregate is None:
            # The author's function has removed the aggregate, so begin a new one.
            state.time = time
            state.aggregate = calculation.new_aggregate()
        state.aggregate = calculation.add(key, state.aggregate, calculation.read(value))
        state.count += 1
        state.time = max(state.time, time)
        result = calculation.result(state.aggregate)
        if only_complete and state.count < self.window.records:
            return
        if only_complete:
            state.complete = result
        self._send(key, old, result, state.time, out)

    @override
    def _restore(self, state: CurrentWindow[Any], before: CurrentWindow[Any]) -> None:
        state.count, state.time, state.complete = before.count, before.time, before.complete
        state.aggregate = self.calculation.undo_changes(before.aggregate)

    def is_empty(self, state: CurrentWindow[Any]) -> bool:
        return not state.count


class LatestRecords(msgspec.Struct, array_like=True):
    """The values and times of a key's last records, in order."""

    values: list[str] = []
    times: list[int] = []


class LastRecordsAggregate(CountedAggregation[LatestRecords]):
    """One aggregate for each record, over the key's last `records` records up to this record."""

    state_type: Any = LatestRecords

    def new_state(self) -> LatestRecords:
        return LatestRecords()

    @override
    def _add(self, state: LatestRecords, key: str, value: str, time: int, out: Output) -> None:
        number = self.window.records
        values = [*state.values, value][-number:]
        times = [*state.times, time][-number:]
        result, begin = self._result(key, values)
        old = None
        if self.sends_old_values and self._has_result(state.values):
            old, _ = self._result(key, state.values)
        state.values, state.times = values, times
        if self._has_result(values):
            self._send(key, old, result, max(times[begin:]), out)

    def _has_result(self, values: list[str]) -> bool:
        if self.window.only_complete:
            return len(values) == self.window.records
        return bool(values)

    def _result(self, key: str, values: list[str]) -> tuple[str | None, int]:
        """Return the result, and the index of the value with which its aggregate begins.

        The aggregate begins with the first value or, if functions have removed it, with the first
        value after the last removal.
        """
        # Few functions can subtract the value that leaves the window, so compute each result from
        # all values.
        calculation = self.calculation
        aggregate = calculation.new_aggregate()
        begin = 0
        for number, value in enumerate(values):
            if aggregate is None:
                begin = number
            aggregate = calculation.add(key, aggregate, calculation.read(value))
        return calculation.result(aggregate), begin

    @override
    def _restore(self, state: LatestRecords, before: LatestRecords) -> None:
        # Restore only the lists, because the state has no aggregate.
        state.values, state.times = before.values, before.times

    def is_empty(self, state: LatestRecords) -> bool:
        return not state.values
