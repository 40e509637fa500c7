"""When new records make an event, tested with values and a fake clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.kafka.unread_records import Lag
from sluice.observe.monitoring import run_figures
from sluice.orchestration.trigger import Burst, DriverWatch, DueTimers, last_run_began
from sluice.state.ledger.history import Batch
from sluice.state.ledger.leases import LeaseRow
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo
from tests.support.states import make_snapshot

LINGERING = 1_200


def lag(end: int, position: int = 0, last: int = 0) -> Lag:
    """The lag of a partition, whose records after `end` up to `last` an open transaction holds back."""
    return Lag({"t": {0: end}}, {"t": {0: position}}, {}, {"t": {0: last}})


def fired(burst: Burst, story: list[tuple[float, Lag]]) -> list[float]:
    """The times at which an event was due."""
    return [now for now, seen in story if burst.due(seen, now)]


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        pytest.param([(0, lag(0)), (9, lag(0))], [], id="nothing there"),
        pytest.param([(0, lag(7, 7)), (9, lag(7, 7))], [], id="all read"),
        pytest.param([(0, lag(7, 7, 90)), (9, lag(7, 7, 99))], [], id="the rest cannot be read"),
        pytest.param(
            [(0, lag(5, 0, 9)), (2, lag(5, 0, 9)), (4, lag(5, 5, 9)), (9, lag(5, 5, 9))],
            [2],
            id="a part can",
        ),
        pytest.param([(0, lag(5)), (1, lag(5)), (2, lag(5)), (3, lag(5))], [2], id="a burst, once"),
        pytest.param(
            [(0, lag(5)), (1, lag(6)), (2, lag(7)), (3, lag(8)), (4, lag(8)), (5, lag(8))],
            [5],
            id="settles",
        ),
        pytest.param([(now, lag(now + 1)) for now in range(12)], [10], id="never settles"),
        pytest.param(
            [(0, lag(5)), (2, lag(5)), (3, lag(9)), (6, lag(9))],
            [2],
            id="not before the run has read",
        ),
        pytest.param(
            [(0, lag(5)), (2, lag(5)), (3, lag(9, 5)), (5, lag(9, 5))],
            [2, 5],
            id="after it has read",
        ),
        pytest.param(
            [(0, lag(5)), (2, lag(5)), (99, lag(5)), (101, lag(5))],
            [2],
            id="the run may still work",
        ),
        pytest.param(
            [(now, lag(5)) for now in range(0, 1_000, 2)],
            [2, 104, 306, 708],
            id="back-off while it fails",
        ),
        pytest.param(
            [
                (0, lag(5)),
                (2, lag(5)),
                (102, lag(5)),
                (104, lag(5)),
                (106, lag(9, 5)),
                (108, lag(9, 5)),
                (209, lag(9, 5)),
                (211, lag(9, 5)),
            ],
            [2, 104, 108, 211],
            id="after success, the back-off begins anew",
        ),
        pytest.param(
            [(0, lag(5)), (2, lag(5)), (102, lag(6)), (104, lag(6))],
            [2, 104],
            id="the run has failed",
        ),
        pytest.param(
            [(0, lag(5)), (1, lag(5, 5)), (2, lag(5, 5)), (3, lag(5, 5))],
            [],
            id="read before it was told",
        ),
    ],
)
def test_the_trigger_fires_at_these_seconds(
    story: list[tuple[float, Lag]], expected: list[float]
) -> None:
    assert fired(Burst(settle_s=2, max_wait_s=10, patience_s=100), story) == expected


def test_a_run_that_would_only_fail_again_waits_for_more_records() -> None:
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=100)
    story = [(0, lag(5)), (200, lag(5)), (4_000, lag(5)), (4_001, lag(6))]
    assert [now for now, seen in story if burst.due(seen, now, is_lasting=now > 0)] == [0, 4_001]


def test_the_back_off_counts_from_the_end_of_the_driver_that_failed() -> None:
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=100)
    assert burst.due(lag(5), 0)
    assert not any(burst.due(lag(5), now, driven=True) for now in range(1, 500))
    assert [now for now in range(500, 700) if burst.due(lag(5), now)] == [599]


def test_the_back_off_counts_from_a_failure_whose_driver_was_never_seen() -> None:
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=100)
    assert burst.due(lag(5), 0)
    for failed_at in (30, 90):  # Airflow repeats the run
        burst.note_failure(failed_at)
    assert [now for now in range(91, 300) if burst.due(lag(5), now)] == [190]


def test_a_minimum_interval_lies_between_events_however_much_comes() -> None:
    story = [(float(now), lag(now + 1, now - 2 if now > 2 else 0)) for now in range(0, 60, 3)]
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=0, min_interval_s=20)
    assert fired(burst, story) == [0, 21, 42]


def test_a_minimum_interval_also_counts_from_a_run_that_an_earlier_triggerer_has_started() -> None:
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=0, min_interval_s=20)
    burst.remember(8, now=100)
    assert fired(burst, [(100 + now, lag(5)) for now in range(0, 15, 3)]) == [112]


def test_the_last_run_began_with_its_first_batch(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        assert last_run_began(ledger, "orders") is None
        ledger.generations.register(
            GenerationInfo(pipeline="orders", generation=1, workers=(), stores=(), topics=("t",))
        )
        assert last_run_began(ledger, "orders") is None
        # A run that lingers for an hour publishes thousands of batches.
        for number, run in enumerate(["a", *["b"] * LINGERING]):
            batch = Batch(number=number, begun=1_000 * (number + 1), partitions={}, ends={})
            ledger.snapshots.publish(make_snapshot(number, run=run), batch=batch)
        assert last_run_began(ledger, "orders") == 2.0
        figures = run_figures(ledger, "orders", "b")
        assert (figures["records"], len(figures["snapshots"])) == (10 * LINGERING, LINGERING)


@pytest.mark.parametrize(
    ("found", "records"),
    [
        (lag(10, 4), 6),
        (Lag({"t": {0: 10}}, {}, {"t": {0: 10}}), 0),
        (Lag({"t": {0: 10}}, {}, {"t": {0: 4}}), 6),
        (lag(3, 10), 3),
        (lag(0, 10), 1),
    ],
    ids=[
        "some read",
        "emptied by retention",
        "partly emptied",
        "made anew, shorter",
        "made anew, empty",
    ],
)
def test_counting_unread_records(found: Lag, records: int) -> None:
    assert found.unread == records


def lease(beat: int, *, held: bool = True) -> LeaseRow:
    return LeaseRow(
        pipeline="p", generation=1, epoch=1, held=held, beat=beat, host="h", pid=1, process="p",
        since="2026-01-01", run="",
    )  # fmt: skip


def test_records_that_a_working_driver_may_read_make_no_event() -> None:
    burst = Burst(settle_s=2, max_wait_s=10, patience_s=100)
    assert not any(burst.due(lag(now), now, driven=True) for now in range(1, 30))
    assert [now for now in range(30, 36) if burst.due(lag(30), now)] == [32], (
        "after the driver has ended"
    )


def test_a_driver_works_while_it_renews_its_lease() -> None:
    driving = DriverWatch(silence_s=20)
    assert not driving.is_running(None, 0)
    assert driving.is_running(lease(1), 1)
    assert driving.is_running(lease(1), 20)
    assert not driving.is_running(lease(1), 22), "it died"
    assert driving.is_running(lease(2), 23), "the driver only paused"
    assert not driving.is_running(lease(2, held=False), 24), "the driver has ended"


def test_an_event_is_unanswered_until_a_driver_works_or_nothing_is_left() -> None:
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=100)
    waited: list[float] = []
    for now, driven in (
        (0, False),
        (70, False),
        (101, False),
        (150, False),
        (160, True),
        (170, False),
    ):
        burst.due(lag(5), now, driven=driven)
        waited.append(burst.unanswered_s(now))
    # A second event for the same records, after the patience, does not begin the wait again.
    assert waited == [0, 70, 101, 150, 0, 0]
    burst.due(lag(5), 300)
    burst.due(lag(5, 5), 301)
    assert burst.unanswered_s(400) == 0


def test_the_next_event_is_foreseen() -> None:
    burst = Burst(settle_s=0, max_wait_s=0, patience_s=100)
    assert burst.back_off(0) is None
    burst.due(lag(5), 0)
    assert burst.back_off(30) == (30, 70)
    burst.due(lag(5), 40, driven=True)
    assert burst.back_off(50) == (50, 90), "it counts from the end of the driver"
    burst.due(lag(5), 140)
    assert burst.back_off(141) == (1, 199)
    burst.due(lag(5, 5), 150)
    assert burst.back_off(150) is None, "everything is read"


def test_a_due_timer_makes_an_event_and_another_one_if_its_run_fails() -> None:
    def fired_at(timers: DueTimers, story: list[tuple[int, int | None]]) -> list[int]:
        """The seconds of the story at which an event was due; each with the timer's second."""
        due = []
        for now, timer in story:
            if timers.due(None if timer is None else timer * 1_000, now * 1_000, now, driven=False):
                due.append(now)
        return due

    assert fired_at(DueTimers(patience_s=100), [(0, 5), (4, 5), (5, 5), (6, 5), (9, None)]) == [5]
    assert fired_at(DueTimers(patience_s=100), [(5, 5), (6, 5), (7, 9), (8, 9), (9, 9)]) == [5, 9]
    assert fired_at(DueTimers(patience_s=100), [(now, 5) for now in range(0, 800, 5)]) == [
        5,
        105,
        305,
        705,
    ]


def test_a_run_for_records_fires_the_timers_that_are_due_then() -> None:
    timers = DueTimers(patience_s=100)
    timers.expect_run(20_000, clock_ms=10_000, now=10)
    assert timers.due(20_000, clock_ms=20_000, now=20, driven=False), "it was not due in that run"
    timers.expect_run(30_000, clock_ms=31_000, now=31)
    assert not timers.due(30_000, clock_ms=32_000, now=32, driven=False)
    assert not timers.due(40_000, clock_ms=41_000, now=41, driven=True), "the driver fires it"
    assert timers.due(40_000, clock_ms=42_000, now=42, driven=False)
