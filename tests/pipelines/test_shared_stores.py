"""Look-ups in stores of other pipelines: `store_of` and `lookup_in`, with values that a test gives."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

import pytest
from msgspec import Struct

from sluice import Digits, Pipeline
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.topology import drawing


class Order(Struct):
    customer: str | None
    amount: int


class Customer(Struct):
    name: str
    limit: Annotated[Decimal, Digits(10, 2)] | None = None


def orders(**options: Any) -> Pipeline:
    pipeline = Pipeline("orders", workers=2)
    customers = pipeline.store_of("customers", "by_id", value=Customer)
    looked_up = pipeline.stream("orders", value=Order, nulls="keep").lookup_in(
        customers, key="customer", **options
    )
    looked_up.to("out")
    return pipeline


def values(driver: TopologyTestDriver) -> list[Any]:
    return [output.value["right"] for output in driver.read("out")]


def test_records_get_the_value_of_their_key() -> None:
    with TopologyTestDriver(orders()) as driver:
        driver.pipe_store("customers", "by_id", "a", Customer("Ada", Decimal("10.50")))
        for number, customer in enumerate(("a", "b", None)):
            driver.pipe("orders", Order(customer, number), key=f"{number}")
        assert sorted(values(driver), key=str) == [
            None,
            None,
            {"name": "Ada", "limit": 10.5},
        ]


def test_a_batch_reads_what_the_store_has_then() -> None:
    with TopologyTestDriver(orders()) as driver:
        for name in ("Ada", "Eve", None):
            value = None if name is None else Customer(name)
            driver.pipe_store("customers", "by_id", "a", value)
            driver.pipe("orders", Order("a", 1), key="1")
        assert values(driver) == [
            {"name": "Ada", "limit": None},
            {"name": "Eve", "limit": None},
            None,
        ]


def test_records_without_a_value_can_be_dropped_or_rejected() -> None:
    with TopologyTestDriver(orders(on_missing="drop")) as driver:
        driver.pipe("orders", Order("a", 1), key="1")
        assert values(driver) == []
        assert (
            sum(count for name, count in driver.counts().items() if name.startswith("missing")) == 1
        )
    with TopologyTestDriver(orders(on_missing="error", on_error="dead_letter")) as driver:
        driver.pipe("orders", Order("a", 1), key="1")
        assert values(driver) == []
        assert len(driver.dead_letters()) == 1


def test_values_of_a_single_type() -> None:
    pipeline = Pipeline("orders")
    limits = pipeline.store_of("customers", "limits", value=int)
    stream = pipeline.stream("orders", value=Order)
    stream.lookup_in(limits, key="customer").filter("left.amount <= right").to("out")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe_store("customers", "limits", "a", 5)
        driver.pipe("orders", Order("a", 5), key="1")
        driver.pipe("orders", Order("a", 6), key="2")
        assert [output.key for output in driver.read("out")] == ["1"]


def test_the_drawing_and_the_text_name_the_store() -> None:
    text = drawing.text(orders())
    assert "look-up in store by_id of customers" in text
    assert "by_id of customers" in drawing.svg(orders())


def test_only_stores_that_are_read_can_be_given() -> None:
    with TopologyTestDriver(orders()) as driver:
        with pytest.raises(TopologyError, match="does not read a store x of customers") as caught:
            driver.pipe_store("customers", "x", "a", None)
        assert caught.value.next_step == "It reads by_id of customers."


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda pipeline: pipeline.store_of("orders", "n", value=int), "store of this pipeline"),
        (lambda pipeline: pipeline.store_of("", "n", value=int), "not the name of a pipeline"),
        (lambda pipeline: pipeline.store_of("c", None, value=int), "not the name of a store"),
        (lambda pipeline: _lookup(pipeline, keep=None), "without keep="),
        (lambda pipeline: _lookup(pipeline, on_missing="x"), "on_missing"),
        (lambda pipeline: _lookup(pipeline, key="no_field"), "no_field"),
    ],
)
def test_mistakes(use: Callable[[Pipeline], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        use(Pipeline("orders"))


def _lookup(pipeline: Pipeline, **options: Any) -> object:
    store = pipeline.store_of("customers", "by_id", value=Customer)
    stream = pipeline.stream("orders", value=Order)
    return stream.lookup_in(store, **{"key": "customer", **options})
