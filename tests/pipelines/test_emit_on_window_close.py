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
    assert [
        (int(r.headers["window_start"]), int(r.headers["window_end"]), r.value) for r in final
    ] == counts
    assert {(r.key, r.timestamp) for r in final} == {("home", 8)}, (
        "the time of the window's last visit"
    )
    assert final[-1].headers["run"] == "fourth", "the visit that closes the window"

    visit("home", 8, "late")
    assert len(driver.output("final")) == len(counts)


def test_the_store_has_the_open_windows_too(drive: Drive) -> None:
    driver = visits_by_window(drive, tumbling("10 ms"))
    driver.pipe("visits", "v", key="home", timestamp=2)
    assert driver.store("counts") == {("home", 0, 10): 1}
    assert driver.output("final") == []


@pytest.mark.parametrize("cut", [False, True])
def test_final_results_are_grouped_by_window(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("best")
    visits = (
        pipeline.stream("visits", value=str)
        .group_by_key()
        .windowed_by(tumbling("10 ms"), emit="window_close")
    )
    counts = visits.count(store="counts").filter("value > 1")
    best = counts.group_by("unix_millis(_window_start)").aggregate(
        {"pages": "count(*)", "page": "max_by(_key, value)", "visits": "max(value)"}, store="best"
    )
    best.group_by("page").count(store="wins")
    pages = counts.group_by("'all'").aggregate(
        list, _add_page, _refuse_page, store="pages", returns=list[int]
    )
    pages.to("pages")
    driver = drive(pipeline)
    for second, window in enumerate(["home home cart cart cart once", "home home", "cart"]):
        for page in window.split():
            driver.pipe("visits", "v", key=page, timestamp=10 * second)
            if cut:
                driver.commit()

    assert driver.store("best") == {
        "0": {"pages": 2, "page": "cart", "visits": 3},
        "10": {"pages": 1, "page": "home", "visits": 2},
    }
    assert driver.store("wins") == {"cart": 1, "home": 1}, (
        "the first best page of a window replaces no page"
    )
    assert [record.value for record in driver.output("pages")] == [[3], [3, 2], [3, 2, 2]]
    assert driver.counts().get("null_value/pages", 0) == 0, (
        "the filter removes pages, without counting them"
    )


def _add_page(counts: list[int], count: int) -> list[int]:
    return [*counts, count]


def _refuse_page(counts: list[int], count: int) -> list[int]:
    raise AssertionError("a final result never changes")


def test_an_unknown_strategy_is_an_error() -> None:
    visits = Pipeline("final").stream("visits", value=str).group_by_key()
    with pytest.raises(
        TopologyError, match=r"unknown emit='window_closes'.*Choose 'every', 'window_close'"
    ):
        visits.windowed_by(tumbling("1 s"), emit="window_closes")  # type: ignore[arg-type]
