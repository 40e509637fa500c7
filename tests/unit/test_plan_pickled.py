"""A plan is data: it survives pickling unchanged."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sluice import CustomWindow, Pipeline, custom_windows
from sluice.engine.steps import pickling
from sluice.plan import Plan, load_plan, plan
from sluice.topology import load_pipelines
from sluice.values.references import Reference

FOLDER = Path(__file__).parents[2] / "spark_jobs"
pickling.register()
NAMES = [pipeline.name for pipeline in load_pipelines(FOLDER).pipelines]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_survives_a_pickle(name: str) -> None:
    planned = load_plan(FOLDER, name)
    copy: Plan = pickle.loads(pickle.dumps(planned))
    assert copy == planned
    assert copy.job is not planned.job


def doubled(value: str) -> str:
    return 2 * value


def test_a_function_of_a_module_is_found_by_its_name() -> None:
    copy: Reference = pickle.loads(pickle.dumps(Reference(doubled)))
    assert copy.value is doubled


def test_a_lambda_is_pickled_with_its_code() -> None:
    times = 3

    def planned(times: int) -> Plan:
        pipeline = Pipeline("p")
        pipeline.stream("words", value=str).map_values(lambda value: value * times, returns=str).to("out")
        return plan(pipeline)

    job = planned(times).job
    copy: Reference = pickle.loads(pickle.dumps(job.functions[0].function))
    assert copy.value(None, "ab") == "ababab"
    assert copy == job.functions[0].function
    other = planned(4).job
    assert copy != other.functions[0].function


def test_a_function_for_windows_is_pickled_with_the_plan() -> None:
    size = 10
    windows = custom_windows(lambda time: [(time // size * size, time // size * size + size)])
    pipeline = Pipeline("p")
    pipeline.stream("words", value=str).group_by_key().windowed_by(windows).count(store="counts")
    planned = plan(pipeline)
    copy: Plan = pickle.loads(pickle.dumps(planned))
    assert copy == planned
    window = copy.job.operators[0].window
    assert isinstance(window, CustomWindow)
    assert window.bounds_of(27) == [(20, 30)]
    assert [name for name, _ in copy.job.state_functions] == [
        "test_a_function_for_windows_is_pickled_with_the_plan.<locals>.<lambda> (store counts)"
    ]
