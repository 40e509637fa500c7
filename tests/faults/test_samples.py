"""Short versions of the scenarios in test_interruptions that need no Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.markers import Writer
from sluice.engine.run.driver_lease import Lease, Patience, this_process
from sluice.errors import EngineError
from sluice.kafka.topics import read_topic
from sluice.local.broker import EmbeddedKafka
from sluice.local.broker import running as running_broker
from sluice.settings import settings
from sluice.state.ledger.history import Batch
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import open_shard
from sluice.values.key_owners import owner
from tests.faults.conftest import Observe
from tests.faults.dying import calls
from tests.faults.world import wait_until
from tests.servers.hosts import TOKEN, Host
from tests.support.ports import free_port
from tests.support.state_rows import write_rows
from tests.support.states import States, make_snapshot

QUICK = Patience(beat_s=0.05, silence_s=0.5)
WRITER = """
import sys
from pathlib import Path
from sluice.engine.run.driver_lease import Lease, Patience, this_process
from sluice.errors import LeaseError
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.remote.opening import open_shard
from tests.support.state_rows import write_rows

ledger, location, key, beat = sys.argv[1:]
with Ledger.open(ledger) as opened, open_shard(location, to_write=True) as shard:
    with Lease(opened.leases, GenerationRef("orders", 1), this_process(""), Patience(beat_s=float(beat))) as lease:
        print("holds the lease", flush=True)
        sys.stdin.readline()
        try:
            write_rows(shard, 1, [(0, key, NO_WINDOW, NO_WINDOW, "[666]")], lease.epoch)
            print("written", flush=True)
        except LeaseError:
            print("rejected", flush=True)
