"""The streaming query of a job. Runs, rebuilds, checks and tests all use it, with different inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.batch.rejected import HeadersAt
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.at_least_once import AtLeastOnce
from sluice.engine.publish.auditor import Auditor
from sluice.engine.publish.publisher import HeldLease, IdentityCheck, Output, Publisher
from sluice.engine.publish.store_changes import GlobalTables, check_changes
from sluice.engine.publish.window_retention import Retention
from sluice.engine.run.dataframes import Frames, Input
from sluice.engine.run.registration import generation_info
from sluice.engine.session import close_idle_callbacks
from sluice.engine.steps.sql_errors import Unresolved, unresolved_error
from sluice.plan import Job
from sluice.sinks.target import TableSink
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo

Sink = Callable[[DataFrame, int], None]
"""The function that Spark calls with each batch."""


@dataclass
class JobQuery:
    """Builds a job's DataFrames from an input to the changed state rows, its publisher, and its streaming query.

    Raises TopologyError for an expression that Spark cannot resolve.
    """

    spark: SparkSession
    storage: Storage
    input: Input
    partitions: Mapping[str, int]
    """Topic → its number of partitions, as assumed by tasks."""
    epoch: int = 0
    """Epoch of the lease under which state is written."""
    checked: bool = False
    """Whether Spark analyzes all steps, also those that it need not compute."""
    frames: Frames = field(init=False)
    rows: DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.repartition(self.partitions)

    @property
    def job(self) -> Job:
        return self.storage.job

    @property
    def info(self) -> GenerationInfo:
        """The generation's description for readers."""
        return generation_info(self.storage, self.frames.types, self.frames.input_types)

    def repartition(self, partitions: Mapping[str, int]) -> None:
        """Rebuild the DataFrames for topics with these numbers of partitions."""
        self.partitions = partitions
        self.frames = Frames(
            self.spark, self.job, self.storage, self.input, partitions, self.epoch, checked=self.checked
        )  # fmt: skip
        self.rows = self.frames.state_rows()

    def check_changes(self) -> None:
        """Let Spark resolve the steps after stores too, which otherwise happens in the first batch."""
        try:
            check_changes(self.spark, self.job, self.frames.types)
        except Unresolved as error:
            raise unresolved_error(self.job, error) from None

    def publisher(
        self,
        ledger: Ledger,
        lease: HeldLease,
        identity: IdentityCheck,
        output: Output | None,
        *,
        published: int | None = None,
        auditor: Auditor | None = None,
        limits: Mapping[str, TopicLimits] | None = None,
        at_least_once: AtLeastOnce | None = None,
        table_sinks: Mapping[str, TableSink] | None = None,
        headers_at: HeadersAt = lambda _: {},
    ) -> Publisher:
        """The publisher of the batches after `published`, the last published one. Without `output`, they write none."""
        tables = GlobalTables.load(self.job, self.storage.locations[0], published)
        retention = Retention.of(self.storage, self.partitions)
        return Publisher(
            self.storage, ledger, lease, identity, output, tables, auditor, self.frames.types, retention,
            headers_at, self.frames.totals, limits or {}, at_least_once, table_sinks or {}, self.partitions,
        )  # fmt: skip

    def start(self, sink: Sink, checkpoint: str) -> StreamingQuery:
        """Start the streaming query, which runs until it is stopped."""
        return self._writer(sink, checkpoint).start()

    def run(self, sink: Sink, checkpoint: str) -> None:
        """Run the batch that the checkpoint has planned."""
        self._writer(sink, checkpoint).queryName(self.job.pipeline.name).trigger(once=True).start().awaitTermination()
        close_idle_callbacks(self.spark)

    def _writer(self, sink: Sink, checkpoint: str) -> DataStreamWriter:
        return self.rows.writeStream.foreachBatch(sink).outputMode("update").option("checkpointLocation", checkpoint)


@contextmanager
def without_adaptive_execution(spark: SparkSession) -> Iterator[None]:
    """Disable adaptive execution, which computes a batch up to a shuffle before it calls `foreachBatch`."""
    name = "spark.sql.adaptive.enabled"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)
