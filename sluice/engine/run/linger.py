"""Waits for new records after a run has read all records, to save the start of a new driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import structlog
from confluent_kafka import KafkaException

from sluice.engine.run.clocks import Clocks
from sluice.kafka.arrivals import Arrivals
from sluice.kafka.brokers import broker_errors, silent_admin, unreachable
from sluice.kafka.denied_operations import DESCRIBE, access_denied, denial, on_topic
from sluice.kafka.replaced_files import ReplacedFiles
from sluice.kafka.unread_records import Lag, Offsets, read_lag

log = structlog.get_logger()

News = Literal["records", "partitions", "certificates", "timers"]

_LOOK_S = 2.0
"""How often a lingering run checks whether the pipeline was paused."""
LONGEST_S = 3_600.0
"""A run lingers for at most an hour. After that, a new run loads the pipeline's file again, and no
task exceeds Airflow's limit of two hours."""


@dataclass
class Linger:
    """Compares the topics' end offsets with the offsets that were read.

    It does so several times a second, and as soon as a record arrives. It must be closed.
    """

    kafka: Mapping[str, str] = field(repr=False)
    topics: Sequence[str]
    """The topics that the run reads, and the patterns of topics that may be added."""
    partitions: Mapping[str, int]
    """Topic → the number of partitions that the run reads."""
    milliseconds: int
    """How long to wait for new records."""
    check: Callable[[], None]
    """Raises an error if this driver must stop, for example because it has lost its lease."""
    clocks: Clocks
    files: ReplacedFiles
    """The files of the run's clients, with their versions before the clients were made."""
    pause_s: float = 0.25
    is_paused: Callable[[], bool] = lambda: False
    """Returns whether somebody has paused the pipeline, which ends the wait."""

    def __post_init__(self) -> None:
        self._last = time.monotonic() + LONGEST_S
        self._admin = silent_admin(self.kafka)
        self._arrivals = Arrivals(self.kafka)
        self._unreachable = False
        self._next_look = 0.0

    def close(self) -> None:
        self._arrivals.close()

    def wait(self, positions: Offsets, next_timer: int | None = None) -> News | None:
        """Wait for records beyond `positions`, for new partitions, or for a timer.

        The timer is due at `next_timer`, epoch ms. The wait also ends if files that the run's
        clients have read, such as a certificate, were replaced: the run then makes new clients.
        Return None when the waiting time has ended.
        """
        if not self.milliseconds:
            return None
        try:
            return self._wait(positions, next_timer)
        finally:
            self._arrivals.rest()

    def _wait(self, positions: Offsets, next_timer: int | None) -> News | None:
        end = min(time.monotonic() + self.milliseconds / 1000, self._last)
        while (left := end - time.monotonic()) > 0:
            if self.files.were_replaced():
                return "certificates"
            # Another driver may have taken over the lease while this driver waited.
            self.check()
            if self._was_paused():
                return None
            lag = self._lag(positions)
            # Tasks assume the numbers of partitions with which the query was made. New partitions
            # need a new query, which the run makes.
            if lag is not None and self._has_new_partitions(lag):
                return "partitions"
            if lag is not None and lag.readable:
                return "records"
            if next_timer is not None and self.clocks.earliest() >= next_timer:
                return "timers"
            self._arrivals.wait(positions, min(self.pause_s, left))
        return None

    def _was_paused(self) -> bool:
        """Return whether the pipeline is paused. Reads this from the ledger only now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        return self.is_paused()

    def unread(self, positions: Offsets) -> int:
        """Return the number of readable offsets beyond `positions`.

        Raise BrokersUnreachable if no broker answers.
        """
        with broker_errors(self.kafka):
            return self._read_lag(positions).readable

    def _has_new_partitions(self, lag: Lag) -> bool:
        # The numbers also differ if a topic was deleted. The run then looks for the topics again,
        # and ends with an error.
        present = dict.fromkeys(self.partitions, 0)
        for topic, ends in lag.ends.items():
            present[topic] = len(ends)
        return present != dict(self.partitions)

    def _lag(self, positions: Offsets) -> Lag | None:
        """Return the lag. While the broker cannot be reached, return None, and log this once.

        Raise AccessDenied if Kafka no longer allows a topic to be described.
        """
        try:
            lag = self._read_lag(positions)
        # A broker may restart while a run lingers, so continue to wait. The lease and the time
        # limit still end the wait.
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException):
                denied = denial(self.kafka, error)
                if denied is not None:
                    raise denied from None
            if not self._unreachable:
                why = str(error) or "timed out"
                log.warning("waiting for the broker", why=unreachable(self.kafka, why).detail)
            self._unreachable = True
            return None
        self._unreachable = False
        return lag

    def _read_lag(self, positions: Offsets) -> Lag:
        lag = read_lag(self._admin, self.topics, positions)
        if lag.denied:
            operations = [on_topic(DESCRIBE, topic) for topic in sorted(lag.denied)]
            raise access_denied(self.kafka, operations)
        return lag
