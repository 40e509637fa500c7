"""A topic that a pipeline both reads and writes: a later batch reads what a batch has written."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.errors import TopologyError
from sluice.testing import topology_test_driver
from sluice.topology import drawing
from tests.pipelines.conftest import Drive


class Job(Struct):
    left: int


def countdown(name: str, least: int = 0) -> Pipeline:
    """Counts down: each job with steps left is written again, with one step less."""
    pipeline = Pipeline(name, workers=2)
    jobs = pipeline.stream("jobs", value=Job)
    jobs.group_by_key().aggregate(store="steps", steps="count(*)", left="sum(left)")
    jobs.filter(f"left > {least}").select(left="left - 1").to("jobs", cycle=True)
    jobs.filter("left = 0").to("done")
    return pipeline


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_later_batches_read_what_a_batch_has_written(drive: Drive, by_one: bool) -> None:
    driver = drive(countdown("countdown"))
    for key, left, trace in (("a", 3, "x"), ("b", 1, "y")):
        driver.pipe("jobs", {"left": left}, key, timestamp=left, headers={"trace": trace})
        if by_one:
            driver.commit()
    done = [(record.key, record.timestamp, record.headers) for record in driver.output("done")]
    assert sorted(done) == [("a", 3, {"trace": "x"}), ("b", 1, {"trace": "y"})]
    assert driver.store("steps") == {"a": {"steps": 4, "left": 6}, "b": {"steps": 2, "left": 1}}
    assert driver.counts()["read"] == 6


def test_a_cycle_without_end_is_an_error_of_the_test(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_test_driver, "_MOST_ROUNDS", 20)
    driver = drive(countdown("endless", least=-1_000_000))
    driver.pipe("jobs", {"left": 0}, "a")
    with pytest.raises(
        TopologyError, match="endless still writes to a topic that it reads after 20 batches"
    ):
        driver.commit()


def test_a_cycle_must_be_declared() -> None:
    pipeline = Pipeline("wrong")
    jobs = pipeline.stream("jobs", value=Job)
    with pytest.raises(TopologyError, match=r"topic 'jobs' .* is already used at") as refused:
        jobs.to("jobs")
    assert "cycle=True" in refused.value.next_step
    with pytest.raises(TopologyError, match="expected cycle=True or cycle=False, got str: 'yes'"):
        jobs.to("jobs", cycle="yes")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="the pipeline does not read others"):
        jobs.to("others", cycle=True)
    with pytest.raises(
        TopologyError, match="a topic of a cycle is written exactly once, not 'at_least_once'"
    ):
        jobs.to("jobs", cycle=True, delivery="at_least_once")
    jobs.to("jobs", cycle=True)
    with pytest.raises(TopologyError, match=r"cycle 'jobs' .* is already used"):
        jobs.to("jobs", cycle=True)
    assert "topic jobs: read again by a later batch" in drawing.text(pipeline)
