"""Parses times from people and programs, and formats times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sluice.errors import QueryError
from sluice.values.utc_times import utc_datetime


def time_text(ms: int) -> str:
    """Format epoch milliseconds as an ISO 8601 date and time in UTC, without a zone."""
    time = utc_datetime(ms).replace(tzinfo=None)
    return time.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds")


def parse_time(name: str, text: str | None) -> int | None:
    """Parse epoch milliseconds, or an ISO 8601 time. A time without a zone is in UTC.

    Raises QueryError, which names the parameter.
    """
    if text is None:
        return None
    return (parse_moment(name, text) - _EPOCH) // timedelta(milliseconds=1)


def parse_moment(name: str, text: str) -> datetime:
    """Parse a time as `parse_time` does, but to the microsecond."""
    try:
        return _moment(text)
    except (ValueError, OverflowError, OSError):
        raise QueryError(
            f"`{name}` is not a time.",
            next_step=(
                "Write 2022-12-05T08:55:15 (UTC), or epoch milliseconds with at least 10 digits."
            ),
        ) from None


_FEWEST_DIGITS = 10
"""A number with fewer digits is not epoch milliseconds: 2022 is a year, and 20221205 a date."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(text: str) -> datetime:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        is_negative = digits != text
        if is_negative or text == "0" or len(digits) >= _FEWEST_DIGITS:
            # The addition raises OverflowError for a time outside Python's calendar.
            return _EPOCH + timedelta(milliseconds=int(text))
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
