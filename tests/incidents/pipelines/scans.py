"""Counts scanned parcels per depot."""

from msgspec import Struct

from sluice import Pipeline


class Scan(Struct):
    shop: str
    amount: int


pipeline = Pipeline("scans", workers=1)
pipeline.stream("scans", value=Scan).group_by("shop").aggregate(
    store="scans_per_depot", scans="count(*)"
)
