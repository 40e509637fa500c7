"""Turns the changes of a filtered table into records."""

from __future__ import annotations

from typing import Any

from sluice.operators.base import Output, Row
from sluice.operators.operator import Operator


class PassedRows(Operator[None]):
    """Passes on each change of a row that passes the filter before or after the change.

    Other changes do not affect the filtered table. The operator keeps no state: a row's old value
    comes right before its new value.
    """

    state_type: Any = None

    def __init__(self) -> None:
        self._has_passed = False
        """Whether the previous row was an old value that had passed the filter."""

    def new_state(self) -> None:
        pass

    def process(self, state: None, row: Row, out: Output) -> None:
        if row.old:
            self._has_passed = row.value is not None
            return
        has_passed, self._has_passed = self._has_passed, False
        if has_passed or row.value is not None:
            out.emit(row.key, row.value, row.time, window=row.window)

    def is_empty(self, state: None) -> bool:
        return True
