"""When new records make an event, tested with values and a fake clock."""

from __future__ import annotations

import pytest

from sluice.offsets import Lag
from sluice.orchestration.trigger import Burst


def lag(end: int, position: int = 0) -> Lag:
    return Lag({"t": {0: end}}, {"t": {0: position}}, {})


def fired(burst: Burst, story: list[tuple[float, Lag]]) -> list[float]:
    """The times at which an event was due."""
    return [now for now, seen in story if burst.due(seen, now)]


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        pytest.param([(0, lag(0)), (9, lag(0))], [], id="nothing there"),
        pytest.param([(0, lag(7, 7)), (9, lag(7, 7))], [], id="all read"),
        pytest.param([(0, lag(5)), (1, lag(5)), (2, lag(5)), (3, lag(5))], [2], id="a burst, once"),
        pytest.param([(0, lag(5)), (1, lag(6)), (2, lag(7)), (3, lag(8)), (4, lag(8)), (5, lag(8))], [5], id="settles"),
        pytest.param([(now, lag(now + 1)) for now in range(12)], [10], id="never settles"),
        pytest.param([(0, lag(5)), (2, lag(5)), (3, lag(9)), (6, lag(9))], [2], id="not before the run has read"),
        pytest.param([(0, lag(5)), (2, lag(5)), (3, lag(9, 5)), (5, lag(9, 5))], [2, 5], id="after it has read"),
        pytest.param([(0, lag(5)), (2, lag(5)), (200, lag(5)), (202, lag(5))], [2], id="not twice for the same"),
        pytest.param([(0, lag(5)), (2, lag(5)), (102, lag(6)), (104, lag(6))], [2, 104], id="the run has failed"),
        pytest.param([(0, lag(5)), (1, lag(5, 5)), (2, lag(5, 5)), (3, lag(5, 5))], [], id="read before it was told"),
    ],
)
def test_events(story: list[tuple[float, Lag]], expected: list[float]) -> None:
    assert fired(Burst(settle_s=2, max_wait_s=10, patience_s=100), story) == expected


@pytest.mark.parametrize(
    ("found", "records"),
    [
        (lag(10, 4), 6),
        (Lag({"t": {0: 10}}, {}, {"t": {0: 10}}), 0),
        (Lag({"t": {0: 10}}, {}, {"t": {0: 4}}), 6),
        (lag(3, 10), 3),
        (lag(0, 10), 1),
    ],
    ids=["some read", "emptied by retention", "partly emptied", "made anew, shorter", "made anew, empty"],
)
def test_counting_unread_records(found: Lag, records: int) -> None:
    assert found.records == records
