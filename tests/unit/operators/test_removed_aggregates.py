"""A function removes an aggregate by returning None: nothing of the aggregate counts any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice import every_records, last_records, session, sliding, tumbling
from sluice.operators.aggregation.aggregate import Aggregate, TableAggregate, WindowedAggregate
from sluice.operators.aggregation.calculation import Batched, Calculation, Custom
from sluice.operators.aggregation.count_windows import EveryRecordsAggregate, LastRecordsAggregate
from sluice.operators.aggregation.sessions import SessionAggregate
from sluice.operators.aggregation.sliding import SlidingAggregate
from tests.unit.operators.feed import Given, Ran, run, run_in_columns

LARGEST = 8
Run = Callable[..., Ran]
BOTH = pytest.mark.parametrize("run_rows", [run, run_in_columns], ids=["rows", "columns"])
CUTS = pytest.mark.parametrize("cuts", [(), (1, 2, 3, 4)], ids=["one batch", "each row"])


def add(key: str, total: int, value: int) -> int | None:
    return _unless_large(total + value)


def subtract(key: str, total: int, value: int) -> int | None:
    return _unless_large(total - value)


def merge(key: str, earlier: int, later: int) -> int:
    return earlier + later


def _unless_large(total: int) -> int | None:
    return None if total > LARGEST else total


def sums(value_type: Any = int) -> Calculation:
    return Custom(int, add, subtract, merge, value_type)


def rows(*values: tuple[int, int]) -> list[Given]:
    """Rows of one key: their values and times."""
    return [Given("a", value, time) for value, time in values]


def results(ran: Ran) -> list[tuple[Any, int, bool]]:
    return [(result.value, result.time, result.old) for result in ran.results]


@CUTS
@BOTH
@pytest.mark.parametrize("value_type", [int, int | None, Any])
def test_the_next_record_begins_a_new_aggregate_with_its_own_time(
    run_rows: Run, cuts: Any, value_type: Any
) -> None:
    ran = run_rows(Aggregate(sums(value_type)), rows((5, 10), (5, 11), (3, 4), (4, 2)), cuts)
    assert results(ran) == [(5, 10, False), (None, 11, False), (3, 4, False), (7, 4, False)]


@CUTS
@BOTH
def test_the_next_result_replaces_nothing(run_rows: Run, cuts: Any) -> None:
    ran = run_rows(Aggregate(sums(), sends_old_values=True), rows((5, 10), (5, 11), (3, 12)), cuts)
    assert results(ran) == [(5, 10, False), (5, 11, True), (None, 11, False), (3, 12, False)]


@CUTS
@BOTH
def test_a_removed_aggregate_leaves_no_state(run_rows: Run, cuts: Any) -> None:
    assert run_rows(Aggregate(sums()), rows((5, 10), (5, 11)), cuts).states == {}
    assert run_rows(Aggregate(sums()), rows((9, 10)), cuts).states == {}


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 3)])
@BOTH
@pytest.mark.parametrize("is_windowed", [False, True])
def test_the_last_result_of_a_batch_has_the_time_of_the_new_aggregate(
    is_windowed: bool, run_rows: Run, cuts: Any
) -> None:
    window = tumbling("1 minute", grace="1 minute")
    summing = (
        WindowedAggregate(sums(), window, only_last=True)
        if is_windowed
        else Aggregate(sums(), only_last=True)
    )
    ran = run_rows(summing, rows((9, 50), (3, 4), (4, 2)), cuts)
    assert results(ran)[-1] == (7, 4, False)


@CUTS
@BOTH
def test_a_function_of_lists_removes_aggregates(run_rows: Run, cuts: Any) -> None:
    def add_all(key: str, total: int, values: list[int]) -> int | None:
        return _unless_large(total + sum(values))

    ran = run_rows(
        Aggregate(Batched(int, add_all, value_type=int)), rows((9, 50), (3, 4), (4, 2)), cuts
    )
    assert results(ran) == [(None, 50, False), (3, 4, False), (7, 4, False)]


@CUTS
@BOTH
def test_a_window_begins_anew(run_rows: Run, cuts: Any) -> None:
    windows = WindowedAggregate(sums(), tumbling("100 ms", grace="1 minute"))
    ran = run_rows(windows, rows((5, 10), (5, 11), (3, 4)), cuts)
    assert [(result.window, result.value, result.time) for result in ran.results] == [
        ((0, 100), 5, 10),
        ((0, 100), None, 11),
        ((0, 100), 3, 4),
    ]


@CUTS
def test_a_removed_session_is_not_merged(cuts: Any) -> None:
    ran = run(
        SessionAggregate(sums(), session("5 ms", grace="30 ms"), sends_old_values=True),
        rows((9, 10), (1, 12)),
        cuts,
    )
    assert [(result.window, result.value) for result in ran.results] == [
        ((10, 10), None),
        ((12, 12), 1),
    ]


@CUTS
def test_a_session_that_is_removed_as_it_grows_deletes_its_row(cuts: Any) -> None:
    ran = run(
        SessionAggregate(sums(), session("5 ms"), sends_old_values=True),
        rows((5, 10), (5, 12), (2, 13)),
        cuts,
    )
    assert [(result.window, result.value, result.old) for result in ran.results] == [
        ((10, 10), 5, False),
        ((10, 10), 5, True),
        ((10, 10), None, False),
        ((10, 12), None, False),
        ((13, 13), 2, False),
    ]


@CUTS
def test_a_removed_sliding_window_is_not_counted_again(cuts: Any) -> None:
    """The results of Kafka Streams' test driver."""
    slides = SlidingAggregate(sums(), sliding("10 ms", grace="30 ms"))
    ran = run(slides, rows((9, 10), (1, 12)), cuts)
    assert [(result.window, result.value) for result in ran.results] == [
        ((0, 10), None),
        ((2, 12), 1),
    ]
    slides = SlidingAggregate(sums(), sliding("10 ms", grace="30 ms"))
    ran = run(slides, rows((5, 10), (5, 12), (1, 14)), cuts)
    assert [(result.window, result.value, result.time) for result in ran.results] == [
        ((0, 10), 5, 10), ((11, 21), 5, 12), ((2, 12), None, 12), ((11, 21), 6, 14), ((4, 14), 6, 14),
    ]  # fmt: skip


