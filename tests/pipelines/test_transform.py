"""`transform`: a function from DataFrame to DataFrame that adds columns and keeps the rows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sluice import Pipeline
from sluice.errors import EngineError
from tests.pipelines.conftest import Drive


class Reading(Struct):
    """A measurement of a sensor."""

    sensor: str
    samples: list[float]


class Summary(Struct):
    """The summary of a reading."""

    sensor: str
    mean: float


def summarized(frame: DataFrame) -> DataFrame:
    """Adds the mean of a reading's values."""
    total = F.aggregate("samples", F.lit(0.0), lambda so_far, value: so_far + value)
    return frame.withColumn("mean", total / F.size("samples"))


def without_rows(frame: DataFrame) -> DataFrame:
    """Drops all columns that are not the author's."""
    return frame.select("sensor", F.lit(1.0).alias("mean"))


@pytest.mark.spark
def test_transform_adds_columns_in_its_branch_only(drive: Drive) -> None:
    pipeline = Pipeline("sensors")
    readings = pipeline.stream("readings", value=Reading)
    readings.filter("size(samples) > 1").transform(summarized, returns=Summary).filter(
        "mean > 1"
    ).to("means")
    readings.select("sensor").to("all")
    driver = drive(pipeline)
    driver.pipe("readings", {"sensor": "a", "samples": [1, 2]})
    driver.pipe("readings", {"sensor": "b", "samples": [1]})
    driver.pipe("readings", {"sensor": "c", "samples": [0, 1, 2]})
    assert [record.value for record in driver.output("means")] == [{"sensor": "a", "mean": 1.5}]
    assert [record.value["sensor"] for record in driver.output("all")] == ["a", "b", "c"]


@pytest.mark.spark
def test_a_function_that_loses_rows_is_named_in_the_error(drive: Drive) -> None:
    pipeline = Pipeline("careless")
    pipeline.stream("readings", value=Reading).transform(without_rows, returns=Summary).to("means")
    with pytest.raises(
        EngineError, match=r"test_transform.py:\d+ returns a DataFrame without _row"
    ):
        drive(pipeline)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda frame: summarized(frame).filter("mean > 1"), "must keep every row .* uses Filter"),
        (
            lambda frame: summarized(frame).union(summarized(frame)),
            "must keep every row .* uses Union",
        ),
        (lambda frame: summarized(frame).orderBy("mean"), "must keep every row .* uses Sort"),
        (
            lambda frame: summarized(frame).dropDuplicates(["sensor"]),
            "must keep every row .* uses Deduplicate",
        ),
        (lambda frame: summarized(frame).limit(1), "must keep every row .* uses GlobalLimit"),
        (
            lambda frame: frame.withColumn("mean", F.lit("1")),
            "returns the column mean as string, .* declares double",
        ),
        (lambda frame: None, "returns NoneType, not a DataFrame"),
        (lambda frame: frame.select("nothing"), "failed: .*nothing"),
    ],
)
def test_a_function_that_does_not_keep_the_rows_is_refused(
    drive: Drive, function: Any, why: str
) -> None:
    pipeline = Pipeline("careless")
    pipeline.stream("readings", value=Reading).filter("size(samples) > 1").transform(
        function, returns=Summary
    ).to("m")
    with pytest.raises(EngineError, match=rf"The function at test_transform.py:\d+ .*{why}"):
        drive(pipeline)


@pytest.mark.spark
def test_transform_can_follow_an_ordered_step(drive: Drive) -> None:
    pipeline = Pipeline("later")
    readings = pipeline.stream("readings", value=Reading).group_by("sensor")
    newest = readings.reduce(lambda one, other: other, store="newest")
    newest.to_stream().transform(summarized, returns=Summary).to("means")
    driver = drive(pipeline)
    driver.pipe("readings", {"sensor": "a", "samples": [1, 3]})
    assert [(one.key, one.value) for one in driver.output("means")] == [
        ("a", {"sensor": "a", "mean": 2.0})
    ]
