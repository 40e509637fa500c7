"""Faults that come in the middle: drivers that stop and come back, and steps that die half done."""

from __future__ import annotations

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

from sluice.engine.publish.transaction import Writer, read_marker
from sluice.errors import EngineError
from sluice.state.model import JobRef, Snapshot
from sluice.testing.kafka import running as running_broker
from sluice.topics import read_topic
from tests.faults import orders as orders_pipeline
from tests.faults.conftest import Seen, small_disk
from tests.faults.dying import calls
from tests.faults.truth import Feed, Watching, compare
from tests.faults.world import ROOT, Driver, World, wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]

BATCH = {"orders": "400", "words": "150"}
LONG_S = 900.0
"""Far longer than anything takes that is waited for, on a machine with much else to do."""

both = pytest.mark.parametrize("subject", ["orders", "words"], indirect=True)
everywhere = pytest.mark.parametrize("subject", ["orders", "words", "orders-postgres", "words-postgres"], indirect=True)


def start(world: World, *arguments: str) -> Driver:
    return world.start(*arguments, SLUICE_MAX_RECORDS=BATCH[world.name])


def await_more(world: World, driver: Driver, batches: int = 1) -> None:
    """Return when the driver has published more batches of the last job, and still works."""
    world.await_batch(driver, world.published() + batches)


@everywhere
@pytest.mark.fault("F24", "SIGSTOP of driver, JVM and workers past their lease; two other runs end; SIGCONT; twice")
def test_a_driver_that_was_stopped_past_its_lease(subject: World, seen: Seen) -> None:
    feed, chance, said = Feed(subject), random.Random(11), []
    feed(6 * int(BATCH[subject.name]))
    for _ in range(2):
        stopped = start(subject)
        await_more(subject, stopped)
        time.sleep(chance.uniform(0, 1))
        processes = stopped.members()
        for process in processes:
            process.suspend()
        second = start(subject)
        assert second.wait() == 0, second.said[-3000:]
        feed(int(BATCH[subject.name]))
        assert start(subject).wait() == 0
        for process in processes:
            if process.is_running():
                process.resume()
        status = stopped.wait()
        assert status == 0 or "lost its lease" in stopped.said, stopped.said[-3000:]
        said.append(f"{status}: {stopped.said.strip().splitlines()[-1][:90]}")
        feed(5 * int(BATCH[subject.name]))
    subject.run()
    seen(f"awake again, they ended with {said}; {compare(subject)}")


@both
@pytest.mark.fault("F25", "kill -9 during a rebuild, of driver, JVM or both, three times; runs before and after")
def test_a_killed_rebuild(subject: World, seen: Seen) -> None:
    feed, chance, watching = Feed(subject), random.Random(12), Watching(subject)
    feed(6 * int(BATCH[subject.name]))
    assert start(subject).wait() == 0
    killed = 0
    while killed < 3:
        rebuild = start(subject, "--rebuild")
        _await_build(subject, rebuild)
        time.sleep(chance.uniform(0, 5))
        if rebuild.runs:
            rebuild.kill(chance.choice(("java", "python", "all")))
            killed += 1
        else:
            assert rebuild.process.returncode == 0, rebuild.said[-3000:]
        watching.look()
    feed(int(BATCH[subject.name]))
    subject.run()
    before = snapshots(subject)
    start_to_end(subject, "--rebuild")
    feed(int(BATCH[subject.name]))
    subject.run()
    watching.look()
    seen(f"killed 3 times; the old generation was read meanwhile, runs went on; rebuilt: {compare(subject, before)}")


def _await_build(world: World, rebuild: Driver) -> None:
    wait_until(lambda: _builds(world) or not rebuild.runs, LONG_S)


def _builds(world: World) -> bool:
    """Whether a generation that is not read has begun a batch."""
    with world.ledger() as ledger:
        read = {f"{job}/g{ledger.jobs.generation(world.name, job)}" for job in world.jobs}
    folder = Path(world.settings.checkpoints) / world.name
    begun = (file.relative_to(folder).parts for file in folder.glob("*/g*/spark/offsets/[0-9]*"))
    return any(f"{job}/{generation}" not in read for job, generation, *_ in begun)


def start_to_end(world: World, *arguments: str) -> None:
    driver = start(world, *arguments)
    assert driver.wait() == 0, driver.said[-3000:]


def snapshots(world: World) -> list[Snapshot]:
    """All that are published, oldest first."""
    with world.ledger() as ledger:
        return [
            snapshot for job in world.jobs for snapshot in ledger.snapshots.recent(world.name, job, limit=10**6)[::-1]
        ]


TOKEN = "a-token-of-these-tests"


