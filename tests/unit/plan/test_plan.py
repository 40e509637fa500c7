"""Planning a topology: what the jobs read, store and write, and their SQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from sluice import Decimal2, Pipeline, tumbling, within
from sluice.plan import (
    Column,
    Combinable,
    FallibleExpression,
    Job,
    Lookup,
    Select,
    explain,
    load_plan,
    plan,
)
from sluice.sql.parsed_expression import parse
from sluice.topology import nodes
from sluice.topology.streams import Stream
from tests.engine.every_operator import PARTS, every_operator
from tests.engine.shop import Names

ROOT = Path(__file__).parents[3]


class Sale(Struct):
    shop: str
    amount: Decimal2
    quantity: int
    at: datetime
    order_no: int = field(name="order-no")
    case: str


class Shop(Struct):
    shop: str
    city: str


def sales(key: str | None = "shop") -> Stream[Sale]:
    return Pipeline("p", workers=3).stream("sales", value=Sale, key=key, event_time="at")


def pipeline_of(stream: Stream[Any]) -> Pipeline:
    assert isinstance(stream.pipeline, Pipeline)
    return stream.pipeline


def planned(pipeline: Pipeline) -> Job:
    return plan(pipeline).job


def job(stream: Stream[Any]) -> Job:
    return planned(pipeline_of(stream))


def columns(job: Job) -> dict[str, str]:
    return {column.name: column.sql for column in job.columns if isinstance(column, Column)}


def attempts(job: Job) -> dict[str, FallibleExpression]:
    return {column.name: column for column in job.columns if isinstance(column, FallibleExpression)}


def read(job: Job) -> dict[int, list[str]]:
    """The used fields, by the number of their source."""
    return {source.number: [field.name for field in source.fields] for source in job.streams}


@pytest.fixture(scope="module")
def orders() -> Job:
    return load_plan(ROOT / "spark_jobs", "orders").job


def test_orders_are_one_job_with_four_groups_of_two_stores(orders: Job) -> None:
    assert [
        [store_column.store for store_column in group.store_columns] for group in orders.groups
    ] == [
        [f"{kind}_orders_count{window}", f"{kind}_orders_revenue{window}"]
        for kind in ("general", "restaurant")
        for window in ("", "_window")
    ]
    assert [group.window for group in orders.groups] == [None, tumbling("15 s", "15 s")] * 2
    assert orders.topics == ("orders", "stores")
    assert orders.outputs == (
        "general_orders",
        "restaurant_orders",
        "general_orders_revenue",
        "restaurant_orders_revenue",
    )


def test_only_used_fields_become_columns(orders: Job) -> None:
    assert {number: set(names) for number, names in read(orders).items()} == {
        0: {"locationId", "finalAmount", "orderType"}
    }
    assert orders.metadata == ()


def test_metadata_becomes_a_column_when_used() -> None:
    stream = sales(key=None)
    stream.filter("_offset > 5").to("out")
    assert job(stream).metadata == ("_key", "_offset")


def test_a_step_is_computed_once_for_all_branches(orders: Job) -> None:
    texts = list(columns(orders).values())
    assert len(set(texts)) == len(texts)
    assert sum("orderType = 'GENERAL'" in sql for sql in texts) == 1
    general = orders.groups[:2]
    assert general[0].key == general[1].key
    assert general[0].passed == general[1].passed


def test_columns_are_computed_from_layers_before_them(orders: Job) -> None:
    stream = sales()
    mapped = (
        stream.filter("amount > 1")
        .select(double="amount * 2", shop="upper(shop)")
        .filter("double > 3")
    )
    mapped.select(four="double * 2", key="_key").to("out")
    mapped.group_by("shop || double").aggregate(store="s", total="sum(double)")
    for each in (orders, job(stream)):
        known = {"_source", "_partition", "_time", *each.metadata}
        known |= {field.column for source in each.streams for field in source.fields}
        for layer in each.layers:
            assert isinstance(layer, tuple)
            for column in layer:
                for text in (
                    column.columns if isinstance(column, FallibleExpression) else [column.sql]
                ):
                    assert parse(text).fields <= known, (column.name, text)
            known |= {column.name for column in layer}
            known |= {
                name
                for tried in layer
                if isinstance(tried, FallibleExpression)
                for name in (tried.error, tried.key_text)
            }
        for group in each.groups:
            assert {group.passed, group.key, *group.inputs} <= known
        for sink in each.stream_sinks:
            assert {sink.key, sink.value} <= known


def test_only_columns_are_rewritten() -> None:
    stream = sales()
    stream.filter(
        "exists(array(1), amount -> amount > quantity) AND shop <> 'amount' AND `amount` > 1"
    ).to("out")
    ((sql,),) = [attempt.columns for attempt in attempts(job(stream)).values()]
    assert (
        "exists(array(1), amount -> amount > s0_quantity) AND s0_shop <> 'amount' AND s0_amount > 1"
        in sql
    )


def test_a_field_of_any_name_is_a_column_that_needs_no_quotes() -> None:
    stream = sales()
    stream.filter("`order-no` > 1").select("order-no", "case", copy="`order-no` + 1").to("out")
    made = job(stream)
    assert set(read(made)[0]) == {"shop", "order-no", "case"}
    assert any("s0_order_x2d_no > 1" in sql for sql in columns(made).values())
    value = columns(made)["o3_value"]
    assert "named_struct('order-no', s0_order_x2d_no, 'case', s0_case, 'copy', n2_copy)" in value


def test_a_renamed_field_is_not_computed_again() -> None:
    stream = sales()
    stream.select(what="amount").select(price="what").to("out")
    made = job(stream)
    assert "'price', s0_amount" in columns(made)["o3_value"]
    assert read(made)[0] == ["shop", "amount"]


def test_nothing_is_evaluated_for_filtered_records() -> None:
    stream = sales()
    kept = stream.filter("quantity <> 0")
    kept.select(each="amount / quantity").filter("each > 1").to("out")
    kept.group_by("100 div quantity").count(store="n")
    made = columns(job(stream))
    assert made["n1"] == "coalesce((_source <=> 0) AND (s0_quantity <> 0), false)"
    tried = attempts(job(stream))
    assert tried["t2_0"].passed == "n1"
    assert tried["t2_0"].columns == ("s0_amount / s0_quantity",)
    assert made["n2_each"] == "IF((n1 AND t2_0_error IS NULL), t2_0.c0, NULL)"
    assert made["n3"] == "coalesce((n1 AND t2_0_error IS NULL) AND (n2_each > 1), false)"
    assert any(
        value.passed == "n1" and value.columns == ("100 div s0_quantity",)
        for value in tried.values()
    )
    assert made["o4_value"].startswith("IF(n3, ")


def test_an_argument_that_can_fail_is_tried_before_the_aggregate() -> None:
    stream = sales()
    stream.group_by("shop").aggregate(store="all", items="sum(quantity)", n="count(*)")
    stream.group_by("shop").aggregate(
        store="rates", rate="max(CAST(quantity / amount AS DECIMAL(12, 2)))", n="count(*)"
    )
    planned = job(stream)
    every, rates = planned.groups
    made = columns(planned)
    (tried,) = attempts(planned).values()
    assert tried.columns == ("CAST(s0_quantity / s0_amount AS DECIMAL(12, 2))",)
    (rate,) = rates.inputs
    assert made[rate] == "t2_0.c0"
    assert rates.passed != every.passed  # a record that fails for one store counts in the other


def test_whole_numbers_are_summed_as_decimals_which_hold_any_sum() -> None:
    stream = sales()
    stream.group_by("shop").aggregate(store="all", items="sum(quantity)")
    planned = job(stream)
    (column,) = planned.groups[0].inputs
    assert columns(planned)[column] == "CAST(s0_quantity AS DECIMAL(20, 0))"
    assert dict(planned.groups[0].store_columns[0].columns) == {"items": Combinable("sum", column)}


def test_an_argument_and_a_result_that_can_fail_are_reported_both() -> None:
    stream = sales()
    stream.group_by("shop").aggregate(store="rates", rate="avg(quantity / amount) / count(`case`)")
    made = job(stream)
    assert [(failure.stage, failure.step.title) for failure in made.failures] == [
        (0, "store rates"),
        (1, "store rates"),
    ]


def test_the_orders_pipeline_tries_no_expression(orders: Job) -> None:
    assert not attempts(orders)


def test_stores_with_equal_filter_key_and_window_share_state_rows() -> None:
    stream = sales()
    groups = stream.group_by("shop")
    groups.count(store="a")
    groups.aggregate(store="b", total="sum(amount)")
    stream.group_by("shop").count(store="c")
    stream.group_by("upper(shop)").count(store="d")
    groups.windowed_by(tumbling("1 second")).count(store="e")
    groups.windowed_by(tumbling("1 second", grace="1 ms")).count(store="f")
    stream.filter("amount > 1").group_by("shop").count(store="g")
    stores = [
        [store_column.store for store_column in group.store_columns] for group in job(stream).groups
    ]
    assert stores == [["a", "b", "c"], ["d"], ["e"], ["f"], ["g"]]


def test_the_last_stage_writes_the_shards_if_its_workers_own_all_their_rows() -> None:
    def writes(pipeline: Pipeline) -> bool:
        return planned(pipeline).writes_in_last_stage

    stream = sales()
    stream.group_by("shop").count(store="a")
    assert not writes(pipeline_of(stream)), "no stage"
    stream.group_by("shop").aggregate(int, lambda count, _: count + 1, store="b", returns=int)
    assert writes(pipeline_of(stream))
    by_window = (
        stream.group_by("shop").windowed_by(tumbling("1 second")).count(store="c").to_stream()
    )
    by_window.to_table(store="d")
    assert not writes(pipeline_of(stream)), "windowed keys"
    by_window.group_by("_key").count(store="e").to_stream().group_by("value").count(store="f")
    assert writes(pipeline_of(stream)), "windowed keys in an earlier stage"
    stream.join(pipeline_of(stream).global_table("shops", value=Shop), on="shop").to("located")
    assert not writes(pipeline_of(stream)), "a global table"


def test_rows_are_shuffled_once_unless_a_later_stage_or_the_shards_need_another_shuffle() -> None:
    def is_shuffled_once(pipeline: Pipeline) -> bool:
        return planned(pipeline).has_one_shuffle

    stream = sales()
    stream.group_by("shop").count(store="a")
    assert is_shuffled_once(pipeline_of(stream)), "only the shards need rows by key"
    counted = stream.group_by("shop").aggregate(
        int, lambda count, _: count + 1, store="b", returns=int
    )
    assert is_shuffled_once(pipeline_of(stream)), "the first stage writes the shards"
    counted.to_stream().group_by("value").count(store="c")
    assert not is_shuffled_once(pipeline_of(stream)), "a second stage"
    located = sales()
    located.group_by("shop").aggregate(int, lambda count, _: count + 1, store="b", returns=int)
    located.join(pipeline_of(located).global_table("shops", value=Shop), on="shop").to("located")
    assert not is_shuffled_once(pipeline_of(located)), "a stage, and the rows of a global table"


def test_an_added_output_leaves_the_state_rows_of_a_global_table_where_they_are() -> None:
    pipeline = Pipeline("p", workers=1)
    stream, shops = pipeline.stream("sales", value=Sale), pipeline.global_table("shops", value=Shop)
    newest = stream.to_table(store="newest")
    stream.join(shops, on="shop").to("located")
    (before,) = planned(pipeline).tables
    newest.filter("quantity > 1").map_values("shop").to("more")
    assert planned(pipeline).tables == (before,)


def test_windows_with_different_retention_have_separate_state_rows() -> None:
    pipeline = Pipeline("kept", workers=1)
    words = pipeline.stream("words", value=str).group_by("value")
    for number, retention in enumerate(("1 day", "1 day", "2 days", None)):
        words.windowed_by(tumbling("1 minute"), retention=retention).count(store=f"store{number}")
    job = planned(pipeline)
    assert [[store_column.store for store_column in group.store_columns] for group in job.groups] == [
        ["store0", "store1"], ["store2"], ["store3"],
    ]  # fmt: skip
    assert "tumbling(1 min, grace 0 s), kept 2 d after its end: store2" in explain(plan(pipeline))


def test_a_tables_changes_are_joined_mapped_and_written() -> None:
    stream = sales()
    shops = pipeline_of(stream).global_table("shops", value=Shop, key="shop")
    total = stream.group_by("shop").aggregate(store="total", amount="sum(amount)")
    total.join(shops, how="left").select(amount="left.amount", city="right.city", shop="_key").to(
        "out"
    )
    made = job(stream)
    (sink,) = made.change_sinks
    lookup, select = sink.steps
    assert isinstance(lookup, Lookup)
    assert (lookup.how, lookup.table.source.topic, lookup.table.group) == (
        "left",
        "shops",
        shops.node.number,
    )
    assert isinstance(select, Select)
    assert select.sql == "named_struct('amount', v.left.amount, 'city', v.right.city, 'shop', _key)"
    assert (sink.sink.topic, sink.group, sink.store_column, sink.scalar) == (
        "out",
        total.node.number,
        0,
        False,
    )


def test_a_scalar_is_written_unchanged_unless_mapped() -> None:
    stream = sales()
    count = stream.group_by("shop").count(store="n")
    count.to("n")
    count.select(n="value", twice="2 * value").to("n_mapped")
    plain, mapped = job(stream).change_sinks
    assert (plain.scalar, plain.steps) == (True, ())
    (select,) = mapped.steps
    assert isinstance(select, Select)
    assert select.sql == "named_struct('n', v, 'twice', 2 * v)"
    assert [what for _, what in select.causes] == ["ARITHMETIC_OVERFLOW in 2 * value"]
    assert not mapped.scalar


def test_records_only_pass_the_steps_of_their_source() -> None:
    pipeline = Pipeline("p")
    one = pipeline.stream("one", value=Sale)
    two = pipeline.stream("two", value=Sale)
    one.filter("amount > 1").group_by("shop").count(store="a")
    two.group_by("shop").count(store="b")
    made = job(one)
    assert columns(made)["n2"] == "coalesce((_source <=> 0) AND (s0_amount > 1), false)"
    assert columns(made)[made.groups[1].passed] == "(_source <=> 1)"


def test_explain_lists_inputs_stores_and_outputs(orders: Job) -> None:
    text = explain(load_plan(ROOT / "spark_jobs", "orders"))
    assert text.splitlines()[:3] == [
        "pipeline orders: 4 workers, one streaming query with 4 aggregation groups",
        "  reads   orders as Order",
        "  reads   stores as a global table, on every worker",
    ]
    assert "  holds   by locationId: general_orders_count, general_orders_revenue\n" in text
    assert (
        "  holds   by locationId, tumbling(15 s, grace 15 s): restaurant_orders_count_window, rest"
        in text
    )
    assert text.endswith("  writes  restaurant_orders_revenue\n  writes  orders_dead_letters")


def test_explain_counts_one_of_a_thing_in_the_singular() -> None:
    one = Pipeline("one", workers=1)
    one.stream("t", value=str).group_by_key().count(store="n")
    assert explain(plan(one)).startswith(
        "pipeline one: 1 worker, one streaming query with 1 aggregation group\n"
    )


@pytest.mark.parametrize("text", ["`order", "it's", "a\\", "a b"])
def test_a_fields_name_in_the_output_is_a_literal(text: str) -> None:
    stream = sales()
    stream.select({text: "amount"}).to("out")
    value = columns(job(stream))["o2_value"]
    assert parse(value).fields == {"_source", "s0_amount"}


def test_planning_needs_neither_spark_nor_airflow_nor_kafka() -> None:
    code = (
        "import sys; from pathlib import Path; from sluice.plan import explain, plan;"
        " from sluice.topology import load_pipelines, drawing;"
        " print({explain(plan(p)) and drawing.svg(p)[:4] for p in load_pipelines(Path('spark_jobs')).pipelines});"
        " print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'pyspark', 'airflow', 'confluent_kafka', 'sqlalchemy', 'pyarrow', 'numpy', 'fastapi'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["{'<svg'}", "[]"]


def test_the_selected_key_is_the_key_from_there_on() -> None:
    stream = sales()
    chosen = stream.filter("amount > 0").select_key("upper(`case`)")
    chosen.group_by_key().count(store="by_case")
    chosen.select("amount").to("by_case_topic")
    stream.group_by_key().count(store="by_shop")
    made = job(stream)
    number = chosen.node.number
    tried = attempts(made)[f"t{number}_0"]  # a computed key may be too long
    assert (tried.columns, tried.key) == (("upper(s0_case)",), 0)
    assert columns(made)[f"key{number}"].endswith(f"t{number}_0_key, NULL)")
    keys = {group.name: columns(made)[group.key] for group in made.groups}
    assert f"key{number}" in keys["by_case"]
    assert "key0" in keys["by_shop"]
    (sink,) = made.stream_sinks
    assert f"key{number}" in columns(made)[f"o{sink.number}_key"]


def test_a_record_goes_to_the_first_branch_whose_condition_is_true() -> None:
    stream = sales()
    branches = stream.split(large="amount > 100", many="quantity > 10", rest="true")
    assert list(branches) == ["large", "many", "rest"]
    for name, branch in branches.items():
        branch.group_by("shop").count(store=name)
    passed = {group.name: columns(job(stream))[group.passed] for group in job(stream).groups}
    # Each condition only applies if the previous ones are false or null.
    assert "amount" in passed["large"]
    assert "quantity" in passed["many"]
    chain = " ".join(columns(job(stream)).values())
    assert chain.count("NOT coalesce(s0_amount > 100, FALSE)") == 1
    assert chain.count("NOT coalesce(s0_quantity > 10, FALSE)") == 1


def test_a_merge_is_an_operator_only_across_stages() -> None:
    pipeline = Pipeline("merged", workers=1)
    words, more = (pipeline.stream(topic, value=str) for topic in ("words", "more"))
    first = words.deduplicate("value", within="1 hour")
    second = more.deduplicate("value", within="1 hour")
    first.merge(second).to("as_far")
    first.merge(more).to("not_as_far")
    job = planned(pipeline)
    assert [(type(operator.action).__name__, operator.stage) for operator in job.operators] == [
        ("Deduplicate", 1), ("Deduplicate", 1), ("MergeParameters", 2),
    ]  # fmt: skip
    assert "stage 2 merge" in explain(plan(pipeline))


def test_tombstones_move_the_stream_time_of_joined_tables_and_not_of_joined_streams() -> None:
    pipeline = Pipeline("joined", workers=1)
    left, right = (pipeline.table(topic, value=Shop, key="shop") for topic in ("left", "right"))
    left.join(right).suppress_until_time_limit("1 second").to("tables")
    one, other = (pipeline.stream(topic, value=Shop, key="shop") for topic in ("one", "other"))
    one.join(other, within("1 minute")).to("streams")
    job = planned(pipeline)
    valued = {
        operator.step.title: {edge.requires_value for edge in operator.edges}
        for operator in job.operators
    }
    assert valued["inner join with right"] == {False}
    assert valued["inner join with other"] == {True}


def test_a_column_says_which_step_and_which_field_it_is_for() -> None:
    stream = sales()
    stream.filter("quantity > 1").select(double="amount * 2").to("out")
    made = job(stream)
    steps = [str(made.step_of(column)).split(":")[0] for column in ("n1", "n2_double", "o3_value")]
    assert steps == [
        "filter at test_plan.py",
        "select at test_plan.py",
        "topic out at test_plan.py",
    ]
    assert made.field_names["n2_double"] == "double"
    assert made.field_names["s0_amount"] == "amount"
    assert made.step_of("unknown") is None


def test_without_added_steps_the_plan_is_that_of_the_file_before() -> None:
    names = Names("p")
    sources = len(every_operator(names, ()).nodes)
    for kept in [*combinations(PARTS, 3)][::4]:
        before = every_operator(names, kept)
        after = every_operator(names, [*(part for part in PARTS if part not in kept), *kept])
        added = after.nodes[sources : sources + len(after.nodes) - len(before.nodes)]
        names_of_added = {
            node.name for node in added if node.is_stateful or isinstance(node, nodes.Sink)
        }
        assert plan(after, without=names_of_added).job == plan(before).job, kept


def test_final_results_have_no_old_values_so_only_last_results_matter() -> None:
    stream = sales()
    windows = stream.group_by_key().windowed_by(tumbling("1 minute"), emit="window_close")
    counts = windows.count(store="counts").filter("value > 1")
    counts.group_by("_window_start").count(store="shops")
    made = job(stream)
    assert not any(operator.sends_old_values for operator in made.operators)
    stores = {operator.number: operator.store for operator in made.operators}
    assert {stores[number] for number in made.last_only_operators} == {"counts", "shops"}


@pytest.mark.parametrize(
    ("column", "to_topic", "matters"),
    [("max(most)", False, False), ("collect_list(most)", False, True), ("max(most)", True, True)],
)
def test_an_unchanged_result_matters_if_the_next_aggregate_would_change(
    column: str, to_topic: bool, matters: bool
) -> None:
    stream = sales()
    largest = stream.group_by_key().aggregate(most="max(quantity)", store="largest")
    grouped = largest.group_by("most").aggregate(shops=column, store="grouped")
    if to_topic:
        grouped.to("grouped")
    made = job(stream)
    assert made.operators_of_changes == (set() if matters else {made.operators[0].number})


ALL_FIELDS = {"shop", "amount", "quantity", "at", "order-no", "case"}


@pytest.mark.parametrize(
    ("step", "read"),
    [
        (lambda joined: joined.filter("left.amount > 1").select(city="right.city"), {"amount"}),
        (
            lambda joined: joined.select(named="left.`order-no`", value="left.quantity"),
            {"order-no", "quantity"},
        ),
        (lambda joined: joined.select(city="right.city"), {"shop"}),
        (lambda joined: joined.select(sale="left"), ALL_FIELDS),
        (lambda joined: joined.map_values(lambda value: value, returns=Sale), ALL_FIELDS),
        (lambda joined: joined, ALL_FIELDS),
        (
            lambda joined: joined.filter("1 / left.quantity > 0").select(city="right.city"),
            ALL_FIELDS,
        ),
    ],
    ids=[
        "a filter",
        "quoted and hidden names",
        "no field",
        "a struct",
        "a function",
        "nothing",
        "a step that may fail",
    ],
)
def test_a_stream_brings_the_fields_that_are_read_into_a_join_with_a_table(
    step: Callable[[Stream[Any]], Stream[Any]], read: set[str]
) -> None:
    stream = sales()
    shops = pipeline_of(stream).table("shops", value=Shop, key="shop")
    step(stream.join(shops)).to("joined")
    made = job(stream)
    (of_sales,) = (source for source in made.streams if source.topic == "sales")
    assert {each.name for each in of_sales.fields} - {"shop", "at"} == read - {"shop", "at"}
    (edge,) = (edge for operator in made.operators for edge in operator.edges if edge.is_passed_on)
    assert {name for name in ALL_FIELDS if f"'{name}'" in edge.values[0]} == read


class Keyed(Struct):
    key: int
    shop: str


def test_a_field_called_key_is_not_the_key_of_its_group() -> None:
    stream = Pipeline("keyed").stream("keyed", value=Keyed)
    stream.group_by("shop").aggregate(least="min(key)", most="max(key)", store="least")
    made = job(stream)
    (group,) = job(stream).groups
    read = {columns(made).get(name, name) for name in group.inputs}
    assert read == {"s0_key"}
