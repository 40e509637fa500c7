"""Calls out of a pipeline in runs of Spark: their answers survive crashes and rebuilds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from sluice import Pipeline
from sluice.operations.changed_stores import ChangedStores
from sluice.operations.rebuild import Rebuild
from sluice.operations.repartition import repartition
from sluice.plan import Job, plan
from tests.engine.conftest import Start
from tests.engine.shop import Names


class Order(Struct):
    """An order of a customer."""

    customer: str
    amount: int


class Counter:
    """A service that numbers its calls, in a file that all processes share. It fails for one customer."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def __call__(self, order: Order) -> int:
        with self.file.open("a+") as calls:
            calls.write(f"{order.customer}\n")
        if order.customer == "Mallory":
            raise ConnectionError("refused")
        return self.calls

    @property
    def calls(self) -> int:
        return len(self.file.read_text().splitlines())


def numbered(
    counter: Counter, answers: str = "numbers", *, workers: int = 2, with_largest: bool = False
) -> Callable[[Names], Pipeline]:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline(workers=workers)
        orders = pipeline.stream(names("orders"), value=Order, key="customer")
        numbers = orders.call(counter, returns=int, retries=0, answers=answers)
        numbers.to(names("numbers"))
        numbers.group_by("_key").aggregate(store="sums", sum="sum(value)", count="count(*)")
        if with_largest:
            numbers.group_by("_key").aggregate(store="largest", number="max(value)")
        return pipeline

    return build


def orders(*customers: str) -> list[bytes]:
    return [
        msgspec.json.encode(Order(customer, number)) for number, customer in enumerate(customers)
    ]


def test_a_repeated_batch_and_a_rebuild_find_the_recorded_answers(
    start: Start, tmp_path: Path
) -> None:
    """Each call has another result, so a call that was made again would change the state and the output."""
    counter = Counter(tmp_path / "calls")
    running = start(numbered(counter), orders=2)
    running.send("orders", *orders("Ada", "Bo", "Mallory"))
    running.send("orders", *orders("Cy"), partition=1)
    running.crash_before_publishing()
    assert counter.calls == 4
    running.run()
    assert counter.calls == 4
    running.send("orders", *orders("Ada"))
    running.run()
    before = running.everything()
    assert counter.calls == 5
    assert len(running.output("numbers")) == 4
    assert running.reasons() == ["processing"]
    assert running.store("sums")["Ada"]["count"] == 2

    # The rebuild compares its state with the published state.
    assert Rebuild(running.spark, plan(running.pipeline).job, running.settings).run() == 2
    assert counter.calls == 5
    after = running.everything()
    for what in ("stores", "outputs", "dead letters"):
        assert after[what] == before[what], what

    # Under another name, there are no answers.
    renamed = numbered(counter, "numbers_2")(running.names)
    assert Rebuild(running.spark, plan(renamed).job, running.settings).run() == 3
    assert counter.calls == 10


def test_answers_follow_their_keys_to_other_workers_and_to_changed_stores(
    start: Start, tmp_path: Path
) -> None:
    counter = Counter(tmp_path / "calls")
    running = start(numbered(counter), orders=2)
    customers = [f"c{number}" for number in range(12)]
    running.send("orders", *orders(*customers))
    running.run()
    sums = running.store("sums")

    wider = replace(running, pipeline=numbered(counter, workers=5)(running.names))
    repartition(plan(wider.pipeline).job, running.settings)
    changed = numbered(counter, workers=5, with_largest=True)(running.names)
    part_of = partial(part, changed)
    ChangedStores(running.spark, plan(changed).job, part_of, running.settings).run()
    changed_running = replace(running, pipeline=changed)
    assert changed_running.store("sums") == sums
    largest = changed_running.store("largest")
    assert {key: value["number"] for key, value in largest.items()} == {
        key: sums[key]["sum"] for key in customers
    }
    Rebuild(running.spark, plan(changed).job, running.settings).run()
    assert changed_running.store("sums") == sums
    assert counter.calls == 12


def part(pipeline: Pipeline, names: Collection[str]) -> Job:
    return plan(pipeline, names).job
