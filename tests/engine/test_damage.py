"""State that was lost or altered between two runs: the next run reports it and does not use the state."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from rich.console import Console

from sluice import Pipeline, tumbling
from sluice.auditing import report
from sluice.errors import DamagedState
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names, sums


def windows(names: Names) -> Pipeline:
    pipeline = Pipeline(names.prefix, workers=1)
    pipeline.stream(names("amounts"), value=Amount).group_by_key().windowed_by(tumbling(10)).count(store="n")
    return pipeline


def amount(running: Running, n: int, at: int) -> None:
    running.send("amounts", (b"k", b'{"n":%d}' % n), timestamp=at)


def change(running: Running, sql: str) -> None:
    (file,) = running.settings.home.rglob("worker-0.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as shard:
        assert shard.execute(sql).rowcount == 1
        shard.commit()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM states",
        "UPDATE states SET state = replace(hex(state), '05', '07')",
        "DELETE FROM state_rows",
        "UPDATE state_rows SET value = '[7]'",
    ],
    ids=["a state deleted", "a digit of a state changed", "a state row deleted", "a digit of a state row changed"],
)
def test_the_next_run_reports_damaged_state_and_the_worker(start: Start, damage: str) -> None:
    running = start(sums)
    amount(running, 5, at=1_000)
    running.run()
    before = None if "state_rows" in damage else running.store("sums")
    change(running, damage)

    amount(running, 1, at=2_000)
    with pytest.raises(
        DamagedState, match=f"Worker 0's shard is damaged: .* sluice rebuild {running.pipeline.name}"
    ) as error:
        running.run()
    (place,) = error.value.workers.values()
    assert list(error.value.workers) == [0]
    assert Path(place.partition("sqlite:///")[2]).name == "worker-0.sqlite"
    assert len(running.snapshots()) == 1
    assert before in (None, running.store("sums"))
    assert not report(running.settings.ledger, running.pipeline.name, "", Console(quiet=True), verify=True)


def test_stream_times_do_not_depend_on_the_files_between_tasks_and_driver(start: Start) -> None:
    running = start(windows)
    amount(running, 1, at=5)
    amount(running, 1, at=100)
    running.run()
    shutil.rmtree(running.checkpoint.parent / "side_outputs")
    amount(running, 1, at=6)
    running.run()
    assert running.store("n") == {("k", 0): 1, ("k", 100): 1}
    assert running.counts("late/n") == 1
