"""A table's states are the rows of its store, which are not kept twice."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.state.remote.opening import open_shard
from sluice.testing import TopologyTestDriver

pytestmark = pytest.mark.unit


class Customer(Struct):
    shop: str


def test_old_values_of_a_table_come_from_its_store() -> None:
    pipeline = Pipeline("shops", workers=1)
    customers = pipeline.table("customers", value=Customer)
    customers.group_by("shop").count(store="per_shop")
    with TopologyTestDriver(pipeline) as driver:
        for key, shop in (
            ("ann", "north"),
            ("bob", "north"),
            ("ann", "south"),
            ("bob", None),
            ("bob", "süd"),
        ):
            driver.pipe("customers", None if shop is None else {"shop": shop}, key=key)
            driver.commit()
        assert driver.store("per_shop") == {"north": 0, "south": 1, "süd": 1}
        (location,) = driver._run.storage.locations
        with open_shard(location) as shard:
            states = shard.state_versions(0, None, 100)
    assert {state.key for state in states} == {"north", "south", "süd"}
