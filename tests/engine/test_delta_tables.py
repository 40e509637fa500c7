"""Delta tables that a run fills from a real broker, also after crashes and a rebuild."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sluice import DeltaTable, Pipeline
from sluice.errors import EngineError
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, sale, sales_of
from tests.engine.test_database_rows import crash_before_the_marker
from tests.support.delta import delta_rows, written_snapshot

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def shops(names: Names, lake: Path) -> Pipeline:
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    totals = sales.group_by("shop").aggregate(store="totals", n="count(*)", revenue="sum(amount)")
    totals.to(DeltaTable(f"{lake}/totals", key="shop"))
    sales.select("shop", "quantity", "at").to(
        DeltaTable(f"{lake}/log", types={"quantity": "SMALLINT"})
    )
    sales.select("shop").to(names("copies"))
    return pipeline


def totals(lake: Path) -> dict[str, int]:
    return {row["shop"]: row["n"] for row in delta_rows(lake / "totals")}


def appended(lake: Path) -> str:
    return "".join(sorted(row["shop"] for row in delta_rows(lake / "log")))


def audited(running: Running, lake: Path, rows: dict[str, int]) -> None:
    """The audits of all batches count these rows, and the tables have the newest snapshot."""
    with running.ledger() as ledger:
        audits = ledger.audits.all(GenerationRef(running.pipeline.name, 1))
    for table, number in rows.items():
        assert sum(audit.outputs.get(f"delta:{lake}/{table}", 0) for audit in audits) == number
        assert written_snapshot(lake / table) == running.snapshot().id


@pytest.mark.heavy  # test_database_rows.py has runs and crashes with tables in PostgreSQL
def test_tables_after_runs_and_a_crash(
    start: Start, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(lambda names: shops(names, lake), sales=2)
    running.send("sales", sale("a"), sale("b"), sale("bad", quantity=40_000))
    running.send("sales", sale("a"), partition=1)
    running.run()
    assert totals(lake) == {"a": 2, "b": 1, "bad": 1}
    assert appended(lake) == "aab"
    assert running.reasons() == ["not_encoded"]
    audited(running, lake, {"totals": 3, "log": 3})

    running.send("sales", sale("a"), sale("c"))
    crash_before_the_marker(running, monkeypatch)
    assert appended(lake) == "aaabc", "the tables are one batch ahead"
    assert running.snapshot().batch == 0
    running.run()
    assert totals(lake) == {"a": 3, "b": 1, "bad": 1, "c": 1}
    assert appended(lake) == "aaabc"
    audited(running, lake, {"totals": 5, "log": 5})


@pytest.mark.heavy
def test_tables_after_a_crash_and_a_rebuild(
    start: Start, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a batch without a marker come again in a batch with another id, and are left out."""
    running = start(lambda names: shops(names, lake), sales=2)
    running.send("sales", sale("a"), sale("b"))
    running.run()
    running.send("sales", sale("d"))
    crash_before_the_marker(running, monkeypatch)
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert "d" not in running.store("totals")
    running.send("sales", sale("d"))
    running.run()
    assert (
        totals(lake)
        == {"a": 1, "b": 1, "d": 2}
        == {k: value["n"] for k, value in running.store("totals").items()}
    )
    assert appended(lake) == "abdd"
    assert len(running.output("copies")) == 4
    assert Counter(row["shop"] for row in delta_rows(lake / "log")) == Counter("abdd")


def test_a_table_that_does_not_fit_ends_the_run_before_it_reads(start: Start, lake: Path) -> None:
    running = start(lambda names: shops(names, lake), sales=2)
    running.spark.sql(f"CREATE TABLE delta.`{lake}/log` (shop INT) USING delta")
    running.send("sales", sale("a"))
    with pytest.raises(
        EngineError, match=r"does not fit: it has no column _topic .* the column shop is int"
    ):
        running.run()
    assert running.snapshots() == []
