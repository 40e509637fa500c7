"""Waits until records arrive, with a request that a broker answers when it gets a record."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from sluice.errors import BrokersUnreachable, SettingsError
from sluice.kafka.brokers import COMMITS_NOTHING, configuration_errors, quiet
from sluice.kafka.unread_records import Offsets

_SETTINGS: Mapping[str, str | int | bool] = {
    **COMMITS_NOTHING,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    # While a broker waits for records, the client cannot ask it for records of other offsets. So
    # this time must be short.
    "fetch.wait.max.ms": 100,
    # The records themselves are not needed, so fetch as few of them as possible.
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 1_024,
    "fetch.max.bytes": 1_048_576,
    # A broker sends at least one batch of records, even if it is very large.
    "receive.message.max.bytes": 2_147_483_647,
}


class Arrivals:
    """A consumer that only notices that records have arrived. It must be closed."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._consumer: Consumer | None = None
        """None until the first wait: most runs never wait."""
        self._positions: Offsets | None = None
        """The offsets from which the client waits for records; None while it waits for none."""

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def wait(self, positions: Offsets, seconds: float) -> None:
        """Wait until a committed record at or after `positions` arrives, or for `seconds`.

        While a partition cannot be read, for whatever reason, its records end no wait.
        """
        until = time.monotonic() + seconds
        try:
            consumer = self._consumer_at(positions)
        except (SettingsError, BrokersUnreachable):
            # While a certificate and its key are being replaced, they do not fit together, and a
            # token may be unavailable for some time. The next wait tries again.
            time.sleep(seconds)
            return
        while (left := until - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is not None and message.error() is None:
                return

    def rest(self) -> None:
        """Fetch no more records until the next wait."""
        if self._consumer is not None:
            self._consumer.unassign()
            self._positions = None

    def _consumer_at(self, positions: Offsets) -> Consumer:
        if self._consumer is None:
            with configuration_errors(self._kafka):
                self._consumer = Consumer(
                    {**_SETTINGS, **quiet(self._kafka), "error_cb": lambda _: None}
                )
        if positions != self._positions:
            places: list[TopicPartition] = []
            for topic, offsets in positions.items():
                for partition, offset in offsets.items():
                    places.append(TopicPartition(topic, partition, offset))
            self._consumer.assign(places)
            self._positions = positions
        return self._consumer
