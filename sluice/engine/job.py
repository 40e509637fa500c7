"""One job, run until it has read what there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from sluice.engine.audit import Auditor
from sluice.engine.changes import GlobalTables
from sluice.engine.frames import Frames
from sluice.engine.guard import Guard, Positions
from sluice.engine.kafka import KafkaInput
from sluice.engine.lease import PATIENCE, Lease, Patience, this_process
from sluice.engine.produce import TransactionalOutput, Writer, ensure_topics, partition_counts
from sluice.engine.publish import Publisher
from sluice.engine.registration import job_info
from sluice.engine.replay import Sink, replay
from sluice.engine.storage import Storage
from sluice.plan import Job
from sluice.settings import Settings
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
        self._make_topics(partitions, writer)
        if self.job.pipeline.file is not None:
            self.spark.sparkContext.addPyFile(str(self.job.pipeline.file))
        source = KafkaInput(self.spark, self.settings.kafka)
        frames = Frames(self.spark, self.job, self.storage, source, self.max_records, partitions)
        cells = frames.shared_out()
        types = frames.types
        with TransactionalOutput(self.settings.kafka, writer) as output:
            published = ledger.last_batch(self.job.pipeline.name, self.job.name, self.generation)
            self.storage = self.storage.placed(Places(ledger))
            self.storage.prepare(published, output.last_batch, ledger)
            ledger.register(job_info(self.storage, types))
            tables = GlobalTables.load(self.job, self.storage.locations[0], published)
            auditor = Auditor(self.storage, self.settings.run, lease.epoch, firsts, ledger.audits.checksums(*of))
            publisher = Publisher(self.storage, ledger, lease, guard, output, tables, auditor, types)
            if self.replay_to is None:
                self._stream(cells, publisher)
            else:
                publisher.silent = True
                once = partial(self._stream, cells, once=True)
                replay(self.storage, self.replay_to, self.max_records, publisher, once)
        return publisher.read

    def _make_topics(self, partitions: Mapping[str, int], writer: Writer) -> None:
        widest = max(partitions[source.topic] for source in self.job.streams)
        wanted = dict.fromkeys(self.job.outputs, widest) | {self.job.pipeline.dead_letters: 1, writer.markers: 1}
        ensure_topics(self.settings.kafka, wanted, frozenset({writer.markers}))

    def _stream(self, cells: DataFrame, sink: Sink, *, once: bool = False) -> None:
        query = (
            cells.writeStream.foreachBatch(sink)
            .outputMode("update")
            .option("checkpointLocation", self.storage.checkpoint)
            .trigger(**({"once": True} if once else {"availableNow": True}))
            .queryName(f"{self.job.pipeline.name}.{self.job.name}")
            .start()
        )
        query.awaitTermination()
