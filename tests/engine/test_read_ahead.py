"""While a batch is written, tasks already read the records of the next batch."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from msgspec import Struct

from sluice import Pipeline, Serde, Stream, session, sliding, tumbling, within
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.shard_writer import RowsOnSpark
from sluice.engine.run import batch_loop
from sluice.engine.run.batch_size import BatchSize
from sluice.engine.run.read_ahead import BatchQueries
from sluice.errors import EngineError, LeaseError
from tests.engine.conftest import Running, Start
from tests.engine.shop import Build, Names

START_MS = 1_670_000_000_000


class Click(Struct):
    """A click, which has a number and a time in ms."""

    number: int
    at: int


class Seen:
    """Decodes clicks, and notes each in a file: tasks may read them in other processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, data: bytes) -> Click:
        click = msgspec.json.decode(data, type=Click)
        if click.number < 0:
            raise ArithmeticError("negative")
        with (self.folder / f"{click.number}").open("a") as file:
            file.write("seen\n")
        return click

    def times(self, number: int) -> int:
        """How often tasks have read a click."""
        file = self.folder / f"{number}"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for(self, number: int) -> None:
        until = time.monotonic() + 15
        while not self.times(number):
            assert time.monotonic() < until, f"click {number} was not read"
            time.sleep(0.01)


def counted(seen: Seen, **output: Any) -> Callable[[Names], Pipeline]:
    """Writes every click, and counts those of each 10 seconds unless they are late."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        serde = Serde(Click, decode=seen)
        clicks = pipeline.stream(names("clicks"), value=serde, event_time="at", on_error="fail")
        clicks.to(names("copies"), **output)
        clicks.group_by_key().windowed_by(tumbling("10 seconds", grace="0 seconds")).count(
            store="counts"
        )
        return pipeline

    return build


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    (tmp_path / "seen").mkdir()
    return Seen(tmp_path / "seen")


def click(number: int, at: int = 0) -> bytes:
    return msgspec.json.encode(Click(number, START_MS + at))


def counts(running: Running) -> dict[int, int]:
    """The number of clicks in each window, by the window's start in ms after `START_MS`."""
    return {start - START_MS: count for (_, start), count in running.store("counts").items()}


def copies(running: Running) -> list[int]:
    return [value["number"] for _, value in running.output("copies")]


@pytest.fixture
def before_sending(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Callable[[], None]]]:
    """Batch → a function to be called before the batch's output is sent."""
    calls: dict[int, Callable[[], None]] = {}
    send = TransactionalOutput.send

    def sends(output: TransactionalOutput, batch: Any, *more: Any) -> dict[str, int]:
        if batch.number in calls:
            calls.pop(batch.number)()
        return send(output, batch, *more)

    monkeypatch.setattr(TransactionalOutput, "send", sends)
    yield calls
    assert not calls, "no output of these batches was sent"


def test_the_next_batch_is_read_while_output_is_written(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]]
) -> None:
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(6)))
    before_sending[0] = lambda: seen.wait_for(3)
    before_sending[1] = lambda: seen.wait_for(5)
    running.run(max_records=2)
    assert copies(running) == [0, 1, 2, 3, 4, 5]
    assert [seen.times(number) for number in range(6)] == [1] * 6
    assert [snapshot.batch for snapshot in running.snapshots()] == [0, 1, 2]


def test_the_next_batch_is_read_while_the_shards_are_written(
    start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RowsOnSpark.write

    def write_when_read(rows: RowsOnSpark) -> Any:
        seen.wait_for(3)
        return write(rows)

    monkeypatch.setattr(RowsOnSpark, "write", write_when_read)
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(4)))
    running.run(max_records=2)
    assert copies(running) == [0, 1, 2, 3]
    assert [seen.times(number) for number in range(4)] == [1] * 4


def test_the_rows_of_every_batch_are_measured(
    start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    monkeypatch.setattr(
        BatchSize, "measure", lambda _, records, row_bytes, output: measured.append(records)
    )
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(4)))
    running.run(max_records=3)
    assert sum(measured) == 4


def test_late_records_are_those_of_a_run_that_reads_nothing_ahead(start: Start, seen: Seen) -> None:
    """Whether a record is late depends on the stream time after the batch before, whose output is not written yet."""
    times = [5_000, 25_000, 7_000, 26_000, 8_000, 47_000, 9_000, 27_000]
    results = []
    for most in (100, 1):
        running = start(counted(seen))
        running.send("clicks", *(click(number, at) for number, at in enumerate(times)))
        running.run(max_records=most)
        results.append((counts(running), running.counts("late/counts")))
    assert results[0] == results[1] == ({0: 1, 20_000: 2, 40_000: 1}, 4)


