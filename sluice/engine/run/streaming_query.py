"""The streaming query of a job.

Runs, rebuilds, checks and tests all use it, with different inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.engine.batch.read_times import ReadTimes
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.store_changes import require_resolvable
from sluice.engine.run.dataframes import Frames, RecordSource, WrittenFrame
from sluice.engine.run.registration import generation_info
from sluice.engine.session import close_idle_callbacks
from sluice.engine.steps.sql_errors import Unresolved, unresolved_error
from sluice.plan import Job
from sluice.state.model import GenerationInfo

Sink = Callable[[DataFrame, int], None]
"""The function that Spark calls with each batch."""


@dataclass
class JobQuery:
    """Builds a job's streaming query: the DataFrames from input to the written shards.

    Raises TopologyError for an expression that Spark cannot resolve.
    """

    spark: SparkSession
    storage: Storage
    input: RecordSource
    partitions: Mapping[str, int]
    """Topic → its number of partitions, as assumed by tasks."""
    epoch: int = 0
    """Epoch of the lease under which state is written."""
    checked: bool = False
    """Whether Spark analyzes all steps, including steps that it need not compute."""
    read_times: ReadTimes = field(init=False)
    written: WrittenFrame = field(init=False)

    def __post_init__(self) -> None:
        self.read_times = ReadTimes(self.spark.sparkContext)
        side_outputs = replace(self.storage.side_outputs, note_times=self.read_times.note)
        self.storage = replace(self.storage, side_outputs=side_outputs)
        self.repartition(self.partitions)

    @property
    def job(self) -> Job:
        return self.storage.job

    @property
    def info(self) -> GenerationInfo:
        """The generation's description for readers."""
        return generation_info(self.storage, self.written.types)

    def repartition(self, partitions: Mapping[str, int]) -> None:
        """Rebuild the DataFrames for topics with these numbers of partitions."""
        self.partitions = partitions
        frames = Frames(
            self.spark,
            self.job,
            self.storage,
            self.input,
            partitions,
            self.epoch,
            checked=self.checked,
        )
        self.written = frames.build()

    def check_changes(self) -> None:
        """Let Spark resolve the steps after stores now, rather than in the first batch."""
        try:
            require_resolvable(self.spark, self.job, self.written.types.changes)
        except Unresolved as error:
            raise unresolved_error(self.job, error) from None

    def start(self, sink: Sink, checkpoint: str) -> StreamingQuery:
        """Start the streaming query, which runs until it is stopped."""
        return self._writer(sink, checkpoint).start()

    def start_batch(self, number: int, sink: Sink, checkpoint: str) -> StreamingQuery:
        """Start the streaming query for one batch. Spark records the batch in the checkpoint."""
        writer = self._writer(sink, checkpoint).queryName(f"{self.job.pipeline.name} {number}")
        return writer.trigger(availableNow=True).start()

    def close_idle_callbacks(self) -> None:
        """Close the connections of queries that have ended.

        Each query has called this process from a separate thread.
        """
        close_idle_callbacks(self.spark)

    def _writer(self, sink: Sink, checkpoint: str) -> DataStreamWriter:
        writer = self.written.frame.writeStream.foreachBatch(sink).outputMode("update")
        return writer.option("checkpointLocation", checkpoint)
