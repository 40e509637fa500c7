"""The pipeline and the tests that the page "A pipeline from start to end" shows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from sluice.values.pipeline_modules import load_module
from tests.docs.pages import read, write_files


def test_the_tests_of_the_page_pass(session: SparkSession | None, tmp_path: Path) -> None:
    write_files(read("docs/how-to/project.md"), tmp_path)
    page = load_module(tmp_path / "tests/test_sensors.py")
    shown = [test for name, test in vars(page).items() if name.startswith("test_")]
    assert len(shown) == 3
    with TopologyTestDriver(load_pipeline(tmp_path / "spark_jobs", "sensors"), spark=session) as driver:
        page.send(driver)
        for test in shown:
            test(driver)
