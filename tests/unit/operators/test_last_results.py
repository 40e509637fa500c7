"""An aggregation that only feeds a store sends one result a batch for each key and window: the last one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import hopping, tumbling
from sluice.operators.aggregation.aggregate import Aggregate, WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Calculation, Custom, Functions
from sluice.operators.base import Operator
from tests.unit.operators.feed import Given, Ran, run

POISON = 13


def adds(key: str, so_far: int, value: int | None) -> int:
    return so_far + 26 // ((value or 0) - POISON)


def appends(key: str, so_far: list[int], value: int | None) -> list[int]:
    so_far.append(value or 0)
    if value == POISON:
        raise ValueError("13")
    return so_far


def divides(key: str, so_far: float, value: int | None) -> float:
    return math.nan if value == POISON else so_far + (value or 0) / 2


CALCULATIONS: dict[str, Callable[[], Calculation]] = {
    "an int": lambda: Custom(int, adds, value_type=int, argument_type=int),
    "a list": lambda: Custom(list, appends, value_type=list[int], argument_type=int),
    "a float that may be NaN": lambda: Custom(float, divides, value_type=float, argument_type=int),
    "a reduction": lambda: Custom(None, adds, value_type=int, argument_type=int),
}
OPERATORS: dict[str, Callable[[Calculation, bool], Operator[Any]]] = {
    "no windows": lambda made, only_last: Aggregate(made, only_last=only_last),
    "tumbling windows": lambda made, only_last: WindowedAggregate(
        made, tumbling("5 ms", "3 ms"), only_last=only_last
    ),
    "hopping windows": lambda made, only_last: WindowedAggregate(
        made, hopping("9 ms", advance="3 ms"), only_last=only_last
    ),
}
RECORDS = st.lists(
    st.builds(Given, st.sampled_from(["a", "a", "b", None]), st.sampled_from([None, 1, 2, 12, POISON]),
              st.integers(0, 30)),
    min_size=1, max_size=30,
)  # fmt: skip


def both(name: str, calculation: str, rows: list[Given], cuts: set[int]) -> tuple[Ran, Ran]:
    """The same rows through an operator that sends every result, and through one that sends only the last ones."""
    every, last = (
        run(OPERATORS[name](CALCULATIONS[calculation](), only), rows, cuts)
        for only in (False, True)
    )
    return every, last


@pytest.mark.parametrize("calculation", CALCULATIONS)
@pytest.mark.parametrize("name", OPERATORS)
@given(rows=RECORDS, cuts=st.sets(st.integers(1, 30)))
def test_the_last_result_is_that_of_an_operator_which_sends_every_result(
    name: str, calculation: str, rows: list[Given], cuts: set[int]
) -> None:
    every, last = both(name, calculation, rows, cuts)
    assert last.windows == every.windows
    assert (last.states, last.dropped, last.rejected) == (
        every.states,
        every.dropped,
        every.rejected,
    )


@pytest.mark.parametrize("name", OPERATORS)
@given(rows=RECORDS)
def test_a_batch_has_one_result_for_each_key_and_window(name: str, rows: list[Given]) -> None:
    every, last = both(name, "an int", rows, set())
    assert sorted(map(repr, last.results)) == sorted(
        map(repr, {(r.key, r.window): r for r in every.results}.values())
    )


def test_a_record_that_fails_leaves_the_result_before_it() -> None:
    rows = [Given("a", 1, 1), Given("a", POISON, 2), Given("b", POISON, 3)]
    _, last = both("no windows", "a float that may be NaN", rows, set())
    assert last.results == [("a", 0.5, 1, None, False)]
    assert [rejection.why for rejection in last.rejected] == [
        "ValueError: nan cannot be written as JSON"
    ] * 2


def test_a_batch_in_which_only_a_failing_record_has_a_key_has_no_result_for_it() -> None:
    rows = [Given("a", 1, 1), Given("a", POISON, 2)]
    _, last = both("no windows", "a list", rows, {1})
    assert last.values == [[1]]


def test_sums_beyond_a_bigint_are_rejected_although_only_the_last_result_is_sent() -> None:
    made = Functions(Function("sum", int, bigint=True), scalar=True)
    ran = run(
        Aggregate(made, only_last=True),
        [Given("a", [2**62], 1), Given("a", [2**62], 2), Given("a", [-1], 3)],
    )
    assert ran.values == [2**62 - 1]
    assert len(ran.rejected) == 1


def test_counts_are_sent_once() -> None:
    made = Functions(Function("count"))
    ran = run(Aggregate(made, only_last=True), [Given("a", [1], 1), Given("a", [1], 2)])
    assert ran.values == [[2]]


def test_a_record_whose_sum_does_not_fit_64_bits_is_rejected() -> None:
    """MessagePack holds an integer of 64 bits without a sign, but later steps read a BIGINT."""
    made = Custom(int, lambda _, so_far, value: so_far + value, value_type=int, argument_type=int)
    ran = run(
        Aggregate(made, only_last=True),
        [Given("a", 2**62, 1), Given("a", 2**62, 2), Given("a", 1, 3)],
    )
    assert [rejection.time for rejection in ran.rejected] == [2]
    assert ran.values == [2**62 + 1]
