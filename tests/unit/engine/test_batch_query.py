"""A batch's query, which reads the batch's records before the batch may be published."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any, cast
from weakref import ref

import pytest

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.run.batch_query import BatchQuery
from sluice.engine.run.streaming_query import JobQuery, Sink

FRAME = cast(Any, object())
"""What Spark passes to the function of `foreachBatch`."""


class SparkQuery:
    """A streaming query of one batch, which calls its function in a thread, as Spark does."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._thread = Thread(target=sink, args=[FRAME, 0])
        self._thread.start()
        self.is_stopped = False

    def awaitTermination(self) -> None:  # noqa: N802 (Spark's name)
        self._thread.join()

    def stop(self) -> None:
        self._thread.join()
        self.is_stopped = True


class Job:
    """The parts of a job's query, and of its session and context, that a batch's query needs."""

    def __init__(self) -> None:
        self.spark = self.sparkContext = self
        self.closed = 0

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802 (Spark's name)
        pass

    def start_batch(self, number: int, sink: Sink, checkpoint: str) -> SparkQuery:
        self.checkpoint = Path(checkpoint.removeprefix("file://"))
        assert self.checkpoint.is_dir()
        (self.checkpoint / "commits").touch()
        self.query = SparkQuery(sink)
        return self.query

    def close_idle_callbacks(self) -> None:
        self.closed += 1


class Published(list[tuple[Any, int]]):
    """Notes what is published."""

    def __call__(self, written: Any, batch: int) -> None:
        self.append((written, batch))


@pytest.fixture
def job() -> Job:
    return Job()


def started(job: Job, publish: Callable[[Any, int], None]) -> closing[BatchQuery]:
    """The query of batch 7, which is closed at the end of a `with` block."""
    return closing(BatchQuery(cast(JobQuery, job), BatchStart(7, 0), publish))


def test_a_batch_is_published_under_its_own_number_when_it_is_its_turn(job: Job) -> None:
    published = Published()
    with started(job, published) as query:
        assert not published
        query.finish()
        assert published == [(FRAME, 7)]
    assert not job.query.is_stopped
    assert job.closed == 1
    assert not job.checkpoint.exists()


def test_a_query_whose_turn_does_not_come_is_stopped_and_publishes_nothing(job: Job) -> None:
    published = Published()
    with pytest.raises(ConnectionError), started(job, published):
        raise ConnectionError
    assert not published
    assert job.query.is_stopped
    assert job.closed == 1
    assert not job.checkpoint.exists()


def test_a_querys_function_does_not_keep_the_query(job: Job) -> None:
    """The JVM keeps the function as long as Python keeps the query, so neither would ever be freed."""
    query = BatchQuery(cast(JobQuery, job), BatchStart(7, 0), Published())
    query.finish()
    query.close()
    is_kept = ref(query)
    del query
    assert job.query.sink is not None
    assert is_kept() is None
