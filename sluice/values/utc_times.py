"""Times as Python's datetimes."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST = datetime.max.replace(tzinfo=UTC)
AFTER_LAST = 253_402_300_800_000
"""The beginning of the year 10000, in epoch ms."""


def utc_datetime(ms: int) -> datetime:
    """Epoch milliseconds as a datetime in UTC.

    A window can end after the year 9999, which clients in many languages cannot read: such an end becomes the last
    microsecond of that year.
    """
    return _LAST if ms >= AFTER_LAST else datetime.fromtimestamp(ms / 1_000, UTC)
