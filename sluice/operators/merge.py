"""Merge: streams that have come differently far, in order again."""

from __future__ import annotations

from typing import Any

from sluice.operators.base import Output, Row, Timeless


class Merge(Timeless):
    """Passes every record on as it is. Nothing is remembered: the host has brought the records in order."""

    state_type: Any = None
    drops_null_values = False

    def begin(self) -> None:
        """There is no state."""

    def process(self, state: None, row: Row, out: Output) -> None:
        """Pass the record on."""
        out.emit(row.key, row.value, row.time, window=row.window)

    def is_empty(self, state: None) -> bool:
        """Nothing is kept."""
        return True
