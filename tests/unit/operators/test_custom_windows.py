"""Windows of an author's function: its windows are used as they are, and its mistakes reject the record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import custom_windows, hopping
from sluice.operators.aggregation.aggregate import WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Functions
from sluice.operators.aggregation.custom_windows import CustomWindowAggregate
from tests.unit.operators.feed import Given, run

COUNT = Functions(Function("count"))


def hops(time: int) -> list[tuple[int, int]]:
    """Hopping windows of 9 ms every 3 ms, the latest first."""
    return [(start, start + 9) for start in range(time // 3 * 3, -1, -3) if time < start + 9]


records = st.lists(
    st.builds(
        Given, st.sampled_from(["a", "b", None]), st.sampled_from([None, [1]]), st.integers(0, 60)
    ),
    max_size=40,
)


@given(records, st.sets(st.integers(0, 40)), st.booleans())
def test_hopping_windows_of_a_function_are_hopping_windows(
    rows: list[Given], cuts: set[int], sends_old_values: bool
) -> None:
    own = CustomWindowAggregate(
        COUNT, custom_windows(hops, grace="4 ms"), sends_old_values=sends_old_values
    )
    window = hopping("9 ms", advance="3 ms", grace="4 ms")
    hopping_windows = WindowedAggregate(COUNT, window, sends_old_values=sends_old_values)
    ran, expected = run(own, rows, cuts), run(hopping_windows, rows, cuts)
    assert (ran.results, ran.dropped) == (expected.results, expected.dropped)
    assert ran.states.keys() == expected.states.keys(), "closed windows are forgotten"


def test_a_record_without_a_window_is_counted() -> None:
    ran = run(
        CustomWindowAggregate(
            COUNT, custom_windows(lambda time: [(10, 20)] if 10 <= time < 20 else [])
        ),
        [Given("a", [1], time) for time in (5, 12, 15, 25)],
    )
    assert (ran.windows, ran.dropped) == ({("a", (10, 20)): [2]}, {"no_window": 2})


def test_windows_can_have_the_same_start() -> None:
    """As hours and days: a day's first hour starts with the day."""

    def windows(time: int) -> list[tuple[int, int]]:
        return [(time // size * size, time // size * size + size) for size in (24, 3)]

    ran = run(
        CustomWindowAggregate(COUNT, custom_windows(windows)),
        [Given("a", [1], time) for time in (1, 2, 5)],
    )
    assert {window: values[-1] for window, values in ran.windows.items()} == {
        ("a", (0, 3)): 2, ("a", (0, 24)): 3, ("a", (3, 6)): 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda time: [(time + 1, time + 2)],
            r"returned \(6, 7\) for 5; a window is \(start, end\)",
        ),
        (lambda time: [(0, time)], r"returned \(0, 5\) for 5"),
        (lambda time: [(-10, time + 1)], r"returned \(-10, 6\) for 5"),
        (lambda time: [(0.5, time + 1)], r"returned \(0.5, 6\) for 5"),
        (lambda time: [0, 10], r"returned 0 for 5"),
        (lambda time: [(0, 10**16)], r"returned \(0, 10000000000000000\) for 5"),
        (lambda time: None, r"returned None for 5, not a list"),
        (lambda time: [(0, 10), (0, 20), (0, 10)], r"returned a window twice for 5: .*"),
        (lambda time: 1 / 0, r"division by zero"),
    ],
)
def test_a_mistake_of_the_function_rejects_the_record(
    function: Callable[[int], Any], message: str
) -> None:
    operator = CustomWindowAggregate(COUNT, custom_windows(function))
    ran = run(operator, [Given("a", [1], 5)])
    assert [rejected.time for rejected in ran.rejected] == [5]
    assert re.search(message, ran.rejected[0].why)
