"""Rows that a step of an ordered job rejected, on their way to the driver, who makes dead letters of them."""

from __future__ import annotations

import msgspec


class Rejected(msgspec.Struct, omit_defaults=True):
    """`value` of a row whose target is `rows.REJECTED`; its key, time, window and place are the row's own."""

    node: int
    """Number of the step's node in the pipeline."""
    detail: str
    """What was wrong: `ZeroDivisionError: division by zero`."""
    value: str | None = None
    """The value as the step was given it, as JSON text."""
    timer: str | None = None
    """Name of the timer that was rejected, whose time is the row's; None if it was a record."""
    reason: str = "processing"
