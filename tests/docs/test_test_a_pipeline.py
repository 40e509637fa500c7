"""The tests that the page "Test a pipeline" shows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from sluice.values.modules import load_module
from tests.docs.pages import ROOT, files, read


def test_the_tests_of_the_page_pass(spark: SparkSession, tmp_path: Path) -> None:
    ((path, content),) = files(read("docs/how-to/test-a-pipeline.md")).items()
    file = tmp_path / Path(path).name
    file.write_text(content)
    shown = [test for name, test in vars(load_module(file)).items() if name.startswith("test_")]
    assert len(shown) == 2
    with TopologyTestDriver(load_pipeline(ROOT / "spark_jobs", "words"), spark=spark) as driver:
        for test in shown:
            test(driver)
