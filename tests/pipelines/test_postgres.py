"""PostgreSQL holds the same state as SQLite files. `--postgres` runs all tests of pipelines with PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from sluice import Pipeline, within
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from tests.pipelines.conftest import PIPELINES
from tests.support.postgres import new_database

On = Callable[[Pipeline], TopologyTestDriver]
NUL = "\0shared"


class Number(Struct):
    n: int


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.heavy), "postgres"])
def on(request: pytest.FixtureRequest, session: SparkSession | None) -> Iterator[On]:
    """Makes a driver with its state in a database of the given kind."""
    database = (
        new_database(request.getfixturevalue("postgres")) if request.param == "postgres" else ""
    )
    made: list[TopologyTestDriver] = []

    def driver(pipeline: Pipeline) -> TopologyTestDriver:
        made.append(TopologyTestDriver(pipeline, spark=session, database=database))
        return made[-1]

    yield driver
    for one in made:
        one.__exit__(None, None, None)


def test_keys_with_nul_do_not_collide_with_the_state_of_all_keys(on: On) -> None:
    pipeline = Pipeline("nul", workers=1)
    left, right = (pipeline.stream(name, value=Number) for name in ("l", "r"))
    left.left_join(right, within("5 ms")).to("joined")
    counts = pipeline.stream("s", value=Number).group_by_key().count(store="c")
    counts.suppress_until_time_limit("5 ms", max_records=10).to("held")
    driver = on(pipeline)
    for n, (key, time) in enumerate(
        [(NUL, 1), (NUL, 20), ("", 40), ("x\0", 60), ("x", 80), ("x", 100)]
    ):
        driver.pipe("l", {"n": n}, key, timestamp=time)
        driver.pipe("s", {"n": n}, key, timestamp=time)
        driver.commit()
    joined = [(record.key, record.value["left"]["n"]) for record in driver.output("joined")]
    assert joined == [(NUL, 0), (NUL, 1), ("", 2), ("x\0", 3), ("x", 4)]
    held = [(record.key, record.value) for record in driver.output("held")]
    assert held == [(NUL, 2), ("", 1), ("x\0", 1), ("x", 2)]
    assert driver.store("c") == {NUL: 2, "": 1, "x\0": 1, "x": 2}


def test_the_words_pipeline_runs_with_postgresql(
    session: SparkSession | None, postgres: str
) -> None:
    pipeline = load_pipeline(Path(PIPELINES), "words")
    with TopologyTestDriver(pipeline, spark=session, database=new_database(postgres)) as driver:
        driver.pipe("alphabet_descriptions", "the first", "A", timestamp=500)
        for word in ("Apple", "Alpha"):
            driver.pipe("alphabet", word, "A", timestamp=1_000)
            driver.commit()
        assert driver.store("letters_joined") == {"A": "Apple-Alpha"}
        assert [
            record.value["right"] for record in driver.output("words_near_description_inner")
        ] == ["the first"] * 2
