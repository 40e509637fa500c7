"""The facts about a batch that its tasks need at the start, such as its number and stream times.

The driver puts the start into Spark's local properties, which Spark sends with every task of the
thread that starts the query. The hosts therefore need not share a file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self
from zlib import compress, decompress

import msgspec

from sluice.engine.batch.stream_time import CLOSED, split_times
from sluice.values.call_parameters import SharedSnapshot
from sluice.values.record_places import Range

if TYPE_CHECKING:
    from pyspark import SparkContext, TaskContext

_START = "sluice.start"
_FILE = "sluice.start.file"


class BatchStart(msgspec.Struct, frozen=True):
    """The facts about a batch that its tasks need at the start."""

    number: int
    begun: int
    """The time at which the batch was planned, epoch ms; a retry does not change it."""
    read_times: Mapping[str, int] = {}
    """The stream times from which the tasks that read the records continue."""
    ranges: Sequence[Range] = ()
    """The records that the batch reads from Kafka, sorted by topic and partition."""
    stage_times: Mapping[str, int] = {}
    """The stream times that only the stages use. Empty while the previous batch's stages are still
    running."""

    shared: Mapping[str, SharedSnapshot] = {}
    """Store of another pipeline → where tasks read it."""

    @classmethod
    def of(
        cls,
        number: int,
        begun: int,
        times: Mapping[str, int],
        read_clocks: Collection[str],
        ranges: Sequence[Range] = (),
        shared: Mapping[str, SharedSnapshot] = MappingProxyType({}),
    ) -> Self:
        """Return the start of a batch, with `times` divided for read tasks and for stages.

        For `read_clocks`, see `Job.read_clocks`.
        """
        read_times, stage_times = split_times(times, read_clocks)
        return cls(number, begun, read_times, ranges, stage_times, {**shared})

    @property
    def times(self) -> Mapping[str, int]:
        """All stream times at the start of the batch."""
        return {**self.read_times, **self.stage_times}

    def is_read_like(self, other: BatchStart) -> bool:
        """Return whether the reading tasks would do the same if they got the start `other`."""
        return _for_readers(self) == _for_readers(other)


def _for_readers(start: BatchStart) -> BatchStart:
    """Return the part of a batch's start that the reading tasks use.

    It lacks the times up to which operators' windows are closed. If the pipeline has no idle
    timeout, such a time is the stream time of the partition that is furthest behind. A task then
    needs only its own partition's stream time, which is at least as late. If the pipeline has an
    idle timeout, no task reads records before their batch's turn.
    """
    times: dict[str, int] = {}
    for name, time in start.read_times.items():
        if not name.startswith(f"{CLOSED}/"):
            times[name] = time
    return msgspec.structs.replace(start, read_times=times, stage_times={}, shared={})


def tell_tasks(spark: SparkContext, start: BatchStart) -> None:
    """Send a batch's start with all tasks that this thread starts on Spark from now on."""
    content = compress(msgspec.json.encode(start), 1)
    spark.setLocalProperty(_START, b64encode(content).decode())
    # If the path of a file is set, tasks read the start from this file. An earlier query of
    # this thread may have set a path, so it is cleared.
    spark.setLocalProperty(_FILE, "")


def tell_tasks_by_file(spark: SparkContext, file: Path) -> None:
    """Let tasks read the start of each batch from a file on this host.

    A query that runs over several batches needs this.
    """
    spark.setLocalProperty(_FILE, str(file))


def write_start(file: Path, start: BatchStart) -> None:
    """Write the start of the next batch to the file of `tell_tasks_by_file`."""
    file.write_bytes(msgspec.json.encode(start))


class RunningTask(NamedTuple):
    """The batch of a running task, and the task's place in the batch."""

    start: BatchStart
    worker: int
    """For a task of a stage, the worker whose keys the task processes. Rows name the worker, too,
    but a task may have no rows."""


def task_on_spark() -> RunningTask:
    """Return the batch and the place of the Spark task that this process is running."""
    # PySpark is imported only here, because a batch without Spark must not wait for this import.
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    # Stages are partitioned by the worker's number, so the partition's number is the worker's
    # number.
    return RunningTask(_start_on_spark(context), context.partitionId())


def _start_on_spark(context: TaskContext) -> BatchStart:
    if file := context.getLocalProperty(_FILE):
        return msgspec.json.decode(Path(file).read_bytes(), type=BatchStart)
    return _decode_start(context.getLocalProperty(_START) or "")


# A Python worker runs several of a batch's tasks, and decodes the start once for all of them.
@lru_cache(2)
def _decode_start(text: str) -> BatchStart:
    return msgspec.json.decode(decompress(b64decode(text)), type=BatchStart)
