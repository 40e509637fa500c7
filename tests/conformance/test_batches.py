"""The division into batches does not change states, late counts, closed windows and joined records."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, session, sliding, tumbling, within
from sluice.testing import TopologyTestDriver


class Value(Struct):
    """The values of the topics."""

    n: int | None
    g: str | None


PARTITIONS = {"clicks": 3, "views": 2}
STORES = ("per_window", "per_session", "per_slide", "listed", "by_group", "latest")


def everything(name: str) -> Pipeline:
    """Windows of every kind, suppressed results, a regrouped table, and joins."""
    pipeline = Pipeline(name, workers=2)
    clicks = pipeline.stream("clicks", value=Value, nulls="keep")
    views = pipeline.stream("views", value=Value, nulls="keep")
    groups = pipeline.table("groups", value=Value, store="latest")
    keyed = clicks.group_by_key()
    windowed = keyed.windowed_by(tumbling("10 ms", grace="5 ms"))
    windowed.count(store="per_window")
    windowed.aggregate(store="held", c="count(*)", s="sum(n)").suppress_until_window_closes().to(
        "closed"
    )
    keyed.windowed_by(session("4 ms", grace="6 ms")).aggregate(
        store="per_session", c="count(*)", m="max(n)"
    )
    keyed.windowed_by(sliding("6 ms", grace="8 ms")).aggregate(store="per_slide", c="count(*)")
    keyed.aggregate(store="listed", ns="collect_list(n)")
    groups.group_by("g").aggregate(store="by_group", c="count(*)", s="sum(n)")
    clicks.join(views, within("5 ms", grace="3 ms")).to("joined")
    clicks.left_join(groups).to("enriched")
    return pipeline


def results(found: list[tuple[Any, ...]], cuts: set[int], name: str) -> dict[str, Any]:
    """All results, with a batch ending after each record whose number is in `cuts`."""
    with TopologyTestDriver(everything(name), partitions=PARTITIONS) as driver:
        for number, (topic, key, n, time, partition) in enumerate(found):
            value = None if n is None else {"n": n, "g": "even" if n % 2 == 0 else "odd"}
            driver.pipe(
                topic, value, key, timestamp=time, partition=partition % PARTITIONS.get(topic, 1)
            )
            if number in cuts:
                driver.commit()
        reported: dict[str, Any] = {store: driver.store(store) for store in STORES}
        for topic in ("closed", "joined", "enriched"):
            reported[topic] = Counter(
                json.dumps([record.key, record.headers, record.value], sort_keys=True)
                for record in driver.output(topic)
            )
        dropped = ("late/", "null_key/", "null_value/", "dropped/")
        reported["counts"] = {
            name: n for name, n in driver.counts().items() if name.startswith(dropped) and n
        }
        return reported


@pytest.mark.timeout(600)
def test_results_do_not_depend_on_the_batches() -> None:
    rng = random.Random(1)
    found = [
        (
            rng.choice(["clicks", "clicks", "views", "groups"]),
            rng.choice(["a", "b", "c", None]),
            rng.choice([None, *range(10)]),
            at + rng.randrange(-15, 15),
            rng.randrange(3),
        )
        for at in range(20, 220, 2)
    ]
    whole = results(found, set(), "whole")
    assert results(found, {17, 18, 60}, "cut") == whole
    assert all(whole.values())
    assert {"late/per_window", "late/per_session", "null_key/per_window"} <= whole["counts"].keys()
