"""The part of the topics that a replay reads: all records between two points."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from sluice.errors import QueryError
from sluice.values.record_places import Partition

_BEGINNING = "beginning"
LONGEST_POINT = 2_000
"""The longest text of a point."""
POINT_PATTERN = r"^[A-Za-z0-9._/:+, -]*$"
"""A regular expression that the text of every point matches."""
_PLACE = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})")
_NEXT_STEP = (
    "Write a time, 2026-11-21T08:00:00 (UTC) or 2026-11-21T09:00:00+01:00; or "
    "TOPIC/PARTITION/OFFSET, several with commas between them; or, for the start of a replay, "
    f"{_BEGINNING!r}."
)


@dataclass(frozen=True)
class Point:
    """A point in the topics: the first offsets, a time, or offsets of some partitions."""

    time_ms: int | None = None
    """A time in epoch ms. The point is before the first record with this Kafka timestamp or a later
    one."""
    offsets: dict[Partition, int] | None = None
    """Partition → the offset of the first record after the point. For other partitions, the point
    is undefined."""

    @property
    def is_beginning(self) -> bool:
        """Whether the point is the beginning: before all records."""
        return self.time_ms is None and self.offsets is None

    @classmethod
    def parse(cls, name: str, text: str) -> Point:
        """Return a point from text: `beginning`, an ISO 8601 time, or `TOPIC/PARTITION/OFFSET,...`.

        Raises QueryError. `name` is the point's name in the error.
        """
        if text == _BEGINNING:
            return cls()
        try:
            if "/" in text:
                return cls(offsets=_offsets(text))
            return cls(time_ms=_milliseconds(text))
        except (ValueError, OverflowError):
            raise QueryError(
                f"{name} is not a point in the topics.",
                next_step=_NEXT_STEP,
            ) from None


@dataclass(frozen=True)
class Span:
    """The part of the topics that a replay reads.

    Without `begin`, it begins where the current generation began; without `until`, it ends at the
    newest snapshot.
    """

    begin: Point | None = None
    until: Point | None = None

    @classmethod
    def parse(cls, begin: str | None, until: str | None) -> Span:
        """Return the span between two points, given as texts; None or an empty text for no point.

        Raises QueryError.
        """
        first = None
        if begin:
            first = Point.parse("from", begin)
        last = None
        if until:
            last = Point.parse("until", until)
        span = cls(first, last)
        if span.until is not None and span.until.is_beginning:
            raise QueryError(
                "`until` is the beginning: the replay would read nothing.",
                next_step=_NEXT_STEP,
            )
        begin_ms = None
        if span.begin is not None:
            begin_ms = span.begin.time_ms
        until_ms = None
        if span.until is not None:
            until_ms = span.until.time_ms
        if begin_ms is not None and until_ms is not None and begin_ms >= until_ms:
            raise QueryError(
                "`from` is not before `until`: the replay would read nothing.",
                next_step=_NEXT_STEP,
            )
        return span


EVERYTHING = Span()


def _milliseconds(text: str) -> int:
    if "-" not in text:
        raise ValueError("20261121 could be an offset")
    moment = datetime.fromisoformat(text)
    # A time without a zone is in UTC, even if this machine has another zone.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ms = round(moment.timestamp() * 1_000)
    if ms < 0:
        raise ValueError("Kafka gives negative times another meaning")
    return ms


def _offsets(text: str) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for part in text.split(","):
        place = _PLACE.fullmatch(part.strip())
        if place is None:
            raise ValueError("not a place")
        topic, partition, offset = place.groups()
        if (topic, int(partition)) in offsets:
            raise ValueError("a partition occurs twice")
        offsets[topic, int(partition)] = int(offset)
    return offsets
