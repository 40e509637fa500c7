"""Drivers of the repository's own pipelines, which run the engine without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

from sluice import Pipeline
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from tests.support.postgres import new_database

PIPELINES = Path(__file__).parents[2] / "spark_jobs"


class Drive(Protocol):
    """Makes the driver of a pipeline, whose wall clock starts now or at `clock` in epoch ms."""

    def __call__(
        self, pipeline: Pipeline | str, clock: int | None = None
    ) -> TopologyTestDriver: ...


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> str:
    """URL of the PostgreSQL server for the state; empty if the state is in files."""
    return request.getfixturevalue("postgres") if request.config.getoption("--postgres") else ""


@pytest.fixture
def drive(session: SparkSession | None, server: str) -> Iterator[Drive]:
    """Makes a driver of a pipeline, or of the pipeline in `spark_jobs` with a name, and closes it after the test."""
    made: list[TopologyTestDriver] = []

    def driver(pipeline: Pipeline | str, clock: int | None = None) -> TopologyTestDriver:
        if isinstance(pipeline, str):
            pipeline = load_pipeline(PIPELINES, pipeline)
        database = new_database(server) if server else ""
        made.append(TopologyTestDriver(pipeline, spark=session, database=database, clock=clock))
        return made[-1]

    yield driver
    for one in made:
        one.__exit__(None, None, None)
