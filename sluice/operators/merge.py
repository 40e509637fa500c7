"""Merges several streams into one."""

from __future__ import annotations

from typing import Any

from sluice.operators.base import Output, Row, Timeless


class Merge(Timeless):
    """Passes every record on unchanged.

    It has no state, because the stage's task has already sorted the records.
    """

    state_type: Any = None

    def new_state(self) -> None:
        pass

    def process(self, state: None, row: Row, out: Output) -> None:
        out.emit(row.key, row.value, row.time, window=row.window)

    def is_empty(self, state: None) -> bool:
        return True
