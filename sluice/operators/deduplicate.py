"""Deduplication: drop a record if another record with the same id has passed recently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sluice.operators.base import Output, Row


@dataclass(frozen=True)
class Deduplicate:
    """A row's key is the id; the record's own key is in `foreign`. Records without an id pass.

    A record is a duplicate if a record with the same id and an event time at most `within` ms away has passed. The
    state holds the event times of passed records, each until stream time is more than `within` ms past it.
    """

    within: int
    state_type: ClassVar[Any] = list[int]

    def begin(self) -> list[int]:
        return []

    def process(self, state: list[int], row: Row, out: Output) -> None:
        if row.key is not None:
            self.close(state, row.key, row.after, out)
            if any(abs(row.time - passed) <= self.within for passed in state):
                out.count("duplicate")
                return
            state.append(row.time)
        out.emit(row.foreign, row.value, row.time)

    def due(self, state: list[int]) -> int | None:
        return min(state) + self.within + 1 if state else None

    def close(
        self, state: list[int], key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        state[:] = [passed for passed in state if passed + self.within >= closed]

    def is_empty(self, state: list[int]) -> bool:
        return not state
