"""The streaming query of one batch, which may read records before the batch's turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from sluice.engine.batch.batch_start import BatchStart, tell_tasks
from sluice.engine.batch.read_times import ReadTimes
from sluice.engine.publish.publisher import PublishedBatch
from sluice.engine.run.streaming_query import JobQuery

WhenRead: TypeAlias = Callable[[Mapping[str, int]], None]
"""Called when it is the batch's turn and its records are read. Takes the stream times after
reading."""
Publish: TypeAlias = Callable[[DataFrame], PublishedBatch]
"""Publishes a batch. Takes the side outputs of the tasks that write the shards."""


class BatchQuery:
    """The running query of a batch. It must be closed.

    With adaptive execution, which is Spark's default, Spark computes a batch up to its last shuffle
    before it calls the function of `foreachBatch`. This function waits for `finish`. Then it
    computes the rest of the batch, and publishes the batch.
    """

    def __init__(self, query: JobQuery, start: BatchStart, when_read: WhenRead) -> None:
        self._start = start
        self._job_query = query
        self._function = _BatchFunction(query.read_times, when_read)
        # The ledger knows which batches are published, so Spark needs no earlier checkpoint.
        self._checkpoint = TemporaryDirectory(prefix="sluice-checkpoint-")
        query.read_times.forget()
        # Tell the tasks before the query starts: they may run before Spark calls the function.
        tell_tasks(query.spark.sparkContext, start)
        # Without the scheme `file`, Spark would look for the checkpoint in a cluster's file system.
        checkpoint = f"file://{self._checkpoint.name}"
        self._query = query.start_batch(start.number, self._function, checkpoint)

    def has_read(self, start: BatchStart) -> bool:
        """Return whether the tasks that read records would do the same with this start."""
        return self._start.is_read_like(start)

    def finish(self, start: BatchStart, publish: Publish) -> PublishedBatch:
        """Write and publish the batch, and wait until the query has ended.

        Raise the query's error, if any. Its cause is the error that `publish` raised: Spark's error
        has only the text of this error.
        """
        self._function.turn.set_result(_Turn(start, publish))
        published = self._function.published
        try:
            self._query.awaitTermination()
        except StreamingQueryException as failed:
            cause = published.exception() if published.done() else None
            raise failed from cause
        assert published.done(), "Spark calls the function for every batch"
        return published.result()

    def close(self) -> None:
        """Stop the query if `finish` was not called. Nothing of the batch is written then."""
        if not self._function.turn.done():
            self._function.turn.set_result(None)
            self._query.stop()
        self._job_query.close_idle_callbacks()
        self._checkpoint.cleanup()


class _Turn(NamedTuple):
    """The start of a batch whose turn has come, and the functions that write it."""

    start: BatchStart
    publish: Publish


@dataclass
class _BatchFunction:
    """The function that Spark calls with a batch whose records are read.

    It waits for the batch's turn. It must not refer to the `BatchQuery`: the JVM's query keeps this
    function, and the `BatchQuery` keeps the query. Such a cycle would go through Python and the
    JVM, and neither could free it.
    """

    read_times: ReadTimes
    when_read: WhenRead
    turn: Future[_Turn | None] = field(default_factory=Future)
    """None if the batch must not be published."""
    published: Future[PublishedBatch] = field(default_factory=Future)

    def __call__(self, written: DataFrame, _: int) -> None:
        turn = self.turn.result()
        if turn is None:
            return
        tell_tasks(written.sparkSession.sparkContext, turn.start)
        self.when_read({**turn.start.read_times, **self.read_times.of_batch})
        try:
            # Spark's batch number is of no use: with a new checkpoint, it is always 0.
            self.published.set_result(turn.publish(written))
        except BaseException as error:
            self.published.set_exception(error)
            raise
