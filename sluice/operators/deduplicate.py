"""Drops a record if another record with the same id has passed recently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.operators.base import Output, Row
from sluice.operators.lateness import forgotten_at, last_forgotten
from sluice.operators.operator import Operator


@dataclass(frozen=True)
class Deduplicate(Operator[list[int]]):
    """A row's key is the id; the record's own key is in `foreign`. Records without an id pass.

    A record is a duplicate if a record with the same id and an event time at most `within_ms` away
    has passed. The state holds the event times of records that have passed. The state forgets a
    time when stream time is more than `within_ms` past it.
    """

    within_ms: int
    state_type: Any = list[int]

    def new_state(self) -> list[int]:
        return []

    def process(self, state: list[int], row: Row, out: Output) -> None:
        if row.key is not None:
            # The engine removes expired times only at the end of each batch. Remove them before
            # each row, too: otherwise, the result would depend on where batches end.
            self.close(state, row.key, row.after, out)
            if any(abs(row.time - passed) <= self.within_ms for passed in state):
                out.count("duplicate")
                return
            state.append(row.time)
        out.emit(row.foreign, row.value, row.time, window=row.window)

    def due(self, state: list[int]) -> int | None:
        if state:
            return forgotten_at(min(state), self.within_ms)
        return None

    def close(
        self,
        state: list[int],
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        last = last_forgotten(closed, self.within_ms)
        state[:] = [passed for passed in state if passed > last]

    def is_empty(self, state: list[int]) -> bool:
        return not state
