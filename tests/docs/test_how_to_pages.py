"""The pipelines and the tests that how-to pages show are correct."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from sluice.values.pipeline_modules import load_module
from tests.docs.pages import ROOT, files, read, steps, write_files


def test_a_pipeline_is_tested_as_the_page_shows(
    session: SparkSession | None, tmp_path: Path
) -> None:
    ((path, content),) = files(read("docs/how-to/test-a-pipeline.md")).items()
    file = tmp_path / Path(path).name
    file.write_text(content)
    shown = [test for name, test in vars(load_module(file)).items() if name.startswith("test_")]
    assert len(shown) == 2
    with TopologyTestDriver(load_pipeline(ROOT / "spark_jobs", "words"), spark=session) as driver:
        for test in shown:
            test(driver)


def test_the_project_of_the_page_passes_its_tests(
    session: SparkSession | None, tmp_path: Path
) -> None:
    write_files(read("docs/how-to/project.md"), tmp_path)
    page = load_module(tmp_path / "tests/test_sensors.py")
    shown = [test for name, test in vars(page).items() if name.startswith("test_")]
    assert len(shown) == 3
    with TopologyTestDriver(
        load_pipeline(tmp_path / "spark_jobs", "sensors"), spark=session
    ) as driver:
        page.send(driver)
        for test in shown:
            test(driver)


def test_fields_of_any_name_and_times_as_numbers_are_read(tmp_path: Path) -> None:
    write_files(read("docs/how-to/names-and-times.md"), tmp_path)
    pipeline = load_pipeline(tmp_path / "pipelines", "parcels")
    (source,) = plan(pipeline).job.streams
    assert source.types["due"] == "TIMESTAMP"
    assert source.types["packed"] == "BIGINT"


def test_the_calls_of_the_page_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = read("docs/how-to/calls.md")
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    (step,) = steps(page, "python")
    with redirect_stdout(io.StringIO()) as printed:
        exec(step.commands, {})
    assert not step.differs(printed.getvalue().splitlines()[-1] + "\n")


SCRIPT = """
from msgspec import Struct
from sluice import Pipeline
from sluice.testing import TopologyTestDriver

class Sale(Struct):
    amount: int

class Total(Struct):
    sum: int

def added(total, sale):
    return Total(total.sum + sale.amount)

pipeline = Pipeline("script", workers=1)
sales = pipeline.stream("sales", value=Sale)
sales.group_by_key().aggregate(lambda: Total(0), added, store="totals", returns=Total)
driver = TopologyTestDriver(pipeline)
driver.pipe("sales", {"amount": 3}, key="a")
driver.pipe("sales", {"amount": 4}, key="a")
print(driver.store("totals"))
"""


@pytest.mark.heavy
def test_a_script_starts_the_driver_at_its_top_level(tmp_path: Path) -> None:
    file = tmp_path / "sales.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["{'a': {'sum': 7}}"], done.stderr
