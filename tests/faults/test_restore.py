"""A lost shard, and drivers that are killed while they restore it, as processes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sluice.state.database import database_url
from tests.faults.conftest import Seen
from tests.faults.truth import Watching, compare
from tests.faults.world import LONGEST_S, Driver, World, wait_until

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.heavy
@pytest.mark.fault("F12", "a shard deleted, then kill -9 of the driver three times while it restores it")
def test_kills_while_a_shard_is_restored(orders: World, seen: Seen) -> None:
    orders.produce(3_000)
    orders.run()
    with orders.ledger() as ledger:
        lost = Path(database_url(ledger.jobs.workers("orders", "main")[0].location).database or "")
    for file in lost.parent.glob(f"{lost.name}*"):
        file.unlink()
    orders.produce(500, seed=8, start_ms=1_670_230_527_000 + 600_000)
    chance, killed = random.Random(5), 0
    for _ in range(3):
        driver = orders.start()
        _await_restoring(driver)
        time.sleep(chance.uniform(0, 8))
        killed += driver.runs
        driver.kill("all")
    assert killed
    orders.run()
    found = compare(orders)
    Watching(orders).look()
    assert _generations(orders)[-1] > 1
    with orders.ledger() as ledger:
        notes = [note.text for note in ledger.notes.all("orders", "main")]
    assert [note[:42] for note in notes] == ["State was damaged, and restored from the t"]
    seen(f"{killed} drivers killed; the next one: {notes[0].split(':')[0]}; {found}")


def _await_restoring(driver: Driver) -> None:
    """Return when the driver has found the damage, and builds another generation."""
    found = wait_until(lambda: "restoring it from the topics" in driver.said or not driver.runs, LONGEST_S)
    assert found, driver.said[-3000:]


def _generations(orders: World) -> list[int]:
    with orders.ledger() as ledger:
        return ledger.jobs.generations("orders", "main")
