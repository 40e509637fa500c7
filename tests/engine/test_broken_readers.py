"""A run, a rebuild and a deployment that take away what another pipeline reads are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.run.broken_readers import BreaksReadersError
from sluice.operations.changed_stores import ChangedStores
from sluice.operations.rebuild import Rebuild
from sluice.operations.rollback import roll_back
from sluice.plan import plan
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names


class Customer(Struct):
    id: str
    name: str
    age: int = 0


class WithoutName(Struct):
    id: str
    age: int = 0


class More(Customer):
    city: str = ""


class Name(Struct):
    name: str


class Age(Struct):
    age: int


class City(Struct):
    city: str


class Order(Struct):
    customer: str


Define = Callable[[Names], Pipeline]


def customers(value: type[Struct] = Customer, *, may_break: tuple[str, ...] = ()) -> Define:
    """Keep customers in a table, count them, and write them to a topic."""

    def define(names: Names) -> Pipeline:
        pipeline = names.pipeline(workers=2, may_break=may_break)
        read = pipeline.stream(names("raw"), value=value, key="id")
        read.to_table(store="by_id")
        read.group_by("age").count(store="by_age")
        read.to(names("clean"))
        return pipeline

    return define


class Shop:
    """The customers, and a pipeline of another team that reads their store or their topic."""

    def __init__(self, start: Start, reads: str) -> None:
        self.customers = start(customers())
        self.customers.send("raw", msgspec.json.encode(Customer("a", "Ada")))
        self.customers.run()
        names, other = self.customers.names, self.customers.pipeline.name

        def of_store(own: Names) -> Pipeline:
            pipeline = own.pipeline()
            store = pipeline.store_of(other, "by_id", value=Name)
            orders = pipeline.stream(own("orders"), value=Order)
            orders.lookup_in(store, key="customer", retries=0).to(own("named"))
            return pipeline

        def of_topic(own: Names) -> Pipeline:
            pipeline = own.pipeline()
            pipeline.stream(names("clean"), value=Name).group_by("name").count(store="names")
            return pipeline

        define = of_store if reads == "store" else of_topic
        self.reader = replace(start(define), settings=self.customers.settings)
        if reads == "store":
            self.reader.send("orders", msgspec.json.encode(Order("a")))
        self.reader.run()

    def changed(self, value: type[Struct], *may_break: str) -> Running:
        """Return the customers with another file."""
        define = customers(value, may_break=may_break)
        return replace(self.customers, pipeline=define(self.customers.names))


def refused(act: Callable[[], object], shop: Shop) -> str:
    with pytest.raises(BreaksReadersError) as caught:
        act()
    assert shop.reader.pipeline.name in caught.value.detail
    return caught.value.detail


def rebuild_of(running: Running) -> Rebuild:
    return Rebuild(running.spark, plan(running.pipeline).job, running.settings)


def test_a_run_that_takes_a_field_from_a_topic_is_refused_before_it_reads(start: Start) -> None:
    shop = Shop(start, "topic")
    changed = shop.changed(WithoutName)
    changed.send("raw", msgspec.json.encode(Customer("b", "Bea")))
    detail = refused(changed.run, shop)
    assert f"reads the topic {shop.customers.names('clean')}: the field name is missing" in detail
    assert len(shop.customers.output("clean")) == 1
    # The earlier file goes on.
    shop.customers.run()
    assert len(shop.customers.output("clean")) == 2


def test_a_run_may_break_readers_that_its_file_names(start: Start) -> None:
    shop = Shop(start, "topic")
    changed = shop.changed(WithoutName, shop.reader.pipeline.name)
    changed.send("raw", msgspec.json.encode(Customer("b", "Bea")))
    # The table has other values, so the state is computed again. That is a breach, too.
    rebuild_of(changed).run()
    changed.run()
    assert len(changed.output("clean")) == 2


@pytest.mark.parametrize("reads", ["store", "topic"])
def test_no_command_begins_a_generation_that_breaks_a_reader(start: Start, reads: str) -> None:
    shop = Shop(start, reads)
    changed = shop.changed(WithoutName)
    rebuild = rebuild_of(changed)
    changed_only = ChangedStores(
        changed.spark,
        rebuild.job,
        lambda only: plan(changed.pipeline, only).job,
        changed.settings,
    )
    for act in (changed.run, rebuild.run, rebuild.replay, changed_only.run):
        refused(act, shop)
        with changed.ledger() as ledger:
            assert ledger.generations.numbers(changed.pipeline.name) == [1]
    shop.customers.send("raw", msgspec.json.encode(Customer("b", "Bea")))
    assert shop.customers.run() == 1


def test_a_promotion_is_refused_if_a_reader_has_come_meanwhile(start: Start) -> None:
    shop = Shop(start, "store")
    allowed = shop.changed(WithoutName, shop.reader.pipeline.name)
    rebuild_of(allowed).replay()
    refused(rebuild_of(shop.changed(WithoutName)).promote, shop)
    rebuild_of(allowed).promote()
    with allowed.ledger() as ledger:
        assert ledger.generations.current_number(allowed.pipeline.name) == 2


def test_a_reader_that_has_changed_first_is_not_broken(start: Start) -> None:
    shop = Shop(start, "store")
    other = shop.customers.pipeline.name

    def reads_age(own: Names) -> Pipeline:
        pipeline = own.pipeline()
        store = pipeline.store_of(other, "by_id", value=Age)
        orders = pipeline.stream(own("orders"), value=Order)
        orders.lookup_in(store, key="customer", retries=0).to(own("named"))
        return pipeline

    replace(shop.reader, pipeline=reads_age(shop.reader.names)).run()
    rebuild_of(shop.changed(WithoutName)).run()


def test_a_rollback_to_what_a_reader_no_longer_takes_is_refused(start: Start) -> None:
    shop = Shop(start, "store")
    other = shop.customers.pipeline.name

    changed = shop.changed(More)
    rebuild_of(changed).replay()
    rebuild_of(changed).promote()

    def reads_city(own: Names) -> Pipeline:
        pipeline = own.pipeline()
        store = pipeline.store_of(other, "by_id", value=City)
        orders = pipeline.stream(own("orders"), value=Order)
        orders.lookup_in(store, key="customer", retries=0).to(own("named"))
        return pipeline

    replace(shop.reader, pipeline=reads_city(shop.reader.names)).run()
    earlier = rebuild_of(shop.changed(Customer))
    assert "city is missing" in refused(lambda: roll_back(earlier), shop)
    roll_back(rebuild_of(shop.changed(Customer, shop.reader.pipeline.name)))