def in_sessions(names: Names, clicks: Stream[Click], _: Stream[Click]) -> None:
    clicks.group_by_key().windowed_by(session("4 seconds", grace="2 seconds")).count(
        store="results"
    )


def in_sliding_windows(names: Names, clicks: Stream[Click], _: Stream[Click]) -> None:
    clicks.group_by_key().windowed_by(sliding("4 seconds", grace="2 seconds")).count(
        store="results"
    )


def when_windows_close(names: Names, clicks: Stream[Click], _: Stream[Click]) -> None:
    windows = clicks.group_by_key().windowed_by(tumbling("4 seconds", grace="2 seconds"))
    results = windows.aggregate(
        int, add, store="results", returns=int
    ).suppress_until_window_closes()
    results.to_stream().to(names("results"))


def joined(names: Names, clicks: Stream[Click], others: Stream[Click]) -> None:
    clicks.left_join(others, within("3 seconds", grace="1 second")).to(names("results"))


def everything(names: Names, clicks: Stream[Click], others: Stream[Click]) -> None:
    in_sliding_windows(names, clicks, others)
    joined(names, clicks, others)
    clicks.group_by_key().windowed_by(tumbling("4 seconds", grace="1 second")).count(store="counts")


def add(total: int, click: Click) -> int:
    return total + click.number


Shape = Callable[[Names, Stream[Click], Stream[Click]], None]


def shaped(shape: Shape, seen: Seen, **options: Any) -> Build:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline(**options)
        serde = Serde(Click, decode=seen)
        clicks, others = (
            pipeline.stream(names(topic), value=serde, event_time="at", on_error="fail")
            for topic in ("clicks", "others")
        )
        shape(names, clicks, others)
        return pipeline

    return build


def send_clicks(running: Running, seed: int, *partitions: int, late_by: int = 0) -> None:
    """Write clicks of three keys, many of them out of order, to these partitions of both topics."""
    chance, now = random.Random(seed), 40_000
    for number in range(seed * 100, seed * 100 + 16):
        now += chance.randrange(2_500)
        at = now - late_by - chance.choice((0, 0, 500, 4_000))
        key = chance.choice((b"a", b"b", b"c"))
        topic, partition = chance.choice(("clicks", "others")), chance.choice(partitions)
        # The Kafka timestamps decide in which order the records of different partitions are
        # processed.
        running.send(
            topic, (key, click(number, at)), partition=partition, timestamp=START_MS + number
        )


def add_partitions(running: Running, *topics: str) -> None:
    """Give topics a third partition."""
    partitions = [NewPartitions(running.names(topic), 3) for topic in topics]
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    for future in admin.create_partitions(partitions).values():
        future.result(20)
    # The old producer may not know the partitions yet.
    running.producer = Producer({"bootstrap.servers": running.bootstrap})


def results_of(running: Running) -> dict[str, Any]:
    """The pipeline's stores, and its outputs by the names that the test gives their topics."""
    everything = running.everything()
    outputs = {
        topic.removeprefix(running.names("")): records
        for topic, records in everything["outputs"].items()
    }
    return {"stores": everything["stores"], "outputs": outputs}


