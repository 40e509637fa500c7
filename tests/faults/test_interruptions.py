"""Faults in the middle of an operation: drivers that are paused and resumed, and operations that are killed."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from sluice.engine.publish.markers import Writer, read_markers
from sluice.errors import EngineError
from sluice.kafka.topics import read_topic
from sluice.local.broker import running as running_broker
from sluice.query import AsOf, Reader
from sluice.query.differences import compare as differences
from sluice.state.model import GenerationRef, Snapshot
from tests.faults import orders as orders_pipeline
from tests.faults.conftest import Observe, small_disk
from tests.faults.dying import calls
from tests.faults.truth import Feed, Watcher, compare
from tests.faults.world import ROOT, Driver, World, wait_until
from tests.support.ports import free_port, listens

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]

BATCH = {"orders": "400", "words": "150"}
LONG_S = 900.0
"""A timeout that is far longer than any of these operations takes, even on a busy machine."""

both = pytest.mark.parametrize("subject", ["orders", "words"], indirect=True)
everywhere = pytest.mark.parametrize(
    "subject", ["orders", "words", "orders-postgres", "words-postgres"], indirect=True
)


def start(world: World, *arguments: str) -> Driver:
    return world.start(*arguments, SLUICE_MAX_RECORDS=BATCH[world.name])


def await_more(world: World, driver: Driver, batches: int = 1) -> None:
    """Wait until the driver has published `batches` more batches of the last job. Raises if the driver has ended."""
    world.await_batch(driver, world.published() + batches)


@everywhere
@pytest.mark.fault(
    "F24",
    "SIGSTOP of driver, JVM and Python workers; two other runs after the lease expired; SIGCONT",
)
def test_a_driver_that_is_paused_past_its_lease(subject: World, observe: Observe) -> None:
    feed, rng, ends = Feed(subject), random.Random(11), []
    feed(6 * int(BATCH[subject.name]))
    for _ in range(2):
        stopped = start(subject)
        await_more(subject, stopped)
        time.sleep(rng.uniform(0, 1))
        processes = stopped.members()
        for process in processes:
            process.suspend()
        second = start(subject)
        assert second.wait() == 0, second.output[-3000:]
        feed(int(BATCH[subject.name]))
        assert start(subject).wait() == 0
        for process in processes:
            if process.is_running():
                process.resume()
        status = stopped.wait()
        assert status == 0 or "lost its lease" in stopped.output, stopped.output[-3000:]
        ends.append(f"{status}: {stopped.output.strip().splitlines()[-1][:90]}")
        feed(5 * int(BATCH[subject.name]))
    subject.run()
    observe(f"the resumed drivers ended with {ends}; {compare(subject)}")


@both
@pytest.mark.fault("F25", "kill -9 of driver, JVM or both during a rebuild, three times")
def test_a_killed_rebuild(subject: World, observe: Observe) -> None:
    feed, rng, watcher = Feed(subject), random.Random(12), Watcher(subject)
    feed(6 * int(BATCH[subject.name]))
    assert start(subject).wait() == 0
    killed = 0
    while killed < 3:
        rebuild = start(subject, "--rebuild")
        _await_build(subject, rebuild)
        time.sleep(rng.uniform(0, 5))
        if rebuild.runs:
            rebuild.kill(rng.choice(("java", "python", "all")))
            killed += 1
        else:
            assert rebuild.process.returncode == 0, rebuild.output[-3000:]
        watcher.check()
    feed(int(BATCH[subject.name]))
    subject.run()
    before = snapshots(subject)
    start_to_end(subject, "--rebuild")
    feed(int(BATCH[subject.name]))
    subject.run()
    watcher.check()
    observe(
        f"queries read the old generation, and runs continued; after a complete rebuild: {compare(subject, before)}"
    )


@pytest.mark.parametrize("subject", ["orders"], indirect=True)
@pytest.mark.fault(
    "F25",
    "kill -9 of driver, JVM or both during a replay of the newer half, and during its promotion",
)
def test_a_killed_replay(subject: World, observe: Observe) -> None:
    feed, rng, watcher = Feed(subject), random.Random(15), Watcher(subject)
    feed(6 * int(BATCH[subject.name]))
    start_to_end(subject)
    begin = {partition: end // 2 for partition, end in _ends(subject).items()}
    replay = (
        "--replay",
        "--from=" + ",".join(f"orders/{number}/{offset}" for number, offset in begin.items()),
    )
    killed = [_kill(subject, rng, watcher, replay) for _ in range(3)]
    feed(int(BATCH[subject.name]))
    start_to_end(subject)
    start_to_end(subject, *replay)
    watcher.check()

    before, after = (orders_pipeline.totals(subject, first).stores() for first in ({}, begin))
    for store, expected in before.items():
        left = after[store]
        assert differing_keys(subject, store) == {
            # A record that was late after all older ones need not be late without them, which can
            # add a window.
            key: "added" if key not in expected else "missing" if key not in left else "changed"
            for key in {*expected, *left}
            if expected.get(key) != left.get(key)
        }, store
    assert any(after[store] != expected for store, expected in before.items())

    feed(3 * int(BATCH[subject.name]))
    start_to_end(subject)
    killed.append(_kill(subject, rng, watcher, ("--promote",)))
    start_to_end(subject, "--promote")
    feed(int(BATCH[subject.name]))
    start_to_end(subject)
    watcher.check()
    with subject.ledger() as ledger:
        snapshot = ledger.snapshots.latest(subject.name)
        assert snapshot is not None
        keys = orders_pipeline.stores_equal(ledger, subject, snapshot, begin)
    observe(
        f"killed: {killed}; queries read complete snapshots of one generation {watcher.checks} times; the diff named "
        f"exactly the keys that plain Python names; {keys} keys are right after the promotion"
    )


def _kill(world: World, rng: random.Random, watcher: Watcher, arguments: tuple[str, ...]) -> str:
    """Kill a driver that builds a generation, in the middle of its batches. Returns which part of it."""
    what = rng.choice(("java", "python", "all"))
    while True:
        before = _built(world)
        driver = start(world, *arguments)
        _await_build(world, driver, before)
        time.sleep(rng.uniform(0, 3))
        if driver.runs:
            driver.kill(what)
            watcher.check()
            return what
        assert driver.process.returncode == 0, driver.output[-3000:]


def _ends(world: World) -> dict[int, int]:
    """Partition of the topic `orders` → end offset."""
    with world.ledger() as ledger:
        return dict(ledger.positions(world.name)["orders"])


def differing_keys(world: World, store: str) -> dict[object, str]:
    """Key, with its window's start if there are windows → how generation 2 differs from generation 1."""

    async def compared() -> dict[object, str]:
        with world.ledger() as ledger:
            reader = Reader(ledger)
            (info,) = [one for one in await reader.catalogue.stores() if one.name == store]
            numbers = ledger.generations.numbers(world.name)
            pins = [
                await reader.catalogue.pin(info, AsOf(f"{number}.newest")) for number in numbers
            ]
            found = await differences(reader, pins[0], pins[1], examples=sys.maxsize)
        return {
            (one.key, one.window_start) if info.window_ms else one.key: one.kind
            for one in found.examples
        }

    return asyncio.run(compared())


