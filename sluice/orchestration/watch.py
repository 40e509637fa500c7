"""End offsets, positions and leases, which all triggers of a triggerer watch.

They are read once for all triggers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from confluent_kafka.admin import AdminClient

from sluice.airflow_connections import kafka_config
from sluice.answers import FailureKind
from sluice.kafka.brokers import broker_errors
from sluice.kafka.replaced_files import LastingAdmin
from sluice.kafka.unread_records import Lag, Offsets, read_lag
from sluice.observe.host_checks import Observer
from sluice.settings import settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.leases import LeaseRow
from sluice.state.ledger.ledger import Ledger
from sluice.support.single_flight import SingleFlightCache

POLL_SECONDS = 0.5
"""The period of the triggers. Triggers with the same period share one reading of the broker and the
ledger."""


class Observation(NamedTuple):
    """The state of a pipeline as its trigger sees it."""

    lag: Lag
    lease: LeaseRow | None
    """The lease of the pipeline's driver."""
    published_at: datetime | None
    """The time of the pipeline's newest snapshot; None if it has none."""
    failures: Mapping[FailureKind, Failure]
    is_paused: bool = False
    """Whether somebody has paused the pipeline. If so, no run may start."""
    next_timer: int | None = None
    """When a batch without records next has something to do (`Snapshot.due`), in epoch ms; None if
    never."""


@dataclass(frozen=True)
class _Round:
    """The result of one reading of the broker and the ledger, for all pipelines."""

    lag: Lag
    """The begin and end offsets of all watched topics, without any pipeline's positions."""
    positions: Mapping[str, Offsets]
    """Pipeline → topic → partition → the pipeline's next offset."""
    leases: Mapping[str, LeaseRow]
    published: Mapping[str, datetime]
    """Pipeline → the time of its newest snapshot."""
    timers: Mapping[str, int]
    """Pipeline → when its earliest timer on the wall clock is due, epoch ms."""
    failures: Mapping[str, Mapping[FailureKind, Failure]]
    """Pipeline → kind → its unresolved failure."""
    paused: frozenset[str]
    """The pipelines that somebody has paused."""


class Watch:
    """Reads the broker and the ledger at most once per `poll_seconds` for all its triggers.

    Each time, it asks the broker for the offsets of all their topics together, and sends the ledger
    a few queries, however many triggers there are.
    """

    def __init__(self, kafka_config_id: str, poll_seconds: float) -> None:
        self._kafka_config_id = kafka_config_id
        # All triggers ask at about the same time, so all of them get the same result if it is kept
        # for half a period.
        self._rounds = SingleFlightCache[_Round](poll_seconds / 2, 1)
        self._topics: dict[object, frozenset[str]] = {}
        self._admin: LastingAdmin | None = None
        self._ledger: Ledger | None = None
        self._observer: Observer | None = None
        self._kafka: Mapping[str, str] = {}
        self._connections = asyncio.Lock()
        """Held while the connections are opened, used or closed."""

    @classmethod
    def shared(cls, kafka_config_id: str, poll_seconds: float) -> Watch:
        """Return the watch for all triggers in this event loop with this connection and period."""
        watches = _WATCHES.setdefault(asyncio.get_running_loop(), {})
        return watches.setdefault(
            (kafka_config_id, poll_seconds), cls(kafka_config_id, poll_seconds)
        )

    def join(self, trigger: object, topics: frozenset[str]) -> None:
        """Watch the topics of a trigger until it leaves."""
        self._topics[trigger] = topics

    async def leave(self, trigger: object) -> None:
        """Stop watching the topics of a trigger.

        When the last trigger leaves, the connections are closed.
        """
        self._topics.pop(trigger, None)
        # A trigger that is cancelled leaves while the broker and the ledger are still being read.
        # Wait for the end of that reading before closing the connections.
        async with self._connections:
            if not self._topics and self._ledger is not None:
                ledger, self._ledger, self._admin, self._observer = self._ledger, None, None, None
                await asyncio.to_thread(ledger.close)

    async def observe(self, pipeline: str, topics: frozenset[str]) -> Observation:
        """Observe a pipeline for a trigger that has joined.

        Topics that do not exist are missing in the lag. Raises BrokersUnreachable, and StateError
        if the ledger cannot be reached.
        """
        topics_of_all = frozenset[str]().union(*self._topics.values())
        shared = await self._rounds.get(topics_of_all, lambda: self._read(topics_of_all))
        lag = shared.lag.of_pipeline(topics, shared.positions.get(pipeline, {}))
        failures = shared.failures.get(pipeline, {})
        return Observation(
            lag,
            shared.leases.get(pipeline),
            shared.published.get(pipeline),
            failures,
            pipeline in shared.paused,
            shared.timers.get(pipeline),
        )

    async def _read(self, topics: frozenset[str]) -> _Round:
        async with self._connections:
            if not self._topics:
                # All triggers have left, so nobody would close the connections.
                raise asyncio.CancelledError
            if self._admin is None:
                # In a triggerer, Airflow gets a connection from its supervisor through this
                # thread's event loop. asgiref's `sync_to_async` makes this loop available.
                self._kafka = await sync_to_async(kafka_config)(self._kafka_config_id)
                self._admin = await asyncio.to_thread(LastingAdmin, self._kafka)
            if self._ledger is None:
                self._ledger = await asyncio.to_thread(Ledger.open, settings().ledger)
                self._observer = Observer(self._ledger, settings())
            if self._observer is not None:
                self._observer.observe()
            admin = await asyncio.to_thread(self._admin.client)
            return await asyncio.to_thread(self._read_round, admin, self._ledger, topics)

    def _read_round(self, admin: AdminClient, ledger: Ledger, topics: frozenset[str]) -> _Round:
        # Positions are read before end offsets. In the other order, a run could read more records
        # in between. A position could then be after the end offset, as if the topic had been
        # deleted and created again.
        snapshots = ledger.snapshots.of_all_pipelines()
        positions: dict[str, Offsets] = {}
        for snapshot in snapshots:
            offsets = positions[snapshot.pipeline] = {}
            for topic, partitions in snapshot.positions.items():
                offsets[topic] = {
                    int(partition): offset for partition, offset in partitions.items()
                }
        published = {snapshot.pipeline: snapshot.published_at for snapshot in snapshots}
        timers = {
            snapshot.pipeline: snapshot.due for snapshot in snapshots if snapshot.due is not None
        }
        leases = {lease.pipeline: lease for lease in ledger.leases.of_all_pipelines()}
        failures: dict[str, dict[FailureKind, Failure]] = {}
        for failure in ledger.failures.all():
            failures.setdefault(failure.pipeline, {})[failure.kind] = failure
        paused = frozenset(ledger.pauses.all())
        with broker_errors(self._kafka):
            lag = read_lag(admin, topics, {})
        return _Round(lag, positions, leases, published, timers, failures, paused)


_WATCHES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, float], Watch]] = (
    WeakKeyDictionary()
)
