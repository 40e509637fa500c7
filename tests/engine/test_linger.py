"""A lingering run reads new records as they arrive, and ends when none have arrived for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from sluice import Pipeline
from sluice.engine.run.linger import Linger, News
from sluice.errors import EngineError
from sluice.kafka.arrivals import Arrivals
from sluice.kafka.unread_records import Offsets
from sluice.state.ledger.failures import Failure
from tests.engine.conftest import Running, Start
from tests.engine.every_operator import every_operator
from tests.engine.shop import Names, address, by_shop, sale, shop
from tests.soak.sizes import Size, assert_flat, own_size

Act = Callable[[], None]


def sums(names: Names) -> Pipeline:
    pipeline = Pipeline(names.prefix, workers=1, linger="10 minutes")
    by_shop(pipeline, names).count(store="n")
    return pipeline


def latest(names: Names) -> Pipeline:
    """The same aggregation by an operator."""
    pipeline = sums(names)
    pipeline.stream(names("shops"), value=str).to_table(store="latest")
    return pipeline


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`meanwhile(act, ...)` calls one function each time a run has read all records; after the last one, time is up."""

    def plan(*acts: Act) -> None:
        left, real = list(acts), Linger.wait

        def wait(self: Linger, positions: Offsets, next_timer: int | None = None) -> News | None:
            if not left:
                return None
            left.pop(0)()
            return real(self, positions, next_timer)

        monkeypatch.setattr(Linger, "wait", wait)

    return plan


def test_records_that_arrive_while_a_run_lingers_are_its_next_batch(
    start: Start, meanwhile: Callable[..., None]
) -> None:
    running = start(sums)
    running.send("sales", sale("a"))
    with running.ledger() as ledger:
        ledger.failures.keep(
            Failure.of(EngineError("Kafka does not answer."), running.pipeline.name)
        )

    def second_batch() -> None:
        with running.ledger() as ledger:
            assert ledger.failures.all() == [], "cleared while the run lingers"
        running.send("sales", sale("b"))

    meanwhile(second_batch, lambda: running.send("sales", sale("a"), sale("a")))
    assert running.run() == 4
    assert running.store("n") == {"a": 3, "b": 1}
    assert [snapshot.counts["read"] for snapshot in running.snapshots()] == [1, 1, 2]


def test_a_run_does_not_wait_until_it_looks_again_if_a_record_arrives(
    start: Start, meanwhile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(sums)
    running.send("sales", sale("a"))
    made = Linger.__post_init__

    def look_rarely(self: Linger) -> None:
        made(self)
        self.pause_s = 300.0

    monkeypatch.setattr(Linger, "__post_init__", look_rarely)
    # The run is already waiting when the record arrives.
    later = threading.Timer(1.0, running.send, ["sales", sale("b")])
    began = time.monotonic()
    meanwhile(later.start)
    assert running.run() == 2
    assert time.monotonic() - began < 150


def test_a_run_that_has_lingered_closes_its_client(
    start: Start, meanwhile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Arrivals] = []
    close = Arrivals.close

    def note(self: Arrivals) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Arrivals, "close", note)
    running = start(sums)
    running.send("sales", sale("a"))
    meanwhile(lambda: running.send("sales", sale("b")))
    assert running.run() == 2
    assert len(closed) == 1


def test_ordered_operators_and_new_partitions_are_read_by_the_same_run(
    start: Start, meanwhile: Callable[..., None]
) -> None:
    running = start(latest)
    running.send("sales", sale("a"))
    meanwhile(
        lambda: running.send("shops", (b"k", b"old")), lambda: grow(running), lambda: add(running)
    )
    assert running.run() == 3
    assert running.store("latest") == {"k": "new"}


def grow(running: Running) -> None:
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    for future in admin.create_partitions([NewPartitions(running.names("shops"), 2)]).values():
        future.result(20)


def add(running: Running) -> None:
    """Write to the new partition, which an older producer may not know yet."""
    producer = Producer({"bootstrap.servers": running.bootstrap})
    producer.produce(running.names("shops"), key=b"k", value=b"new", partition=1)
    assert producer.flush(20) == 0


def test_a_lingering_run_holds_the_lease_and_ends_in_time(
    start: Start, meanwhile: Callable[..., None]
) -> None:
    running = start(sums)
    running.settings = replace(running.settings, linger_ms=1_000)
    running.send("sales", sale("a"))
    times: list[float] = []

    def held() -> bool:
        with running.ledger() as ledger:
            lease = ledger.leases.get(running.snapshot().ref)
            return lease is not None and lease.held

    def look() -> None:
        times.append(time.monotonic())
        assert held()

    meanwhile(look)
    assert running.run() == 1
    assert time.monotonic() - times[0] > 1
    assert not held()


ON_SPARK = [pytest.mark.spark, pytest.mark.heavy]


@pytest.mark.parametrize(
    ("build", "batches"),
    [
        (latest, 21),
        pytest.param(latest, 45, marks=ON_SPARK),
        pytest.param(shop, 45, marks=ON_SPARK),
        pytest.param(every_operator, 45, marks=ON_SPARK),
    ],
)
def test_batches_leave_no_threads_and_files(
    run_session: SparkSession,
    start: Start,
    meanwhile: Callable[..., None],
    build: Callable[[Names], Pipeline],
    batches: int,
) -> None:
    running, samples = start(build), list[list[Size]]()
    running.settings = replace(running.settings, linger_ms=600_000)
    running.send("shops", (b"a", address("a", "X")))

    def next_batch() -> None:
        sizes = [own_size()]
        if isinstance(run_session, SparkSession):
            sizes.append(jvm_size(run_session, running.bootstrap))
        samples.append(sizes)
        second = len(samples)
        running.send("sales", sale("a", at=f"08:{second // 60:02d}:{second % 60:02d}"))

    meanwhile(*[next_batch] * batches)
    assert running.run() == batches + 1
    # Spark and the clients have started their threads after some batches. A leak in each batch is
    # more than `more`.
    warm = batches // 3
    for before, after in zip(samples[warm], samples[-1], strict=True):
        assert_flat(before, after, more=warm)


POOLS = ("block-manager-", "shuffle-exchange-", "ResultQueryStageExecution-")
"""The names of Spark's thread pools that start a thread for each task until they are full."""


def jvm_size(spark: SparkSession, broker: str) -> Size:
    """The size of Spark's JVM, without its pools, and without Kafka consumers, which live for a second or two."""
    jvm: Any = spark.sparkContext._jvm
    threads = [thread.getName() for thread in jvm.Thread.getAllStackTraces().keySet()]
    process = psutil.Process(jvm.ProcessHandle.current().pid())
    peers = [
        f"127.0.0.1:{each.raddr.port}" if each.raddr else "" for each in process.net_connections()
    ]
    files = len(process.open_files()) + sum(peer != broker for peer in peers)
    return Size(sum(not name.startswith(POOLS) for name in threads), files, 0)


def test_a_run_that_lingers_ends_when_the_pipeline_is_paused(
    start: Start, meanwhile: Callable[..., None]
) -> None:
    running = start(sums)
    running.send("sales", sale("a"))

    def pause() -> None:
        with running.ledger() as ledger:
            ledger.pauses.pause(running.pipeline.name, "new prices", "ann")

    began = time.monotonic()
    # The second function is never called: the wait ends although ten minutes have not passed.
    meanwhile(pause, pause)
    assert running.run() == 1
    assert time.monotonic() - began < 60
    assert running.store("n") == {"a": 1}
