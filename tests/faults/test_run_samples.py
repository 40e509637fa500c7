"""Short versions of the scenarios in test_interruptions, with runs in this process's Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sluice import Pipeline
from sluice.errors import SluiceError
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, sale, sales_of, simple_shop
from tests.faults.conftest import Observe, fill, small_disk


@contextmanager
def ledger_fails(running: Running) -> Iterator[None]:
    """Make the ledger reject snapshots, so that a run ends as after a crash right before the ledger's commit."""
    ledger = running.settings.home / "ledger.sqlite"
    refuse = (
        "CREATE TRIGGER refuse BEFORE INSERT ON snapshots BEGIN SELECT RAISE(ABORT, 'a crash'); END"
    )
    for statement in (refuse, "DROP TRIGGER refuse"):
        with closing(sqlite3.connect(ledger)) as connection:
            connection.execute(statement)
            connection.commit()
        if statement == refuse:
            yield


@pytest.mark.fault(
    "F31", "a run ends between the Kafka commit and the ledger's; then another output (a sample)"
)
def test_a_run_that_ends_before_the_ledgers_commit(start: Start, observe: Observe) -> None:
    running = start(copied(), sales=2)
    running.send("sales", *(sale(key) for key in "ab"))
    running.run()
    running.send("sales", *(sale(key) for key in "abc"))
    with ledger_fails(running), pytest.raises(SluiceError, match="a crash"):
        running.run()
    running.send("sales", sale("d"))
    running.pipeline = copied(more=True)(running.names)
    running.run()
    assert running.store("n") == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert sorted(key or "" for key, _ in running.output("copies")) == [*"aabbcd"]
    with running.ledger() as ledger:
        audits = ledger.audits.all(GenerationRef(running.pipeline.name, 1))
    audited = sum(audit.outputs.get(running.names("more"), 0) for audit in audits)
    assert len(running.output("more")) == audited
    observe(
        f"each output record is written once, and the new output has {audited} records, as audited"
    )


def copied(*, more: bool = False) -> Callable[[Names], Pipeline]:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales = sales_of(pipeline, names)
        sales.select("amount").to(names("copies"))
        sales.group_by("shop").count(store="n")
        if more:
            sales.select("shop").to(names("more"))
        return pipeline

    return build


@pytest.mark.fault("F30", "the small file system under ledger and shards is full (a sample)")
def test_a_small_file_system(start: Start, tmp_path: Path, observe: Observe) -> None:
    running = start(simple_shop)
    with small_disk(tmp_path / "small", "16m") as disk:
        brokers = {
            "SLUICE_KAFKA": f'{{"bootstrap.servers": "{running.bootstrap}", "log_level": "0"}}'
        }
        running.settings = type(running.settings).read({"SLUICE_HOME": str(disk), **brokers})
        running.send("sales", sale("a"))
        running.run()
        running.send("sales", *(sale(f"s{number}") for number in range(500)))
        filler = fill(disk)
        with pytest.raises(SluiceError) as full:
            running.run()
        filler.unlink()
        assert running.store("n") == {"a": 1}
        running.run()
        assert running.store("n") == {"a": 1} | {f"s{number}": 1 for number in range(500)}
        assert len(running.output("copies")) == 501
    observe(f"{str(full.value)[:100]}; with free space, every record is counted and copied once")
