"""Finds producers' open transactions, which keep pipelines from reading later records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sluice.kafka.record_times import timestamps_at
from sluice.kafka.unread_records import Lag

HELD_SECONDS = 40.0
"""After this time, an open transaction counts as hanging. Most producers commit within a second."""


class HeldPartitions:
    """Remembers when this process first saw each open transaction that holds back records.

    Kafka does not say when a transaction began. The timestamps of the transaction's records do not
    say it either, because producers choose the timestamps, and may set event times.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, datetime]] = {}
        """Topic and partition → the offset at which records are held back, and when this was first
        seen."""

    def since(self, lag: Lag, now: datetime) -> datetime | None:
        """Return when the oldest transaction that holds back a lag's records was first seen.

        Return None if there is no such transaction.
        """
        times: list[datetime] = []
        for topic, ends in lag.held_ends.items():
            for partition, offset in ends.items():
                seen = self._seen.get((topic, partition))
                # If the offset differs, this is another transaction: the earlier one has ended.
                if seen is None or seen[0] != offset:
                    seen = self._seen[topic, partition] = offset, now
                times.append(seen[1])
        return min(times, default=None)


def oldest_held(kafka: Mapping[str, str], lag: Lag) -> datetime | None:
    """Return the earliest first timestamp of the transactions that hold back records.

    Return None if no transaction holds back records. Raises BrokersUnreachable.
    """
    first_records: dict[tuple[str, int], int] = {}
    for topic, ends in lag.held_ends.items():
        first_records |= {(topic, partition): end for partition, end in ends.items()}
    return min(timestamps_at(kafka, first_records).values(), default=None)
