"""The orders example in each format has the results that are expected of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.examples.orders.orders_in_formats import CODECS, RegisteredOrders, write_pipeline
from sluice.local.platform import ROOT
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline

pytestmark = pytest.mark.unit
COUNT, SEED, START_MS = 40, 7, 1_670_230_527_000


@pytest.mark.parametrize(
    ("name", "dead_letters"),
    [
        ("avro", {"no_schema": 2, "empty_value": 1}),
        ("protobuf", {"no_schema": 2, "empty_value": 1}),
        ("json_schema", {"no_schema": 1, "empty_value": 1, "contract": 1}),
    ],
)
def test_the_pipeline_has_the_expected_results(
    tmp_path: Path, name: str, dead_letters: dict[str, int]
) -> None:
    codec = CODECS[name]
    folder = tmp_path / "pipelines"
    write_pipeline(ROOT / "spark_jobs", folder, codec)
    pipeline = load_pipeline(folder, "orders")
    with TopologyTestDriver(pipeline) as driver:
        example = RegisteredOrders(driver.registry, folder, codec).example()
        samples = [*example.samples(COUNT, SEED, START_MS)]
        samples.append(samples[-1]._replace(value=b'{"orderId":1}'))
        samples.append(samples[-1]._replace(value=b""))
        for sample in samples:
            driver.pipe(sample.topic, sample.value, key=sample.key, timestamp=sample.timestamp_ms)
        expected = example.expected(samples)
        assert expected.dead_letters == dead_letters
        reasons = Counter(letter.headers["sluice.reason"] for letter in driver.dead_letters())
        assert reasons == expected.dead_letters
        for store in ("general_orders_count", "restaurant_orders_count"):
            assert rows(driver, store) == expected.stores[store]


def rows(driver: TopologyTestDriver, store: str) -> dict[Any, Any]:
    return dict(driver.store(store).items())
