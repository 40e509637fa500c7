"""Functions that take many values at once: `map_batch`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec import Struct

from sluice import Digits, Pipeline
from sluice.errors import SluiceError, TopologyError
from tests.pipelines.conftest import Drive


class Sale(Struct):
    """An amount of an item."""

    item: str
    amount: Annotated[Decimal, Digits(12, 2)] | None


class Price(Struct):
    """The price of an item."""

    item: str
    price: Annotated[Decimal, Digits(12, 2)] | None


def price_each(sales: list[Sale]) -> list[Price]:
    """Doubled amounts; fails for bread."""
    if any(sale.item == "bread" for sale in sales):
        raise LookupError("no bread today")
    return [Price(sale.item, sale.amount * 2 if sale.amount else None) for sale in sales]


def price_table(sales: pa.RecordBatch) -> pa.Table:
    """The same as columns."""
    prices = pc.multiply(sales["amount"], pa.scalar(Decimal(2)))
    return pa.table({"item": sales["item"], "price": prices})


def priced(function: Callable[[Any], Any], **options: Any) -> Pipeline:
    pipeline = Pipeline("prices")
    sales = pipeline.stream("sales", value=Sale, nulls="keep")
    sales.filter("item IS NULL OR item <> 'water'").map_batch(
        function, returns=Price, **options
    ).to("prices")
    return pipeline


SALES = [
    ("a", {"item": "apple", "amount": 2}), ("b", {"item": "water", "amount": 9}), ("c", None),
    ("d", {"item": "pear", "amount": 3}), ("e", {"item": "plum", "amount": None}),
]  # fmt: skip
PRICES = [
    ("a", {"item": "apple", "price": 4}), ("c", None), ("d", {"item": "pear", "price": 6}),
    ("e", {"item": "plum", "price": None}),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 500])
@pytest.mark.parametrize(("function", "takes"), [(price_each, "list"), (price_table, "table")])
def test_a_function_gets_the_values_that_reach_it(
    drive: Drive, function: Callable[[Any], Any], takes: str, size: int
) -> None:
    driver = drive(priced(function, size=size, takes=takes))
    for key, sale in SALES:
        driver.pipe("sales", sale, key=key, timestamp=0)
    assert [(price.key, price.value) for price in driver.output("prices")] == PRICES


def test_only_the_record_that_fails_is_rejected(drive: Drive) -> None:
    """The function is called again with fewer values until the failing value is alone."""
    driver = drive(priced(price_each))
    for number in range(20):
        item = "bread" if number in (3, 11) else "apple"
        driver.pipe("sales", {"item": item, "amount": number}, key=str(number), timestamp=0)
    assert len(driver.output("prices")) == 18
    letters = driver.dead_letters()
    assert [letter.key for letter in letters] == ["3", "11"]
    assert letters[0].headers["sluice.detail"] == "LookupError: no bread today"
    assert letters[0].value == {"item": "bread", "amount": 3}


def test_another_number_of_results_ends_the_run(drive: Drive) -> None:
    driver = drive(priced(lambda sales: [Price("apple", Decimal(1))]))
    for number in range(3):
        driver.pipe("sales", {"item": "apple", "amount": number}, timestamp=0)
    with pytest.raises(
        SluiceError, match=r"gave its function 3 values and got 1 result back.*one result per value"
    ):
        driver.commit()


def test_a_result_that_is_no_list_ends_the_run(drive: Drive) -> None:
    driver = drive(priced(lambda sales: "none"))
    driver.pipe("sales", {"item": "apple", "amount": 1}, timestamp=0)
    with pytest.raises(SluiceError, match="gave its function 1 value and got a str back"):
        driver.commit()


async def price_later(sales: list[Sale]) -> list[Price]:
    return []


@pytest.mark.parametrize(
    ("function", "options", "error"),
    [
        (price_later, {}, "price_later is async"),
        (lambda: [], {}, r"must take \(values\)"),
        (price_each, {"size": 0}, "size is 0, but must be a whole number of at least 1"),
        (price_each, {"size": "9"}, "size is '9', but must be"),
        (price_each, {"takes": "frame"}, "unknown takes='frame'"),
    ],
)
def test_wrong_uses_are_errors_of_the_file(
    function: Any, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(TopologyError, match=error):
        priced(function, **options)


def test_a_table_needs_known_types() -> None:
    plain = (
        Pipeline("plain").stream("sales", value=Sale).map_values(lambda sale: {"item": sale.item})
    )
    with pytest.raises(TopologyError, match=r"the types of value are not known.*Declare the type"):
        plain.map_batch(price_table, returns=Price, takes="table")