def _await_build(
    world: World, rebuild: Driver, before: frozenset[tuple[int, int]] = frozenset()
) -> None:
    wait_until(lambda: bool(_built(world) - before) or not rebuild.runs, LONG_S)


def _built(world: World) -> frozenset[tuple[int, int]]:
    """The batches that generations other than the current one have begun."""
    with world.ledger() as ledger:
        current = ledger.generations.current_number(world.name)
        others = [number for number in ledger.generations.numbers(world.name) if number != current]
        planned = {
            number: ledger.plans.newest(GenerationRef(world.name, number)) for number in others
        }
    return frozenset((number, plan.number) for number, plan in planned.items() if plan is not None)


def start_to_end(world: World, *arguments: str) -> None:
    driver = start(world, *arguments)
    assert driver.wait() == 0, driver.output[-3000:]


def snapshots(world: World) -> list[Snapshot]:
    """All published snapshots, oldest first."""
    with world.ledger() as ledger:
        return ledger.snapshots.recent(world.name, limit=10**6)[::-1]


TOKEN = "a-token-of-these-tests"


@contextmanager
def state_server(world: World, folder: Path, workers: str = "") -> Iterator[str]:
    """Run a state server as a process; yields its address."""
    port, ledger = free_port(), world.settings.ledger
    environment = {
        "SLUICE_HOME": str(world.home), "SLUICE_LEDGER": ledger, "SLUICE_SHARDS": f"sqlite:///{folder}",
        "SLUICE_SERVER_TOKEN": TOKEN, "PATH": str(Path(sys.executable).parent),
    }  # fmt: skip
    command = [str(Path(sys.executable).parent / "sluice"), "serve", "--port", str(port)]
    command += ["--workers", workers, "--pipeline", world.name] if workers else []
    log = world.folder / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output)
    try:
        ready = wait_until(lambda: listens(port) or process.poll() is not None, LONG_S, 0.1)
        assert ready, "the state server does not start"
        assert process.poll() is None, log.read_text()
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@both
@pytest.mark.fault("F26", "kill -9 at 12 points of moving a worker to a state server and back")
def test_a_killed_move(subject: World, observe: Observe) -> None:
    feed, rng, watcher = Feed(subject), random.Random(13), Watcher(subject)
    subject.environment["SLUICE_SERVER_TOKEN"] = TOKEN
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
        from sluice.settings import settings

        settings.cache_clear()
        stack.callback(settings.cache_clear)
        feed(4 * int(BATCH[subject.name]))
        start_to_end(subject)
        environment = {"SLUICE_HOME": str(subject.home), "SLUICE_SERVER_TOKEN": TOKEN}
        home = stack.enter_context(state_server(subject, subject.home / "shards", "0,1"))
        away = stack.enter_context(state_server(subject, subject.folder / "away"))
        steps = calls(
            "move", subject.settings.ledger, subject.name, "1", away, environment=environment
        )
        died = 0
        for target in (away, home):
            for _ in range(6):
                move = ("move", subject.settings.ledger, subject.name, "0", target)
                died += not calls(
                    *move, dying_after=rng.randrange(1, steps), environment=environment
                )
                watcher.check()
            calls(*move, environment=environment)
            feed(int(BATCH[subject.name]))
            start_to_end(subject)
            watcher.check()
        assert died > 3, f"only {died} of 12 moves were killed before they ended"
        comparison = compare(subject)
    observe(
        f"{died} of 12 moves were killed, at calls 1 to {steps}; the last ones completed; {comparison}"
    )


