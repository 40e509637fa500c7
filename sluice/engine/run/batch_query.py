"""The streaming query of one batch, which may read the batch's records before the batch may be published."""

from __future__ import annotations

from concurrent.futures import Future
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame

from sluice.engine.batch.batch_start import BatchStart, tell_tasks
from sluice.engine.run.streaming_query import JobQuery, Sink


class BatchQuery:
    """The running query of a batch. It must be closed.

    With adaptive execution, which is Spark's default, Spark computes a batch up to its last shuffle before it calls the
    function of `foreachBatch`. This function waits for `finish` before it has the rest computed, and publishes it.
    """

    def __init__(self, query: JobQuery, start: BatchStart, publish: Sink) -> None:
        self.start = start
        """What the tasks know of the batch."""
        self._job_query = query
        self._may_be_published: Future[bool] = Future()
        # The ledger says which batches are published, so Spark needs no earlier checkpoint.
        self._checkpoint = TemporaryDirectory(prefix="sluice-checkpoint-")
        # Tell the tasks before the query starts: they may run before Spark calls the function.
        tell_tasks(query.spark.sparkContext, start)
        # Without a scheme, Spark would look for the checkpoint in a cluster's own file system.
        location = f"file://{self._checkpoint.name}"
        self._query = query.start_batch(start.number, _in_turn(self._may_be_published, publish, start.number), location)

    def finish(self) -> None:
        """Publish the batch, and wait until the query has ended. Raises the query's error, if any."""
        self._may_be_published.set_result(True)
        self._query.awaitTermination()

    def close(self) -> None:
        """Stop the query if `finish` was not called. Nothing of the batch is written then."""
        if not self._may_be_published.done():
            self._may_be_published.set_result(False)
            self._query.stop()
        self._job_query.close_idle_callbacks()
        self._checkpoint.cleanup()


def _in_turn(may_be_published: Future[bool], publish: Sink, number: int) -> Sink:
    """The function that Spark calls with the batch. It waits until it is known whether the batch may be published.

    It must not refer to the `BatchQuery`: the JVM's query keeps this function, and the `BatchQuery` keeps the query.
    Neither Python nor the JVM can free a cycle that goes through both.
    """

    def publish_in_turn(written: DataFrame, _: int) -> None:
        # A query with a new checkpoint calls its batch 0, so the batch's number is passed on.
        if may_be_published.result():
            publish(written, number)

    return publish_in_turn
