"""A stream's output has all of its records, however a store of the same stream is computed."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline
from tests.pipelines.conftest import Drive


class Measure(Struct):
    n: int


@pytest.mark.parametrize(
    ("aggregate", "result"), [("avg(n)", 5.5), ("stddev_pop(n)", 0.5), ("sum(n)", 11)]
)
def test_an_output_has_its_records_whether_operators_or_tasks_aggregate(
    drive: Drive, aggregate: str, result: float
) -> None:
    pipeline = Pipeline("measures", workers=1)
    measures = pipeline.stream("measures", value=Measure)
    measures.filter("n > 1").to("large")
    measures.group_by_key().aggregate(store="result", x=aggregate)
    driver = drive(pipeline)
    for n in (5, 6, 1):
        driver.pipe("measures", {"n": n}, key="a" if n > 1 else "b")
    assert [record.value for record in driver.output("large")] == [{"n": 5}, {"n": 6}]
    assert driver.store("result")["a"] == {"x": result}
