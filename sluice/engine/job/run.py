"""One job, run until it has read what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from sluice.engine.batch.storage import Storage
from sluice.engine.job.compatibility import changed_functions, require_compatible, said_changed
from sluice.engine.job.dataframes import Frames
from sluice.engine.job.lease import PATIENCE, Lease, Patience, current_lease, this_process
from sluice.engine.job.registration import job_info
from sluice.engine.job.replay import Sink, Step, joined, replay
from sluice.engine.publish.at_least_once import AtLeastOnce
from sluice.engine.publish.audit import Auditor
from sluice.engine.publish.publisher import Publisher
from sluice.engine.publish.retention import Retention
from sluice.engine.publish.store_changes import GlobalTables
from sluice.engine.publish.transaction import (
    TransactionalOutput,
    Writer,
    ensure_topics,
    message_limits,
    partition_counts,
    room_for_letters,
)
from sluice.engine.read.identity import Guard, Positions
from sluice.engine.read.kafka import KafkaInput
from sluice.engine.steps.sql_errors import without_result
from sluice.errors import DamagedState, EngineError, LeaseError, SluiceError
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobInfo, JobRef
from sluice.state.shard.addresses import shown

log = structlog.get_logger()


@dataclass(frozen=True)
class JobRun:
    """A job on a session. A batch has at most `max_records` records of the streams; a longer backlog takes several."""

    spark: SparkSession
    job: Job
    settings: Settings
    generation: int | None = None
    """None: the one that readers see."""
    max_records: int = 2_000_000
    patience: Patience = PATIENCE
    steps: Sequence[Step] | None = None
    """Run these batches only, and write no output: it is out already. For a generation that replaces another one."""

    def run(self) -> int:
        """Read, compute and publish what there is to read; returns the number of records read."""
        with Ledger.open(self.settings.ledger) as ledger, self._lease(ledger) as lease:
            return self._run(ledger, lease, Storage.of(self.job, lease.ref.generation, self.settings))

    def _lease(self, ledger: Ledger) -> AbstractContextManager[Lease]:
        pipeline, job, holder = self.job.pipeline.name, self.job.name, this_process(self.settings.run)
        if self.steps is not None and self.generation is not None:
            ref = JobRef(pipeline, job, self.generation)
            return Lease(ledger.leases, ref, holder, self.patience)  # which readers do not see yet
        return current_lease(ledger, pipeline, job, holder, self.patience, self.generation)

    def _run(self, ledger: Ledger, lease: Lease, storage: Storage) -> int:
        pipeline = self.job.pipeline
        guard = Guard(self.settings.kafka, ledger.sources, storage.ref, self.job.topics)
        firsts = guard.check(*storage.positions())
        partitions = partition_counts(self.settings.kafka, self.job.topics)
        writer = Writer(storage.ref, pipeline.markers)
        limits = self._make_topics(partitions, writer)
        if pipeline.file is not None:
            ship(self.spark, pipeline.file)
        direct = AtLeastOnce.of(self.job, self.settings.kafka, self.settings.delivery, limits)
        direct = direct if self.steps is None else None  # a replay writes nothing, by no road
        storage = replace(storage, side_outputs=replace(storage.side_outputs, direct=direct)).placed(ledger.placements)
        query = _Query(self, storage, partitions, lease.epoch)
        info, published = job_info(storage, query.frames), ledger.snapshots.last_batch(storage.ref)
        before = None if published is None else ledger.jobs.get(storage.ref)
        require_compatible(before, info)
        with TransactionalOutput(self.settings.kafka, writer, limits) as output:
            storage.prepare(published, output.last_batch, ledger, lease.epoch)
            self._register(ledger, before, info)
            tables = GlobalTables.load(self.job, storage.locations[0], published)
            auditor = Auditor(storage, self.settings.run, lease.epoch, firsts)
            known = (tables, auditor, query.frames.types, Retention.of(storage, partitions), limits)
            publisher = Publisher(storage, ledger, lease, guard, output, *known, direct, partitions=partitions)
            with query_errors(publisher, storage, lease):
                if self.steps is None:
                    publisher.begin()
                    query.run(publisher)
                else:
                    self._replay(query, publisher, firsts, self.steps)
        return publisher.read

    def _replay(self, query: _Query, publisher: Publisher, firsts: Positions, steps: Sequence[Step]) -> None:
        publisher.silent = True
        steps = joined(self.job, query.frames.types, steps, firsts, self.max_records)
        replay(query.storage, steps, firsts, publisher, partial(self._again, query, publisher))

    @staticmethod
    def _again(query: _Query, publisher: Publisher, sink: Sink, step: Step) -> None:
        """Run one batch as one that knew the topics to have as many partitions as they had then."""
        publisher.partitions = {**query.now, **(step.partitions or {})}
        publisher.retention = Retention.of(query.storage, publisher.partitions)
        publisher.begin()
        query.run(sink, publisher.partitions, once=True)

    def _register(self, ledger: Ledger, before: JobInfo | None, info: JobInfo) -> None:
        if before is not None and (changed := changed_functions(before, info)):
            log.warning("functions changed", pipeline=info.pipeline, job=info.job, functions=changed)
            ledger.notes.add(info.ref, self.settings.run, said_changed(info.pipeline, changed))
        ledger.jobs.register(info, hidden=self.steps is not None)

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


class _Query:
    """The streaming query of a job's run."""

    def __init__(self, run: JobRun, storage: Storage, partitions: Mapping[str, int], epoch: int) -> None:
        self.storage, self.now = storage, partitions
        self._run, self._partitions, self._epoch = run, partitions, epoch
        self._source = KafkaInput(run.spark, run.settings.kafka)
        self.frames = self._made(partitions)
        self._state_rows = self.frames.shared_out()

    def _made(self, partitions: Mapping[str, int]) -> Frames:
        run = self._run
        return Frames(run.spark, run.job, self.storage, self._source, run.max_records, partitions, self._epoch)

    def run(self, sink: Sink, partitions: Mapping[str, int] | None = None, *, once: bool = False) -> None:
        """Run it until it has read what there is; `once`: one batch. `partitions` of the topics, if not as now."""
        if partitions is not None and partitions != self._partitions:
            self._partitions = partitions
            self._state_rows = self._made(partitions).shared_out()
        job = self._run.job
        writer = (
            self._state_rows.writeStream.foreachBatch(sink)
            .outputMode("update")
            .option("checkpointLocation", self.storage.checkpoint)
            .trigger(**({"once": True} if once else {"availableNow": True}))
            .queryName(f"{job.pipeline.name}.{job.name}")
        )
        with _nothing_ahead(self._run.spark) if once else nullcontext():
            writer.start().awaitTermination()


@contextmanager
def _nothing_ahead(spark: SparkSession) -> Iterator[None]:
    """Let Spark compute nothing of a batch before `foreachBatch` does, as adaptive execution would up to a shuffle."""
    name = "spark.sql.adaptive.enabled"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def ship(spark: SparkSession, file: Path) -> None:
    """Have executors get a pipeline's file, once a session: Spark warns of a second time."""
    there = spark.sparkContext.listFiles
    if not any(one.endswith((str(file), f"/files/{file.name}")) for one in there):
        spark.sparkContext.addPyFile(str(file))


@contextmanager
def query_errors(publisher: Publisher, storage: Storage, lease: Lease) -> Iterator[None]:
    """Spark's errors as ours: what the publisher raised as it was, anything else with what Spark says is the cause."""
    try:
        yield
    except StreamingQueryException as failed:
        # Whatever fails once a successor works with the checkpoint, the shards and the output, this is the cause.
        lease.require()
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
