"""Paths sort rows in the order in which one thread would reach them, depth first."""

from __future__ import annotations

from sluice.values import row_order

RECORD = row_order.START


def test_an_operators_results_come_before_the_next_child_of_the_step_before_it() -> None:
    first, second = (
        row_order.constant_path([row_order.turn_sql(child)], rekeyed=False) for child in (0, 1)
    )
    assert first is not None
    assert second is not None
    assert (
        RECORD < first < row_order.result_path(first, 0) < row_order.result_path(first, 1) < second
    )


def test_results_of_a_result_come_before_the_next_result() -> None:
    assert row_order.result_path(row_order.result_path(RECORD, 0), 5) < row_order.result_path(
        RECORD, 1
    )


def test_there_may_be_more_than_a_thousand_results_at_every_level() -> None:
    numbers = [0, 1, 255, 256, 1_024, 70_000]
    deep = [
        row_order.result_path(row_order.result_path(RECORD, outer), inner)
        for outer in numbers
        for inner in numbers
    ]
    assert sorted(deep) == deep


def test_rows_with_another_key_come_after_all_other_rows_of_the_record() -> None:
    last_child = row_order.constant_path([row_order.turn_sql(9)], rekeyed=False)
    assert last_child is not None
    once = row_order.after_rekeying(RECORD)
    assert (
        row_order.result_path(last_child, 1_000_000)
        < once
        < row_order.result_path(once, 3)
        < row_order.after_rekeying(once)
    )


def test_releases_are_sorted_by_rank_and_key_around_the_results_of_their_row() -> None:
    early = row_order.release_path(RECORD, 5, "z", before=True)
    late = [
        row_order.release_path(RECORD, rank, key, before=False)
        for rank, key in ((-1, "b"), (5, "a"), (5, "b"), (70, "a"))
    ]
    row = row_order.result_path(RECORD, 0)
    assert RECORD < early < row_order.result_path(early, 0) < row < late[0]
    assert sorted(late) == late
    assert row_order.result_path(late[1], 9) < late[2]


def test_timers_with_the_same_time_are_sorted_by_stage_from_the_last_one_then_by_operator_and_key() -> (
    None
):
    turns = [
        row_order.turn_of_timers(stage, operator) for stage, operator in ((2, 13), (1, 8), (1, 300))
    ]
    timers = [
        row_order.release_path(row_order.END_OF_RECORD, due, key, before=False, turn=turn)
        for due in (5, 6)
        for turn in turns
        for key in ("", "a", "b")
    ]
    assert sorted(timers) == timers
    # Whatever child of the operator gets a result, the result stays among those of its timer.
    assert row_order.result_path(timers[0], 0) + b"\xff\xff" < timers[1]


def test_a_path_with_an_array_element_is_not_constant() -> None:
    elements = [row_order.turn_sql(2), row_order.element_sql("x3_pos")]
    assert row_order.constant_path(elements, rekeyed=False) is None
    assert row_order.path_sql("path", elements, rekeyed=True).startswith(
        "concat(X'FF', path, X'0002', unhex("
    )


def test_an_event_is_the_same_whatever_comes_after_it() -> None:
    texts = ["", "a", "a\x00", "a\x00b", "\x00", "é\x00\x00", "a\x00\xff"]
    events = {
        (due, key, timer, cause): row_order.event_path(
            row_order.release_path(b"", due, key, before=False), "process 1", timer, cause
        )
        for due in (-1, 0, 1_670_000_000_000)
        for cause in (0, 2**63 - 1)
        for key in texts
        for timer in texts
    }
    assert len({*events.values()}) == len(events)
    for (due, *_), event in events.items():
        child = row_order.constant_path([row_order.turn_sql(3)], rekeyed=True)
        assert child is not None
        results = [
            row_order.result_path(event, 0),
            row_order.result_path(event, 7),
            row_order.after_rekeying(row_order.result_path(event, 0xFF)),
        ]
        assert {row_order.event_of(result) for result in results} == {(due, event)}
        assert row_order.event_of(row_order.result_path(row_order.result_path(event, 1), 2)) == (
            due,
            event,
        )


def test_releases_of_keys_with_any_characters_are_sorted_by_key() -> None:
    keys = sorted(["", "a", "ab", "b", "a\x00", "a\x00b", "\x00", "é"], key=str.encode)
    releases = [
        row_order.event_path(row_order.release_path(b"", 5, key, before=True), "z", "", 0)
        for key in keys
    ]
    assert sorted(releases) == releases
