"""Stores that keep headers on a real broker: runs, a changed option, and rebuilds from the topics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice import Pipeline
from sluice.engine.run.compatibility import CompatibilityError
from sluice.operations.changed_stores import ChangedStores
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.queries.entries import entry_with_headers
from sluice.state.remote.opening import open_shard
from tests.engine.conftest import Running, Start
from tests.engine.shop import Build, Names, sale, sales_of


def keeping(*stores: str) -> Build:
    """A pipeline of which these stores keep headers."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline(keep_headers=stores)
        sales = sales_of(pipeline, names)
        shops = sales.group_by("shop")
        shops.aggregate(store="amounts", total="sum(amount)")
        shops.count(store="n")
        sales.to_table(store="latest")
        return pipeline

    return build


def send(running: Running, *shops: str) -> None:
    """Send a sale of each shop, with its number among the sales of this call as its header."""
    for number, shop in enumerate(shops, start=1):
        running.send("sales", sale(shop, number), headers={"trace": f"{shop}{number}"})


def traces(running: Running, name: str) -> dict[str, str | None]:
    """The trace of each row of a store in the newest snapshot."""
    with running.ledger() as ledger:
        stores = ledger.generations.stores(running.pipeline.name)
        (info,) = [store for store in stores if store.name == name]
        workers = ledger.generations.workers(running.pipeline.name)
    assert info.keeps_headers
    batch = running.snapshot().batch
    traces: dict[str, str | None] = {}
    for worker in workers:
        with open_shard(worker.location) as shard:
            for row in shard.scan(info.group_id, batch, limit=1_000):
                entry = entry_with_headers(row)
                assert entry is not None
                traces[row.key] = entry.headers.text("trace")
    return traces


def test_a_store_that_keeps_headers_from_now_on_gets_them_from_the_topics(start: Start) -> None:
    running = start(keeping("latest"))
    send(running, "a", "b", "a")
    running.run()
    assert traces(running, "latest") == {"a": "a3", "b": "b2"}
    changed = replace(running, pipeline=keeping("latest", "n")(running.names))
    kept_none = "store n: it did not keep the headers of records, and now keeps them"
    with pytest.raises(CompatibilityError, match=kept_none) as caught:
        changed.run()
    assert "--changed-only" in caught.value.next_step
    job = plan(changed.pipeline).job
    ChangedStores(
        running.spark, job, lambda only: plan(changed.pipeline, only).job, running.settings
    ).run()
    assert traces(changed, "n") == traces(changed, "latest") == {"a": "a3", "b": "b2"}
    send(changed, "b", "c")
    changed.run()
    assert traces(changed, "n") == traces(changed, "latest") == {"a": "a3", "b": "b1", "c": "c2"}
    assert changed.store("n") == {"a": 2, "b": 2, "c": 1}
    assert changed.store("amounts") == {"a": {"total": 4}, "b": {"total": 3}, "c": {"total": 2}}


def test_a_rebuild_gives_the_same_headers(start: Start) -> None:
    running = start(keeping("latest", "n", "amounts"))
    send(running, "a", "b")
    running.run()
    send(running, "c", "a")
    running.run()
    before = {name: (traces(running, name), running.store(name)) for name in ("latest", "n")}
    assert before["n"] == ({"a": "a2", "b": "b2", "c": "c1"}, {"a": 2, "b": 1, "c": 1})
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    after = {name: (traces(running, name), running.store(name)) for name in ("latest", "n")}
    assert after == before