@contextmanager
def state_server(world: World, folder: Path, workers: str = "") -> Iterator[str]:
    """A state server as a process; yields its address."""
    port, known = free_port(), world.settings
    environment = {
        "SLUICE_HOME": str(world.home), "SLUICE_LEDGER": known.ledger, "SLUICE_SHARDS": f"sqlite:///{folder}",
        "SLUICE_SERVER_TOKEN": TOKEN, "PATH": str(Path(sys.executable).parent),
    }  # fmt: skip
    command = [str(Path(sys.executable).parent / "sluice"), "serve", "--port", str(port)]
    command += ["--workers", workers, "--pipeline", world.name] if workers else []
    log = world.folder / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output)
    try:
        ready = wait_until(lambda: "answers on" in log.read_text() or process.poll() is not None, LONG_S, 0.1)
        assert ready, "the state server does not answer"
        assert process.poll() is None, log.read_text()
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@both
@pytest.mark.fault("F26", "kill -9 at 12 steps of moving a worker to a state server, and of bringing it back")
def test_a_killed_move(subject: World, seen: Seen) -> None:
    feed, chance, watching = Feed(subject), random.Random(13), Watching(subject)
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
        steps = calls("move", subject.settings.ledger, subject.name, "1", away, environment=environment)
        died = 0
        for target in (away, home):
            for _ in range(6):
                move = ("move", subject.settings.ledger, subject.name, "0", target)
                died += not calls(*move, dying_after=chance.randrange(1, steps), environment=environment)
                watching.look()
            calls(*move, environment=environment)
            feed(int(BATCH[subject.name]))
            start_to_end(subject)
            watching.look()
        assert died > 3, f"it was done before it died: {died} of 12 died"
        found = compare(subject)
    seen(f"{died} of 12 died, at steps 1 to {steps}; moved and brought back all the same; {found}")


@both
@pytest.mark.fault("F27", "kill -9 of retention, again and again while a run writes and a reader looks")
def test_killed_retention(subject: World, seen: Seen) -> None:
    feed, chance = Feed(subject), random.Random(14)
    feed(12 * int(BATCH[subject.name]))
    driver = start(subject)
    environment = {"SLUICE_HOME": str(subject.home)}
    await_more(subject, driver)
    died = rounds = 0
    while driver.runs:
        retain = ("retain", subject.settings.ledger, subject.name, "2")
        died += not calls(*retain, dying_after=chance.randrange(1, 200), environment=environment)
        rounds += 1
    assert driver.wait() == 0, driver.said[-3000:]
    assert died
    calls("retain", subject.settings.ledger, subject.name, "2", environment=environment)
    feed(int(BATCH[subject.name]))
    subject.run()
    calls("retain", subject.settings.ledger, subject.name, "1", environment=environment)
    with subject.ledger() as ledger:
        left = {job: len(ledger.snapshots.recent(subject.name, job)) for job in subject.jobs}
        assert set(left.values()) == {1}, left
        for job in subject.jobs:
            snapshot = ledger.snapshots.latest(subject.name, job)
            assert snapshot is not None
            stores = whole_stores(subject, snapshot)
    seen(f"retention died {died} times of {rounds} while the run wrote; one snapshot is left, and {stores} keys equal")


def whole_stores(world: World, snapshot: Snapshot) -> int:
    """How many keys the stores of a snapshot have, all as they must be; audits are forgotten with their snapshots."""
    from tests.faults import words

    with world.ledger() as ledger:
        if world.name == "words":
            words.whole(ledger, world, snapshot)
            return sum(1 for _ in words.read(world))
        return orders_pipeline.stores_equal(ledger, world, snapshot)


@both
@pytest.mark.fault("F28", "kill -9 of the broker while a batch's transaction is open, twice; started again")
def test_a_broker_killed_in_a_transaction(subject: World, seen: Seen) -> None:
    feed, said = Feed(subject), []
    topic = {"orders": "general_orders", "words": "letters_with_description_left"}[subject.name]
    feed(2 * int(BATCH[subject.name]))
    start_to_end(subject)
    hit = 0
    while hit < 2:
        feed(6 * int(BATCH[subject.name]))
        driver = start(subject)
        program = _stopped_in_a_transaction(subject, driver, topic)
        if program is None:
            assert driver.wait() == 0, driver.said[-3000:]
            continue
        broker = running_broker(subject.kafka.folder)
        assert broker is not None
        psutil.Process(broker.pid).kill()
        psutil.Process(broker.pid).wait(30)
        hit += 1
        subject.kafka.start()
        program.resume()
        said.append(driver.wait())
    subject.run()
    seen(f"the drivers ended with {said}; after one more run: {compare(subject)}")


