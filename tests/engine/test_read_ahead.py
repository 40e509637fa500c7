"""While the output of a batch is written, the tasks already read the records of the next batch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from sluice import Pipeline, Serde, tumbling
from sluice.engine.publish.transaction import TransactionalOutput
from sluice.engine.run.batch_size import BatchSize
from sluice.engine.run.read_ahead import ReadAhead
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
        clicks.group_by_key().windowed_by(tumbling("10 seconds", grace="0 seconds")).count(store="counts")
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

    def sends(output: TransactionalOutput, batch: Any, records: Any) -> dict[str, int]:
        if batch.number in calls:
            calls.pop(batch.number)()
        return send(output, batch, records)

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


def test_the_rows_of_a_batch_are_measured_before_its_output_is_written(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the next batch, which is read from then on, may follow from them."""
    measured: list[int] = []
    monkeypatch.setattr(BatchSize, "measure", lambda _, records, row_bytes: measured.append(records))
    running = start(counted(seen))
    running.send("clicks", *(click(number) for number in range(4)))
    before: list[int] = []
    before_sending[0] = lambda: before.extend(measured)
    running.run(max_records=3)
    assert before == measured[:1]
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
    start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch, before_sending: dict[int, Callable[[], None]]
) -> None:
    begin = ReadAhead.begin_next
    too_late = START_MS + 10**9
    monkeypatch.setattr(ReadAhead, "begin_next", lambda self, times: begin(self, dict.fromkeys(times, too_late)))
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
        numbers = clicks.group_by_key().aggregate(int, lambda number, _: number + 1, store="numbers", returns=int)
        numbers.group_by("value").count(store="keys")
        return pipeline

    return build


@pytest.mark.parametrize(
    "build", [partial(counted, delivery="at_least_once"), counted_by_count], ids=["records", "states"]
)
def test_tasks_that_write_do_not_read_ahead(
    start: Start, seen: Seen, before_sending: dict[int, Callable[[], None]], build: Callable[[Seen], Build]
) -> None:
    """They would write the records or the states of the next batch before the driver has written those of its batch."""
    running = start(build(seen))
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