@both
@pytest.mark.fault("F27", "kill -9 of retention, many times while a run writes")
def test_killed_retention(subject: World, observe: Observe) -> None:
    feed, rng = Feed(subject), random.Random(14)
    feed(12 * int(BATCH[subject.name]))
    driver = start(subject)
    environment = {"SLUICE_HOME": str(subject.home)}
    await_more(subject, driver)
    died = rounds = 0
    while driver.runs:
        retain = ("retain", subject.settings.ledger, subject.name, "2")
        died += not calls(*retain, dying_after=rng.randrange(1, 200), environment=environment)
        rounds += 1
    assert driver.wait() == 0, driver.output[-3000:]
    assert died
    calls("retain", subject.settings.ledger, subject.name, "2", environment=environment)
    feed(int(BATCH[subject.name]))
    subject.run()
    calls("retain", subject.settings.ledger, subject.name, "1", environment=environment)
    with subject.ledger() as ledger:
        assert len(ledger.snapshots.recent(subject.name)) == 1
        snapshot = ledger.snapshots.latest(subject.name)
        assert snapshot is not None
        keys = check_stores(subject, snapshot)
    observe(
        f"retention was killed {died} of {rounds} times while the run wrote; one snapshot is kept, {keys} keys equal"
    )


def check_stores(world: World, snapshot: Snapshot) -> int:
    """The number of keys in a snapshot's stores. Raises AssertionError for a wrong value.

    Does not need audits, which retention removes together with their snapshots.
    """
    from tests.faults import words

    with world.ledger() as ledger:
        if world.name == "words":
            words.check_snapshot(ledger, world, snapshot)
            return sum(1 for _ in words.read(world))
        return orders_pipeline.stores_equal(ledger, world, snapshot)