def _stopped_in_a_transaction(world: World, driver: Driver, topic: str) -> psutil.Process | None:
    """The driver's program, stopped while records of its transaction are in the topic; None if it ended before."""
    admin = world.admin()
    with closing(Consumer({**world.config, "group.id": "open"})) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.list_topics(topic).topics[topic].partitions]

    def ends(level: IsolationLevel) -> dict[int, int]:
        asked = {one: OffsetSpec.latest() for one in partitions}  # type: ignore[no-untyped-call]
        return {
            of.partition: found.result(60).offset
            for of, found in admin.list_offsets(asked, isolation_level=level, request_timeout=60).items()
        }

    while (program := driver.python()) is None:
        if not driver.runs:
            return None
        time.sleep(0.05)
    while driver.runs:
        if ends(IsolationLevel.READ_UNCOMMITTED) == ends(IsolationLevel.READ_COMMITTED):
            continue
        program.suspend()
        # Stopped for good now: what is open stays open.
        if ends(IsolationLevel.READ_UNCOMMITTED) != ends(IsolationLevel.READ_COMMITTED):
            return program
        program.resume()
    return None


@everywhere
@pytest.mark.fault("F29", "two runs started at the same moment, twice")
def test_two_runs_at_the_same_moment(subject: World, seen: Seen) -> None:
    feed, said = Feed(subject), []
    for _ in range(2):
        feed(4 * int(BATCH[subject.name]))
        pair = [start(subject) for _ in range(2)]
        ended = sorted(driver.wait() for driver in pair)
        assert ended in ([0, 0], [0, 1]), [driver.said[-2000:] for driver in pair]
        refused = [line for driver in pair for line in driver.said.splitlines() if "by another driver" in line]
        assert len(refused) == sum(ended)
        said.append(f"{ended}")
    subject.run()
    seen(f"they ended with {', '.join(said)}, whoever failed was refused; {compare(subject)}")


SMALL = {"SHARDS": "2m", "CHECKPOINTS": "900k", "LEDGER": "400k"}


@both
@pytest.mark.parametrize("what", SMALL)
@pytest.mark.fault("F30", "a small file system that the pipeline itself fills: under shards, checkpoints, ledger")
def test_a_small_file_system(subject: World, seen: Seen, what: str) -> None:
    feed = Feed(subject)
    with small_disk(subject.folder / "small", SMALL[what]) as disk:
        address = {"CHECKPOINTS": str(disk), "SHARDS": f"sqlite:///{disk}", "LEDGER": f"sqlite:///{disk}/ledger.sqlite"}
        subject.environment[f"SLUICE_{what}"] = address[what]
        driver, runs = None, 0
        while driver is None or driver.wait() == 0:
            runs += 1
            assert runs < 10, f"{SMALL[what]} do not become full"
            feed(10 * int(BATCH[subject.name]))
            driver = start(subject)
        assert driver.wait() == 1
        why = driver.said.strip().splitlines()[-1][:150]
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        watching = Watching(subject)
        watching.look()
        subject.run()
        watching.look()
        seen(f"{what.lower()}, full in run {runs}: {why}; with more space: {compare(subject)}")


@pytest.mark.fault(
    "F31", "killed after the Kafka commit and before the ledger's; then the pipeline has one output more"
)
def test_one_output_more_after_a_crash(orders: World, seen: Seen) -> None:
    feed = Feed(orders)
    folder = orders.folder / "jobs"
    shutil.copytree(ROOT / "spark_jobs", folder)
    orders.environment["SLUICE_PIPELINES"] = str(folder)
    feed(2_000)
    driver = start(orders)
    await_more(orders, driver, 2)
    # While somebody else writes to the ledger, the driver waits for it, with its output out.
    with closing(sqlite3.connect(orders.home / "ledger.sqlite", timeout=60, isolation_level=None)) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        before = int(ledger.execute("SELECT max(batch) FROM snapshots").fetchone()[0])
        assert wait_until(lambda: marker(orders) > before or not driver.runs, LONG_S), driver.said[-3000:]
        assert driver.runs, driver.said[-3000:]
        driver.kill("all")
        ledger.execute("ROLLBACK")
    assert (orders.published(), marker(orders)) == (before, before + 1)
    file = folder / "orders.py"
    more = '\norders.filter("finalAmount > 20").map_values("locationId").to("dear_orders")\n'
    file.write_text(file.read_text() + more)
    feed(1_000)
    start_to_end(orders)
    found = compare(orders)
    with orders.ledger() as known:
        snapshot = known.snapshots.latest("orders", "main")
        assert snapshot is not None
        told = sum(audit.outputs.get("dear_orders", 0) for audit in known.audits.all(snapshot.ref))
    written = sum(1 for _ in read_topic(orders.config, "dear_orders"))
    assert written > 0
    assert told == written, f"the audits tell of {told} records, and the topic has {written}"
    seen(f"batch {before + 1} was out and not published; the new output has {written} records, as audited; {found}")


def marker(world: World) -> int:
    """The last batch whose output is out, -1 if none."""
    writer = Writer(JobRef(world.name, world.jobs[-1], 1), f"{world.name}_markers")
    try:
        found = read_marker(world.config, writer)
    except EngineError:
        return -1
    return -1 if found is None else found.batch.number
