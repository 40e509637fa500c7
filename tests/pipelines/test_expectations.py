"""Expectations: records for which a condition is not true are counted, and too many are reported."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Stream
from sluice.errors import ExpectationBroken, TopologyError
from sluice.plan import plan
from sluice.testing import TopologyTestDriver


class Sale(Struct):
    shop: str
    amount: int
    discount: int | None = None


def sales_of(pipeline: Pipeline) -> Stream[Sale]:
    return pipeline.stream("sales", value=Sale, key="shop")


def pipe(driver: TopologyTestDriver, *amounts: int, **fields: Any) -> None:
    for amount in amounts:
        driver.pipe("sales", {"shop": "Oslo", "amount": amount, **fields})


def test_all_records_go_on_and_those_that_are_not_as_expected_are_counted() -> None:
    pipeline = Pipeline("counted")
    sales = sales_of(pipeline).expect("amount >= 0").expect("amount < 5", name="small")
    sales.group_by_key().aggregate(store="total", total="sum(amount)")
    with TopologyTestDriver(pipeline) as driver:
        pipe(driver, 3, -1, 7)
        assert driver.store("total") == {"Oslo": {"total": 9}}
        counts = driver.counts()
    assert counts["expected/amount >= 0"] == counts["expected/small"] == 3
    assert counts["unexpected/amount >= 0"] == counts["unexpected/small"] == 1
    assert counts["applied"] == 3


@pytest.mark.parametrize(
    ("condition", "fields"),
    [("discount >= 0", {}), ("100 / discount > 0", {"discount": 0})],
)
def test_a_condition_without_a_result_is_not_true(condition: str, fields: dict[str, int]) -> None:
    pipeline = Pipeline("null")
    sales_of(pipeline).expect(condition).group_by_key().count(store="n")
    with TopologyTestDriver(pipeline) as driver:
        pipe(driver, 1, **fields)
        assert driver.counts()[f"unexpected/{condition}"] == 1
        assert driver.store("n") == {"Oslo": 1}
        assert driver.dead_letters() == []


def test_only_records_that_reach_the_expectation_count() -> None:
    pipeline = Pipeline("filtered")
    sales = sales_of(pipeline)
    sales.filter("amount > 10").expect("amount < 20", name="middle")
    sales.flat_map_values("array(amount, amount)").expect("value > 0", name="elements")
    sales.group_by_key().count(store="n")
    with TopologyTestDriver(pipeline) as driver:
        pipe(driver, 5, 15, 25)
        counts = driver.counts()
        assert driver.store("n") == {"Oslo": 3}
    assert (counts["expected/middle"], counts["unexpected/middle"]) == (2, 1)
    assert (counts["expected/elements"], counts["unexpected/elements"]) == (6, 0)


@pytest.mark.parametrize(
    ("at_most", "amounts", "breaks"),
    [
        (0, [1, -1], True),
        (1, [1, -1], False),
        (1, [-1, -1], True),
        (0.5, [1, -1], False),
        (0.25, [1, 1, -1], True),
        (0.0, [-1], True),
        (1.0, [-1], False),
    ],
)
def test_a_breach_ends_the_run_before_anything_is_published(
    at_most: float, amounts: list[int], *, breaks: bool
) -> None:
    pipeline = Pipeline("strict")
    sales = sales_of(pipeline).expect("amount >= 0", at_most=at_most, on_breach="fail")
    sales.group_by_key().count(store="n")
    with TopologyTestDriver(pipeline) as driver:
        pipe(driver, *amounts)
        if not breaks:
            assert driver.store("n") == {"Oslo": len(amounts)}
            return
        with pytest.raises(ExpectationBroken, match="amount >= 0 is not true for") as broken:
            driver.store("n")
    assert "test_expectations.py" in str(broken.value)
    assert "on_breach" in broken.value.next_step


def test_a_pipeline_is_degraded_until_a_batch_keeps_all_expectations() -> None:
    pipeline = Pipeline("warned")
    sales = sales_of(pipeline).expect("amount >= 0", at_most=0.25)
    sales.expect("amount < 9", name="small").group_by_key().count(store="n")

    def degraded(driver: TopologyTestDriver) -> list[str]:
        failures = driver._run._ledger.failures.all()
        return [failure.detail for failure in failures if failure.kind == "expectations"]

    with TopologyTestDriver(pipeline) as driver:
        pipe(driver, 1, 1, 1, -1)
        driver.commit()
        assert degraded(driver) == []
        pipe(driver, 9, -1)
        driver.commit()
        (detail,) = degraded(driver)
        assert detail == (
            "amount >= 0 is not true for 1 of 2 records; at_most allows 25.00% of them. "
            "small (amount < 9) is not true for 1 of 2 records; at_most allows 0."
        )
        pipe(driver, 1)
        driver.commit()
        assert degraded(driver) == []
        assert driver.store("n") == {"Oslo": 7}


def test_an_expectation_changes_no_definition_of_state() -> None:
    definitions: list[Any] = []
    for expects in (False, True):
        pipeline = Pipeline("same")
        sales = sales_of(pipeline)
        if expects:
            sales.expect("amount >= 0")
        sales.filter("amount > 1").group_by_key().aggregate(store="last", amount="last(amount)")
        (operator,) = plan(pipeline).job.operators
        definitions.append((operator.definition, operator.upstream_definition))
    assert definitions[0] == definitions[1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"condition": "amont >= 0"}, "amont"),
        ({"condition": "amount + 1"}, "condition"),
        ({"condition": "sum(amount) > 0"}, "aggregate"),
        ({"condition": "amount > 0", "at_most": -1}, "a number of records, or a share"),
        ({"condition": "amount > 0", "at_most": 1.5}, "a number of records, or a share"),
        ({"condition": "amount > 0", "at_most": True}, "a number of records, or a share"),
        ({"condition": "amount > 0", "on_breach": "skip"}, "unknown on_breach='skip'"),
        ({"condition": "amount > 0", "name": 7}, "the name of an expectation"),
    ],
)
def test_mistakes_are_found_when_the_file_is_loaded(options: dict[str, Any], why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        sales_of(Pipeline("wrong")).expect(**options)


def test_two_expectations_need_two_names() -> None:
    pipeline = Pipeline("twice")
    sales = sales_of(pipeline).expect("amount > 0")
    with pytest.raises(TopologyError, match="already has the name 'amount > 0'"):
        sales.expect("amount > 0")


def test_the_results_of_an_aggregate_cannot_be_expected() -> None:
    totals = sales_of(Pipeline("later")).group_by_key().count(store="n").to_stream()
    with pytest.raises(TopologyError, match="follows a step with state, such as an aggregate"):
        totals.expect("value > 0")
