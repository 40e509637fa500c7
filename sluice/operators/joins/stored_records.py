"""The state of a join of two streams: the records that later records may match."""

from __future__ import annotations

import msgspec

NEVER = 1 << 62
"""A time that never comes."""


class StoredRecord(msgspec.Struct, array_like=True):
    """A record that later records of the other side may match."""

    time: int
    value: str
    waits_for_match: bool
    """Whether the record must be sent unmatched if no match arrives."""


class Side(msgspec.Struct, array_like=True):
    """A key's records of one side of the join."""

    records: list[StoredRecord] = []
    """Sorted by time."""
    waits_from: int = NEVER
    """Time of the earliest record that waits for a match."""


class Sides(msgspec.Struct, array_like=True):
    """A join's state for a key: the records of both sides."""

    left: Side
    right: Side


class RecordWithHeaders(StoredRecord, array_like=True):
    """A record of a join that keeps headers."""

    headers: str | None = None
    """The headers for the record if it is sent unmatched, as JSON."""


class SideWithHeaders(Side, array_like=True):
    """A key's records of one side of a join that keeps headers."""

    records: list[RecordWithHeaders] = []  # type: ignore[assignment]


class SidesWithHeaders(Sides, array_like=True):
    """The state for a key, in a join that keeps headers."""

    left: SideWithHeaders
    right: SideWithHeaders
