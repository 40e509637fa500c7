"""The rules in which Sluice differs from Kafka Streams on purpose.

The model can follow either of them.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum


class Difference(Enum):
    """The value of each difference is its heading in `docs/differences.md`."""

    FIRST_ROWS = "The first row of an aggregate replaces no row"
    SESSIONS_OF_ONE_INSTANT = "A session of one instant replaces its earlier row"
    HELD_UPDATES = "An update that was held back replaces the row that was sent before it"
    ROWS_OF_ONE_TABLE = (
        "A join of two tables that depend on one table replaces the row that it has sent"
    )
    CLOSED_TOO_EARLY = "A window is closed when no record can change it any more"
    UNMATCHED_TOO_EARLY = (
        "A record that comes out of order waits for a match until its grace has passed"
    )
    MATCHED_TOO_LATE = "A record that was sent unmatched is not matched afterwards"
    FORGOTTEN_TOO_EARLY = "A record can be matched until its grace has passed"
    STALE_ANSWERS = "A foreign-key join of two tables that depend on one topic deletes its results"
    COMPUTED_AGAIN = "A joined row keeps the time of the deletion that has changed it"
    LOOKED_UP_TOO_EARLY = "A join finds the row that suppress has sent last"


Differences = Set[Difference]

KAFKA_STREAMS: Differences = frozenset(Difference)
"""All rules of Kafka Streams."""
SLUICE: Differences = frozenset()
