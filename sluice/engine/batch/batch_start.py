"""What tasks must know about their batch: its number, its clock, its records, and the stream times at its start.

The driver puts the start into Spark's local properties, which Spark sends with every task of the
thread that starts the query. The hosts therefore need not share a file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self
from zlib import compress, decompress

import msgspec

from sluice.engine.batch.stream_time import CLOSED, split_times
from sluice.values.record_places import Range

if TYPE_CHECKING:
    from pyspark import SparkContext

_START = "sluice.start"
_FILE = "sluice.start.file"
_HERE: ContextVar[BatchStart | None] = ContextVar("batch", default=None)
"""The start of the batch whose tasks this thread runs without Spark."""

_WORKER: ContextVar[int] = ContextVar("worker")
"""The worker whose task of a stage this thread runs without Spark."""


class BatchStart(msgspec.Struct, frozen=True):
    """What tasks must know about their batch when it starts."""

    number: int
    begun: int
    """The time at which the batch was planned, epoch ms; a retry does not change it."""
    read_times: Mapping[str, int] = {}
    """The stream times from which the tasks that read the records continue."""
    ranges: Sequence[Range] = ()
    """The records that the batch reads from Kafka, sorted by topic and partition."""
    stage_times: Mapping[str, int] = {}
    """The other stream times, from which the stages continue. Empty while the stages of the batch before still run."""

    @classmethod
    def of(
        cls,
        number: int,
        begun: int,
        times: Mapping[str, int],
        read_clocks: Collection[str],
        ranges: Sequence[Range] = (),
    ) -> Self:
        """The start of a batch with these stream times. `read_clocks`: see `Job.read_clocks`."""
        read_times, stage_times = split_times(times, read_clocks)
        return cls(number, begun, read_times, ranges, stage_times)

    @property
    def times(self) -> Mapping[str, int]:
        """All stream times at the start of the batch."""
        return {**self.read_times, **self.stage_times}

    def is_read_like(self, other: BatchStart) -> bool:
        """Whether the tasks that read the records would do the same with another start."""
        return _for_readers(self) == _for_readers(other)


def _for_readers(start: BatchStart) -> BatchStart:
    """What the tasks that read the records use of a start.

    They also have the times up to which operators' windows are closed, which the stages find.
    Without an idle timeout, such a time increases to the stream time of the partition that is
    furthest behind. So no task that reads needs to know of the increase, because it knows its
    partition's own stream time. With an idle timeout, no task reads ahead.
    """
    closed = f"{CLOSED}/"
    times = {name: time for name, time in start.read_times.items() if not name.startswith(closed)}
    return msgspec.structs.replace(start, read_times=times, stage_times={})


def tell_tasks(spark: SparkContext, start: BatchStart) -> None:
    """Give a batch's start to the tasks that this thread has Spark run from now on."""
    spark.setLocalProperty(_START, b64encode(compress(msgspec.json.encode(start), 1)).decode())
    # If the path of a file is set, `this_batch` reads the start from this file. An earlier query of
    # this thread may have set a path, so it is cleared.
    spark.setLocalProperty(_FILE, "")


def tell_tasks_by_file(spark: SparkContext, file: Path) -> None:
    """Let tasks read the start of each batch from a file on this host: for a query that runs over several batches."""
    spark.setLocalProperty(_FILE, str(file))


def write_start(file: Path, start: BatchStart) -> None:
    """Write the start of the next batch to the file of `tell_tasks_by_file`."""
    file.write_bytes(msgspec.json.encode(start))


@contextmanager
def batch_context(start: BatchStart) -> Iterator[None]:
    """Within the block, this thread runs tasks of a batch without Spark.

    `this_batch` returns `start`.
    """
    token = _HERE.set(start)
    try:
        yield
    finally:
        _HERE.reset(token)


def this_batch() -> BatchStart:
    """The start of this task's batch."""
    if (here := _HERE.get()) is not None:
        return here
    # PySpark is imported only here, because a batch without Spark must not wait for this import.
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if file := context.getLocalProperty(_FILE):
        return msgspec.json.decode(Path(file).read_bytes(), type=BatchStart)
    return _decode_start(context.getLocalProperty(_START) or "")


@contextmanager
def worker_context(worker: int) -> Iterator[None]:
    """Within the block, this thread runs a worker's task without Spark.

    `this_worker` returns `worker`.
    """
    token = _WORKER.set(worker)
    try:
        yield
    finally:
        _WORKER.reset(token)


def this_worker() -> int:
    """The worker whose part of a stage this task runs.

    Rows name the worker, but a task may have no rows.
    """
    worker = _WORKER.get(None)
    if worker is not None:
        return worker
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    # Stages are partitioned by the worker's number, so the partition's number is the worker's
    # number.
    return context.partitionId()


# A Python worker runs several of a batch's tasks, and decodes the start once for all of them.
@lru_cache(2)
def _decode_start(text: str) -> BatchStart:
    return msgspec.json.decode(decompress(b64decode(text)), type=BatchStart)
