"""Changes of a table as records, each with the row before and after the change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.operators.base import Output, Row
from sluice.operators.latest_value import LatestValue
from sluice.operators.operator import Operator


@dataclass(frozen=True)
class Changes(Operator[LatestValue]):
    """Sends kind, old value and new value of each change of a table's row.

    A row is identified by key and window.

    The old value comes from the state, so the tables before this step need not send old values.
    """

    state_type: Any = LatestValue

    def new_state(self) -> LatestValue:
        return LatestValue()

    def process(self, state: LatestValue, row: Row, out: Output) -> None:
        if row.key is None:
            out.count("null_key")
            return
        old, new = state.value, row.value
        # A table may send the deletion of a row that it does not have, such as a row that never
        # passed a filter. Such a deletion changes nothing.
        if old is None and new is None:
            return
        if old is None:
            kind = "insert"
        elif new is None:
            kind = "delete"
        else:
            kind = "update"
        state.value, state.time = new, row.time
        out.emit(
            row.key, f'{{"kind":"{kind}","old":{old or "null"},"new":{new or "null"}}}', row.time
        )

    def is_empty(self, state: LatestValue) -> bool:
        return state.value is None