@CUTS
def test_a_window_of_a_number_of_records_goes_on_with_a_new_aggregate(cuts: Any) -> None:
    every = EveryRecordsAggregate(sums(), every_records(4))
    ran = run(every, rows((9, 50), (3, 4), (2, 2), (1, 1), (1, 9)), cuts)
    assert [(value, time) for value, time, _ in results(ran)] == [
        (None, 50),
        (3, 4),
        (5, 4),
        (6, 4),
        (1, 9),
    ]
    last = LastRecordsAggregate(sums(), last_records(2))
    ran = run(last, rows((9, 50), (3, 4), (2, 2)), cuts)
    assert [(value, time) for value, time, _ in results(ran)] == [(None, 50), (3, 4), (5, 4)]


@CUTS
@BOTH
@pytest.mark.parametrize("only_last", [False, True])
def test_a_removed_group_of_a_table_has_no_rows(run_rows: Run, cuts: Any, only_last: bool) -> None:
    def row(name: str, value: int, time: int, *, old: bool = False) -> Given:
        return Given("g", value, time, old=old, foreign=name)

    given = [
        row("x", 5, 10),
        row("y", 5, 11),
        row("z", 1, 4),
        row("x", 5, 5, old=True),
        row("w", 2, 3),
    ]
    ran = run_rows(
        TableAggregate(sums(), sends_old_values=not only_last, only_last=only_last), given, cuts
    )
    # The old row of x is subtracted, as in Kafka Streams: the new aggregate has a row.
    assert results(ran)[-1] == (-2, 5, False)
    ran = run_rows(TableAggregate(sums(), only_last=only_last), given[:2], cuts)
    assert ran.states == {}
    assert results(ran)[-1] == (None, 11, False)
