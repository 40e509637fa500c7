"""Which inputs and results of steps are counted: those with one row for each record or change."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Context, Pipeline, Record, within
from sluice.plan import PlannedOperator, plan
from sluice.plan.step_counts import received_by_group, received_by_side, results_name

pytestmark = pytest.mark.unit


class Sale(Struct):
    shop: str
    n: int


class Halves:
    """A processor with two outputs, which reads a table."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Sale]) -> None:
        self.context.forward(record.key, record.value, to="large")


def operators(pipeline: Pipeline) -> list[PlannedOperator]:
    return [*plan(pipeline).job.operators]


def received(pipeline: Pipeline) -> set[str]:
    names: set[str] = set()
    for operator in operators(pipeline):
        names.update(received_by_side(operator).values())
    return names


def test_both_inputs_of_a_join_of_streams_are_counted() -> None:
    pipeline = Pipeline("p", workers=1)
    left = pipeline.stream("left", value=Sale)
    right = pipeline.stream("right", value=Sale)
    near = within(before="4 seconds", after="4 seconds", grace="0 seconds")
    left.join(right, near).select(n="left.n").to("joined")
    assert received(pipeline) == {"received/join-2/0", "received/join-2/1"}


def test_a_stream_that_is_joined_with_itself_has_two_counts() -> None:
    pipeline = Pipeline("p", workers=1)
    sales = pipeline.stream("sales", value=Sale)
    near = within(before="4 seconds", after="4 seconds", grace="0 seconds")
    sales.join(sales, near).select(n="left.n").to("joined")
    assert received(pipeline) == {"received/join-1/0", "received/join-1/1"}


def test_inputs_with_old_values_and_of_foreign_keys_are_not_counted() -> None:
    pipeline = Pipeline("p", workers=1)
    shops = pipeline.table("shops", value=Sale)
    sales = pipeline.table("sales", value=Sale)
    shops.group_by("shop").count(store="per_shop")
    sales.join(shops, on="shop").select(n="left.n").to_stream().to("joined")
    assert received(pipeline) <= {"received/shops/0", "received/sales/0"}


def test_a_table_that_a_processor_reads_and_its_outputs_are_not_counted() -> None:
    pipeline = Pipeline("p", workers=2)
    prices = pipeline.table("prices", value=Sale, store="prices")
    sales = pipeline.stream("sales", value=Sale)
    tables = {"prices": prices}
    halves = sales.process(Halves, tables=tables, returns=Sale, outputs={"large": Sale})
    halves["large"].to("large")
    halves.output.to("small")
    process = operators(pipeline)[-1]
    assert received_by_side(process) == {0: f"received/{process.name}/0"}
    assert results_name(process) is None


def test_each_stream_of_a_cogrouped_aggregate_is_counted() -> None:
    pipeline = Pipeline("p", workers=1)
    clicks = pipeline.stream("clicks", value=Sale).group_by("shop")
    sales = pipeline.stream("sales", value=Sale).group_by("shop")
    both = clicks.cogroup(clicks="count(*)").cogroup(sales, sales="count(*)")
    both.aggregate(store="both")
    assert received(pipeline) == {"received/both/0", "received/both/1"}


def test_each_store_of_a_group_has_a_count() -> None:
    pipeline = Pipeline("p", workers=1)
    groups = pipeline.stream("sales", value=Sale).group_by("shop")
    groups.count(store="n")
    groups.aggregate(store="total", total="sum(n)")
    (group,) = plan(pipeline).job.groups
    assert received_by_group(group) == ["received/n/0", "received/total/0"]