"""


@pytest.fixture
def states(tmp_path: Path) -> Iterator[States]:
    states = States(f"sqlite:///{tmp_path}/home", workers=2)
    yield states
    states.ledger.close()


@pytest.mark.fault(
    "F24", "SIGSTOP of a writer past its lease, and SIGCONT after another has written (a sample)"
)
def test_a_paused_writer_cannot_write_after_it_resumes(states: States, observe: Observe) -> None:
    states.publish({"a": "[1]"})
    location = states.location(owner("a", 2))
    command = [sys.executable, "-c", WRITER, str(states.ledger.engine.url), location, "a", "5"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "holds the lease\n"
        # Its next renewal is seconds away: if it were paused during a renewal, it would hold
        # SQLite's lock.
        psutil.Process(writer.pid).suspend()
        with Lease(
            states.ledger.leases, GenerationRef("orders", 1), this_process("other"), QUICK
        ) as lease:
            with open_shard(location, to_write=True) as shard:
                write_rows(shard, 1, [(0, "a", -1, -1, "[2]")], lease.epoch)
            assert states.ledger.snapshots.publish(make_snapshot(1))
            psutil.Process(writer.pid).resume()
            print(file=writer.stdin, flush=True)
            result = writer.stdout.readline()
    assert result == "rejected\n"
    with open_shard(location) as shard:
        assert [row.value for row in shard.scan(0, 1, limit=9)] == ["[2]"]
    observe("the resumed writer was rejected; the shard has the other writer's row")


@pytest.mark.fault("F29", "three drivers take a lease at the same moment (a sample)")
def test_one_of_three_gets_the_lease(states: States, observe: Observe) -> None:
    states.publish({"a": "[1]"})
    command = [
        sys.executable,
        "-c",
        WRITER,
        str(states.ledger.engine.url),
        states.location(0),
        "b",
        "0.05",
    ]
    writers = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    wait_until(lambda: sum(writer.poll() is not None for writer in writers) == 2, 120)
    outputs = [writer.communicate("\n") for writer in writers]
    assert sorted(out for out, _ in outputs) == ["", "", "holds the lease\nwritten\n"]
    errors = [error for out, error in outputs if not out]
    assert all("Another driver is running 'orders'" in error for error in errors), errors
    observe("one took the lease and wrote, two were rejected")


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    settings.cache_clear()
    yield {"SLUICE_SERVER_TOKEN": TOKEN}
    settings.cache_clear()


@pytest.mark.fault("F26", "kill -9 at three points of moving a worker to a state server (a sample)")
def test_a_killed_move(
    states: States, token: dict[str, str], tmp_path: Path, observe: Observe
) -> None:
    for number in range(3):
        states.publish(dict.fromkeys("abcdefgh", f"[{number}]"))
    keys = [key for key in "abcdefgh" if owner(key, 2) == 0]
    host = Host(states.ledger, tmp_path / "away").start()
    move = ("move", str(states.ledger.engine.url), "orders", "0", f"127.0.0.1:{host.port}")
    steps = calls("move", *move[1:3], "1", move[4], environment=token)
    rng = random.Random()
    chosen = [rng.randrange(1, steps) for _ in range(3)]
    died = [step for step in chosen if not calls(*move, dying_after=step, environment=token)]
    calls(*move, environment=token)
    worker = states.ledger.generations.workers("orders")[0]
    assert worker.port == host.port
    with open_shard(worker.location) as shard:
        assert {row.key: row.value for row in shard.scan(0, 2, limit=99)} == dict.fromkeys(
            keys, "[2]"
        )
        assert {row.value for row in shard.scan(0, 1, limit=99)} == {"[1]"}
    host.stop()
    observe(f"the move was killed at calls {died} of {steps}, and completed when it was repeated")


@pytest.mark.fault("F27", "kill -9 at four points of retention (a sample)")
def test_killed_retention(states: States, observe: Observe) -> None:
    for number in range(8):
        states.publish(dict.fromkeys("abcd", f"[{number}]"))
    rng, died = random.Random(), []
    for step in (rng.randrange(1, 150) for _ in range(4)):
        if not calls(
            "retain", str(states.ledger.engine.url), "orders", "2", dying_after=step, environment={}
        ):
            died.append(step)
        for snapshot in states.ledger.snapshots.recent("orders"):
            assert values_of(states, snapshot.batch) == dict.fromkeys("abcd", f"[{snapshot.batch}]")
    calls("retain", str(states.ledger.engine.url), "orders", "2", environment={})
    assert [snapshot.batch for snapshot in states.ledger.snapshots.recent("orders")] == [7, 6]
    observe(
        f"retention was killed at calls {died}; every remaining snapshot was complete; two are kept in the end"
    )


def values_of(states: States, batch: int) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for worker in states.ledger.generations.workers("orders"):
        with open_shard(worker.location) as shard:
            values |= {row.key: row.value for row in shard.scan(0, batch, limit=99)}
    return values


@pytest.mark.fault("F28", "kill -9 of the broker while a batch's transaction is open (a sample)")
def test_a_broker_killed_in_a_transaction(tmp_path: Path, observe: Observe) -> None:
    def values() -> list[bytes | None]:
        return [
            message.value() for message in read_topic({"bootstrap.servers": kafka.bootstrap}, "out")
        ]

    with EmbeddedKafka(tmp_path / "kafka", free_port()) as kafka:
        kafka.create_topics({"out": 1, "markers": 1})
        config = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
        writer = Writer(GenerationRef("p", 1), "markers")
        with TransactionalOutput(config, writer, {"out": TopicLimits()}) as output:
            output.send(batch(0), [("out", records("a"))])
            broker = running_broker(kafka.folder)
            assert broker is not None

            def records_then_kill() -> Iterator[tuple[str, pa.Table]]:
                yield "out", records("lost", "b")
                output._producer.flush(30)  # the topic now has records of an open transaction
                psutil.Process(broker.pid).kill()
                psutil.Process(broker.pid).wait(30)
                kafka.start()

            try:
                output.send(batch(1), records_then_kill())
                result = "continued"
            except EngineError as error:
                result = f"failed: {str(error)[:80]}"
        with TransactionalOutput(config, writer, {"out": TopicLimits()}) as output:
            output.send(batch(1), [("out", records("lost", "b"))])
            output.send(batch(2), [("out", records("c"))])
        # The broker marks the records of a transaction as committed a moment after the commit.
        wait_until(lambda: len(values()) >= 4, 10)
        assert values() == [b"a", b"lost", b"b", b"c"]
    observe(f"the writer {result}; after the next writer, the topic has every batch once")


def batch(number: int) -> Batch:
    return Batch(number=number, begun=0, partitions={}, ends={})


def records(*values: str) -> pa.Table:
    binary = pa.array([value.encode() for value in values], pa.binary())
    return pa.table({"key": binary, "value": binary})
