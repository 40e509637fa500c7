"""Sketches are exact for few values, close for many, and equal in any order; each change can be undone."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.operators.aggregation import sketches
from sluice.operators.aggregation.sketches import Distinct, Histogram, hash_of
from sluice.operators.encoding import encode_state, state_decoder


def distinct(values: list[int]) -> Distinct:
    made = Distinct({}, bytearray())
    for value in values:
        made.add(hash_of(value))
    return made


def histogram(values: list[float]) -> Histogram[float]:
    made: Histogram[float] = Histogram({}, {})
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize("count", [0, 1, 512, 513, 5_000, 40_000])
def test_the_number_of_distinct_values_is_exact_or_close(count: int) -> None:
    estimate = distinct([*range(count), *range(0, count, 3)]).estimate
    assert estimate == count if count <= 512 else estimate == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize("count", [1, 3, 512, 5_000])
def test_percentiles_are_exact_or_within_one_percent(count: int) -> None:
    chance = random.Random(count)
    values = [chance.choice((-1, 1)) * 10 ** chance.uniform(-3, 6) for _ in range(count)]
    made, ordered = histogram(values), sorted(values)
    for part in (0.0, 0.01, 0.5, 0.99, 1.0):
        wanted = ordered[max(-int(-part * count // 1), 1) - 1]
        found = made.percentile(part)
        assert found == wanted if count <= 512 else found == pytest.approx(wanted, rel=0.01)


def test_percentiles_have_the_type_of_the_numbers() -> None:
    numbers: Histogram[int] = Histogram({}, {})
    for number in range(2_000):
        numbers.add(number)
    assert isinstance(numbers.percentile(0.5), int)
    amounts: Histogram[Decimal] = Histogram({}, {})
    for cents in range(2_000):
        amounts.add(Decimal(cents).scaleb(-2))
    middle = amounts.percentile(0.5)
    assert isinstance(middle, Decimal)
    assert middle.as_tuple().exponent == -2


NUMBERS = st.lists(st.integers(-50, 50), max_size=30)


@given(NUMBERS, NUMBERS, st.randoms())
def test_parts_in_any_order_add_up_to_the_whole(
    one: list[int], two: list[int], chance: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sketches, "MOST_EXACT", 4)
        shuffled = one + two
        chance.shuffle(shuffled)
        whole = distinct(shuffled)
        merged = distinct(one).merge(distinct(two))
        assert (whole.registers, whole.hashes.keys()) == (merged.registers, merged.hashes.keys())
        numbers = histogram([*map(float, shuffled)])
        assert numbers == histogram([*map(float, one)]).merge(histogram([*map(float, two)]))


@given(NUMBERS, st.integers(-50, 50))
def test_a_change_can_be_undone_and_a_sketch_kept(values: list[int], more: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sketches, "MOST_EXACT", 4)
        one, numbers = distinct(values), histogram([*map(float, values)])
        before = encode_state((one, numbers))
        for undo in (one.add(hash_of(more)), numbers.add(float(more))):
            if undo is not None:
                undo()
        assert encode_state((one, numbers)) == before
        assert state_decoder(tuple[Distinct, Histogram[float]])(before) == (one, numbers)
