"""A pipeline reads a store of another one at its published snapshots, without a topic between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from sqlalchemy import update

from sluice import Pipeline
from sluice.engine.stages.shared_store import StoreLookup
from sluice.errors import EngineError, Refused, SluiceError
from sluice.operations.moves import move
from sluice.operations.rebuild import Rebuild
from sluice.operations.removal import remove
from sluice.operations.renaming import rename, rename_parts
from sluice.operations.snapshot_retention import retain
from sluice.plan import plan
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import STORES
from sluice.state.ledger.placement import Placement
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names
from tests.servers.hosts import TOKEN, Host
from tests.support.interruptions import POINTS, Crash, crash, interrupted
from tests.support.postgres import new_database


class Customer(Struct):
    id: str
    name: str
    age: int = 0


class Name(Struct):
    """What the orders read of a customer."""

    name: str


class Order(Struct):
    customer: str


def customers(
    names: Names, value: Any = Customer, workers: int = 3, store: str = "by_id"
) -> Pipeline:
    pipeline = names.pipeline(workers=workers)
    pipeline.stream(names("customers"), value=value, key="id").to_table(store=store)
    return pipeline


class Shop:
    """The pipelines of the customers and of the orders, in one home."""

    def __init__(self, start: Start, shards: str = "") -> None:
        self.customers = start(customers)
        if shards:
            settings = replace(self.customers.settings, shards=shards)
            self.customers = replace(self.customers, settings=settings)
        other = self.customers.pipeline.name

        def orders(names: Names) -> Pipeline:
            pipeline = names.pipeline(workers=2)
            store = pipeline.store_of(other, "by_id", value=Name)
            found = pipeline.stream(names("orders"), value=Order).lookup_in(
                store, key="customer", retries=0
            )
            found.to(names("out"))
            return pipeline

        self.orders = replace(start(orders), settings=self.customers.settings)

    def set(self, customer: str, name: str) -> None:
        """Publish a snapshot in which a customer has a name."""
        self.customers.send("customers", msgspec.json.encode(Customer(customer, name)))
        self.customers.run()

    def order(self, *customers: str) -> None:
        self.orders.send("orders", *[msgspec.json.encode(Order(each)) for each in customers])

    @property
    def names(self) -> list[str | None]:
        """The names that the orders have got, in order."""
        found = [value["right"] for _, value in self.orders.output("out")]
        return [None if value is None else value["name"] for value in found]

    def ledger(self) -> Ledger:
        return self.orders.ledger()


@pytest.fixture
def shop(start: Start) -> Shop:
    return Shop(start)


def refusal(running: Running) -> SluiceError:
    with pytest.raises(EngineError) as caught:
        running.run()
    return caught.value


def crash_while_reading(shop: Shop) -> None:
    """Run the orders until their batch is planned, and end before anything is read of the store."""

    def crash(*_: object) -> None:
        raise RuntimeError("crash")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreLookup, "ask", crash)
        with pytest.raises(EngineError, match="crash"):
            shop.orders.run()


def test_the_records_of_a_batch_read_the_newest_published_snapshot(shop: Shop) -> None:
    for number in range(10):
        shop.customers.send("customers", msgspec.json.encode(Customer(f"c{number}", f"n{number}")))
    shop.customers.run()
    # These have not been published yet.
    shop.customers.send("customers", msgspec.json.encode(Customer("c0", "later")))
    shop.order(*[f"c{number}" for number in range(10)], "unknown")
    shop.orders.run()
    assert sorted(shop.names, key=str) == [None, *[f"n{number}" for number in range(10)]]
    assert shop.orders.planned().snapshots == {shop.customers.pipeline.name: "1.0"}
    shop.customers.run()
    shop.order("c0")
    shop.orders.run()
    assert shop.names.count("later") == 1


def test_a_repeated_batch_reads_the_same_snapshot(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    crash_while_reading(shop)
    shop.set("a", "Eve")
    shop.orders.run()
    assert shop.names == ["Ada"]


def test_a_batch_whose_output_is_written_gets_the_same_values(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    shop.orders.crash_before_publishing()
    shop.set("a", "Eve")
    shop.orders.run()
    shop.order("a")
    shop.orders.run()
    assert shop.names == ["Ada", "Eve"]


@pytest.mark.parametrize(
    ("point", "name"),
    [
        # Without a plan, nothing says which snapshot the batch would have read.
        ("before the plan", "Eve"),
        ("after the plan", "Ada"),
        ("before the shards", "Ada"),
        ("after the shards", "Ada"),
        ("before the output", "Ada"),
        ("after the output", "Ada"),
        ("after the ledger", "Ada"),
    ],
)
def test_wherever_the_driver_ends_the_record_gets_one_value(
    shop: Shop, point: str, name: str
) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    with interrupted(POINTS[point], crash), pytest.raises((Crash, EngineError)):
        shop.orders.run()
    shop.set("a", "Eve")
    shop.orders.run()
    assert shop.names == [name]


def test_an_unfinished_batch_keeps_its_snapshot(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    crash_while_reading(shop)
    for name in ("Bea", "Eve"):
        shop.set("a", name)
    name, later = shop.customers.pipeline.name, datetime.now(UTC) + timedelta(hours=2)
    with shop.ledger() as ledger:
        assert retain(ledger, name, keep_snapshots=1, now=later).snapshots == 0
        shop.orders.run()
        assert shop.names == ["Ada"]
        assert retain(ledger, name, keep_snapshots=1, now=later).snapshots == 2


def test_a_batch_that_was_given_up_for_long_reads_the_newest_snapshot(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    crash_while_reading(shop)
    shop.set("a", "Eve")
    later = datetime.now(UTC) + timedelta(days=8)
    with shop.ledger() as ledger:
        name = shop.customers.pipeline.name
        assert retain(ledger, name, keep_snapshots=1, now=later).snapshots == 1
    shop.orders.run()
    assert shop.names == ["Eve"]


def test_the_store_can_be_rebuilt_meanwhile(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    crash_while_reading(shop)
    Rebuild(shop.customers.spark, plan(shop.customers.pipeline).job, shop.customers.settings).run()
    shop.set("a", "Eve")
    shop.orders.run()
    assert shop.names in (["Ada"], ["Eve"]), "the generation of the planned snapshot may be gone"
    shop.order("a")
    shop.orders.run()
    assert shop.names[1] == "Eve"
    assert shop.orders.planned().snapshots == {shop.customers.pipeline.name: "2.1"}


def test_a_rebuild_of_the_reader_gets_the_values_of_then(start: Start) -> None:
    shop = Shop(start)
    other = shop.customers.pipeline.name

    def counted(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        store = pipeline.store_of(other, "by_id", value=Name)
        found = pipeline.stream(names("visits"), value=Order).lookup_in(store, key="customer")
        found.group_by("right.name").count(store="visits")
        return pipeline

    visits = replace(start(counted), settings=shop.customers.settings)
    for name in ("Ada", "Eve"):
        shop.set("a", name)
        visits.send("visits", msgspec.json.encode(Order("a")))
        visits.run()
    assert visits.store("visits") == {"Ada": 1, "Eve": 1}
    # The rebuild compares its state with the published state.
    Rebuild(visits.spark, plan(visits.pipeline).job, visits.settings).run()
    assert visits.store("visits") == {"Ada": 1, "Eve": 1}


def test_the_shards_may_be_in_another_kind_of_database(start: Start, postgres: str) -> None:
    database = new_database(postgres)
    shop = Shop(start, shards=database)
    # The shards of the orders are files; the password of the others is in a connection.
    own = replace(shop.orders.settings, shards=f"sqlite:///{shop.orders.settings.home}/shards")
    shop.orders = replace(shop.orders, settings=own)
    shop.set("a", "Ada")
    shop.order("a")
    shop.orders.run()
    assert shop.names == ["Ada"]


def test_the_shards_may_be_at_a_state_server(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    settings.cache_clear()
    shop.set("a", "Ada")
    name = shop.customers.pipeline.name
    with shop.ledger() as ledger:
        away = Host(ledger, tmp_path / "away").start(pipeline=name)
        for worker in range(3):
            move(ledger, Placement(name, worker, "127.0.0.1", away.port))
        # Tasks get the token of the run, because executors lack its environment.
        shop.orders = replace(
            shop.orders, settings=replace(shop.orders.settings, server_token=TOKEN)
        )
        shop.order("a", "b")
        shop.orders.run()
        away.stop()
    assert sorted(shop.names, key=str) == ["Ada", None]
    assert sum(count for call, count in away.calls.items() if call.endswith("/query")) >= 1
    shop.order("a")
    error = refusal(shop.orders)
    assert f"the store by_id of {name} cannot be read" in error.detail
    settings.cache_clear()


def test_a_pipeline_without_a_snapshot_is_told(shop: Shop) -> None:
    shop.order("a")
    error = refusal(shop.orders)
    name = shop.customers.pipeline.name
    assert error.detail == (
        f"The pipeline '{name}', whose store 'by_id' is read, has published no snapshot."
    )
    assert error.next_step == f"Run it first: sluice run {name}. Or correct store_of."


@pytest.mark.parametrize(
    ("published", "difference"),
    [
        ("struct<id:string,full_name:string>", "name is missing"),
        ("struct<id:string,name:int>", "name is int, not string"),
        ("string", "its values are string, not struct<name:string>"),
    ],
)
def test_a_store_that_lacks_what_is_read_is_refused(
    shop: Shop, published: str, difference: str
) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    shop.orders.run()
    with shop.ledger() as ledger, ledger.engine.begin() as connection:
        # As after a run of a changed pipeline.
        connection.execute(update(STORES).values(value=published))
    shop.order("a")
    error = refusal(shop.orders)
    assert error.detail == (
        f"Fields of the store by_id of {shop.customers.pipeline.name} that "
        f"{shop.orders.pipeline.name} reads have changed: {difference}."
    )
    assert published in error.next_step
    assert shop.names == ["Ada"]


def test_a_renamed_pipeline_is_named(shop: Shop) -> None:
    shop.set("a", "Ada")
    old, new = shop.customers.pipeline.name, f"{shop.customers.pipeline.name}_new"
    rename(shop.customers.settings, old, new)
    shop.order("a")
    error = refusal(shop.orders)
    assert error.detail == f"The pipeline '{old}' was renamed to '{new}'."
    assert error.next_step.startswith(f"Change store_of('{old}', 'by_id', ...) to this name. ")
    assert f"add answers='{old}_by_id'" in error.next_step


def test_a_rebuild_after_a_renaming_gets_the_values_of_then(start: Start) -> None:
    shop = Shop(start)
    old, new = shop.customers.pipeline.name, f"{shop.customers.pipeline.name}_new"

    def counted(names: Names, other: str = old, answers: str | None = None) -> Pipeline:
        pipeline = names.pipeline()
        store = pipeline.store_of(other, "by_id", value=Name)
        found = pipeline.stream(names("visits"), value=Order).lookup_in(
            store, key="customer", answers=answers
        )
        found.group_by("right.name").count(store="visits")
        return pipeline

    visits = replace(start(counted), settings=shop.customers.settings)
    for name in ("Ada", "Eve"):
        shop.set("a", name)
        visits.send("visits", msgspec.json.encode(Order("a")))
        visits.run()
    rename(shop.customers.settings, old, new)
    changed = counted(visits.names, new, f"{old}_by_id")
    # The rebuild compares its state with the published state.
    Rebuild(visits.spark, plan(changed).job, visits.settings).run()
    assert visits.store("visits") == {"Ada": 1, "Eve": 1}


def test_readers_of_a_renamed_pipeline_are_named(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    shop.orders.run()
    old, new = shop.customers.pipeline.name, f"{shop.customers.pipeline.name}_new"
    renaming = rename(shop.customers.settings, old, new)
    (line,) = [line for line in renaming.next_lines() if "read its stores" in line]
    assert line.startswith(f"In the files of {shop.orders.pipeline.name}, ")
    assert f'store_of("{new}", ...)' in line
    assert f'answers="{old}_STORE"' in line
    with pytest.raises(Refused, match=f"{shop.orders.pipeline.name} read stores of {new}"):
        remove(shop.customers.settings, new)


def test_readers_of_a_renamed_store_are_named(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    shop.orders.run()
    name, reader = shop.customers.pipeline.name, shop.orders.pipeline.name
    job = plan(customers(shop.customers.names, store="people")).job
    said = rename_parts(
        job, shop.customers.settings, {("store", "by_id"): "people"}, only_look=True
    )
    (line,) = [line for line in said if "store_of" in line]
    assert line.startswith(f"In the files of {reader}, which read stores of {name}, ")
    assert f'answers="{name}_OLD"' in line


def test_a_pipeline_that_others_read_is_not_removed(shop: Shop) -> None:
    shop.set("a", "Ada")
    shop.order("a")
    shop.orders.run()
    with pytest.raises(Refused) as caught:
        remove(shop.customers.settings, shop.customers.pipeline.name)
    assert caught.value.detail == (
        f"The newest batches of {shop.orders.pipeline.name} read stores of "
        f"{shop.customers.pipeline.name}."
    )
    remove(shop.orders.settings, shop.orders.pipeline.name)
    remove(shop.customers.settings, shop.customers.pipeline.name)
