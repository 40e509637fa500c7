"""Test drivers of a process leave nothing behind, and do not disturb each other."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sluice import Pipeline
from sluice.testing import TopologyTestDriver
from tests.soak.sizes import assert_flat, own_size


def copies() -> Pipeline:
    pipeline = Pipeline("copies", workers=1)
    pipeline.stream("words", value=str).to("copies", value=str)
    return pipeline


@pytest.mark.parametrize(
    "on", [pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.heavy]), "session"]
)
def test_drivers_leave_no_threads_and_files(request: pytest.FixtureRequest, on: str) -> None:
    spark: SparkSession | None = request.getfixturevalue(on)
    with TopologyTestDriver(copies(), spark=spark) as always:
        for number in range(8):
            if number == 2:
                before = own_size()
            with TopologyTestDriver(copies(), spark=spark) as driver:
                driver.pipe("words", "one")
                assert [record.value for record in driver.read("copies")] == ["one"]
            # The other driver's connection was idle, so it has been closed, and is opened again.
            always.pipe("words", str(number))
            assert [record.value for record in always.read("copies")] == [str(number)]
    assert_flat(before, own_size(), more=3)
