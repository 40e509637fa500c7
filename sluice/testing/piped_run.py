"""The run of a pipeline under test: its state, its publisher, and the records piped in."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.idle_time import IdleTime
from sluice.engine.batch.record_headers import headers_of
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.output_writer import Destinations
from sluice.engine.publish.publisher import ROWS, BegunBatch, Publisher
from sluice.engine.publish.shard_writer import StateRows
from sluice.engine.publish.state_types import StateTypes
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationInfo
from sluice.testing.empty_databases import create_empty_shards, open_empty_ledger
from sluice.testing.piped_records import OutputInMemory, TablesInMemory, UncontestedLease
from sluice.values.call_parameters import SharedSnapshot
from sluice.values.record_places import Place


class Clock(Protocol):
    """The wall clock of the next batch, epoch ms."""

    def now(self) -> int: ...

    def advance(self, milliseconds: int) -> None: ...


@dataclass
class MachineClock:
    """The machine's clock, plus the time `ahead` by which a test has advanced it."""

    ahead: int = 0

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead

    def advance(self, milliseconds: int) -> None:
        self.ahead += milliseconds


@dataclass
class ManualClock:
    """A clock that only the test moves."""

    time: int

    def now(self) -> int:
        return self.time

    def advance(self, milliseconds: int) -> None:
        self.time += milliseconds


class PipedRun:
    """Runs the pipeline under test."""

    def __init__(self, job: Job, settings: Settings, partitions: Mapping[str, int]) -> None:
        self.job = job
        self.clock: Clock = MachineClock()
        self.storage = Storage.of(job, 1, settings)
        self.output = OutputInMemory()
        self.counts: Counter[str] = Counter()
        self.batch = -1
        self.lease = UncontestedLease()
        self._declared_partitions = partitions
        self.partitions = dict.fromkeys(job.topics, 1) | dict(partitions)
        """Topic → its number of partitions."""
        self.shared: dict[str, SharedSnapshot] = {}
        """Store of another pipeline → the values that a test has given it."""
        for store, _ in job.shared_stores:
            self.shared[str(store)] = SharedSnapshot(id="", rows={})
        self._headers: dict[Place, list[Mapping[str, str | bytes | None]]] = {}
        self._begun: BegunBatch | None = None
        self._ledger = open_empty_ledger(settings.ledger)
        create_empty_shards(self.storage.locations)

    def begin(self, info: GenerationInfo, types: StateTypes) -> None:
        """Register the generation, and make its publisher."""
        self.stores = info.stores_by_name
        self._ledger.generations.register(info)
        table_sinks = {}
        for destination, sinks in self.job.written_tables.items():
            # Imported only if it is needed, because the module imports the clients of databases.
            from sluice.engine.publish.target_tables import declared_columns

            columns = {sink.topic: declared_columns(sink) for sink in sinks}
            table_sinks[destination] = TablesInMemory(self.output, columns)
        self._publisher = Publisher(
            storage=self.storage,
            types=types,
            ledger=self._ledger,
            lease=self.lease,
            identity=self.lease,
            destinations=Destinations(self.output, tables=table_sinks, headers_at=self.headers_at),
            newest=self._ledger.snapshots.newest(self.storage.ref),
        )

    def read_also(self, job: Job) -> None:
        """Continue with a job that has found more topics, as the next run of a pipeline does."""
        self.job = job
        self.storage = replace(self.storage, job=job)
        self.partitions = dict.fromkeys(job.topics, 1) | dict(self._declared_partitions)

    def plan(self, batch: int, *, reads_records: bool = True) -> BatchStart:
        """Plan a batch, and return its start, which its tasks need."""
        planned = PlannedBatch(number=batch, begun=self.clock.now())
        self._begun = self._publisher.begin(
            planned, {}, self.partitions, reads_records=reads_records
        )
        return BatchStart.of(
            batch, planned.begun, self._begun.times, self.job.read_clocks, shared=self.shared
        )

    def process(self, records: list[str]) -> None:
        """Process records as one batch, and wait until the batch is published."""
        raise NotImplementedError

    def fire_timers(self) -> None:
        """Run a batch without records if a wall-clock timer is due.

        Stream time may advance with the clock. As long as results become due, run further batches.
        """
        due = self._idle_time.next_batch
        if due is not None and due <= self.clock.now():
            self.process([])
        while self._idle_time.has_results(self.clock.now()):
            self.process([])

    @property
    def _idle_time(self) -> IdleTime:
        times = self._ledger.snapshots.times_before(self.storage.ref, self.batch + 1)
        return IdleTime(self.job, times, self.partitions)

    def keep_headers(self, records: Sequence[str]) -> None:
        """Keep the headers of records, because dead letters of later steps contain them."""
        for record in records:
            values = json.loads(record)
            if values["headers"] != "null":
                place = values["topic"], values["partition"], values["offset"]
                self._headers[place] = [*headers_of(values["headers"])]

    def headers_at(
        self,
        places: Sequence[Place],
    ) -> dict[Place, list[Mapping[str, str | bytes | None]]]:
        """Return the headers of the records at these places."""
        headers: dict[Place, list[Mapping[str, str | bytes | None]]] = {}
        for place in places:
            if place in self._headers:
                headers[place] = self._headers[place]
        return headers

    def publish(self, state_rows: StateRows) -> None:
        """Publish a batch, and count what happened to its records."""
        assert self._begun is not None
        published = self._publisher.publish(self._begun, state_rows)
        self.batch = self._begun.plan.number
        for name, count in published.counts.items():
            if name != ROWS:
                self.counts[name] += count

    def stop(self) -> None:
        """Close the ledger."""
        self._ledger.close()
