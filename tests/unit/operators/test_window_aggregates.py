"""Windows: tumbling, hopping, sliding, sessions; grace and lateness to the millisecond."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import hopping, session, sliding, tumbling
from sluice.operators.aggregation.aggregate import WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Custom, Functions
from sluice.operators.aggregation.sessions import SessionAggregate
from sluice.operators.aggregation.sliding import SlidingAggregate
from sluice.operators.operator import Operator
from sluice.operators.suppress import Suppress
from sluice.values.windows import Bounds, TimeWindow
from tests.unit.operators.feed import Given, Ran, run

COUNT = Functions(Function("count"))
SECOND = 1000


def clock(text: str) -> int:
    """8:01:13 as ms since midnight."""
    hours, minutes, seconds = map(int, text.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * SECOND


def at(*times: int, key: str = "a") -> list[Given]:
    return [Given(key, [None], time) for time in times]


def counts(ran: Ran, key: str = "a") -> dict[Bounds | None, int]:
    return {window: value[0] for (owner, window), value in ran.windows.items() if owner == key}


MINUTES = WindowedAggregate(COUNT, tumbling("1 minute", grace="15 s"))
FIRST, SECOND_MINUTE = (clock("8:00:00"), clock("8:01:00")), (clock("8:01:00"), clock("8:02:00"))
EVENTS = at(*map(clock, ("8:00:04", "8:00:54", "8:01:05", "8:00:58", "8:01:13")))


def test_grace_accepts_slightly_late_records() -> None:
    ran = run(MINUTES, EVENTS)
    assert counts(ran) == {FIRST: 3, SECOND_MINUTE: 2}
    assert not ran.dropped


def test_any_key_can_close_a_window() -> None:
    tick = at(clock("8:01:15"), key="b")
    assert counts(run(MINUTES, EVENTS + tick))[FIRST] == 3
    late = run(MINUTES, EVENTS + tick + at(clock("8:00:59")))
    assert (counts(late)[FIRST], late.dropped) == (3, {"late": 1})


def test_a_millisecond_before_it_closes_the_window_still_takes_records() -> None:
    ran = run(MINUTES, EVENTS + at(clock("8:01:15") - 1, key="b") + at(clock("8:00:59")))
    assert (counts(ran)[FIRST], ran.dropped) == (4, {})


def test_a_closed_window_is_forgotten_and_its_result_stays() -> None:
    ran = run(MINUTES, EVENTS + at(clock("9:00:00"), key="b"))
    assert list(ran.states) == ["b"]
    assert counts(ran) == {FIRST: 3, SECOND_MINUTE: 2}


def test_hopping_windows_overlap_start_at_0_and_are_late_one_by_one() -> None:
    operator = WindowedAggregate(COUNT, hopping("10 ms", advance="5 ms"))
    assert counts(run(operator, at(3))) == {(0, 10): 1}
    assert counts(run(operator, at(12))) == {(5, 15): 1, (10, 20): 1}
    ran = run(operator, at(16, 12))
    assert counts(ran) == {(10, 20): 2, (15, 25): 1}, "[5, 15) is closed, [10, 20) is not"
    assert ran.dropped == {"late": 1}


def test_a_record_late_for_all_its_windows_is_counted_once_for_each() -> None:
    assert run(WindowedAggregate(COUNT, hopping("10 ms", advance="5 ms")), at(40, 12)).dropped == {
        "late": 2
    }


@pytest.mark.parametrize(
    "operator",
    [WindowedAggregate(COUNT, tumbling("5 ms")), SessionAggregate(COUNT, session("5 ms"))],
    ids=["tumbling", "session"],
)
def test_time_windows_and_sessions_process_null_values(
    operator: WindowedAggregate | SessionAggregate,
) -> None:
    ran = run(operator, [Given("a", None, 1), Given("a", None, 2), Given(None, [None], 3)])
    assert (ran.values[-1], ran.dropped) == ([2], {"null_key": 1})


@pytest.mark.parametrize(
    "operator",
    [
        WindowedAggregate(COUNT, tumbling("10 ms")),
        SlidingAggregate(COUNT, sliding("10 ms")),
        SessionAggregate(COUNT, session("10 ms")),
    ],
    ids=["tumbling", "sliding", "sessions"],
)
def test_a_late_record_keeps_its_headers(operator: Operator[Any]) -> None:
    records = [given._replace(headers=str(number)) for number, given in enumerate(at(5, 60, 7))]
    ran = run(operator, records)
    assert (ran.dropped, ran.late) == ({"late": 1}, ["2"])


def test_late_records_and_null_keys_do_not_advance_time() -> None:
    operator = WindowedAggregate(COUNT, tumbling("5 ms"))
    assert not run(operator, [*at(1), Given(None, [None], 100), *at(2)]).dropped["late"]


def test_sliding_windows_follow_their_values() -> None:
    operator = SlidingAggregate(COUNT, sliding("5 seconds"))
    assert counts(run(operator, at(6000, 7000, 13_000))) == {
        (1000, 6000): 1,
        (2000, 7000): 2,
        (6001, 11_001): 1,
        (8000, 13_000): 1,
    }


def test_early_values_share_the_first_sliding_window() -> None:
    operator = SlidingAggregate(COUNT, sliding("10 ms"))
    assert counts(run(operator, at(2, 5))) == {(0, 10): 2, (3, 13): 1}
    assert counts(run(operator, at(5, 2))) == {(0, 10): 2, (3, 13): 1}, "in any order"


def test_early_values_change_their_sliding_windows_in_the_order_of_kafka_streams() -> None:
    ran = run(SlidingAggregate(COUNT, sliding("10 ms")), at(2, 6, 8, 4))
    changed = [(result.window, result.value[0]) for result in ran.results[-3:]]
    assert changed == [((3, 13), 3), ((5, 15), 2), ((0, 10), 4)], (
        "others, the new one right after 4, the shared one"
    )


def test_sliding_windows_do_not_depend_on_the_order_within_grace() -> None:
    operator = SlidingAggregate(COUNT, sliding("10 ms", grace="100 ms"))
    assert counts(run(operator, at(20, 25, 31))) == counts(run(operator, at(31, 20, 25)))


def test_a_sliding_window_that_begins_right_after_the_record_before_is_sent_twice() -> None:
    ran = run(SlidingAggregate(COUNT, sliding("5 ms")), at(102, 103, 109))
    assert [(result.window, result.value) for result in ran.results if result.time == 109] == [
        ((104, 109), [1]),
        ((104, 109), [1]),
    ], "as the window after 103 and as the one up to 109, like in Kafka Streams"


def sliding_by_definition(times: list[int], size: int) -> dict[Bounds | None, int]:
    starts = {max(0, time - size) for time in times} | {time + 1 for time in times}
    held = {
        (start, start + size): sum(start <= time <= start + size for time in times)
        for start in starts
    }
    return {window: count for window, count in held.items() if count}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.integers(1, 12))
def test_sliding_windows_match_their_definition(times: list[int], size: int) -> None:
    ran = run(
        SlidingAggregate(COUNT, sliding(timedelta(milliseconds=size), grace="100 ms")), at(*times)
    )
    assert counts(ran) == sliding_by_definition(times, size)


def test_sliding_is_late_for_a_window_that_ends_before_stream_time_less_grace() -> None:
    operator = SlidingAggregate(COUNT, sliding("10 ms", grace="5 ms"))
    ends_now = run(operator, at(30, key="b") + at(25))
    assert (counts(ends_now), ends_now.dropped) == ({(15, 25): 1}, {})
    ended = run(operator, at(30, key="b") + at(24))
    assert (counts(ended), ended.dropped) == ({}, {"late": 1})


def test_sliding_drops_nulls_without_advancing_time() -> None:
    rows = [Given("a", None, 100), *at(5)]
    ran = run(SlidingAggregate(COUNT, sliding("3 ms")), rows, drops_null_values=True)
    assert (counts(ran), ran.dropped) == ({(2, 5): 1}, {"null_value": 1})


def test_lists_of_sliding_windows_are_separate() -> None:
    collect = Functions(Function("collect_list", int))
    rows = [Given("a", [number], time) for number, time in ((1, 20), (2, 25), (3, 27))]
    ran = run(SlidingAggregate(collect, sliding("10 ms")), rows)
    assert ran.windows["a", (10, 20)] == [[1]]
    assert ran.windows["a", (17, 27)] == [[1, 2, 3]]
    assert ran.windows["a", (21, 31)] == [[2, 3]]


def test_values_within_the_gap_form_one_session() -> None:
    ran = run(SessionAggregate(COUNT, session("5 ms")), at(10, 15))
    assert ran.results[-1][:4] == ("a", [2], 15, (10, 15))
    assert counts(run(SessionAggregate(COUNT, session("5 ms")), at(10, 16))) == {
        (10, 10): 1,
        (16, 16): 1,
    }


def test_merging_sends_tombstones_then_the_merged_session() -> None:
    ran = run(SessionAggregate(COUNT, session("5 ms", grace="20 ms")), at(10, 20, 15))
    assert [(result.window, result.value) for result in ran.results[2:]] == [
        ((10, 10), None),
        ((20, 20), None),
        ((10, 20), [3]),
    ]


def test_a_value_inside_a_session_deletes_the_session_and_adds_it_again() -> None:
    ran = run(SessionAggregate(COUNT, session("5 ms"), sends_old_values=True), at(10, 14, 12))
    assert [(result.window, result.value, result.old) for result in ran.results[-3:]] == [
        ((10, 14), [2], True),
        ((10, 14), None, False),
        ((10, 14), [3], False),
    ]


def test_a_value_at_the_only_time_of_a_session_replaces_its_row() -> None:
    ran = run(SessionAggregate(COUNT, session("5 ms"), sends_old_values=True), at(10, 10))
    assert [(result.window, result.value, result.old) for result in ran.results] == [
        ((10, 10), [1], False),
        ((10, 10), [1], True),
        ((10, 10), [2], False),
    ]


@pytest.mark.parametrize(("time", "accepted"), [(81, True), (82, False)])
def test_a_value_is_late_if_its_merged_session_has_closed(time: int, accepted: bool) -> None:
    ran = run(SessionAggregate(COUNT, session("10 ms", grace="3 ms")), at(time, key="b") + at(68))
    assert ran.dropped == ({} if accepted else {"late": 1})


def test_a_session_accepts_values_until_they_are_late() -> None:
    ran = run(SessionAggregate(COUNT, session("5 ms")), at(10) + at(15, key="b") + at(10))
    assert counts(ran) == {(10, 10): 2}
    ran = run(SessionAggregate(COUNT, session("5 ms")), at(10) + at(16, key="b") + at(14))
    assert counts(ran) == {(10, 10): 1, (14, 14): 1}, "the first session has closed"


def test_python_sessions_use_their_merger() -> None:
    custom = Custom(
        list, lambda key, seen, n: [*seen, n], None, lambda key, one, other: one + other, list[int]
    )
    rows = [Given("a", 1, 10), Given("a", 2, 20), Given("a", 3, 15)]
    assert run(SessionAggregate(custom, session("5 ms", grace="20 ms")), rows).values[-1] == [
        1,
        2,
        3,
    ]


def suppressed(
    aggregate: WindowedAggregate | SessionAggregate, wait: int, rows: list[Given]
) -> Ran:
    """An aggregation's results through suppress, with a batch per row."""
    emitted = [Given(*result[:3], window=result.window) for result in run(aggregate, rows).results]
    return run(Suppress("window_close", wait), emitted, cuts=range(len(emitted)))


