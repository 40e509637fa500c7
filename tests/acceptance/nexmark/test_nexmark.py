"""Nexmark's queries have the results that plain Python computes from the same events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from sluice.testing import TopologyTestDriver
from sluice.values.keys import key_text
from tests.acceptance.nexmark import expected
from tests.acceptance.nexmark.events import events, topic_of
from tests.acceptance.nexmark.queries import QUERIES

TABLES = {"q6", "q9"}
"""Queries whose results are the last record of each key of the topic."""
ON_SPARK = {"q6", "q21"}
SPARK_TAKES_LONG = (pytest.mark.spark, pytest.mark.heavy)
"""Queries with an expression that only Spark computes."""


def results_of(name: str, driver: TopologyTestDriver) -> Any:
    """The results of a query, in the form of `expected`."""
    if name == "q6":
        return {record.key: record.value["price"] for record in driver.output("results")}
    if name in TABLES:
        return {record.key: record.value for record in driver.output("results")}
    if "results" not in driver.pipeline.sinks:
        store = driver.store("results")
        if name == "q12":
            return sum((Counter({key: bids}) for (key, _, _), bids in store.items()), Counter())
        return store
    return [record.value for record in driver.output("results")]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SPARK_TAKES_LONG) if name in ON_SPARK else name for name in QUERIES],
)
@pytest.mark.parametrize(
    ("count", "cuts"),
    [
        (1_000, 6),
        pytest.param(100_000, 0, marks=pytest.mark.heavy),
        pytest.param(100_000, 9, marks=pytest.mark.heavy),
    ],
    ids=["1,000 events in batches", "100,000 events in a batch", "100,000 events in batches"],
)
def test_a_query_has_the_results_of_plain_python(name: str, count: int, cuts: int) -> None:
    sold = [*events(count)]
    ends = {*random.Random(name).sample(range(count), cuts)}
    pipeline = QUERIES[name](f"nexmark_{name}")
    with TopologyTestDriver(pipeline) as driver:
        if name == "q13":
            for key in range(10):
                driver.pipe("side_input", expected.side_input(key), str(key))
        for number, event in enumerate(sold):
            if topic_of(event) in pipeline.topics:
                driver.pipe(topic_of(event), event, timestamp=event.at)
            if number in ends:
                driver.commit()
        results, wanted = results_of(name, driver), getattr(expected, name)(sold)
        assert not driver.dead_letters()
    if isinstance(wanted, list):
        assert in_any_order(results) == in_any_order(wanted)
    else:
        assert results == wanted
    assert results


def in_any_order(values: Iterable[Any]) -> list[str | None]:
    """The texts of values, sorted: the order of records of different keys says nothing."""
    return sorted(map(key_text, values), key=str)
