"""Aggregations over a number of a key's records, held against a plain list of the records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import every_records, last_records
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Custom, Functions
from sluice.operators.aggregation.count_windows import EveryRecordsAggregate, LastRecordsAggregate
from sluice.operators.operator import Operator
from sluice.values.windows import CountWindow
from tests.unit.operators.feed import Given, Result, run

POISON = 13


def appends(key: str, so_far: list[int], value: int) -> list[int]:
    so_far.append(value)
    if value == POISON:
        raise ValueError("13")
    return so_far


def lists(window: CountWindow, sends_old_values: bool) -> Operator[Any]:
    """An aggregate of the values in the window."""
    calculation = Custom(list, appends, value_type=list[int], argument_type=int)
    operator = LastRecordsAggregate if window.slides else EveryRecordsAggregate
    return operator(calculation, window, sends_old_values=sends_old_values)


windows = st.builds(CountWindow, st.integers(1, 4), st.booleans(), st.booleans())
records = st.lists(
    st.builds(
        Given,
        st.sampled_from(["a", "a", "b", None]),
        st.sampled_from([None, 1, 2, 3, POISON]),
        st.integers(0, 30),
    ),
    max_size=30,
)


def by_definition(window: CountWindow, rows: list[Given]) -> list[Result]:
    """Each result with its old value, from the list of each key's records."""
    counted: dict[str, list[Given]] = {}
    sent: dict[str, list[int]] = {}
    results = []
    for row in rows:
        if row.key is None or row.value in (None, POISON):
            continue
        of_key = counted.setdefault(row.key, [])
        of_key.append(row)
        if window.slides:
            members = of_key[-window.records :]
        else:
            members = of_key[(len(of_key) - 1) // window.records * window.records :]
        if window.only_complete and len(members) < window.records:
            continue
        time = max(member.time for member in members)
        if row.key in sent:
            results.append(Result(row.key, sent[row.key], time, old=True))
        sent[row.key] = [member.value for member in members]
        results.append(Result(row.key, sent[row.key], time))
    return results


@given(windows, records, st.sets(st.integers(0, 30)), st.booleans())
def test_any_cut_gives_the_windows_of_the_definition(
    window: CountWindow, rows: list[Given], cuts: set[int], sends_old_values: bool
) -> None:
    ran = run(lists(window, sends_old_values), rows, cuts)
    expected = by_definition(window, rows)
    assert ran.results == [result for result in expected if sends_old_values or not result.old]
    assert len(ran.rejected) == sum(row.key is not None and row.value == POISON for row in rows)
    assert ran.dropped["null_key"] + ran.dropped["null_value"] == sum(
        None in (row.key, row.value) for row in rows
    )


@pytest.mark.parametrize("window", [every_records(3), last_records(3)], ids=str)
def test_sql_functions_start_anew_with_a_window(window: CountWindow) -> None:
    operator = LastRecordsAggregate if window.slides else EveryRecordsAggregate
    calculation = Functions(Function("max", int), Function("collect_list", int))
    ran = run(operator(calculation, window), [Given("a", [9 - n, n], n) for n in range(4)])
    assert ran.values[:3] == [[9, [0]], [9, [0, 1]], [9, [0, 1, 2]]]
    assert ran.values[3] == ([8, [1, 2, 3]] if window.slides else [6, [3]])