def test_suppress_emits_one_result_per_window() -> None:
    ran = suppressed(MINUTES, 15 * SECOND, EVENTS + at(clock("8:01:15"), key="b"))
    assert [(result.window, result.value) for result in ran.results] == [(FIRST, [3])]


def test_the_end_of_input_flushes_nothing() -> None:
    assert suppressed(MINUTES, 15 * SECOND, EVENTS).results == []
    assert (
        suppressed(MINUTES, 15 * SECOND, EVENTS + at(clock("8:01:15") - 1, key="b")).results == []
    )


def test_a_merged_session_is_never_emitted() -> None:
    ran = suppressed(SessionAggregate(COUNT, session("5 ms")), 5, at(10, 14, 100))
    assert [(result.window, result.value) for result in ran.results] == [((10, 14), [2])]


@pytest.mark.parametrize("window", [hopping("10 ms", advance="3 ms"), tumbling("1 month")], ids=str)
def test_a_key_is_due_when_its_earliest_window_closes(window: TimeWindow) -> None:
    aggregate = WindowedAggregate(COUNT, window)
    (first, end), *_ = window.bounds_of(clock("8:00:00"))
    later = window.bounds_of(end)[-1][0]
    held = {later: (end, (1,)), first: (first, (1,))}
    assert aggregate.due(held) == min(aggregate.expires_at(start, 0) for start in held)
    assert aggregate.due({}) is None