@pytest.mark.parametrize(
    "shape", [in_sessions, in_sliding_windows, when_windows_close, joined, everything]
)
def test_results_are_those_of_a_run_that_reads_nothing_ahead(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    """Each record is read once, and a new partition, which is behind the others, changes nothing about it."""
    results = []
    for reads_ahead in (True, False):
        (tmp_path / f"{reads_ahead}").mkdir()
        seen = Seen(tmp_path / f"{reads_ahead}")
        if not reads_ahead:
            monkeypatch.setattr(batch_loop, "may_read_ahead", lambda _: False)
        running = start(shaped(shape, seen), clicks=2, others=2)
        for seed, more in ((1, {}), (2, {}), (3, {"late_by": 30_000})):
            if more:
                add_partitions(running, "clicks", "others")
            send_clicks(running, seed, *range(3 if more else 2), **more)
            running.run(max_records=3)
        assert {seen.times(int(file.name)) for file in seen.folder.iterdir()} == {1}
        results.append(results_of(running))
        assert len(running.snapshots()) > 9
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "options",
    [{"idle_timeout": "5 seconds"}, {"advance_when_idle": "5 seconds"}],
    ids=["idle", "advance"],
)
def test_tasks_that_need_a_time_of_the_stages_do_not_read_ahead(
    start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """A partition that was idle continues from the time up to which windows are closed, which the stages find."""
    begun: list[object] = []
    monkeypatch.setattr(BatchQueries, "_start_next", lambda *_: begun.append(_))
    running = start(shaped(in_sessions, seen, **options), clicks=2, others=2)
    send_clicks(running, 1, 0, 1)
    running.run(max_records=3)
    assert not begun


def test_a_batch_that_was_read_in_vain_is_repeated(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]]
) -> None:
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(4)))

    def fail_after_reading() -> None:
        seen.wait_for(3)
        raise EngineError("The broker has refused the output.", next_step="")

    before_sending[0] = fail_after_reading
    with pytest.raises(EngineError, match="refused"):
        running.run(max_records=2)
    # The ledger knows nothing of the second batch, so the next run may choose its end.
    assert running.planned().number == 0
    assert not running.spark.streams.active
    running.run(max_records=10)
    assert copies(running) == [0, 1, 2, 3]
    assert counts(running) == {0: 4}
    assert [snapshot.counts["read"] for snapshot in running.snapshots()] == [2, 2]


def test_an_error_of_the_next_batch_does_not_keep_a_batch_from_being_published(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]]
) -> None:
    running = start(counted(seen))
    running.send("clicks", *map(click, (0, 1, 2, -1)))
    before_sending[0] = lambda: seen.wait_for(2)
    with pytest.raises(EngineError, match="negative"):
        running.run(max_records=2)
    assert copies(running) == [0, 1]
    assert [snapshot.batch for snapshot in running.snapshots()] == [0]
    assert running.planned().number == 1


def test_a_driver_that_loses_its_lease_publishes_nothing_that_it_has_read(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]]
) -> None:
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(4)))

    def lose_lease() -> None:
        seen.wait_for(3)
        running.take_lease()

    before_sending[0] = lose_lease
    with pytest.raises(LeaseError):
        running.run(max_records=2)
    assert not running.snapshots()
    assert not running.spark.streams.active


def test_tasks_that_read_from_other_stream_times_than_the_ledgers_read_again(
    start: Start,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    before_sending: dict[int, Callable[[], None]],
) -> None:
    begin = BatchQueries._begin_next
    too_late = START_MS + 10**9
    monkeypatch.setattr(
        BatchQueries, "_begin_next", lambda self, times: begin(self, dict.fromkeys(times, too_late))
    )
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(4)))
    before_sending[0] = lambda: seen.wait_for(3)
    running.run(max_records=2)
    assert copies(running) == [0, 1, 2, 3]
    assert counts(running) == {0: 4}
    assert [seen.times(number) for number in range(4)] == [1, 1, 2, 2]


def counted_by_count(seen: Seen) -> Callable[[Names], Pipeline]:
    """Writes every click, and counts the keys with each number of clicks, for which rows are shuffled twice."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        clicks = pipeline.stream(names("clicks"), value=Serde(Click, decode=seen))
        clicks.to(names("copies"))
        numbers = clicks.group_by_key().aggregate(
            int, lambda number, _: number + 1, store="numbers", returns=int
        )
        numbers.group_by("value").count(store="keys")
        return pipeline

    return build


def test_tasks_that_write_states_do_not_read_ahead(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]]
) -> None:
    """They would write the states of the next batch before the driver has published its batch."""
    running = start(counted_by_count(seen))
    running.send("clicks", *(click(number) for number in range(4)))
    ahead: list[int] = []

    def look() -> None:
        time.sleep(0.5)
        ahead.append(seen.times(2))

    before_sending[0] = look
    running.run(max_records=2)
    assert ahead == [0]
    assert copies(running) == [0, 1, 2, 3]


@pytest.mark.spark
def test_queries_of_published_batches_are_freed(start: Start, seen: Seen) -> None:
    running = start(counted(seen))
    context: Any = running.spark.sparkContext
    # What the JVM may call, among it the function of each query that the JVM keeps.
    callable_by_jvm = context._gateway.gateway_property.pool
    before = len(callable_by_jvm)
    running.send("clicks", *(click(number) for number in range(6)))
    running.run(max_records=2)
    until = time.monotonic() + 60
    while len(callable_by_jvm) > before:
        assert time.monotonic() < until, "the JVM keeps a query"
        gc.collect()
        context._jvm.System.gc()
        time.sleep(0.1)
