from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.engine.run.driver_lease import Lease, Patience, is_gone, this_process
from sluice.errors import LeaseError, StateError
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.faults.world import wait_until
from tests.support.states import ledger_url, make_snapshot
from tests.support.states import make_audit as audit

pytestmark = pytest.mark.unit

QUICK = Patience(beat_s=0.05, silence_s=0.6, orphan_s=0.8)
STEADY = Patience(beat_s=0.05, silence_s=10, orphan_s=10)
"""For holders that live: on a busy machine, a second may lie between two beats."""
ON_ONE_DATABASE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For tests of processes, which the database does not affect."""
ELSEWHERE = Holder(host="far", pid=1, process="", run="orders/manual__1/main")


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url(database)) as opened:
        yield opened


def lease(
    ledger: Ledger, run: str = "", holder: Holder | None = None, patience: Patience = QUICK
) -> Lease:
    return Lease(ledger.leases, GenerationRef("orders", 1), holder or this_process(run), patience)


def beats(ledger: Ledger) -> int:
    """How often the holder has renewed its lease."""
    row = ledger.leases.get(GenerationRef("orders", 1))
    assert row is not None
    return row.beat


def test_a_lease_is_taken_renewed_and_released(ledger: Ledger) -> None:
    with lease(ledger) as mine:
        row = ledger.leases.get(GenerationRef("orders", 1))
        assert row is not None
        assert (row.epoch, row.held, row.pid) == (mine.epoch, True, os.getpid())
        assert wait_until(lambda: beats(ledger) >= 2, 10)
    with lease(ledger) as next_one:
        assert next_one.epoch > mine.epoch


def test_a_second_driver_is_rejected_with_the_holders_name(ledger: Ledger) -> None:
    with lease(ledger, "orders/manual__1/main"):
        with (
            pytest.raises(LeaseError) as refused,
            lease(ledger, "orders/manual__2/main", patience=STEADY),
        ):
            pass
        text = str(refused.value)
        assert f"process {os.getpid()}, since 20" in text
        assert "run orders/manual__1/main" in text


def test_one_of_many_concurrent_drivers_gets_the_lease(ledger: Ledger) -> None:
    def try_it(number: int) -> int:
        try:
            with lease(ledger, f"run {number}", patience=STEADY):
                time.sleep(1)
                return 1
        except LeaseError:
            return 0

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(try_it, range(6))) == 1


def test_a_silent_holder_on_another_host_expires(ledger: Ledger) -> None:
    other = ledger.leases.take(GenerationRef("orders", 1), ELSEWHERE, None)
    assert other is not None
    start = time.monotonic()
    with lease(ledger) as mine:
        assert mine.epoch > other.epoch
    assert time.monotonic() - start >= QUICK.silence_s


def test_expiry_does_not_use_the_wall_clock(ledger: Ledger) -> None:
    """`since` is in 2022, but only an unchanged beat over time counts."""
    row = ledger.leases.take(GenerationRef("orders", 1), ELSEWHERE, None)
    assert row is not None

    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(0.05):
            ledger.leases.renew(row)

    with ThreadPoolExecutor(1) as pool:
        beating = pool.submit(beat)
        try:
            with pytest.raises(LeaseError), lease(ledger, patience=STEADY):
                pass
        finally:
            is_over.set()
        beating.result()


@ON_ONE_DATABASE
def test_a_killed_holder_on_this_machine_is_replaced_at_once(ledger: Ledger, database: str) -> None:
    with _driver(database) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = ledger.leases.get(GenerationRef("orders", 1))
        assert before is not None
        with lease(ledger, patience=Patience(silence_s=60)) as mine:
            assert mine.epoch > before.epoch


@ON_ONE_DATABASE
@pytest.mark.parametrize("hidden", [False, True])
def test_a_live_holder_that_proc_hides_is_not_taken_for_ended(
    ledger: Ledger, database: str, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    if hidden:  # as for another user if /proc is mounted with hidepid
        monkeypatch.setattr("sluice.engine.run.driver_lease._is_visible", lambda _: False)
        monkeypatch.setattr("sluice.engine.run.driver_lease._start_time", lambda _: "")
    with _driver(database) as process:
        row = ledger.leases.get(GenerationRef("orders", 1))
        assert row is not None
        assert not is_gone(row)
        process.kill()
        process.wait()
        assert is_gone(row)


def test_a_retry_waits_for_the_driver_left_behind(ledger: Ledger) -> None:
    orphan = lease(ledger, "orders/manual__1/main")
    held = threading.Event()

    def work() -> None:
        with orphan:
            held.set()
            time.sleep(0.4)

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(work)
        held.wait()
        with lease(ledger, "orders/manual__1/main", patience=Patience(0.05, 5, 5)) as mine:
            assert ended.done(), "the second driver took the lease while the first one held it"
            assert mine.epoch > orphan.epoch


def test_a_command_between_runs_waits_for_the_end_of_a_run(ledger: Ledger) -> None:
    command = lease(ledger, "command", patience=Patience(0.05, 5, 5, waits=True))

    def between_runs() -> int:
        with command:
            return command.epoch

    with ThreadPoolExecutor(1) as pool:
        with lease(ledger, "run", patience=Patience(0.05, 5, 5)) as run:
            waiting = pool.submit(between_runs)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=1)
        assert waiting.result(timeout=5) > run.epoch


def test_a_retry_does_not_wait_forever(ledger: Ledger) -> None:
    with lease(ledger, "orders/manual__1/main") as orphan:
        with lease(ledger, "orders/manual__1/main"):
            time.sleep(0.2)
            with pytest.raises(LeaseError, match=r"has lost its lease.*taken over by host"):
                orphan.check()
            with pytest.raises(LeaseError, match="has lost its lease"):
                ledger.snapshots.publish(make_snapshot(0), audit(0, orphan.epoch))
        assert ledger.snapshots.latest("orders") is None


def test_a_paused_driver_cannot_publish_after_it_resumes(ledger: Ledger, database: str) -> None:
    with _driver(database) as process:
        process.send_signal(signal.SIGSTOP)
        with lease(ledger) as mine:
            assert ledger.snapshots.publish(make_snapshot(0), audit(0, mine.epoch))
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(b"\n", timeout=120)
            assert b"has lost its lease" in output
        assert ledger.snapshots.last_batch(GenerationRef("orders", 1)) == 0


def test_a_driver_cannot_publish_after_releasing_its_lease(ledger: Ledger) -> None:
    with lease(ledger) as mine:
        assert ledger.snapshots.publish(make_snapshot(0), audit(0, mine.epoch))
    with pytest.raises(LeaseError, match="The lease has been released"):
        ledger.snapshots.publish(make_snapshot(1), audit(1, mine.epoch))


def test_a_brief_ledger_outage_does_not_cost_the_lease(ledger: Ledger) -> None:
    class Restarting(type(ledger.leases)):  # type: ignore[misc]
        away = 3

        def renew(self, row: object) -> bool:
            type(self).away -= 1
            if self.away >= 0:
                raise StateError("The ledger is being restarted.")
            return bool(super().renew(row))

    held = Lease(
        Restarting(ledger.leases._engine), GenerationRef("orders", 1), this_process(""), QUICK
    )
    with held:
        assert wait_until(lambda: beats(ledger) > 0, 10)
        held.check()


DRIVER = """
import sys
from sluice.engine.run.driver_lease import Lease, Patience, this_process
from sluice.errors import LeaseError
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.support.states import make_audit as audit, make_snapshot

with Ledger.open(sys.argv[1]) as ledger:
    with Lease(ledger.leases, GenerationRef("orders", 1), this_process("other"), Patience(0.05, 0.6, 0.6)) as lease:
        print("held", flush=True)
        sys.stdin.readline()
        try:
            ledger.snapshots.publish(make_snapshot(1), audit(1, lease.epoch))
        except LeaseError as error:
            print(error, flush=True)
"""


@contextmanager
def _driver(database: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with the lease."""
    command = [sys.executable, "-c", DRIVER, ledger_url(database)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
