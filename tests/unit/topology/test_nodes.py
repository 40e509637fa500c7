"""What a node says about itself, without which planning and drawing would have to know its class."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec import Struct
from typing_extensions import override

from sluice import Pipeline, tumbling
from sluice.operators.base import AHEAD, COGROUPED, LEFT, READ, RIGHT
from sluice.plan.definitions import step_definition, upstream_definition
from sluice.plan.operator_nodes import is_operator, why_operator
from sluice.topology import drawing, nodes


class Sale(Struct):
    shop: str
    amount: int


@dataclass(frozen=True, eq=False)
class Sampled(nodes.StreamOperator):
    """A kind of node that only this test knows."""

    every: int

    @override
    def _expressions(self) -> str:
        return f"every {self.every} of {self.by}"


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline("p")


def test_a_new_kind_of_node_needs_only_its_class(pipeline: Pipeline) -> None:
    sales = pipeline.stream("sales", value=Sale)
    sampled = pipeline.add(Sampled, parent=sales.node, by="shop", every=3)

    assert sampled.result_types == {"shop": "STRING", "amount": "INT"} | sales.fields
    assert is_operator(pipeline, sampled)
    assert why_operator(pipeline, sampled) == "needs each key's records in order"
    assert step_definition(sampled) == "sampled every 3 of shop"
    assert upstream_definition(sampled).startswith("stream sales, key of the record")
    assert "sampled: every 3 of shop" in drawing.text(pipeline)
    (taken,) = sampled.inputs
    assert (taken.parent, taken.side, taken.key) == (sales.node, LEFT, "shop")


def test_a_copy_of_a_pipeline_gives_nodes_their_new_parents(pipeline: Pipeline) -> None:
    sales = pipeline.stream("sales", value=Sale)
    other = pipeline.stream("other", value=Sale)
    sales.merge(other).filter("amount > 0").to("positive")
    sales.group_by("shop").count(store="gone")

    rest = pipeline.without(["gone"])
    merge, kept, sink = rest.nodes[2:]
    assert merge.parents == tuple(rest.nodes[:2])
    assert (kept.parents, sink.parents) == ((merge,), (kept,))


def test_keys_keep_their_windows_until_a_step_changes_them(pipeline: Pipeline) -> None:
    hour = tumbling("1 hour")
    counts = (
        pipeline.stream("sales", value=Sale).group_by("shop").windowed_by(hour).count(store="n")
    )
    stream = counts.to_stream().filter("value > 1")

    assert counts.node.key_window == hour
    assert stream.node.key_window == hour
    assert stream.select_key("_key").node.key_window is None


def test_both_sides_of_a_join_of_one_table_get_its_changes_early(pipeline: Pipeline) -> None:
    prices = pipeline.table("prices", value=Sale)
    joined = prices.join(prices.filter("amount > 1"))

    sides = [taken.side for taken in joined.node.inputs]
    assert sides == [LEFT, AHEAD + LEFT, RIGHT, AHEAD + RIGHT]


def test_streams_of_a_cogroup_have_sides_of_their_own(pipeline: Pipeline) -> None:
    sales = pipeline.stream("sales", value=Sale).group_by("shop")
    returns = pipeline.stream("returns", value=Sale).group_by("shop")
    table = sales.cogroup(sold="sum(amount)").cogroup(returns, back="sum(amount)")
    node = table.aggregate(store="balance").node

    assert [taken.side for taken in node.inputs] == [COGROUPED, COGROUPED + 1]
    assert all(taken.is_repartitioned(rekeyed=False) for taken in node.inputs)
    assert READ > COGROUPED + 1
