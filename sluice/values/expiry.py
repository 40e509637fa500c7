"""Definitions of when the rows of a table expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sluice.values.phrases import duration_text

ExpiryClock = Literal["event", "wall"]
"""The clock by which rows expire: the table's stream time, or the wall clock."""


@dataclass(frozen=True)
class Expiry:
    """When a row expires: at an expression's time, or some time after the record's event time."""

    at: str | None
    """The author's expression; None if the rows have a time to live."""
    at_ms: str | None
    """SQL for the value of `at` in epoch ms."""
    after_ms: int | None
    clock: ExpiryClock

    def __str__(self) -> str:
        if self.after_ms is None:
            text = f"rows expire at the time {self.at}"
        else:
            text = f"rows expire {duration_text(self.after_ms)} after their time"
        if self.clock == "wall":
            return f"{text} by the wall clock"
        return text