@both
@pytest.mark.fault("F28", "kill -9 of the broker while a batch's transaction is open, twice")
def test_a_broker_killed_in_a_transaction(subject: World, observe: Observe) -> None:
    feed, statuses = Feed(subject), []
    topic = {"orders": "general_orders", "words": "letters_with_description_left"}[subject.name]
    feed(2 * int(BATCH[subject.name]))
    start_to_end(subject)
    killed = 0
    while killed < 2:
        feed(6 * int(BATCH[subject.name]))
        driver = start(subject)
        program = _stopped_in_a_transaction(subject, driver, topic)
        if program is None:
            assert driver.wait() == 0, driver.output[-3000:]
            continue
        broker = running_broker(subject.kafka.folder)
        assert broker is not None
        psutil.Process(broker.pid).kill()
        psutil.Process(broker.pid).wait(30)
        killed += 1
        subject.kafka.start()
        program.resume()
        statuses.append(driver.wait())
    subject.run()
    observe(f"the drivers ended with {statuses}; after another run: {compare(subject)}")


def _stopped_in_a_transaction(world: World, driver: Driver, topic: str) -> psutil.Process | None:
    """The driver's program, paused while its transaction has records in the topic. None if the driver ended before."""
    admin = world.admin()
    with closing(Consumer({**world.config, "group.id": "open"})) as consumer:
        partitions = [
            TopicPartition(topic, number)
            for number in consumer.list_topics(topic).topics[topic].partitions
        ]

    def ends(level: IsolationLevel) -> dict[int, int]:
        latest = {partition: OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(latest, isolation_level=level, request_timeout=60)
        return {
            partition.partition: future.result(60).offset for partition, future in futures.items()
        }

    while (program := driver.python()) is None:
        if not driver.runs:
            return None
        time.sleep(0.05)
    while driver.runs:
        if ends(IsolationLevel.READ_UNCOMMITTED) == ends(IsolationLevel.READ_COMMITTED):
            continue
        program.suspend()
        # The driver is paused now, so an open transaction stays open.
        if ends(IsolationLevel.READ_UNCOMMITTED) != ends(IsolationLevel.READ_COMMITTED):
            return program
        program.resume()
    return None


@everywhere
@pytest.mark.fault("F29", "two runs started at the same moment, twice")
def test_two_runs_at_the_same_moment(subject: World, observe: Observe) -> None:
    feed, results = Feed(subject), []
    for _ in range(2):
        feed(4 * int(BATCH[subject.name]))
        drivers = [start(subject) for _ in range(2)]
        statuses = sorted(driver.wait() for driver in drivers)
        assert statuses in ([0, 0], [0, 1]), [driver.output[-2000:] for driver in drivers]
        lines = [line for driver in drivers for line in driver.output.splitlines()]
        errors = [line for line in lines if "Another driver is running" in line]
        assert len(errors) == sum(statuses)
        results.append(f"{statuses}")
    subject.run()
    observe(
        f"the runs ended with {', '.join(results)}; a failed one did not get the lease; {compare(subject)}"
    )


SMALL = {"SHARDS": "1m", "LEDGER": "400k"}


@both
@pytest.mark.parametrize("what", SMALL)
@pytest.mark.fault("F30", "the pipeline fills the small file system under its shards or ledger")
def test_a_small_file_system(subject: World, observe: Observe, what: str) -> None:
    feed = Feed(subject)
    with small_disk(subject.folder / "small", SMALL[what]) as disk:
        address = {"SHARDS": f"sqlite:///{disk}", "LEDGER": f"sqlite:///{disk}/ledger.sqlite"}
        subject.environment[f"SLUICE_{what}"] = address[what]
        driver, runs = None, 0
        while driver is None or driver.wait() == 0:
            runs += 1
            assert runs < 10, f"the pipeline does not fill {SMALL[what]}"
            feed(10 * int(BATCH[subject.name]))
            driver = start(subject)
        assert driver.wait() == 1
        error = driver.output.strip().splitlines()[-1][:150]
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        watcher = Watcher(subject)
        watcher.check()
        subject.run()
        watcher.check()
        observe(f"{what.lower()} full in run {runs}: {error}; with more space: {compare(subject)}")


@pytest.mark.fault(
    "F31",
    "a driver is killed between the Kafka commit and the ledger's commit; then the pipeline gets another output",
)
def test_another_output_after_a_crash(orders: World, observe: Observe) -> None:
    feed = Feed(orders)
    folder = orders.folder / "jobs"
    shutil.copytree(ROOT / "spark_jobs", folder)
    orders.environment["SLUICE_PIPELINES"] = str(folder)
    feed(2_000)
    driver = start(orders)
    await_more(orders, driver, 2)
    # While another connection writes to the ledger, the driver waits between the Kafka commit and
    # the ledger's commit.
    with closing(
        sqlite3.connect(orders.home / "ledger.sqlite", timeout=60, isolation_level=None)
    ) as ledger:

        def is_locked_after_a_plan() -> bool:
            """Lock the ledger if a batch is planned and not published: the driver has to write the plan before."""
            ledger.execute("BEGIN IMMEDIATE")
            newest = "SELECT max(number), (SELECT max(batch) FROM snapshots) FROM plans"
            ((planned, published),) = ledger.execute(newest)
            if planned > published:
                return True
            ledger.execute("ROLLBACK")
            return False

        assert wait_until(lambda: not driver.runs or is_locked_after_a_plan(), LONG_S), (
            driver.output[-3000:]
        )
        assert driver.runs, driver.output[-3000:]
        before = int(ledger.execute("SELECT max(batch) FROM snapshots").fetchone()[0])
        assert wait_until(lambda: marker(orders) > before or not driver.runs, LONG_S), (
            driver.output[-3000:]
        )
        assert driver.runs, driver.output[-3000:]
        driver.kill("all")
        ledger.execute("ROLLBACK")
    assert (orders.published(), marker(orders)) == (before, before + 1)
    file = folder / "orders.py"
    output = '\norders.filter("finalAmount > 20").map_values("locationId").to("dear_orders")\n'
    file.write_text(file.read_text() + output)
    feed(1_000)
    start_to_end(orders)
    comparison = compare(orders)
    with orders.ledger() as opened:
        snapshot = opened.snapshots.latest("orders")
        assert snapshot is not None
        audited = sum(
            audit.outputs.get("dear_orders", 0) for audit in opened.audits.all(snapshot.ref)
        )
    written = sum(1 for _ in read_topic(orders.config, "dear_orders"))
    assert written > 0
    assert audited == written, f"the audits count {audited} records, and the topic has {written}"
    result = f"batch {before + 1} was written but not published; the new output has {written} records, as audited"
    observe(f"{result}; {comparison}")


def marker(world: World) -> int:
    """The last batch whose output is written, -1 if none."""
    writer = Writer(GenerationRef(world.name, 1), f"{world.name}_markers")
    try:
        last = read_markers(world.config, writer).get(1)
    except EngineError:
        return -1
    return -1 if last is None else last.batch.number
