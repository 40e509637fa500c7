"""A run continues after its state was spread over another number of workers."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from sluice import Pipeline
from sluice.errors import EngineError
from sluice.operations.repartition import repartition
from sluice.plan import plan
from sluice.values.key_owners import owner
from tests.engine.conftest import Start
from tests.engine.every_operator import KEYS, every_operator, results, rounds, send_round
from tests.engine.shop import Build, Names, Shop, address, sale, sales_of, shop


def in_order(names: Names) -> Pipeline:
    """A count and the last amount, by an operator, an output of its changes, and a join with a global table."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    last = sales.group_by("shop").aggregate(store="total", n="count(*)", last="last(amount)")
    last.to_stream().to(names("copies"))
    shops = pipeline.global_table(names("shops"), value=Shop, key="shop")
    sales.join(shops).select(city="right.city").to(names("with_city"))
    return pipeline


@pytest.mark.parametrize("build", [in_order, shop])
def test_a_run_continues_with_the_same_values_on_more_workers(build: Build, start: Start) -> None:
    running = start(build)
    running.send("shops", *(address(key, f"city of {key}") for key in KEYS))
    running.send("sales", *(sale(key) for key in KEYS))
    running.run()
    before = running.store("total")
    pipeline = build(running.names)
    pipeline.workers = 5
    wider = replace(running, pipeline=pipeline)
    with pytest.raises(EngineError, match="2 workers became 5"):
        wider.run()
    repartition(plan(pipeline).job, running.settings)
    assert wider.store("total") == before
    wider.send("sales", *(sale(key) for key in (*KEYS, "new")))
    assert wider.run() == len(KEYS) + 1
    assert {key: value["n"] for key, value in wider.store("total").items()} == dict.fromkeys(
        KEYS, 2
    ) | {"new": 1}
    for worker in range(5):
        assert {owner(key, 5) for key in wider.owned("total", worker)} <= {worker}
    assert len(wider.output("copies")) == 2 * len(KEYS) + 1
    cities = [value["city"] for _, value in wider.output("with_city")]
    assert sorted(cities) == sorted(2 * [f"city of {key}" for key in KEYS])


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_every_operator_gives_the_same_results_on_changing_numbers_of_workers(start: Start) -> None:
    plain, moved = (start(every_operator, sales=2) for _ in range(2))
    base = time.time_ns() // 1_000_000 - 1_000_000
    for number, records in enumerate(rounds(random.Random(7))):
        for running in (plain, moved):
            send_round(running, records, base + 1_000 * number)
        plain.run()
        workers = (1, 3, 2, 1, 3)[number]
        moved = replace(moved, pipeline=every_operator(moved.names))
        moved.pipeline.workers = workers
        if number:
            assert repartition(plan(moved.pipeline).job, moved.settings).workers == workers
        moved.run()
    assert results(moved) == results(plain)
    assert all(results(plain)[1].values())
