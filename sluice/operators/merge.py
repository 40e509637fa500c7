"""Merges several streams into one."""

from __future__ import annotations

from typing import Any

from sluice.operators.base import Output, Row
from sluice.operators.operator import Operator


class Merge(Operator[None]):
    """Passes every record on unchanged.

    The operator exists because the stage's task sorts an operator's rows: the merged streams'
    records are then in order.
    """

    state_type: Any = None

    def new_state(self) -> None:
        pass

    def process(self, state: None, row: Row, out: Output) -> None:
        out.emit(row.key, row.value, row.time, window=row.window)

    def is_empty(self, state: None) -> bool:
        return True
