"""The fields of topics from which the fields of an output are computed."""

from __future__ import annotations

from msgspec import Struct

from sluice import Pipeline, tumbling
from sluice.plan.column_origins import column_origins


class Sale(Struct):
    shop: str
    amount: int
    pieces: int


def doubled(sale: Sale) -> Sale:
    return sale


def test_fields_follow_expressions_filters_and_aggregates() -> None:
    pipeline = Pipeline("origins")
    sales = pipeline.stream("sales", value=Sale).filter("amount > 0")
    prices = sales.select("shop", price="amount / pieces", kind="'sale'")
    prices.to("prices")
    by_shop = prices.group_by("shop").windowed_by(tumbling("1 hour"))
    by_shop.aggregate(store="totals", total="sum(price)", n="count(*)").to("totals")
    by_shop.count(store="n").to("counts")
    sales.map_values("pieces + 1").to("numbers")
    assert column_origins(pipeline) == {
        "prices": {
            "shop": [("sales", "shop")],
            "price": [("sales", "amount"), ("sales", "pieces")],
        },
        "totals": {"total": [("sales", "amount"), ("sales", "pieces")]},
        "counts": {},
        "numbers": {"value": [("sales", "pieces")]},
    }


def test_merged_streams_have_the_origins_of_each() -> None:
    pipeline = Pipeline("merged")
    pipeline.stream(["a", "b"], value=Sale).to("all")
    assert column_origins(pipeline)["all"]["shop"] == [("a", "shop"), ("b", "shop")]


def test_only_a_python_function_knows_what_it_reads() -> None:
    pipeline = Pipeline("python")
    pipeline.stream("sales", value=Sale).map_values(doubled, returns=Sale).to("doubled")
    assert column_origins(pipeline) == {"doubled": {}}
