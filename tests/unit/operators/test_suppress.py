"""Suppress until a time limit, and its buffers."""

from __future__ import annotations

import pytest

from sluice.errors import BufferFull
from sluice.operators.suppress import BufferLimit, Suppress
from tests.unit.operators.feed import Given, run


def test_the_limit_counts_from_the_first_update_and_emits_the_latest() -> None:
    ran = run(Suppress("time_limit", 10), [Given("a", 1, 5), Given("a", 2, 14), Given("a", 3, 15)])
    assert [result[:3] for result in ran.results] == [("a", 3, 15)]


def test_another_key_advances_time() -> None:
    rows = [Given("a", 1, 5), Given("b", 1, 15), Given("a", 2, 16)]
    assert run(Suppress("time_limit", 10), rows).values == [1], (
        "the update at 16 restarts the timer"
    )
    assert run(Suppress("time_limit", 10), rows[:2]).values == [1]


def test_a_tombstone_waits_like_any_update() -> None:
    assert run(
        Suppress("time_limit", 10), [Given("a", 1, 5), Given("a", None, 6), Given("b", 1, 15)]
    ).values == [None]


def test_the_old_value_is_the_one_that_was_sent_last() -> None:
    rows = [Given("a", 1, 0), Given("b", 0, 15), Given("a", 1, 16, old=True), Given("a", 2, 16)]
    rows += [Given("a", 2, 17, old=True), Given("a", 3, 17), Given("b", 0, 40)]
    ran = run(Suppress("time_limit", 10, sends_old_values=True), rows)
    assert [(result.value, result.old) for result in ran.results if result.key == "a"] == [
        (1, False),
        (1, True),
        (3, False),
    ], "2 was never sent, so no later step has added it"


def test_updates_of_a_window_wait_from_the_first_one() -> None:
    rows = [Given("a", 1, 2, window=(0, 100)), Given("b", 1, 12, window=(0, 100))]
    assert [result[:4] for result in run(Suppress("time_limit", 10), rows).results] == [
        ("a", 1, 2, (0, 100))
    ]


def test_a_full_buffer_emits_the_oldest_window_early() -> None:
    suppress = Suppress("time_limit", 1000, BufferLimit(records=1))
    rows = [Given("a", 1, 0, window=(0, 5)), Given("a", 2, 6, window=(5, 10))]
    ran = run(suppress, rows)
    assert [(result.window, result.value) for result in ran.results] == [((0, 5), 1)]
    assert suppress.limit.buffer != suppress.shared, "the second one waits"


@pytest.mark.parametrize("cuts", [(), (1, 2, 3, 4), (2,)])
def test_a_full_buffer_emits_the_oldest_of_all_keys_early(cuts: tuple[int, ...]) -> None:
    rows = [
        Given("a", 1, 3),
        Given("b", 1, 1),
        Given("c", 1, 5),
        Given("b", 2, 6),
        Given("a", 2, 7),
    ]
    ran = run(Suppress("time_limit", 1000, BufferLimit(records=2)), rows, cuts)
    assert [(result.key, result.value) for result in ran.results] == [("b", 1), ("a", 1), ("c", 1)]


def test_emitted_updates_free_the_buffer() -> None:
    rows = [Given("a", 1, 0), Given("b", 1, 10), Given("c", 1, 12)]
    ran = run(Suppress("time_limit", 10, BufferLimit(records=2)), rows)
    assert [(result.key, result.value) for result in ran.results] == [("a", 1)], (
        "b and c fit into the buffer"
    )


def test_a_full_buffer_of_bytes_emits_early() -> None:
    suppress = Suppress("time_limit", 1000, BufferLimit(bytes=10))
    ran = run(suppress, [Given("a", "12", 0), Given("b", "123", 0), Given("c", "1", 0)])
    assert ran.values == ["12"], 'a and "12" with its quotes are 5 bytes, b and c are 6 and 4'
    run(suppress, [Given("d", "more than will ever fit", 0)])
    assert suppress.shared is not None
    assert suppress.shared.records == 0


def test_a_full_buffer_reports_its_size_and_limit() -> None:
    suppress = Suppress("time_limit", 1000, BufferLimit(records=1, when_full="shut_down"))
    assert run(suppress, [Given("a", 1, 0)]).values == []
    suppress.check()
    run(suppress, [Given("b", 1, 0)])
    with pytest.raises(
        BufferFull,
        match="holds back 2 updates of 4 bytes; its limit is 1 updates, any number of bytes",
    ):
        suppress.check()


def test_emitted_updates_no_longer_count() -> None:
    suppress = Suppress("time_limit", 10, BufferLimit(records=1, when_full="shut_down"))
    run(suppress, [Given("a", 1, 0), Given("b", 1, 20)])
    suppress.check()
