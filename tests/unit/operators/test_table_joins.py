"""Tables and their joins."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from sluice.operators.base import AHEAD, LEFT, MOVED, RIGHT
from sluice.operators.joins.by_key import How, StreamTableJoin, TableJoin
from sluice.operators.joins.foreign_key import ForeignKeyJoin
from sluice.operators.table import Latest
from tests.unit.operators.feed import Given, Result, right, run


def pair(left: Any, right: Any) -> dict[str, Any]:
    return {"left": left, "right": right}


def test_a_table_keeps_the_last_value_in_the_order_of_the_records() -> None:
    ran = run(Latest(sends_old_values=True), [Given("a", 1, 9), Given("a", 2, 3)], cuts=[1])
    assert ran.results == [Result("a", 1, 9), Result("a", 1, 3, None, True), Result("a", 2, 3)]


def test_a_null_value_deletes_the_key_and_is_sent_on_even_if_there_is_none() -> None:
    ran = run(
        Latest(sends_old_values=True), [Given("a", 1, 0), Given("a", None, 1), Given("a", None, 2)]
    )
    assert ran.results == [
        Result("a", 1, 0),
        Result("a", 1, 1, None, True),
        Result("a", None, 1),
        Result("a", None, 2),
    ]
    assert not ran.states


def test_a_table_drops_null_keys() -> None:
    ran = run(Latest(), [Given(None, 1, 0)])
    assert (ran.results, ran.dropped) == ([], {"null_key": 1})


L, R = Given("k", "l", 5), right("k", "r", 3)
NO_L, NO_R = Given("k", None, 7), right("k", None, 6)


@pytest.mark.parametrize(
    ("how", "rows", "expected"),
    [
        ("inner", [L], []),
        ("inner", [L, R], [pair("l", "r")]),
        ("inner", [R, L], [pair("l", "r")]),
        ("inner", [L, R, NO_R], [pair("l", "r"), None]),
        ("inner", [L, R, NO_L], [pair("l", "r"), None]),
        ("inner", [L, R, NO_L, NO_R], [pair("l", "r"), None]),
        ("left", [R], []),
        ("left", [L], [pair("l", None)]),
        ("left", [L, R, NO_R], [pair("l", None), pair("l", "r"), pair("l", None)]),
        ("left", [L, R, NO_L], [pair("l", None), pair("l", "r"), None]),
        ("outer", [R], [pair(None, "r")]),
        ("outer", [L, R, NO_L], [pair("l", None), pair("l", "r"), pair(None, "r")]),
        ("outer", [L, R, NO_L, NO_R], [pair("l", None), pair("l", "r"), pair(None, "r"), None]),
        ("outer", [NO_L], []),
        ("inner", [NO_L], []),
        ("inner", [L, NO_R], [None]),
        ("inner", [R, NO_L], [None]),
        ("left", [NO_L], []),
        ("left", [NO_R], []),
        ("left", [L, NO_R], [pair("l", None), pair("l", None)]),
        ("left", [R, NO_L], [None]),
        ("outer", [L, NO_R], [pair("l", None), pair("l", None)]),
        ("outer", [R, NO_L], [pair(None, "r"), pair(None, "r")]),
    ],
)
def test_table_join(how: How, rows: list[Given], expected: list[Any]) -> None:
    ran = run(TableJoin(how), rows, cuts=range(len(rows)))
    assert ran.values == expected
    assert bool(ran.states) == (rows[-2:] != [NO_L, NO_R] and rows not in ([NO_L], [NO_R]))


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_a_filtered_table_sends_no_tombstones_of_unknown_rows(how: How) -> None:
    join = TableJoin(how, filtered=(True, True))
    assert run(join, [L, NO_R]).values == run(join, [L]).values
    assert run(join, [R, NO_L]).values == run(join, [R]).values
    assert run(join, [L, R, NO_R, NO_L, NO_L]).values[-1] is None


def test_the_time_of_a_table_join_is_the_larger_one() -> None:
    assert [result.time for result in run(TableJoin("inner"), [L, R]).results] == [5]
    assert [result.time for result in run(TableJoin("inner"), [L, R, NO_R]).results] == [5, 6]
    assert [result.time for result in run(TableJoin("inner"), [right("k", "r", 9), L]).results] == [
        9
    ]


def test_a_table_join_emits_old_results_first_on_request() -> None:
    results = run(TableJoin("inner", sends_old_values=True), [L, R, NO_R]).results
    assert [(result.value, result.old) for result in results] == [
        (pair("l", "r"), False),
        (pair("l", "r"), True),
        (None, False),
    ]


def test_a_side_sees_the_others_change_that_came_ahead() -> None:
    ahead = Given("k", "r", 5, side=AHEAD + RIGHT)
    ran = run(
        TableJoin("inner", sends_old_values=True),
        [ahead, L, R, Given(None, "r", 5, side=AHEAD + RIGHT)],
    )
    assert [(result.value, result.old) for result in ran.results] == [
        (pair("l", "r"), False),
        (pair("l", "r"), True),
        (pair("l", "r"), False),
    ]
    assert ran.dropped == {}

    gone = Given("k", None, 6, side=AHEAD + RIGHT)
    ran = run(
        TableJoin("left", sends_old_values=True), [L, R, gone, Given("k", "m", 6), NO_R], cuts=[2]
    )
    assert [(result.value, result.old) for result in ran.results][3:] == [
        (pair("l", "r"), True),
        (pair("m", None), False),
        (pair("m", None), True),
        (pair("m", None), False),
    ]


def test_an_inner_join_deletes_its_row_if_one_change_deletes_both_sides() -> None:
    gone = Given("k", None, 6, side=AHEAD + RIGHT)
    ran = run(TableJoin("inner", sends_old_values=True), [L, R, gone, NO_L, NO_R], cuts=[2])
    assert [(result.value, result.old) for result in ran.results] == [
        (pair("l", "r"), False),
        (pair("l", "r"), True),
        (None, False),
    ]
    assert not ran.states


def test_a_change_that_came_ahead_leaves_nothing_behind_if_a_filter_drops_it() -> None:
    join = TableJoin("left", sends_old_values=True, filtered=(False, True))
    run(join, [Given("k", None, 5, side=AHEAD + RIGHT), L, right("k", None, 5)])
    assert run(join, [L]).values == [pair("l", None)]


def test_old_rows_of_a_side_are_ignored() -> None:
    assert run(
        TableJoin("inner"), [L, R, Given("k", "l", 6, old=True), Given("k", "m", 6)]
    ).values == [
        pair("l", "r"),
        pair("m", "r"),
    ]


@pytest.mark.parametrize(
    ("how", "rows", "expected", "dropped"),
    [
        ("inner", [L, R, L], [pair("l", "r")], {}),
        ("left", [L, R, L], [pair("l", None), pair("l", "r")], {}),
        ("inner", [R, NO_R, L], [], {}),
        ("inner", [NO_L], [], {"null_value": 1}),
        ("left", [NO_L], [], {"null_value": 1}),
        ("inner", [Given(None, "l", 0)], [], {"null_key": 1}),
        ("left", [Given(None, "l", 0)], [pair("l", None)], {}),
        ("left", [right(None, "r", 0)], [], {"null_key": 1}),
    ],
)
def test_stream_table_join(
    how: How, rows: list[Given], expected: list[Any], dropped: dict[str, int]
) -> None:
    ran = run(StreamTableJoin(how), rows, cuts=[1])
    assert (ran.values, ran.dropped) == (expected, dropped)


def test_a_foreign_look_up_keeps_the_records_key_and_time() -> None:
    rows = [
        right("shop", "r", 9),
        Given("shop", "l", 4, foreign="order"),
        Given("shop", "l", 5, foreign=None),
    ]
    assert [result[:3] for result in run(StreamTableJoin("left", mapped=True), rows).results] == [
        ("order", pair("l", "r"), 4),
        (None, pair("l", "r"), 5),
    ]


FkHow = Literal["inner", "left"]


def left(
    foreign_key: str | None,
    value: Any,
    time: int,
    *,
    old: bool = False,
    key: str | None = "o1",
    moved: bool = False,
) -> Given:
    return Given(foreign_key, value, time, MOVED if moved else LEFT, old, key)


@pytest.mark.parametrize(("how", "unmatched"), [("inner", []), ("left", [pair("l", None)])])
def test_a_left_row_joins_its_foreign_key(how: FkHow, unmatched: list[Any]) -> None:
    ran = run(
        ForeignKeyJoin(how),
        [left("a", "l", 1), right("a", "r", 2), right("a", None, 3)],
        cuts=[1, 2],
    )
    assert ran.values == [*unmatched, pair("l", "r"), *(unmatched or [None])]
    assert {result.key for result in ran.results} == {"o1"}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_right_row_changes_the_rows_that_refer_to_it_in_the_order_of_their_keys(
    how: FkHow,
) -> None:
    keys = ("b", "", "ä", "a")
    ran = run(
        ForeignKeyJoin(how), [*(left("x", "l", 1, key=key) for key in keys), right("x", "r", 2)]
    )
    assert [result.key for result in ran.results[-4:]] == ["", "a", "b", "ä"]


X, Y = right("x", "rx", 0), right("y", "ry", 9)
NEW = left("x", "l", 1)
UPDATED = [left("x", "l", 2, old=True), left("x", "m", 2)]
MOVED_TO_Y = [left("x", "l", 2, old=True), left("y", "m", 2, moved=True)]
MOVED_TO_NONE = [left("x", "l", 2, old=True, moved=True), left(None, "m", 2)]
DELETED = [left("x", "l", 2, old=True, moved=True), left(None, None, 2, moved=True)]
UNKNOWN_DELETED = left(None, None, 2)
KEYLESS = left(None, "l", 1)
NO_X = right("x", None, 3)


@pytest.mark.parametrize(
    ("rows", "inner", "left_join"),
    [
        ([NEW], [], [pair("l", None)]),
        ([X, NEW], [pair("l", "rx")], [pair("l", "rx")]),
        ([NEW, *UPDATED], [], [pair("l", None), pair("m", None)]),
        ([X, NEW, *UPDATED], [pair("l", "rx"), pair("m", "rx")], [pair("l", "rx"), pair("m", "rx")]),
        ([NEW, *MOVED_TO_Y], [None], [pair("l", None), pair("m", None)]),
        ([X, NEW, *MOVED_TO_Y], [pair("l", "rx"), None], [pair("l", "rx"), pair("m", None)]),
        ([Y, NEW, *MOVED_TO_Y], [pair("m", "ry")], [pair("l", None), pair("m", "ry")]),
        ([X, Y, NEW, *MOVED_TO_Y], [pair("l", "rx"), pair("m", "ry")], [pair("l", "rx"), pair("m", "ry")]),
        ([NEW, *MOVED_TO_NONE], [None], [pair("l", None), pair("m", None)]),
        ([X, NEW, *MOVED_TO_NONE], [pair("l", "rx"), None], [pair("l", "rx"), pair("m", None)]),
        ([NEW, *DELETED], [None], [pair("l", None), None]),
        ([X, NEW, *DELETED], [pair("l", "rx"), None], [pair("l", "rx"), None]),
        ([UNKNOWN_DELETED], [], []),
        ([KEYLESS], [], [pair("l", None)]),
        ([KEYLESS, left(None, "l", 2, old=True), left("x", "m", 2)], [], [pair("l", None), pair("m", None)]),
        ([KEYLESS, left(None, "l", 2, old=True, moved=True), DELETED[1]], [], [pair("l", None), None]),
        ([NO_X], [], []),
        ([NEW, NO_X], [None], [pair("l", None), pair("l", None)]),
        ([NEW, *DELETED, X, NO_X], [None], [pair("l", None), None]),
    ],
)  # fmt: skip
def test_a_foreign_key_join_sends_the_tombstones_of_kafka_streams(
    rows: list[Given], inner: list[Any], left_join: list[Any]
) -> None:
    for cuts in ((), range(len(rows))):
        assert run(ForeignKeyJoin("inner"), rows, cuts).values == inner
        assert run(ForeignKeyJoin("left"), rows, cuts).values == left_join


def test_a_filtered_right_table_sends_no_tombstones_of_unknown_rows() -> None:
    join = ForeignKeyJoin("inner", right_filtered=True)
    assert run(join, [NEW, NO_X]).values == []
    assert run(join, [NEW, X, NO_X, NO_X]).values == [pair("l", "rx"), None]


def test_the_time_of_a_foreign_key_joins_tombstone() -> None:
    rows = [right("x", "rx", 9), NEW, *DELETED]
    assert [result.time for result in run(ForeignKeyJoin("inner"), rows).results] == [9, 9]
    assert [result.time for result in run(ForeignKeyJoin("left"), rows).results] == [9, 2]


@pytest.mark.parametrize("swapped", [False, True], ids=["old row first", "new row first"])
def test_a_changed_foreign_key_joins_the_new_partner(swapped: bool) -> None:
    change = [left("a", "l", 3, old=True), left("b", "m", 3)]
    rows = [
        right("a", "ra", 0),
        right("b", "rb", 0),
        left("a", "l", 1),
        *(change[::-1] if swapped else change),
    ]
    ran = run(ForeignKeyJoin("inner"), [*rows, right("a", "new", 4)], cuts=[4])
    assert ran.windows == {("o1", None): pair("m", "rb")}
    assert ran.values[-1] == pair("m", "rb"), "the old partner's change no longer matters"


@pytest.mark.parametrize(("how", "result"), [("inner", None), ("left", pair("m", None))])
def test_a_left_row_without_a_foreign_key(how: FkHow, result: Any) -> None:
    rows = [
        right("a", "r", 0),
        left("a", "l", 1),
        left("a", "l", 2, old=True, moved=True),
        left(None, "m", 2),
    ]
    ran = run(ForeignKeyJoin(how), rows)
    assert ran.values[-1] == result
    assert ran.dropped["null_key"] == (how == "inner")


def test_a_deleted_left_row_deletes_its_result() -> None:
    rows = [
        right("a", "r", 0),
        left("a", "l", 1),
        left("a", "l", 2, old=True),
        left(None, None, 2, moved=True),
    ]
    assert run(ForeignKeyJoin("left"), rows).windows == {}


def test_the_time_of_a_foreign_key_joins_result() -> None:
    rows = [right("a", "r", 5), left("a", "l", 3), right("a", "s", 1)]
    assert [result.time for result in run(ForeignKeyJoin("inner"), rows).results] == [5, 1]


def test_a_left_row_without_a_key_of_its_own_is_dropped() -> None:
    assert run(ForeignKeyJoin("left"), [left("a", "l", 0, key=None)]).dropped == {"null_key": 1}
