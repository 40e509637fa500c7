"""Merge: streams that have come differently far, in order again."""

from __future__ import annotations

from typing import Any

from sluice.operators.base import Output, Row


class Merge:
    """Passes every record on as it is. Nothing is remembered: the host has brought the records in order."""

    state_type: Any = None
    drops_null_values = False

    def begin(self) -> None:
        """There is no state."""

    def process(self, state: None, row: Row, out: Output) -> None:
        """Pass the record on."""
        out.emit(row.key, row.value, row.time, window=row.window)

    def due(self, state: None) -> int | None:
        """Nothing is waited for."""
        return None

    def close(
        self, state: None, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        """There is nothing to close."""

    def is_empty(self, state: None) -> bool:
        """Nothing is kept."""
        return True
