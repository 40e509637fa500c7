"""Lateness to the millisecond, as in Kafka Streams, and the same answers for single times and for arrays."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import hopping, session, sliding, tumbling, within
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.combine.windowing import assign_windows
from sluice.operators.aggregation.aggregate import WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Functions
from sluice.operators.base import LEFT, RIGHT
from sluice.operators.lateness import JoinLateness, WindowLateness, forgotten_at, last_forgotten
from sluice.values.windows import AnyWindow, Window
from tests.unit.operators.feed import Given, run

MS = timedelta(milliseconds=1)
END = 1_000

# For a window that ends at 1,000 ms: the first stream time at which a record is late for it. From
# the specification: end <= ST - grace; end < ST - grace; end < ST - grace - gap.
RULES = [
    pytest.param(tumbling(100 * MS, grace=30 * MS), 1_030, id="tumbling"),
    pytest.param(hopping(100 * MS, advance=40 * MS, grace=30 * MS), 1_030, id="hopping"),
    pytest.param(sliding(100 * MS, grace=30 * MS), 1_031, id="sliding"),
    pytest.param(session(100 * MS, grace=30 * MS), 1_131, id="session"),
]


@pytest.mark.parametrize(("window", "late_from"), RULES)
def test_records_are_late_for_the_same_windows_as_in_kafka_streams(
    window: AnyWindow, late_from: int
) -> None:
    lateness = WindowLateness(window)
    assert not lateness.is_late(END, late_from - 1)
    assert lateness.is_late(END, late_from)


@pytest.mark.parametrize(("window", "late_from"), RULES)
def test_a_window_is_closed_when_records_are_late_for_it(window: AnyWindow, late_from: int) -> None:
    lateness = WindowLateness(window)
    assert (lateness.closes_at(END), lateness.last_closed_end(late_from)) == (late_from, END)


@pytest.mark.parametrize(("window", "late_from"), RULES)
def test_arrays_of_times_get_the_answers_of_single_times(window: AnyWindow, late_from: int) -> None:
    lateness = WindowLateness(window)
    ends = np.arange(END - 3, END + 4, dtype=np.int64)
    stream_times = np.arange(late_from - 3, late_from + 4, dtype=np.int64)[:, None]
    answers = lateness.is_late(ends, stream_times)
    expected = [
        [lateness.is_late(end, time) for end in ends.tolist()]
        for time in stream_times.ravel().tolist()
    ]
    assert answers.tolist() == expected


tumbling_or_hopping = st.builds(
    lambda size, advance, grace: Window(size, grace, min(advance, size)),
    st.integers(1, 50), st.integers(0, 50), st.integers(0, 30),
)  # fmt: skip


@given(tumbling_or_hopping, st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_an_operator_and_a_group_find_the_same_records_late(
    window: Window, times: list[int]
) -> None:
    by_record = run(
        WindowedAggregate(Functions(Function("count")), window),
        [Given("a", [None], t) for t in times],
    )
    on_arrow = assign_windows(np.array(times, np.int64), window, BEFORE_ALL)
    assert by_record.dropped["late"] == on_arrow.late


def test_a_join_sends_records_unmatched_after_their_grace_and_forgets_them_as_kafka_streams() -> (
    None
):
    lateness = JoinLateness(within(before=20 * MS, after=50 * MS, grace=7 * MS))
    # Unmatched once ST > ts + after + grace (right side: before).
    assert [lateness.sent_unmatched_at(side, 1_000) for side in (LEFT, RIGHT)] == [1_058, 1_028]
    assert [lateness.last_unmatched(LEFT, 1_058), lateness.last_unmatched(RIGHT, 1_028)] == [
        1_000,
        1_000,
    ]
    # At once if the grace of a record has passed when it comes.
    assert [lateness.is_past(LEFT, 1_000, time) for time in (1_057, 1_058)] == [False, True]
    # Out of reach once ts < ST - before - after - grace + 1.
    for side in (LEFT, RIGHT):
        assert (lateness.expires_at(side, 1_000), lateness.last_expired(side, 1_077)) == (
            1_077,
            1_000,
        )


@pytest.mark.parametrize(
    ("before", "after", "kept"), [(0, 50, (58, 57)), (20, 0, (27, 28)), (0, 0, (8, 8))]
)
def test_a_join_keeps_records_until_their_grace_has_passed(
    before: int, after: int, kept: tuple[int, int]
) -> None:
    lateness = JoinLateness(within(before=before * MS, after=after * MS, grace=7 * MS))
    assert tuple(lateness.expires_at(side, 0) for side in (LEFT, RIGHT)) == kept
    assert all(lateness.sent_unmatched_at(side, 0) <= kept[side] for side in (LEFT, RIGHT))


def test_deduplicate_remembers_a_record_for_the_whole_time() -> None:
    assert (forgotten_at(1_000, 60), last_forgotten(1_061, 60)) == (1_061, 1_000)
