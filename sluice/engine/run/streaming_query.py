"""The query of a job, as a stream or of a single batch.

Runs, rebuilds, checks and tests all use it, with different inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
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
from sluice.plan.arrow_support import NeedsSparkError
from sluice.state.model import GenerationInfo

Sink = Callable[[DataFrame, int], None]
"""The function that Spark calls with each batch."""


@dataclass
class JobQuery:
    """Builds a job's query: the DataFrames from input to the written shards.

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
    single: RecordSource | None = None
    """The input of a single batch, which is no stream; None if there is only the stream."""
    read_times: ReadTimes = field(init=False)
    written: WrittenFrame = field(init=False)
    _single: WrittenFrame | None = field(init=False)
    _stream: WrittenFrame | None = field(init=False)

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
        self._single = self._stream = None
        if self.single is not None:
            # Spark SQL always computes a stream: in each batch of a stream, expressions such as
            # `rand()` have other values.
            with suppress(NeedsSparkError):
                self._single = self._frames(self.single).build_of_tasks()
        self.written = self._single or self._built_stream()

    def _frames(self, source: RecordSource) -> Frames:
        return Frames(
            self.spark,
            self.job,
            self.storage,
            source,
            self.partitions,
            self.epoch,
            checked=self.checked,
        )

    def _built_stream(self) -> WrittenFrame:
        """Return the streaming query's DataFrame. Many runs never need it."""
        if self._stream is None:
            self._stream = self._frames(self.input).build()
        return self._stream

    def check_changes(self) -> None:
        """Let Spark resolve the steps after stores now, rather than in the first batch."""
        try:
            require_resolvable(self.spark, self.job, self.written.types.changes)
        except Unresolved as error:
            raise unresolved_error(self.job, error) from None

    @property
    def runs_without_stream(self) -> bool:
        """Whether a batch can be run without a stream: see `frame_of_batch`."""
        return self._single is not None

    def frame_of_batch(self) -> DataFrame:
        """Return the DataFrame of a single batch, whose tasks run when its rows are needed."""
        assert self._single is not None
        # Spark keeps the plan and the shuffled rows of each DataFrame, so each batch gets another.
        return self._single.frame.select("*")

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
        writer = self._built_stream().frame.writeStream.foreachBatch(sink).outputMode("update")
        return writer.option("checkpointLocation", checkpoint)
