"""One job, run until it has read what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from sluice.engine.audit import Auditor
from sluice.engine.changes import GlobalTables
from sluice.engine.delivery import AtLeastOnce
from sluice.engine.evolution import require_compatible
from sluice.engine.frames import Frames
from sluice.engine.guard import Guard, Positions
from sluice.engine.kafka import KafkaInput
from sluice.engine.lease import PATIENCE, Lease, Patience, this_process
from sluice.engine.located import without_result
from sluice.engine.produce import (
    TransactionalOutput,
    Writer,
    ensure_topics,
    message_limits,
    partition_counts,
    room_for_letters,
)
from sluice.engine.publish import Publisher
from sluice.engine.registration import job_info
from sluice.engine.replay import Sink, replay
from sluice.engine.retention import Retention
from sluice.engine.storage import Storage
from sluice.errors import DamagedState, EngineError, LeaseError, SluiceError
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.addresses import shown
from sluice.state.ledger import Ledger
from sluice.state.places import Places


@dataclass
class JobRun:
    """A job on a session. A batch has at most `max_records` records of the streams; a longer backlog takes several."""

    spark: SparkSession
    job: Job
    settings: Settings
    generation: int = 1
    max_records: int = 2_000_000
    patience: Patience = PATIENCE
    replay_to: Positions | None = None
    """Read up to here only, and write no output: it is out already. For a generation that takes another one's place."""

    def __post_init__(self) -> None:
        self.storage = Storage.of(self.job, self.generation, self.settings)

    def run(self) -> int:
        """Read, compute and publish what there is to read; returns the number of records read."""
        with Ledger.open(self.settings.ledger) as ledger, self._lease(ledger) as lease:
            return self._run(ledger, lease)

    def _lease(self, ledger: Ledger) -> Lease:
        of = (self.job.pipeline.name, self.job.name, self.generation)
        return Lease(ledger.leases, *of, this_process(self.settings.run), self.patience)

    def _run(self, ledger: Ledger, lease: Lease) -> int:
        of = (self.job.pipeline.name, self.job.name, self.generation)
        guard = Guard(self.settings.kafka, ledger.sources, *of, self.job.topics)
        firsts = guard.check(*self.storage.positions())
        partitions = partition_counts(self.settings.kafka, self.job.topics)
        pipeline = self.job.pipeline
        writer = Writer(pipeline.name, self.job.name, self.generation, pipeline.markers)
        limits = self._make_topics(partitions, writer)
        if self.job.pipeline.file is not None:
            self.spark.sparkContext.addPyFile(str(self.job.pipeline.file))
        direct = AtLeastOnce.of(self.job, self.settings.kafka, self.settings.delivery, limits)
        direct = direct if self.replay_to is None else None  # a replay writes nothing, by no road
        self.storage = replace(self.storage, handoff=replace(self.storage.handoff, direct=direct))
        source = KafkaInput(self.spark, self.settings.kafka)
        self.storage = self.storage.placed(Places(ledger))
        frames = Frames(self.spark, self.job, self.storage, source, self.max_records, partitions, lease.epoch)
        cells = frames.shared_out()
        info, published = job_info(self.storage, frames.types), ledger.last_batch(*of)
        require_compatible(None if published is None else ledger.job(*of), info)
        with TransactionalOutput(self.settings.kafka, writer, limits) as output:
            self.storage.prepare(published, output.last_batch, ledger, lease.epoch)
            ledger.register(info)
            tables = GlobalTables.load(self.job, self.storage.locations[0], published)
            auditor = Auditor(self.storage, self.settings.run, lease.epoch, firsts)
            known = (tables, auditor, frames.types, Retention.of(self.storage, partitions), limits)
            publisher = Publisher(self.storage, ledger, lease, guard, output, *known, direct)
            with query_errors(publisher, self.storage):
                self._read(cells, publisher)
        return publisher.read

    def _read(self, cells: DataFrame, publisher: Publisher) -> None:
        if self.replay_to is None:
            self._stream(cells, publisher, publisher)
            return
        publisher.silent = True
        once = partial(self._stream, cells, publisher, once=True)
        replay(self.storage, self.replay_to, self.max_records, publisher, once)

    def _make_topics(self, partitions: Mapping[str, int], writer: Writer) -> dict[str, int]:
        """Make the topics that are missing; returns the bytes of the largest record that each output takes."""
        kafka, letters = self.settings.kafka, self.job.pipeline.dead_letters
        widest = max(partitions[source.topic] for source in self.job.streams)
        ensure_topics(kafka, dict.fromkeys(self.job.outputs, widest), {})
        limits = message_limits(kafka, (*self.job.outputs, *self.job.topics))
        own = {
            letters: {"max.message.bytes": str(room_for_letters(limits))},
            writer.markers: {"cleanup.policy": "compact"},
        }
        ensure_topics(kafka, dict.fromkeys(own, 1), own)
        return {topic: limits[topic] for topic in self.job.outputs} | message_limits(kafka, [letters])

    def _stream(self, cells: DataFrame, publisher: Publisher, sink: Sink, *, once: bool = False) -> None:
        publisher.begin()
        query = (
            cells.writeStream.foreachBatch(sink)
            .outputMode("update")
            .option("checkpointLocation", self.storage.checkpoint)
            .trigger(**({"once": True} if once else {"availableNow": True}))
            .queryName(f"{self.job.pipeline.name}.{self.job.name}")
            .start()
        )
        query.awaitTermination()


@contextmanager
def query_errors(publisher: Publisher, storage: Storage) -> Iterator[None]:
    """Spark's errors as ours: what the publisher raised as it was, anything else with what Spark says is the cause."""
    try:
        yield
    except StreamingQueryException as failed:
        if publisher.error is not None:
            raise publisher.error from None
        said = str(failed)
        if (error := _of_task(storage, said) or without_result(storage.job, said)) is not None:
            raise error from None
        raise EngineError(
            f"The query of {storage.job.pipeline.name} failed: {_cause(str(failed))}",
            next_step="Nothing of the batch is visible; the next run does it again. If it is the checkpoint "
            f"{storage.checkpoint} that is damaged: sluice rebuild {storage.job.pipeline.name}.",
        ) from failed


def _of_task(storage: Storage, said: str) -> SluiceError | None:
    """What a task raised that found its driver's lease lost, or its worker's state damaged."""
    if (lost := _LEASE_LOST.search(said)) is not None:
        return LeaseError(lost[1], next_step="Let the other driver finish.")
    if (found := _DAMAGED.search(said)) is not None:
        worker = int(found[2])
        error = DamagedState(found[1], workers={worker: shown(storage.locations[worker])})
        error.next_step = f"Restore it, or: sluice rebuild {storage.job.pipeline.name}."
        return error
    return None


_LEASE_LOST = re.compile(r"sluice\.errors\.LeaseError: (This driver has lost its lease[^\n]*)")
_DAMAGED = re.compile(r"sluice\.errors\.DamagedState: (Worker (\d+) [^\n]*)")


def _cause(said: str) -> str:
    """The innermost cause that Spark tells of, without its stack."""
    lines = [line.strip() for line in said.splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if _PYTHON_ERROR.match(line)]
    told = said.partition("terminated with exception: ")[2].splitlines()[:1]
    return (causes or raised or told or lines)[-1][:500]


_PYTHON_ERROR = re.compile(r"[A-Za-z_.]+(Error|Exception|Crash): ")
