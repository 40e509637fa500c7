"""Counts returned goods per shop."""

from msgspec import Struct

from sluice import Pipeline


class Return(Struct):
    shop: str
    amount: int


pipeline = Pipeline("returns", workers=1)
pipeline.stream("returns", value=Return).group_by("shop").aggregate(
    store="returns_per_shop", items="count(*)"
)
