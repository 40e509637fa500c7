"""Paths sort rows in the order in which one thread would reach them, depth first."""

from __future__ import annotations

from sluice.values import paths

RECORD = paths.START


def test_an_operators_results_come_before_the_next_child_of_the_step_before_it() -> None:
    first, second = (paths.constant([paths.turn(child)], rekeyed=False) for child in (0, 1))
    assert first is not None
    assert second is not None
    assert RECORD < first < paths.result(first, 0) < paths.result(first, 1) < second


def test_results_of_a_result_come_before_the_next_result() -> None:
    assert paths.result(paths.result(RECORD, 0), 5) < paths.result(RECORD, 1)


def test_there_may_be_more_than_a_thousand_results_at_every_level() -> None:
    numbers = [0, 1, 255, 256, 1_024, 70_000]
    deep = [paths.result(paths.result(RECORD, outer), inner) for outer in numbers for inner in numbers]
    assert sorted(deep) == deep


def test_rows_with_another_key_come_after_all_other_rows_of_the_record() -> None:
    last_child = paths.constant([paths.turn(9)], rekeyed=False)
    assert last_child is not None
    once = paths.rekeyed(RECORD)
    assert paths.result(last_child, 1_000_000) < once < paths.result(once, 3) < paths.rekeyed(once)


def test_releases_are_sorted_by_rank_and_key_around_the_results_of_their_row() -> None:
    early = paths.release(RECORD, 5, "z", before=True)
    late = [paths.release(RECORD, rank, key, before=False) for rank, key in ((-1, "b"), (5, "a"), (5, "b"), (70, "a"))]
    row = paths.result(RECORD, 0)
    assert RECORD < early < paths.result(early, 0) < row < late[0]
    assert sorted(late) == late
    assert paths.result(late[1], 9) < late[2]


def test_a_path_with_an_array_element_is_not_constant() -> None:
    elements = [paths.turn(2), paths.element("x3_pos")]
    assert paths.constant(elements, rekeyed=False) is None
    assert paths.sql("path", elements, rekeyed=True).startswith("concat(X'FF', path, X'0002', unhex(")


def test_an_event_is_the_same_whatever_comes_after_it() -> None:
    texts = ["", "a", "a\x00", "a\x00b", "\x00", "é\x00\x00", "a\x00\xff"]
    events = {
        (due, key, timer, cause): paths.event(paths.release(b"", due, key, before=False), "process 1", timer, cause)
        for due in (-1, 0, 1_670_000_000_000)
        for cause in (0, 2**63 - 1)
        for key in texts
        for timer in texts
    }
    assert len({*events.values()}) == len(events)
    for (due, *_), event in events.items():
        child = paths.constant([paths.turn(3)], rekeyed=True)
        assert child is not None
        results = [paths.result(event, 0), paths.result(event, 7), paths.rekeyed(paths.result(event, 0xFF))]
        assert {paths.event_of(result) for result in results} == {(due, event)}
        assert paths.event_of(paths.result(paths.result(event, 1), 2)) == (due, event)


def test_releases_of_keys_with_any_characters_are_sorted_by_key() -> None:
    keys = sorted(["", "a", "ab", "b", "a\x00", "a\x00b", "\x00", "é"], key=str.encode)
    releases = [paths.event(paths.release(b"", 5, key, before=True), "z", "", 0) for key in keys]
    assert sorted(releases) == releases
