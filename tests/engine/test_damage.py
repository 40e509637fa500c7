"""State that was lost or altered between two runs: the next run reports it and does not use the state."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import delete

from sluice import Pipeline, tumbling
from sluice.errors import DamagedState
from sluice.observe.audit_report import report
from sluice.state.database import transaction
from sluice.state.fencing import next_epoch
from sluice.state.ledger.ledger_tables import LEASES
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names, sums


def windows(names: Names) -> Pipeline:
    pipeline = Pipeline(names.prefix, workers=1)
    pipeline.stream(names("amounts"), value=Amount).group_by_key().windowed_by(
        tumbling("10 ms")
    ).count(store="n")
    return pipeline


def amount(running: Running, n: int, at: int) -> None:
    running.send("amounts", (b"k", b'{"n":%d}' % n), timestamp=at)


def worker_0(running: Running) -> contextlib.closing[sqlite3.Connection]:
    """The shard of worker 0."""
    (file,) = running.settings.home.rglob("worker-0.sqlite")
    return contextlib.closing(sqlite3.connect(file))


def change(running: Running, sql: str) -> None:
    with worker_0(running) as shard:
        assert shard.execute(sql).rowcount == 1
        shard.commit()


@contextlib.contextmanager
def undone(running: Running) -> Iterator[None]:
    """Restore the shard of worker 0 after the block, and end its quarantine."""
    with contextlib.closing(sqlite3.connect(":memory:")) as kept:
        with worker_0(running) as shard:
            shard.backup(kept)
        yield
        with worker_0(running) as shard:
            kept.backup(shard)
    with running.ledger() as ledger:
        ref = GenerationRef(running.pipeline.name, 1)
        assert ledger.quarantine.get(ref)
        ledger.quarantine.conclude(ledger.quarantine.inspect(ref), 0)


DAMAGE = {
    "a state is deleted": "DELETE FROM states",
    "a digit of a state is changed": "UPDATE states SET state = replace(hex(state), '05', '07')",
    "a state row is deleted": "DELETE FROM state_rows",
    "a digit of a state row is changed": "UPDATE state_rows SET value = '[7]'",
}


def test_the_next_run_reports_damaged_state_and_the_worker(start: Start) -> None:
    running = start(sums)
    amount(running, 5, at=1_000)
    running.run()
    before = running.store("sums")
    amount(running, 1, at=2_000)
    for kind, damage in DAMAGE.items():
        with undone(running):
            change(running, damage)
            with pytest.raises(
                DamagedState,
                match=f"Worker 0's shard is damaged: .* sluice rebuild {running.pipeline.name}",
            ) as error:
                running.run()
            (place,) = error.value.workers.values()
            assert list(error.value.workers) == [0], kind
            assert Path(place.partition("sqlite:///")[2]).name == "worker-0.sqlite"
            assert len(running.snapshots()) == 1, kind
            assert "state_rows" in damage or running.store("sums") == before, kind
            assert not report(
                running.settings.ledger, running.pipeline.name, "", Console(quiet=True), verify=True
            )
    running.run()
    assert running.store("sums") == {"k": {"last": 1, "sum": 6}}


def test_a_lease_that_the_ledger_has_lost_is_outranked(start: Start) -> None:
    """The markers show that the ledger has lost nothing else, so the run continues, and fences the lost driver off."""
    running = start(sums)
    amount(running, 5, at=1_000)
    running.run()
    before = running.store("sums")
    with running.ledger() as ledger, transaction(ledger.engine) as connection:
        assert connection.execute(delete(LEASES)).rowcount
    lost = next_epoch(7 << 40)
    change(running, f"UPDATE shard SET epoch = {lost}")
    assert running.run() == 0
    assert running.store("sums") == before
    with running.ledger() as ledger:
        taken = ledger.leases.get(GenerationRef(running.pipeline.name, 1))
    assert taken is not None
    assert taken.epoch > lost
