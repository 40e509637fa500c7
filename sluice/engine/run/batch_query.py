"""The streaming query of one batch, which may read the batch's records before the batch may be published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TypeAlias

from pyspark.sql import DataFrame

from sluice.engine.batch.batch_start import BatchStart, tell_tasks
from sluice.engine.batch.read_times import ReadTimes
from sluice.engine.run.streaming_query import JobQuery, Sink

WhenRead: TypeAlias = Callable[[Mapping[str, int]], None]
"""Called when the turn of a batch has come and its records are read. Takes the stream times after reading."""


class BatchQuery:
    """The running query of a batch. It must be closed.

    With adaptive execution, which is Spark's default, Spark computes a batch up to its last shuffle
    before it calls the function of `foreachBatch`. This function waits for `finish` before it has
    the rest computed, and publishes it.
    """

    def __init__(
        self, query: JobQuery, start: BatchStart, when_read: WhenRead, publish: Sink
    ) -> None:
        self._start = start
        self._job_query = query
        self._turn = _Turn(query.read_times, when_read, publish)
        # The ledger says which batches are published, so Spark needs no earlier checkpoint.
        self._checkpoint = TemporaryDirectory(prefix="sluice-checkpoint-")
        query.read_times.forget()
        # Tell the tasks before the query starts: they may run before Spark calls the function.
        tell_tasks(query.spark.sparkContext, start)
        # Without a scheme, Spark would look for the checkpoint in a cluster's own file system.
        self._query = query.start_batch(start.number, self._turn, f"file://{self._checkpoint.name}")

    def has_read(self, start: BatchStart) -> bool:
        """Whether the tasks that read the records have begun with what they must know by this start."""
        return self._start.is_read_like(start)

    def finish(self, start: BatchStart) -> None:
        """Write and publish the batch, and wait until the query has ended. Raises the query's error, if any."""
        self._turn.start.set_result(start)
        self._query.awaitTermination()

    def close(self) -> None:
        """Stop the query if `finish` was not called. Nothing of the batch is written then."""
        if not self._turn.start.done():
            self._turn.start.set_result(None)
            self._query.stop()
        self._job_query.close_idle_callbacks()
        self._checkpoint.cleanup()


@dataclass
class _Turn:
    """The function that Spark calls with a batch whose records are read. It waits for the batch's turn.

    It must not refer to the `BatchQuery`: the JVM's query keeps this function, and the `BatchQuery`
    keeps the query. Neither Python nor the JVM can free a cycle that goes through both.
    """

    read_times: ReadTimes
    when_read: WhenRead
    publish: Sink
    start: Future[BatchStart | None] = field(default_factory=Future)
    """What the tasks must know to write the batch; None if the batch must not be published."""

    def __call__(self, written: DataFrame, _: int) -> None:
        start = self.start.result()
        if start is None:
            return
        tell_tasks(written.sparkSession.sparkContext, start)
        self.when_read({**start.read_times, **self.read_times.of_batch})
        # A query with a new checkpoint calls its batch 0, so the batch's number is passed on.
        self.publish(written, start.number)
