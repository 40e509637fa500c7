"""Early results of open windows every so often, then the final result of each window."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, custom_windows, every_records, session, tumbling
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.values.windows import AnyWindow
from tests.pipelines.conftest import Drive

cuts = pytest.mark.parametrize("cut", [False, True])


class Sale(Struct):
    shop: str
    amount: int


def sales(drive: Drive, window: AnyWindow) -> TopologyTestDriver:
    pipeline = Pipeline("sales", workers=2)
    by_shop = pipeline.stream("sales", value=Sale).group_by("shop")
    totals = by_shop.windowed_by(window, emit="window_close", early="10 ms").aggregate(
        store="totals", sum="sum(amount)", mean="sum(amount) / count(*)"
    )
    totals.select("sum").to("results")
    totals.group_by("'all'").aggregate(store="all_shops", sum="sum(sum)", windows="count(*)")
    totals.changes().to("changes")
    return drive(pipeline)


def results(driver: TopologyTestDriver) -> list[tuple[Any, ...]]:
    """Window, mark and sum of each result."""
    return [
        (
            int(each.headers["window_start"]),
            int(each.headers["window_end"]),
            each.headers["window_result"],
            None if each.value is None else each.value["sum"],
        )
        for each in driver.output("results")
    ]


@cuts
def test_an_open_window_has_a_result_now_and_then_and_a_closed_one_its_last(
    drive: Drive, cut: bool
) -> None:
    driver = sales(drive, tumbling("60 ms", grace="5 ms"))

    def sell(shop: str, amount: int, time: int) -> None:
        driver.pipe(
            "sales", {"shop": shop, "amount": amount}, timestamp=time, headers={"run": str(time)}
        )
        if cut:
            driver.commit()

    sell("tea", 5, 1)
    sell("tea", 7, 4)
    assert results(driver) == []
    sell("pot", 1, 11)  # ten milliseconds after the first sale of tea
    sell("pot", 2, 30)  # nothing of tea has changed since
    sell("tea", 1, 31)
    sell("tea", 3, 41)
    sell("tea", 3, 59)
    expected = [(0, 60, "early", 12), (0, 60, "early", 3), (0, 60, "early", 16)]
    assert results(driver) == expected
    assert driver.output("results")[0].headers["run"] == "11", "the sale that advances the time"
    # The store of the other step has what was sent: 16 for tea, 3 for pot.
    assert driver.store("all_shops") == {"all": {"sum": 19, "windows": 2}}
    sell("cup", 1, 65)
    # The last change of tea is due at 69, when its window has closed already.
    assert results(driver) == [*expected, (0, 60, "final", 3), (0, 60, "final", 19)]
    assert driver.store("all_shops") == {"all": {"sum": 22, "windows": 2}}
    kinds = [(each.key, each.value["kind"]) for each in driver.output("changes")]
    assert kinds == [
        ("tea", "insert"),
        ("pot", "insert"),
        ("tea", "update"),
        ("pot", "update"),
        ("tea", "update"),
    ]
    assert driver.store("totals")["tea", 0, 60]["sum"] == 19


@cuts
def test_a_session_that_grows_takes_its_early_result_back(drive: Drive, cut: bool) -> None:
    driver = sales(drive, session("20 ms"))
    for shop, time in [("tea", 0), ("pot", 12), ("tea", 15), ("pot", 36), ("pot", 60)]:
        driver.pipe("sales", {"shop": shop, "amount": 1}, timestamp=time)
        if cut:
            driver.commit()
    keys = [each.key for each in driver.output("results")]
    of_tea = [result for key, result in zip(keys, results(driver), strict=True) if key == "tea"]
    assert of_tea == [
        (0, 0, "early", 1),
        (0, 0, "early", None),
        (0, 15, "early", 2),
        (0, 15, "final", 2),
    ]


def test_windows_of_a_function_have_early_results(drive: Drive) -> None:
    driver = sales(drive, custom_windows(lambda time: [(time // 30 * 30, time // 30 * 30 + 30)]))
    for time in (0, 12, 31):
        driver.pipe("sales", {"shop": "tea", "amount": 1}, timestamp=time)
    assert results(driver) == [(0, 30, "early", 2), (0, 30, "final", 2)]


@pytest.mark.parametrize(
    ("window", "options", "message"),
    [
        (
            tumbling("1 minute"),
            {"early": "10 seconds"},
            r"early= has no meaning, because every result is sent immediately",
        ),
        (
            tumbling("1 minute"),
            {"early": "0 s", "emit": "window_close"},
            r"early is 0, but must be at least 1",
        ),
        (
            tumbling("1 minute"),
            {"early": "soon", "emit": "window_close"},
            r"'soon' at .* is not a duration",
        ),
        (
            every_records(3),
            {"early": "1 s", "emit": "window_close"},
            r"late=, retention= and early= have no",
        ),
    ],
)
def test_a_wrong_use_is_an_error_when_the_file_is_loaded(
    window: Any, options: Any, message: str
) -> None:
    by_shop = Pipeline("wrong").stream("sales", value=Sale).group_by("shop")
    with pytest.raises(TopologyError, match=message):
        by_shop.windowed_by(window, **options)
