"""Parses times from people and programs, and formats times."""

from __future__ import annotations

from datetime import UTC, datetime

from sluice.errors import QueryError


def time_text(ms: int) -> str:
    """Epoch milliseconds as an ISO 8601 date and time in UTC, without a zone."""
    moment = datetime.fromtimestamp(ms / 1_000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds")


def parse_time(name: str, text: str | None) -> int | None:
    """Parse epoch milliseconds, or ISO 8601 (UTC without a zone). Raises QueryError, which names the parameter."""
    if text is None:
        return None
    try:
        return _milliseconds(text)
    except (ValueError, OverflowError, OSError):
        raise QueryError(
            f"{name} is not a time.", next_step="Write 2022-12-05T08:55:15 (UTC), or epoch milliseconds."
        ) from None


def _milliseconds(text: str) -> int:
    if text.isascii() and text.lstrip("-").isdigit():
        datetime.fromtimestamp(int(text) / 1_000, UTC)  # raises an error for a time that cannot be shown
        return int(text)
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
