"""Partial results of sums, minima and maxima, of which either may be null."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from sluice.values.partial_results import add_up, larger, smaller

ALL = [add_up, smaller, larger]


@pytest.mark.parametrize("combine", ALL)
def test_a_null_leaves_the_other_result(combine: Callable[[Any, Any], Any]) -> None:
    assert combine(None, 3) == combine(3, None) == 3
    assert combine(None, None) is None


@pytest.mark.parametrize(
    ("combine", "result"), [(add_up, 1), (smaller, -2), (larger, 3)], ids=["sum", "min", "max"]
)
def test_two_results_become_one(combine: Callable[[Any, Any], Any], result: int) -> None:
    assert combine(3, -2) == combine(-2, 3) == result


def test_a_sum_of_integers_is_an_integer_of_any_size() -> None:
    total = add_up(2**63, 2**63)
    assert (total, type(total)) == (2**64, int)


def test_a_sum_of_decimals_loses_no_digit() -> None:
    digits = add_up(Decimal("1e300"), Decimal("1e-300")).as_tuple().digits
    assert (digits[0], digits[-1], len(digits)) == (1, 1, 601)


def test_of_equal_numbers_the_first_is_kept_with_its_digits() -> None:
    assert str(smaller(Decimal("1.0"), Decimal("1.00"))) == "1.0"
    assert str(larger(Decimal("1.0"), Decimal("1.00"))) == "1.0"
