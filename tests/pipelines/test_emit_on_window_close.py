"""Aggregates that send only the final result of each window, when no record can change the result any more."""

from __future__ import annotations

import pytest

from sluice import Pipeline, session, sliding, tumbling
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.values.windows import AnyWindow
from tests.pipelines.conftest import Drive


def visits_by_window(drive: Drive, window: AnyWindow) -> TopologyTestDriver:
    pipeline = Pipeline("final")
    visits = pipeline.stream("visits", value=str).group_by_key()
    visits.windowed_by(window, emit="window_close").count(store="counts").to("final")
    return drive(pipeline)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("window", "closing", "counts"),
    [
        (tumbling("10 ms", grace="5 ms"), 15, [(0, 10, 2)]),
        # The window [3, 13], which begins right after the first visit, is the last to close.
        (sliding("10 ms", grace="2 ms"), 16, [(0, 10, 2), (3, 13, 1)]),
        (session("6 ms", grace="1 ms"), 16, [(2, 8, 2)]),
    ],
    ids=str,
)
def test_a_window_is_sent_once_when_no_visit_can_change_it(
    drive: Drive, window: AnyWindow, closing: int, counts: list[tuple[int, int, int]], cut: bool
) -> None:
    driver = visits_by_window(drive, window)

    def visit(page: str, at: int, run: str) -> None:
        driver.pipe("visits", "v", key=page, timestamp=at, headers={"run": run})
        if cut:
            driver.commit()

    visit("home", 2, "first")
    visit("home", 8, "second")
    visit("cart", closing - 1, "third")
    assert len(driver.output("final")) == len(counts) - 1, "the last window is still open"

    visit("cart", closing, "fourth")
    final = driver.output("final")
    assert [(int(r.headers["window_start"]), int(r.headers["window_end"]), r.value) for r in final] == counts
    assert {(r.key, r.timestamp) for r in final} == {("home", 8)}, "the time of the window's last visit"
    assert final[-1].headers["run"] == "fourth", "the visit that closes the window"

    visit("home", 8, "late")
    assert len(driver.output("final")) == len(counts)


def test_the_store_has_the_open_windows_too(drive: Drive) -> None:
    driver = visits_by_window(drive, tumbling("10 ms"))
    driver.pipe("visits", "v", key="home", timestamp=2)
    assert driver.store("counts") == {("home", 0, 10): 1}
    assert driver.output("final") == []


def test_an_unknown_strategy_is_an_error() -> None:
    visits = Pipeline("final").stream("visits", value=str).group_by_key()
    with pytest.raises(TopologyError, match=r"unknown emit='window_closes'.*Choose 'every', 'window_close'"):
        visits.windowed_by(tumbling("1 s"), emit="window_closes")  # type: ignore[arg-type]
