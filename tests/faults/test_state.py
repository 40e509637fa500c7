"""Faults of the state and of Spark's files: shards, checkpoint, versions of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sluice import Decimal2, Pipeline, tumbling
from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.publish.publisher import Publisher
from sluice.engine.run.batch_query import BatchQuery
from sluice.engine.run.compatibility import CompatibilityError
from sluice.errors import EngineError, StateError, TopologyError
from sluice.observe.audit_report import report
from tests.engine.conftest import Start
from tests.engine.shop import Names, Sale, sale, shop
from tests.engine.test_rebuild import a_shard, rebuild, run
from tests.engine.test_replay import a_busy_day
from tests.faults.conftest import Observe

SAME = ("stores", "outputs", "dead letters")


@pytest.mark.heavy
@pytest.mark.fault(
    "F2", "a driver is killed before Spark's commit; the next run is on a host without its files"
)
def test_a_lost_commit(start: Start, observe: Observe) -> None:
    running = start(shop, sales=3)
    a_busy_day(running)
    running.run(max_records=30)
    before = running.everything()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Publisher, "__call__", killed_after(Publisher.__call__))
        running.send("sales", sale("a"))
        with pytest.raises(EngineError, match="killed"):
            running.run(max_records=30)
    assert running.run(max_records=30) == 0
    after = running.everything()
    assert len(after["snapshots"]) == len(before["snapshots"]) + 1
    assert after["stores"]["n"] == before["stores"]["n"] | {"a": before["stores"]["n"]["a"] + 1}
    copies = running.names("copies")
    assert len(after["outputs"][copies]) == len(before["outputs"][copies]) + 1
    observe("nothing happens: no record was read again, applied or written twice")


def killed_after(call: Callable[..., None]) -> Callable[..., None]:
    def publish(*arguments: Any) -> None:
        call(*arguments)
        raise RuntimeError("killed")

    return publish


@pytest.mark.heavy
@pytest.mark.spark  # only Spark has a checkpoint
@pytest.mark.fault(
    "F11", "the files of a batch's checkpoint are damaged, emptied or removed after the batch"
)
def test_a_damaged_checkpoint(start: Start, observe: Observe) -> None:
    running, finish = start(shop), BatchQuery.finish
    for damage in (
        lambda file: file.write_text("v1\n{"),
        lambda file: file.write_text(""),
        Path.unlink,
    ):

        def finish_and_damage(
            query: BatchQuery, start: BatchStart, damage: Callable[[Path], Any] = damage
        ) -> None:
            finish(query, start)
            files = [*filter(Path.is_file, Path(query._checkpoint.name).rglob("*"))]
            assert files
            for file in files:
                damage(file)

        running.send("sales", sale("a"), sale("b"), sale("a"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(BatchQuery, "finish", finish_and_damage)
            assert running.run(max_records=1) == 3
    assert running.store("n") == {"a": 6, "b": 3}
    assert len(running.output("copies")) == 9
    observe("the next batch is not concerned, and no record is counted or written twice")


@pytest.mark.heavy
@pytest.mark.fault("F12", "a worker's shard is missing, truncated, empty, or has a changed digit")
def test_a_damaged_shard(start: Start, observe: Observe) -> None:
    def changed(data: bytes) -> bytes:
        index = data.index(b'"amount":7.00')
        return data[: index + 9] + b"8" + data[index + 10 :]

    damages: dict[str, Callable[[bytes], bytes] | None] = {
        "missing": None, "truncated": lambda data: data[: len(data) // 2], "empty": lambda _: b"", "changed": changed
    }  # fmt: skip
    for name, damage in damages.items():
        running = start(shop)
        running.send("sales", *(sale(key, "7.00") for key in "abcdefgh"))
        running.run()
        before = running.everything()
        a_shard(running, damage)
        if name == "changed":
            assert not report(
                running.settings.ledger, running.pipeline.name, "", Console(quiet=True), verify=True
            )
        running.send("sales", sale("a", "7.00"))
        with pytest.raises(StateError, match="Worker 0's shard is damaged"):
            running.run()
        with running.ledger() as ledger:
            (worker, other) = ledger.generations.workers(running.pipeline.name)
        assert worker.unavailable
        assert not other.unavailable
        rebuild(running)
        after = running.everything()
        assert [after[part] for part in SAME] == [before[part] for part in SAME]
        run(running)
        assert running.store("n")["a"] == 2
    observe(
        f"{', '.join(damages)}: the worker was quarantined and the run rejected; a rebuild had the same checksums"
    )


class SaleWithNote(Sale):
    note: str | None = None


class SaleWithoutQuantity(msgspec.Struct):
    shop: str
    amount: Decimal2
    at: datetime


class SaleOfWholeAmounts(msgspec.Struct):
    shop: str
    amount: int
    at: datetime


def version(
    contract: type[msgspec.Struct] = Sale, workers: int = 2, total: str = "sum(amount)", where: str = "amount > 0",
    minutes: int = 1, more: bool = False, copies: bool = False,
) -> Callable[[Names], Pipeline]:  # fmt: skip
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline(workers=workers)
        sales = pipeline.stream(names("sales"), value=contract, event_time="at").filter(where)
        groups = sales.group_by("shop")
        groups.aggregate(store="total", amount=total)
        groups.windowed_by(tumbling(f"{minutes} minutes")).count(store="n_window")
        if more:
            groups.count(store="n")
        if copies:
            sales.select("shop").to(names("copies"))
        return pipeline

    return build


@pytest.mark.heavy
@pytest.mark.fault(
    "F19",
    "new versions of the pipeline change fields, outputs, types, workers, stores, filter, window",
)
def test_versions_of_a_pipeline(start: Start, observe: Observe) -> None:
    running = start(version())
    running.send("sales", sale("a", 2), sale("b", 3))
    running.run()
    total = 2
    for compatible in (
        version(SaleWithNote),
        version(SaleWithoutQuantity),
        version(copies=True),
        version(),
    ):
        running.pipeline = compatible(running.names)
        running.send("sales", sale("a", 1))
        run(running)
        total += 1
        assert running.store("total")["a"] == {"amount": float(total)}
    before = running.everything()
    incompatible = {
        "type": version(SaleOfWholeAmounts), "workers": version(workers=3), "store": version(more=True),
        "aggregate": version(total="max(amount)"), "filter": version(where="amount > 1"), "window": version(minutes=2),
    }  # fmt: skip
    running.send("sales", sale("a", 1))
    for what, build in incompatible.items():
        running.pipeline = build(running.names)
        command = "sluice repartition" if what == "workers" else "sluice rebuild"
        with pytest.raises(
            CompatibilityError, match=rf"has changed since.*No records were read.*{command}"
        ):
            run(running)
    with pytest.raises(TopologyError):
        version(SaleWithoutQuantity, where="quantity > 1")(running.names)
    running.pipeline = version()(running.names)
    assert running.everything() == before
    # A rebuild changes the number of workers.
    running.pipeline = version(workers=4)(running.names)
    rebuild(running)
    run(running)
    assert running.store("total") == {"a": {"amount": float(total + 1)}, "b": {"amount": 3.0}}
    changes = ", ".join(incompatible)
    observe(
        f"4 compatible versions continued; rejected before reading: {changes}; a rebuild made 4 workers of 2"
    )
