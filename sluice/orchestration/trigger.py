"""Start a pipeline when its topics hold records it has not read: one event for a burst, none when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import structlog
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sluice.brokers import ANSWER_SECONDS, quiet, unreachable
from sluice.errors import SluiceError
from sluice.orchestration.connections import KAFKA, kafka_config
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger

Offsets = dict[str, dict[int, int]]
"""topic → partition → offset."""

_TIMEOUT_S = ANSWER_SECONDS
_LONGEST_PAUSE_S = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Lag:
    """Where the topics end, and how far from there the pipeline has read."""

    ends: Offsets
    positions: Offsets
    begins: Offsets

    @property
    def records(self) -> int:
        """Offsets between the pipeline's positions and the ends; a topic made anew counts with what it holds."""
        return sum(self._behind(topic, *one) for topic, ends in self.ends.items() for one in ends.items())

    def _behind(self, topic: str, partition: int, end: int) -> int:
        begin = self.begins.get(topic, {}).get(partition, 0)
        position = self.positions.get(topic, {}).get(partition, begin)
        return end - max(position, begin) if position <= end else max(end - begin, 1)


@dataclass
class Burst:
    """Decides when records that have come make one event.

    An event is due when the ends have been the same for `settle_s`, or `max_wait_s` after the first new record.
    Then none is due before the pipeline has read as far as the event told, or, should its run have failed,
    before `patience_s` have gone by and more records have come.
    """

    settle_s: float
    max_wait_s: float
    patience_s: float
    _seen: Offsets | None = None
    _first_at: float = 0.0
    _same_since: float = 0.0
    _fired: Offsets | None = None
    _fired_at: float = 0.0

    def due(self, lag: Lag, now: float) -> bool:
        """Whether an event is due at `now`, in seconds of a clock that only goes forward."""
        if lag.records == 0:
            self._seen = self._fired = None
            return False
        if self._is_told(lag, now):
            return False
        if self._seen is None:
            self._first_at = now
        if lag.ends != self._seen:
            self._seen, self._same_since = lag.ends, now
        if now - self._same_since < self.settle_s and now - self._first_at < self.max_wait_s:
            return False
        self._seen, self._fired, self._fired_at = None, lag.ends, now
        return True

    def _is_told(self, lag: Lag, now: float) -> bool:
        if self._fired is None or _reaches(lag.positions, self._fired):
            return False
        return lag.ends == self._fired or now - self._fired_at < self.patience_s


def _reaches(positions: Offsets, ends: Offsets) -> bool:
    return all(positions.get(t, {}).get(p, 0) >= end for t, found in ends.items() for p, end in found.items())


class KafkaEndOffsetTrigger(BaseEventTrigger):
    """Fires when `topics` end beyond what the ledger says `pipeline` has read.

    It asks the broker for offsets only: no record is read and nothing is committed. What has been read stands in the
    ledger, so a triggerer that starts anew fires for unread records only. A broker, topic or ledger that cannot be
    reached is waited for, and said once.
    """

    def __init__(
        self,
        pipeline: str,
        topics: list[str],
        kafka_config_id: str = KAFKA,
        poll_seconds: float = 1.0,
        settle_seconds: float = 2.0,
        max_wait_seconds: float = 15.0,
        patience_seconds: float = 600.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.topics = list(topics)
        self.kafka_config_id = kafka_config_id
        self.poll_seconds = poll_seconds
        self.settle_seconds = settle_seconds
        self.max_wait_seconds = max_wait_seconds
        self.patience_seconds = patience_seconds
        self._admin: AdminClient | None = None
        self._ledger: Ledger | None = None
        self._address = ""
        self.trouble = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Name the class and the arguments that make this trigger again."""
        names = ("pipeline", "topics", "kafka_config_id", "poll_seconds", "settle_seconds", "max_wait_seconds")
        arguments = {name: getattr(self, name) for name in (*names, "patience_seconds")}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each burst of records, for ever."""
        burst = Burst(self.settle_seconds, self.max_wait_seconds, self.patience_seconds)
        pause = self.poll_seconds
        while True:
            lag = await self._look()
            pause = self.poll_seconds if lag else min(pause * 2, _LONGEST_PAUSE_S)
            if lag and burst.due(lag, time.monotonic()):
                log.info("records to read", pipeline=self.pipeline, records=lag.records)
                yield TriggerEvent(  # type: ignore[no-untyped-call]
                    {"pipeline": self.pipeline, "records": lag.records, "ends": lag.ends}
                )
            await asyncio.sleep(pause)

    async def cleanup(self) -> None:
        """Let go of the ledger."""
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)
            self._ledger = None

    async def _look(self) -> Lag | None:
        """Read the lag; None, said once in the log, while something it needs cannot be reached."""
        try:
            if self._admin is None:
                # Airflow's supervisor is asked for the connection over this thread's event loop: asgiref finds it.
                config = await sync_to_async(kafka_config)(self.kafka_config_id)
                self._admin = await asyncio.to_thread(AdminClient, quiet(config) | {"error_cb": _ignore})
                self._address = config.get("bootstrap.servers", "")
            lag = await asyncio.to_thread(self._lag, self._admin)
        except (KafkaException, TimeoutError) as error:
            why = error.args[0].str() if isinstance(error, KafkaException) else "timed out"
            self._wait(str(unreachable({"bootstrap.servers": self._address}, why)), "no broker")
            return None
        except (SluiceError, OSError) as error:
            self._wait(f"{type(error).__name__}: {error}")
            return None
        if missing := sorted({*self.topics} - lag.ends.keys()):
            self._wait(f"no topic {', '.join(missing)}")
            return None
        if self.trouble:
            log.info("reachable again", pipeline=self.pipeline)
        self.trouble = ""
        return lag

    def _lag(self, admin: AdminClient) -> Lag:
        if self._ledger is None:
            self._ledger = Ledger.open(settings().ledger)
        # Positions first: read after the ends they might lie beyond them, as if the topic had been made anew.
        positions = self._ledger.positions(self.pipeline)
        found = admin.list_topics(timeout=_TIMEOUT_S).topics
        partitions = [TopicPartition(name, n) for name in self.topics if name in found for n in found[name].partitions]
        # Retention may have emptied partitions that have not been read yet: they begin where they end.
        unread = [one for one in partitions if one.partition not in positions.get(one.topic, {})]
        ends, begins = _offsets(admin, partitions, OffsetSpec.latest()), _offsets(admin, unread, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        return Lag(ends, positions, begins)

    def _wait(self, trouble: str, kind: str = "") -> None:
        """Say what is waited for, once for a kind: a client has many words for the same trouble."""
        kind = kind or trouble
        if kind != self.trouble:
            log.warning("waiting", pipeline=self.pipeline, trouble=trouble)
        self.trouble = kind


def _offsets(admin: AdminClient, partitions: list[TopicPartition], which: OffsetSpec) -> Offsets:
    """Ask where partitions begin or end for a reader of committed records: open transactions lie beyond."""
    if not partitions:
        return {}
    asked = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=_TIMEOUT_S,
    )
    found: Offsets = {}
    for one, future in asked.items():
        found.setdefault(one.topic, {})[one.partition] = future.result(_TIMEOUT_S).offset
    return found


def _ignore(_error: object) -> None:
    """Leave it to the trigger to say once what is wrong."""
