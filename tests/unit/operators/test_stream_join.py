"""Joins of two streams: matches, unmatched records, and expiry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sluice import within
from sluice.operators.encoding import state_decoder
from sluice.operators.joins.by_key import How
from sluice.operators.joins.stream_join import StreamJoin
from tests.unit.operators.feed import Given, Ran, right, run


def pair(left: Any, right: Any) -> dict[str, Any]:
    return {"left": left, "right": right}


def left(time: int, key: str | None = "k", value: Any = "l") -> Given:
    return Given(key, value, time)


def join(how: How, *rows: Given, before: int = 3, after: int = 5, grace: int = 0) -> Ran:
    ms = timedelta(milliseconds=1)
    window = within(before=before * ms, after=after * ms, grace=grace * ms)
    return run(StreamJoin(how, window), rows, cuts=range(len(rows)))


@pytest.mark.parametrize(
    ("time", "matches"), [(96, False), (97, True), (100, True), (105, True), (106, False)]
)
def test_a_join_window_includes_both_ends(time: int, matches: bool) -> None:
    in_order = join("inner", left(100), right("k", "r", time), grace=50)
    assert in_order.values == ([pair("l", "r")] if matches else [])
    assert join("inner", right("k", "r", time), left(100), grace=50).values == in_order.values


def test_a_results_time_is_the_larger_of_both() -> None:
    assert [
        result.time for result in join("inner", left(100), right("k", "r", 98), grace=9).results
    ] == [100]


def test_every_record_of_the_key_in_the_window_matches() -> None:
    ran = join(
        "inner", right("k", 1, 100), right("k", 2, 101), right("other", 3, 101), left(100), grace=9
    )
    assert ran.values == [pair("l", 1), pair("l", 2)]


@pytest.mark.parametrize(("time", "alone"), [(107, []), (108, [pair("l", None)])])
def test_an_unmatched_left_record_is_emitted_after_window_and_grace(
    time: int, alone: list[Any]
) -> None:
    ran = join("left", left(100), left(time, key="other"), grace=2)
    assert ran.values == alone
    assert [result.time for result in ran.results] == [100] * len(alone)


@pytest.mark.parametrize(("time", "alone"), [(105, []), (106, [pair(None, "r")])])
def test_an_unmatched_right_record_waits_for_earlier_left_records(
    time: int, alone: list[Any]
) -> None:
    assert join("outer", right("k", "r", 100), right("other", "x", time), grace=2).values == alone
    assert join("left", right("k", "r", 100), right("other", "x", time), grace=2).values == []


def test_a_matched_record_is_not_emitted_alone() -> None:
    assert join("outer", left(100), right("k", "r", 101), left(500, key="other")).values == [
        pair("l", "r")
    ]


def test_a_record_that_has_been_matched_is_no_longer_due() -> None:
    operator = StreamJoin("left", within(before="3 ms", after="5 ms", grace="2 ms"))
    due = []
    for rows in (
        [left(100)],
        [left(100), right("k", "r", 101)],
        [left(100), left(105), right("k", "r", 101)],
    ):
        state = state_decoder(operator.state_type)(run(operator, rows).states["k"])
        due.append(operator.release_due(state))
    assert due == [108, None, 113]


@pytest.mark.parametrize(("time", "alone"), [(155, []), (156, [pair("l", None)])])
def test_a_record_that_comes_out_of_order_waits_until_its_grace_has_passed(
    time: int, alone: list[Any]
) -> None:
    assert join("left", left(time, key="other"), left(100), grace=50).values == alone
    assert (
        join("left", left(106, key="other"), left(100), left(time, key="other"), grace=50).values
        == alone
    )


@pytest.mark.parametrize(("time", "alone"), [(153, []), (154, [pair(None, "r")])])
def test_a_right_record_waits_for_earlier_left_records_and_their_grace(
    time: int, alone: list[Any]
) -> None:
    assert join("outer", right("other", "x", time), right("k", "r", 100), grace=50).values == alone


def test_a_match_within_the_grace_of_a_record_out_of_order_is_the_only_result() -> None:
    assert join(
        "left", left(140, key="other"), left(100), right("k", "r", 98), grace=50
    ).values == [pair("l", "r")]


def test_a_record_emitted_alone_is_never_matched() -> None:
    ran = join("left", left(100), right("other", "x", 150), right("k", "r", 101))
    assert ran.values == [pair("l", None)]
    ran = join("outer", left(150, key="other"), left(100), right("k", "r", 101))
    assert ran.values == [pair("l", None), pair(None, "r")], (
        "both were sent at once, as their grace had passed"
    )


def test_a_record_that_was_matched_once_is_matched_by_later_records() -> None:
    rows = [left(100), right("k", 1, 101), right("other", "x", 150), right("k", 2, 102)]
    assert join("left", *rows).values == [pair("l", 1), pair("l", 2)]


@pytest.mark.parametrize(("time", "matches"), [(117, True), (118, False)])
def test_a_record_expires_by_the_stream_time_of_its_own_side(time: int, matches: bool) -> None:
    rows = [left(100), left(time, key="other"), right("k", "r", 101)]
    for ran in (
        join("inner", *rows, grace=10),
        run(StreamJoin("inner", within(before="3 ms", after="5 ms", grace="10 ms")), rows),
    ):
        assert ran.values == ([pair("l", "r")] if matches else [])


def test_the_other_sides_time_expires_nothing() -> None:
    assert join("inner", left(100), right("other", "x", 900), right("k", "r", 101)).values == [
        pair("l", "r")
    ]


@pytest.mark.parametrize(
    ("how", "row", "expected", "dropped"),
    [
        ("inner", left(1, key=None), [], {"null_key": 1}),
        ("left", left(1, key=None), [pair("l", None)], {}),
        ("left", right(None, "r", 1), [], {"null_key": 1}),
        ("outer", right(None, "r", 1), [pair(None, "r")], {}),
        ("inner", left(1, value=None), [], {"null_value": 1}),
        ("left", left(1, value=None), [], {"null_value": 1}),
        ("outer", right("k", None, 1), [], {"null_value": 1}),
        ("outer", left(1, key=None, value=None), [], {"null_key": 1}),
    ],
)
def test_a_record_without_key_or_value_matches_nothing(
    how: How, row: Given, expected: list[Any], dropped: dict[str, int]
) -> None:
    ran = join(how, row)
    assert (ran.values, ran.dropped, ran.states) == (expected, dropped, {})


def test_a_null_advances_time_but_emits_nothing() -> None:
    waiting = [left(100), left(200, key=None)]
    assert join("left", *waiting).values == [pair("l", None)], "for the record without a key"
    assert join("left", *waiting, left(110)).values == [pair("l", None)] * 2, (
        "110 is late, so it is emitted at once"
    )
    assert join("left", *waiting, left(200)).values == [pair("l", None)] * 2, (
        "200 advances stream time, so 100 is emitted"
    )


def test_state_only_keeps_records_that_can_match() -> None:
    rows = [row for time in range(0, 1000, 2) for row in (left(time), right("k", "r", time + 1))]
    ran = join("outer", *rows)
    assert len(ran.states["k"]) < 200
    assert not join(
        "outer", left(0), right("k", "r", 1), left(99, "z"), right("z", "x", 99)
    ).states.keys() - {"z"}


@pytest.mark.parametrize("watches", [True, False])
def test_with_shared_stream_time_a_late_match_can_come_first(watches: bool) -> None:
    # At 106 the record of 100 is over, and 104 is the last looked at: nobody looks again before 104
    # + 5 is over.
    rows = (
        left(100, "a"),
        left(102, "late"),
        left(104, "c"),
        left(106, "d"),
        left(108, "e"),
        right("late", "r", 107),
    )
    operator = StreamJoin("left", within(before="3 ms", after="5 ms"))
    if watches:
        operator.watch()
    results = {(result.key, result.value["right"]) for result in run(operator, rows).results}
    assert results == {("a", None), ("late", "r" if watches else None)}


def test_skipped_unmatched_records_are_emitted_at_the_next_check() -> None:
    operator = StreamJoin("left", within(before="3 ms", after="5 ms"))
    operator.watch()
    rows = (
        left(100, "a"),
        left(102, "b"),
        left(104, "c"),
        left(106, "d"),
        left(108, "e"),
        left(120, "f"),
    )
    assert {result.key for result in run(operator, rows).results} == set("abcde")


@pytest.mark.parametrize(
    ("later", "found"), [(131, {"a"}), (135, {"a"}), (136, {"a", "b", "c", "d"})]
)
def test_the_check_stops_at_the_first_open_window_of_each_side(later: int, found: set[str]) -> None:
    # At 123 the right record of 103 and the left one of 108 are open, 113 is the next: nobody looks
    # before it is over.
    operator = StreamJoin("outer", within(before="2 ms", after="2 ms", grace="20 ms"))
    operator.watch()
    rows = (
        left(100, "a"),
        right("b", "r", 103),
        left(108, "c"),
        left(113, "d"),
        left(123, "e"),
        left(later, "f"),
    )
    assert {result.key for result in run(operator, rows).results} == found
