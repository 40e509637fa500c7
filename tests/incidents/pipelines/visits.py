"""Counts visits per shop."""

from msgspec import Struct

from sluice import Pipeline


class Visit(Struct):
    shop: str
    amount: int


pipeline = Pipeline("visits", workers=1)
pipeline.stream("visits", value=Visit).group_by("shop").aggregate(
    store="visits_per_shop", visits="count(*)"
)
