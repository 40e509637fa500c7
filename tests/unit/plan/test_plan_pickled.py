"""A plan is data: it survives pickling unchanged."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from sluice import CustomWindow, Pipeline, custom_windows
from sluice.engine.stages.build import stage_operator
from sluice.engine.steps import pickling
from sluice.operators.call import Call, Lookup
from sluice.plan import Job, Plan, plan
from sluice.plan.operator_parameters import TableLookupParameters
from sluice.topology import load_pipelines
from sluice.values.references import Reference

FOLDER = Path(__file__).parents[3] / "spark_jobs"
pickling.register()


def test_the_plans_of_the_repositorys_pipelines_survive_a_pickle() -> None:
    pipelines = load_pipelines(FOLDER).pipelines
    assert len(pipelines) > 5
    for pipeline in pipelines:
        planned = plan(pipeline)
        copy: Plan = pickle.loads(pickle.dumps(planned))
        assert copy == planned, pipeline.name
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
        pipeline.stream("words", value=str).map_values(lambda value: value * times, returns=str).to(
            "out"
        )
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


@dataclass(frozen=True)
class Endings:
    """A function that has no hash."""

    endings: list[str]

    def __call__(self, key: str | None, value: str) -> list[str]:
        return [f"{key} {value}{ending}" for ending in self.endings]


def test_a_function_without_a_hash_is_one_on_which_the_state_depends() -> None:
    pipeline = Pipeline("p")
    words = pipeline.stream("words", value=str).flat_map_values(Endings(["s", "ed"]), returns=str)
    words.group_by_key().count(store="counts")
    assert [name for name, _ in plan(pipeline).job.state_functions] == [
        "Endings (Python function for values)"
    ]


class Customer(Struct):
    """A row of a table."""

    name: str


def test_steps_that_ask_are_pickled_with_their_functions() -> None:
    """Also the task that runs them, with the URL of the database, which its text does not show."""
    rate = 3
    pipeline = Pipeline("p", workers=1)
    words = pipeline.stream("words", value=str)

    async def score(word: str) -> int:
        return rate * len(word)

    words.call(score, returns=int).to("scores", value=str)
    words.lookup("customers", connection="crm", key="value", column="id", returns=Customer).to(
        "known"
    )
    job = plan(pipeline).job
    copy: Job = pickle.loads(pickle.dumps(job))
    assert copy == job
    urls = {"SLUICE_CONNECTION_CRM": "sqlite:///secret.db"}
    for operator in job.operators:
        task = stage_operator(
            operator, {}, is_read=True, only_stored=False, only_last=False, connections=urls
        )
        assert "secret" not in repr(task)
        data = pickle.dumps(task)
        assert (b"secret" in data) == isinstance(operator.action, TableLookupParameters)
        assert isinstance(pickle.loads(data).make(), Call | Lookup)
