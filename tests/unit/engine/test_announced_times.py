"""The stream time up to which the windows of announced stores are closed."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline, session, tumbling
from sluice.engine.batch.stream_time import CLOSED, SEEN, StreamTimes
from sluice.engine.publish.closed_windows import announced_times
from sluice.errors import TopologyError
from sluice.plan import Job, plan
from sluice.topology.durations import Duration


class Sale(Struct):
    shop: str
    amount: int


def job_of(
    total: str = "sum(amount)",
    announce: tuple[str, ...] = ("per_hour",),
    idle_timeout: Duration | None = None,
) -> Job:
    """A pipeline with the store `per_hour`: combinable, unless `total` is computed in order."""
    pipeline = Pipeline("sales", announce_windows=announce, idle_timeout=idle_timeout)
    sales = pipeline.stream("sales", value=Sale, key="shop").group_by_key()
    sales.windowed_by(tumbling("1 hour")).aggregate(store="per_hour", total=total)
    return plan(pipeline).job


def times_of(times: dict[str, int], now: int = 0, timeout: int | None = None) -> StreamTimes:
    return StreamTimes(times, {"sales": 2}, now, timeout)


def test_nothing_is_added_unless_a_store_is_announced() -> None:
    assert announced_times(job_of(announce=()), {}, times_of({"per_hour/sales/0": 5})) == {}


def test_the_slowest_partition_decides() -> None:
    after = times_of({"per_hour/sales/0": 70, "per_hour/sales/1": 50})
    assert announced_times(job_of(), {}, after) == {
        ":announced/per_hour": 50,
        ":announced_from/per_hour": -1,
    }


def test_another_topic_without_records_does_not_count() -> None:
    pipeline = Pipeline("sales", announce_windows=["per_hour"])
    for topic, store in (("sales", "per_hour"), ("returns", "returned")):
        rows = pipeline.stream(topic, value=Sale, key="shop").group_by_key()
        rows.windowed_by(tumbling("1 hour")).count(store=store)
    reached = {"per_hour/sales/0": 70, "per_hour/sales/1": 50}
    after = StreamTimes(reached, {"sales": 2, "returns": 1}, 0)
    assert announced_times(plan(pipeline).job, {}, after)[":announced/per_hour"] == 50


def test_a_partition_without_records_keeps_all_windows_open() -> None:
    after = times_of({"per_hour/sales/0": 70})
    assert announced_times(job_of(), {}, after)[":announced/per_hour"] == -1


def test_an_idle_partition_does_not_count_and_does_not_bring_the_time_back() -> None:
    job = job_of(idle_timeout="1 second")
    seen = {f"{SEEN}/sales/0": 9_000, f"{SEEN}/sales/1": 1_000}
    reached = {"per_hour/sales/0": 70, "per_hour/sales/1": 50, **seen}
    before = announced_times(job, {}, times_of(reached, 9_500, 1_000))
    assert before[":announced/per_hour"] == 70
    back = reached | {"per_hour/sales/1": 60, f"{SEEN}/sales/1": 9_600, **before}
    after = announced_times(job, back, times_of(back, 9_700, 1_000))
    assert after[":announced/per_hour"] == 70


def test_an_operator_has_the_time_that_its_tasks_have_reported() -> None:
    job = job_of("avg(amount)")
    (operator,) = job.operators
    after = times_of({f"{CLOSED}/{operator.clock}": 40, "per_hour/sales/0": 70})
    assert announced_times(job, {}, after)[":announced/per_hour"] == 40


def test_a_store_that_is_announced_later_begins_where_the_pipeline_is() -> None:
    before = {"per_hour/sales/0": 30, "per_hour/sales/1": 20}
    after = times_of({"per_hour/sales/0": 70, "per_hour/sales/1": 50})
    times = announced_times(job_of(), before, after)
    assert times[":announced_from/per_hour"] == 20
    later = announced_times(job_of(), dict(after.times) | times, after)
    assert ":announced_from/per_hour" not in later, "it never changes"


@pytest.mark.parametrize("store", ["nothing", "sessions", "total"])
def test_only_stores_with_common_windows_can_be_announced(store: str) -> None:
    pipeline = Pipeline("sales", announce_windows=[store])
    sales = pipeline.stream("sales", value=Sale, key="shop").group_by_key()
    sales.windowed_by(session("1 hour")).count(store="sessions")
    sales.count(store="total")
    with pytest.raises(TopologyError, match=f"announce_windows= names '{store}', which is not"):
        plan(pipeline)


def test_announced_stores_are_a_list() -> None:
    with pytest.raises(TopologyError, match="Write a list of stores"):
        Pipeline("sales", announce_windows="per_hour")
