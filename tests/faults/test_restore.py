"""A lost shard, and drivers that are killed while they restore it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sluice.state.database import database_url
from tests.faults.conftest import Observe
from tests.faults.truth import Watcher, compare
from tests.faults.world import LONGEST_S, Driver, World, wait_until

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.heavy
@pytest.mark.fault(
    "F12", "a shard is deleted, then kill -9 of the driver three times while it restores the shard"
)
def test_kills_while_a_shard_is_restored(orders: World, observe: Observe) -> None:
    orders.produce(3_000)
    orders.run()
    with orders.ledger() as ledger:
        lost = Path(database_url(ledger.generations.workers("orders")[0].location).database or "")
    for file in lost.parent.glob(f"{lost.name}*"):
        file.unlink()
    orders.produce(500, seed=8, start_ms=1_670_230_527_000 + 600_000)
    rng, killed = random.Random(5), 0
    for _ in range(3):
        driver = orders.start()
        _await_restoring(driver)
        time.sleep(rng.uniform(0, 8))
        killed += driver.runs
        driver.kill("all")
    assert killed
    orders.run()
    comparison = compare(orders)
    Watcher(orders).check()
    assert _generations(orders)[-1] > 1
    with orders.ledger() as ledger:
        notes = [note.text for note in ledger.notes.all("orders")]
    assert [note[:42] for note in notes] == ["State was damaged, and restored from the t"]
    observe(
        f"{killed} drivers were killed; the next one noted: {notes[0].split(':')[0]}; {comparison}"
    )


def _await_restoring(driver: Driver) -> None:
    """Wait until the driver has detected the damage and restores the state."""
    begun = wait_until(
        lambda: "restoring it from the topics" in driver.output or not driver.runs, LONGEST_S
    )
    assert begun, driver.output[-3000:]


def _generations(orders: World) -> list[int]:
    with orders.ledger() as ledger:
        return ledger.generations.numbers("orders")
