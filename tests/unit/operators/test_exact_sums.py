"""Sums of doubles are exact for any order and batches, and rounded once."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest

from sluice.operators.aggregation.aggregate import Aggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Functions
from sluice.operators.aggregation.sums import ExactSum
from sluice.operators.encoding import encode_state, state_decoder
from sluice.operators.exact_sums import Exact
from tests.unit.operators.feed import Given, run

EDGES = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308,
         0.1, 0.2, 0.3, 1e16, 1.0, -1.0, 1e-17, 2.0**53, 2.0**53 + 2]  # fmt: skip


def doubles(chance: random.Random) -> list[float]:
    """Boundary values, amounts, and numbers of all sizes."""
    kinds = [
        lambda: chance.choice(EDGES),
        lambda: chance.randrange(-(10**6), 10**6) / 100,
        lambda: math.ldexp(chance.uniform(-1, 1), chance.randrange(-1073, 1020)),
    ]
    return [chance.choice(kinds)() for _ in range(chance.randrange(1, 60))]


def exactly(values: list[float]) -> float | None:
    """The double nearest to the sum; None if it is too large."""
    try:
        return float(sum(map(Fraction, values)))
    except OverflowError:
        return None


def read(accumulator: Any) -> float | None:
    try:
        return ExactSum().result(accumulator)
    except OverflowError:
        return None


def test_order_batches_and_subtraction_do_not_change_the_sum() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        values, gone = doubles(rng), doubles(rng)
        steps = [(value, 1) for value in values + gone] + [(value, -1) for value in gone]
        rng.shuffle(steps)
        sums, decode = ExactSum(), state_decoder(ExactSum().kind)
        accumulator, other = sums.new_accumulator(), sums.new_accumulator()
        for value, sign in steps:
            if rng.random() < 0.2:
                accumulator, other = other, accumulator
            accumulator = (
                sums.add(accumulator, value) if sign == 1 else sums.subtract(accumulator, value)
            )
            if rng.random() < 0.3:
                accumulator = decode(encode_state(accumulator))
        whole = sums.merge(accumulator, other)
        assert whole[0] == len(values)
        assert read(whole) == exactly(values)
        in_order = sums.new_accumulator()
        for value in values:
            in_order = sums.add(in_order, value)
        assert encode_state(whole) == encode_state(in_order), "the state has the same bytes"


@pytest.mark.parametrize("value", EDGES)
def test_a_single_double_is_unchanged(value: float) -> None:
    exact = Exact().add(value)
    assert float(exact) == value
    assert float(Exact.from_bytes(exact.to_bytes())) == value


def test_a_sum_that_is_too_large_raises_until_enough_is_subtracted() -> None:
    largest = EDGES[5]
    exact = Exact().add(largest).add(largest)
    with pytest.raises(OverflowError, match="larger than any double"):
        float(exact)
    assert float(exact.subtract(largest)) == largest


def test_tenths_add_up_exactly() -> None:
    functions = Functions(Function("sum", float), Function("avg", float))
    for cuts in ([], [1], [1, 2]):
        ran = run(Aggregate(functions), [Given("a", [x, x], 0) for x in (0.1, 0.2, 0.3)], cuts)
        assert ran.values[-1] == [0.6, 0.2], "adding the doubles directly gives 0.6000000000000001"
