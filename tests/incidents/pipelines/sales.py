"""Counts sales per shop."""

from msgspec import Struct

from sluice import Pipeline


class Sale(Struct):
    shop: str
    amount: int


pipeline = Pipeline("sales", workers=1)
pipeline.stream("sales", value=Sale).group_by("shop").aggregate(
    store="sales_per_shop", sales="count(*)"
)
