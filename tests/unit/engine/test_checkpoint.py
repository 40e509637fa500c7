"""The checkpoint that a driver writes for Spark, from the ledger's positions and plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice import Pipeline
from sluice.engine.batch.checkpoint import write_checkpoint
from sluice.engine.batch.storage import Storage
from sluice.engine.run.query_errors import query_errors
from sluice.errors import EngineError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.plans import PlannedBatch
from tests.support.full_disks import limited

SOURCES = (("sales", "returns"), ("shops",))


def offsets(*ends: int) -> dict[str, dict[str, int]]:
    """Eleven partitions of `sales` that end at the first number, and one partition of each of the other topics."""
    sales, returns, shops = ends
    many = {str(number): sales for number in reversed(range(11))}
    return {"sales": many, "returns": {"0": returns}, "shops": {"0": shops}}


def log(checkpoint: Path, name: str) -> list[str]:
    return (checkpoint / name).read_text().split("\n")


@pytest.mark.parametrize("number", [0, 1, 41])
def test_spark_continues_with_the_planned_batch(number: int, tmp_path: Path) -> None:
    checkpoint = tmp_path / "spark"
    batch = PlannedBatch(number=number, begun=7, ends=offsets(9, 5, 3))
    write_checkpoint(checkpoint, batch, offsets(4, 5, 0), SOURCES, {"spark.sql.shuffle.partitions": "2"})
    batches = [number] if number == 0 else [number - 1, number]
    assert sorted(int(file.name) for file in (checkpoint / "offsets").iterdir()) == batches
    commits = [file.name for file in checkpoint.glob("commits/*")]
    assert commits == ([] if number == 0 else [str(number - 1)])
    version, metadata, streams, tables = log(checkpoint, f"offsets/{number}")
    assert version == "v1"
    conf = {"spark.sql.shuffle.partitions": "2"}
    assert json.loads(metadata) == {"batchWatermarkMs": 0, "batchTimestampMs": 7, "conf": conf}
    # Spark compares positions as text.
    sales = ",".join(f'"{part}":9' for part in range(11))
    assert (streams, tables) == (f'{{"returns":{{"0":5}},"sales":{{{sales}}}}}', '{"shops":{"0":3}}')
    assert log(checkpoint, "sources/1/0") == ["\0v1", '{"shops":{"0":0}}']


def test_a_full_disk_ends_a_run_with_a_next_step(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.stream("sales", value=str).to("out")
    storage = Storage.of(plan(pipeline).job, 1, Settings.read({"SLUICE_HOME": str(tmp_path)}))
    nothing: Any = None
    message = "p cannot read or write a file: .*File too large"
    with pytest.raises(EngineError, match=message) as error, query_errors(nothing, storage, nothing), limited(10):
        (tmp_path / "large").write_bytes(b"x" * 100)
    assert "free space" in error.value.next_step
