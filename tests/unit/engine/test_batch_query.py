"""A batch's query, which reads the batch's records before the batch may be published."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any, cast
from weakref import ref

import pytest
from msgspec.structs import replace
from pyspark.errors import StreamingQueryException

from sluice.engine.batch import batch_start
from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.side_outputs import NOTHING
from sluice.engine.publish.publisher import PublishedBatch
from sluice.engine.run.batch_query import BatchQuery, WhenRead
from sluice.engine.run.streaming_query import JobQuery, Sink
from sluice.errors import OutputError
from sluice.values.record_places import Range


class SparkQuery:
    """A streaming query of one batch, which calls its function in a thread, as Spark does."""

    def __init__(self, sink: Sink, frame: Any) -> None:
        self.sink = sink
        self.error = ""
        self._thread = Thread(target=self._call, args=[frame])
        self._thread.start()
        self.is_stopped = False

    def awaitTermination(self) -> None:  # noqa: N802 (Spark's name)
        self._thread.join()
        if self.error:
            raise StreamingQueryException(f"[STREAM_FAILED] {self.error}")

    def _call(self, frame: Any) -> None:
        try:
            self.sink(frame, 0)
        except Exception as error:
            self.error = str(error)

    def stop(self) -> None:
        self._thread.join()
        self.is_stopped = True


class Job:
    """The parts of a job's query, and of its session and context, that a batch's query needs."""

    def __init__(self) -> None:
        self.read_times = self
        self.of_batch: dict[str, int] = {}
        self.told: list[BatchStart] = []
        self.spark = self.sparkSession = self.sparkContext = self
        self.closed = 0

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802 (Spark's name)
        if value:
            self.told.append(batch_start._decode_start(value))

    def forget(self) -> None:
        self.of_batch = {}

    def start_batch(self, number: int, sink: Sink, checkpoint: str) -> SparkQuery:
        self.checkpoint = Path(checkpoint.removeprefix("file://"))
        assert self.checkpoint.is_dir()
        (self.checkpoint / "commits").touch()
        self.query = SparkQuery(sink, self)
        return self.query

    def close_idle_callbacks(self) -> None:
        self.closed += 1


PUBLISHED = PublishedBatch(None, {"rows": 1}, 0, NOTHING)


class Publisher(list[Any]):
    """Notes what is published."""

    def __call__(self, written: Any) -> PublishedBatch:
        self.append(written)
        return PUBLISHED


@pytest.fixture
def job() -> Job:
    return Job()


START = BatchStart(7, 0, {"sales/orders/0": 5}, [])


def started(job: Job, when_read: WhenRead = lambda _: None) -> closing[BatchQuery]:
    """The query of batch 7, which is closed at the end of a `with` block."""
    return closing(BatchQuery(cast(JobQuery, job), START, when_read))


def test_a_batch_is_published_when_it_is_its_turn(job: Job) -> None:
    publisher = Publisher()
    with started(job) as query:
        assert query.finish(START, publisher) is PUBLISHED
        assert publisher == [job]
    assert not job.query.is_stopped
    assert job.closed == 1
    assert not job.checkpoint.exists()


def test_when_its_turn_comes_its_tasks_know_everything_and_the_next_batch_may_be_read(
    job: Job,
) -> None:
    after_reading: list[Mapping[str, int]] = []
    with started(job, after_reading.append) as query:
        assert job.told == [START]
        job.of_batch = {"sales/orders/0": 9, ":order/orders/0": 3}
        whole = replace(START, stage_times={"joined/orders/0": 4})
        assert query.has_read(whole)
        query.finish(whole, Publisher())
    assert job.told == [START, whole]
    assert after_reading == [{"sales/orders/0": 9, ":order/orders/0": 3}]


@pytest.mark.parametrize(
    "other",
    [
        replace(START, number=8),
        replace(START, begun=1),
        replace(START, read_times={"sales/orders/0": 6}),
        replace(START, read_times={}),
        replace(START, ranges=[Range("orders", 0, 3, 4)]),
    ],
)
def test_a_batch_has_not_been_read_if_its_tasks_began_with_anything_else(
    job: Job, other: BatchStart
) -> None:
    with started(job) as query:
        assert query.has_read(START)
        assert not query.has_read(other)


def test_the_next_batch_is_not_begun_if_the_turn_of_its_batch_does_not_come(job: Job) -> None:
    after_reading: list[Mapping[str, int]] = []
    with started(job, after_reading.append):
        pass
    assert not after_reading


def test_a_query_whose_turn_does_not_come_is_stopped_and_publishes_nothing(job: Job) -> None:
    with pytest.raises(ConnectionError), started(job):
        raise ConnectionError
    assert job.query.is_stopped
    assert job.closed == 1
    assert not job.checkpoint.exists()


def test_a_querys_function_does_not_keep_the_query(job: Job) -> None:
    """The JVM keeps the function as long as Python keeps the query, so neither would ever be freed."""
    query = BatchQuery(cast(JobQuery, job), START, lambda _: None)
    query.finish(START, Publisher())
    query.close()
    is_kept = ref(query)
    del query
    assert job.query.sink is not None
    assert is_kept() is None


def test_the_error_of_publishing_is_the_cause_of_sparks_error(job: Job) -> None:
    def refuse(_: Any) -> PublishedBatch:
        raise OutputError("The broker has refused the output.")

    with started(job) as query, pytest.raises(StreamingQueryException) as failed:
        query.finish(START, refuse)
    assert isinstance(failed.value.__cause__, OutputError)


def test_an_error_before_publishing_has_no_cause(job: Job) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the next batch cannot start")

    publisher = Publisher()
    with started(job, fail) as query, pytest.raises(StreamingQueryException) as failed:
        query.finish(START, publisher)
    assert failed.value.__cause__ is None
    assert not publisher
