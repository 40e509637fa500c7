"""Tests of the pipeline visits on the real engine, without a broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline

PIPELINES = Path(__file__).parents[1] / "spark_jobs"


@pytest.fixture(scope="module")
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(load_pipeline(PIPELINES, "visits")) as driver:
        yield driver


def test_visits_are_counted_per_page_and_minute(driver: TopologyTestDriver) -> None:
    for page, at in (("home", "08:00:05"), ("checkout", "08:00:20"), ("home", "08:01:10")):
        driver.pipe("visits", {"page": page, "at": f"2026-01-01T{at}"})
    assert driver.store("visits_total") == {"home": 2, "checkout": 1}
    assert sorted(driver.store("visits_per_minute").values()) == [1, 1, 1]
    assert [record.key for record in driver.read("checkouts")] == ["checkout"]


def test_a_visit_without_a_page_is_a_dead_letter(driver: TopologyTestDriver) -> None:
    driver.pipe("visits", {"at": "2026-01-01T08:02:00"})
    (dead_letter,) = driver.dead_letters()
    assert dead_letter.headers["sluice.reason"] == "contract"
