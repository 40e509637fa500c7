"""The batches of a rebuild: repeated, merged if that is safe, or even without history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.run.replay import divided, join_steps, replay_steps
from sluice.plan import plan
from sluice.state.ledger.history import Batch


class Item(Struct):
    n: int
    x: float


def batch(number: int, ends: dict[str, dict[str, int]], **how: bool) -> Batch:
    return Batch(number=number, begun=1000 * number, partitions={"items": 2}, ends=ends, **how)


HISTORY = [
    batch(0, {"items": {"0": 5, "1": 0}}),
    batch(2, {"items": {"1": 7}}),
    batch(3, {"items": {"0": 9}}, by_clock=True),
    batch(4, {"items": {"0": 10}}),
    batch(5, {"items": {"0": 11}}),
]


def test_batches_are_repeated_with_the_same_ends() -> None:
    steps = list(replay_steps(HISTORY))
    assert [dict(step.ends["items"]) for step in steps[:3]] == [
        {"0": 5, "1": 0}, {"0": 5, "1": 7}, {"0": 9, "1": 7},
    ]  # fmt: skip
    assert [step.begun for step in steps] == [0, 2000, 3000, 4000, 5000]


def counted(pipeline: Pipeline) -> None:
    pipeline.stream("items", value=Item).group_by_key().count(store="n")


def in_order(pipeline: Pipeline) -> None:
    pipeline.stream("items", value=Item).group_by_key().aggregate(store="n", last="last(n)")


def mean(pipeline: Pipeline) -> None:
    pipeline.stream("items", value=Item).group_by_key().aggregate(store="n", mean="avg(n)")


def by_the_moment(pipeline: Pipeline) -> None:
    pipeline.stream("items", value=Item).filter(
        "current_timestamp() > '2020-01-01'"
    ).group_by_key().count(store="n")


def ends_of(build: Callable[[Pipeline], None], most: int = 100, **how: str) -> list[int]:
    pipeline = Pipeline("shop", workers=1, **how)  # type: ignore[arg-type]
    build(pipeline)
    job = plan(pipeline).job
    steps = join_steps(
        job, {"n": "bigint"}, list(replay_steps(HISTORY)), {"items": {"0": 0, "1": 0}}, most
    )
    return [sum(step.ends["items"].values()) for step in steps]


def test_batches_are_merged_up_to_a_size_unless_they_used_the_clock() -> None:
    assert ends_of(counted) == [12, 16, 18]
    assert ends_of(counted, most=6) == [5, 12, 16, 18]


@pytest.mark.parametrize("build", [in_order, mean, by_the_moment])
def test_batches_that_affect_results_are_not_merged(build: Callable[[Pipeline], None]) -> None:
    assert ends_of(build) == [5, 12, 16, 17, 18]


def test_batches_with_idle_partitions_are_not_merged() -> None:
    assert ends_of(counted, idle_timeout="1 minute") == [5, 12, 16, 17, 18]


def test_without_history_batches_take_the_same_share_of_each_partition() -> None:
    target = {"items": {"0": 12, "1": 10}}
    assert [*divided({"items": {"0": 2}}, target, lambda: 8)] == [
        {"items": {"0": 6, "1": 4}}, {"items": {"0": 10, "1": 8}}, target,
    ]  # fmt: skip
    assert [*divided({"items": {"0": 12}}, {"items": {"0": 12}}, lambda: 8)] == []


def test_each_batch_has_the_size_that_is_wanted_when_its_end_is_asked_for() -> None:
    sizes = iter([1, 6, 100])
    target = {"items": {"0": 10}, "shops": {"3": 2}}
    ends = [*divided({}, target, lambda: next(sizes))]
    assert ends == [
        {"items": {"0": 1}, "shops": {"3": 1}},
        {"items": {"0": 7}, "shops": {"3": 2}},
        target,
    ]


def test_little_is_left_for_the_last_batch() -> None:
    """Nothing is left to be read while the output of the last batch is written."""
    target = {"items": {"0": 16, "1": 16}}
    assert [*divided({}, target, lambda: 16)] == [
        {"items": {"0": 8, "1": 8}}, {"items": {"0": 14, "1": 14}}, target,
    ]  # fmt: skip
