"""Times as Python's datetimes."""

from __future__ import annotations

from datetime import UTC, datetime

_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
AFTER_LAST = 253_402_300_800_000
"""The beginning of the year 10000, in epoch ms."""
_BEGIN = -62_135_596_800_000


def utc_datetime(ms: int) -> datetime:
    """Return epoch milliseconds as a datetime in UTC.

    Times after the year 9999, such as a window's end, become the last microsecond of that year,
    because clients in many languages cannot read them. Times before the year 1, which a producer
    can set, become the beginning of that year.
    """
    if ms >= AFTER_LAST:
        return _LAST
    if ms < _BEGIN:
        return _FIRST
    return datetime.fromtimestamp(ms / 1_000, UTC)
