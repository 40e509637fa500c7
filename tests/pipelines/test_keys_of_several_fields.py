"""Keys of several fields, given as a list of names: in topics, groups and joins."""

from __future__ import annotations

import datetime as dt

import pytest
from msgspec import Struct

from sluice import Context, Decimal2, Pipeline, Record, within
from sluice.errors import TopologyError
from tests.pipelines.conftest import Drive


class Sale(Struct):
    shop: str
    day: dt.date
    amount: Decimal2
    note: str | None = None


class Price(Struct):
    shop: str
    day: dt.date
    price: int
    old_shop: str | None = None


KEY = '{"day":"2026-01-0%d","shop":"%s"}'
DAY = "2026-01-0%d"


class Counting:
    """Counts the records of each key of its store."""

    def init(self, context: Context) -> None:
        self.context, self.sales = context, context.store("sales")

    def process(self, record: Record[Sale]) -> None:
        self.sales.put("n", self.sales.get("n", 0) + 1)
        self.context.forward(record.key, self.sales.get("n"))


def sale(shop: str, day: int, amount: float = 1.5) -> dict[str, object]:
    return {"shop": shop, "day": DAY % day, "amount": amount}


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_a_list_of_fields_is_a_key_everywhere(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("lists", workers=2)
    sales = pipeline.stream("sales", value=Sale, key=["shop", "day"])
    prices = pipeline.table("prices", value=Price, key=["day", "shop"])
    everywhere = pipeline.global_table("everywhere", value=Price, key=["shop", "day"])
    sales.group_by_key().count(store="by_key")
    sales.group_by(["day", "shop"]).aggregate(store="by_fields", sum="sum(amount)")
    sales.select_key(["shop", "day"]).to("sales_by_shop_and_day")
    sales.join(prices).select(cents="right.price").to("priced")
    sales.join(everywhere, on=["shop", "day"]).select(cents="right.price").to("priced_everywhere")
    sales.join(sales.filter("amount > 2"), within("1 hour")).select(amount="right.amount").to(
        "pairs"
    )
    sales.deduplicate(["shop", "day"], within="1 hour").to("first")
    sales.process(Counting, by=["shop", "day"], stores={"sales": int}, returns=int).output.to(
        "counted"
    )
    prices.group_by(["shop", "day"]).count(store="price_count")
    driver = drive(pipeline)
    sent = [
        ("prices", {"shop": "a", "day": DAY % 1, "price": 7}),
        ("everywhere", {"shop": "b", "day": DAY % 1, "price": 8}),
        ("sales", sale("a", 1)),
        ("sales", sale("b", 1, 2.5)),
        ("sales", sale("a", 1, 3.0)),
    ]
    for topic, value in sent:
        driver.pipe(topic, value, b"\xff another key")
        if by_one:
            driver.commit()
    a, b = KEY % (1, "a"), KEY % (1, "b")
    assert driver.store("by_key") == {a: 2, b: 1}
    assert driver.store("by_fields") == {a: {"sum": 4.5}, b: {"sum": 2.5}}
    assert driver.store("prices").keys() == {a}
    assert driver.store("price_count") == {a: 1}
    assert [record.key for record in driver.output("sales_by_shop_and_day")] == [a, b, a]
    assert [(record.key, record.value) for record in driver.output("priced")] == [
        (a, {"cents": 7})
    ] * 2
    assert [record.value for record in driver.output("priced_everywhere")] == [{"cents": 8}]
    assert [record.key for record in driver.output("first")] == [a, b]
    assert sorted(record.value["amount"] for record in driver.output("pairs")) == [2.5, 3.0, 3.0]
    assert [(record.key, record.value) for record in driver.output("counted")] == [
        (a, 1),
        (b, 1),
        (a, 2),
    ]
    assert driver.store("sales") == {a: {"n": 2}, b: {"n": 1}}


def test_kafkas_key_says_which_row_of_a_table_is_deleted(drive: Drive) -> None:
    pipeline = Pipeline("deleted", workers=2)
    pipeline.table("prices", value=Price, key=["shop", "day"])
    pipeline.global_table("everywhere", value=Price, key=["shop", "day"])
    driver = drive(pipeline)
    for topic in ("prices", "everywhere"):
        for shop in ("a", "b"):
            driver.pipe(topic, {"shop": shop, "day": DAY % 1, "price": 7})
        driver.pipe(topic, None, '{"shop": "a", "day": "2026-01-01", "other": 1}')
        for key in (
            '{"shop": "b"}',
            '{"shop": "b", "day": null}',
            "b",
            None,
            '{"shop":"b","day":"1st"}',
        ):
            driver.pipe(topic, None, key)
    kept = {KEY % (1, "b"): {"shop": "b", "day": DAY % 1, "price": 7, "old_shop": None}}
    assert driver.store("prices") == driver.store("everywhere") == kept
    reasons = [letter.headers["sluice.reason"] for letter in driver.dead_letters()]
    assert sorted(reasons) == sorted([*["deleted_key"] * 4, "null_key"] * 2)


def test_a_null_field_is_a_part_of_a_streams_key_and_no_key_of_a_table(drive: Drive) -> None:
    pipeline = Pipeline("nulls", workers=2)
    sales = pipeline.stream("sales", value=Sale, key=["shop", "note"])
    sales.group_by_key().count(store="by_key")
    sales.group_by(["shop", "note"]).count(store="by_fields")
    pipeline.table("prices", value=Price, key=["shop", "old_shop"])
    driver = drive(pipeline)
    driver.pipe("sales", sale("a", 1))
    driver.pipe("prices", {"shop": "b", "day": DAY % 1, "price": 7})
    assert driver.store("by_key") == driver.store("by_fields") == {'{"note":null,"shop":"a"}': 1}
    assert driver.store("prices") == {}
    (letter,) = driver.dead_letters()
    assert (
        letter.headers["sluice.detail"]
        == "struct(shop, old_shop), which is the table's key, is null"
    )


def test_wrong_lists_of_fields_are_errors() -> None:
    pipeline = Pipeline("wrong")
    sales = pipeline.stream("sales", value=Sale)
    with pytest.raises(TopologyError, match=r"group_by at .*: there is no field 'place'"):
        sales.group_by(["shop", "place"])
    with pytest.raises(TopologyError, match=r"\['shop'\] is not a key of several fields"):
        sales.select_key(["shop"])
    with pytest.raises(TopologyError, match=r"\['shop', 'shop'\] is not a key of several fields"):
        pipeline.stream("others", value=Sale, key=["shop", "shop"])
    with pytest.raises(TopologyError, match=r"expected the name of a field \(str\), got int: 1"):
        pipeline.table("prices", value=Price, key=["shop", 1])  # type: ignore[list-item]
    with pytest.raises(TopologyError, match=r"Price has no field 'place'"):
        pipeline.table("places", value=Price, key=["shop", "place"])
