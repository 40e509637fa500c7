"""Windows of a time zone in pipelines: a restaurant in Berlin counts its orders by business day, week and month."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from msgspec import Struct

from sluice import Pipeline, hopping, tumbling
from sluice.errors import TopologyError
from sluice.plan import StoreColumn, plan
from sluice.testing import TopologyTestDriver
from sluice.values.windows import TimeWindow
from tests.pipelines.conftest import Drive

BERLIN = ZoneInfo("Europe/Berlin")


class Order(Struct):
    dish: str
    price: int


def ms(day: str, clock: str = "00:00") -> int:
    """A time on the clocks of Berlin, in 2026."""
    return round(
        datetime.fromisoformat(f"2026-{day}T{clock}").replace(tzinfo=BERLIN).timestamp() * 1_000
    )


EVENING = tumbling("1 day", grace="1 hour", zone="Europe/Berlin", offset="18 hours")


def restaurant(drive: Drive) -> TopologyTestDriver:
    pipeline = Pipeline("restaurant", workers=2)
    by_dish = pipeline.stream("orders", value=Order).group_by("dish")
    # The first two are combinable aggregates, the others take records in order.
    by_dish.windowed_by(EVENING, late="orders_late").aggregate(
        store="takings", sum="sum(price)"
    ).select("sum", since="_window_start", until="_window_end").to("takings_changes", emit="latest")
    by_dish.windowed_by(tumbling("1 month", zone="Europe/Berlin"), retention="10 days").count(
        store="months"
    )
    by_dish.windowed_by(EVENING).reduce(
        lambda dearest, order: max(dearest, order, key=lambda each: each.price), store="dearest"
    )
    by_dish.windowed_by(EVENING, emit="window_close").count(store="days").to("days_closed")
    by_dish.windowed_by(hopping("7 days", advance="1 day", zone="Europe/Berlin")).reduce(
        lambda _, last: last, store="last_of_seven_days"
    )
    return drive(pipeline)


@pytest.mark.parametrize("cut", [False, True])
def test_the_night_of_summer_time_has_23_hours(drive: Drive, cut: bool) -> None:
    driver = restaurant(drive)

    def order(price: int, day: str, clock: str) -> None:
        driver.pipe("orders", {"dish": "soup", "price": price}, timestamp=ms(day, clock))
        if cut:
            driver.commit()

    order(5, "03-28", "17:59")
    order(7, "03-28", "18:00")
    order(6, "03-29", "03:00")
    order(8, "03-29", "18:30")
    order(4, "03-29", "17:59")  # within the grace of an hour
    order(9, "03-29", "19:00")
    order(3, "03-29", "17:59")  # late

    keys = [
        ("soup", ms(f"03-{day}", "18:00"), ms(f"03-{day + 1}", "18:00")) for day in (27, 28, 29)
    ]
    assert [(end - start) // 3_600_000 for _, start, end in keys] == [24, 23, 24]
    assert driver.store("takings") == dict(
        zip(keys, ({"sum": 5}, {"sum": 17}, {"sum": 17}), strict=True)
    )
    dearest = [{"dish": "soup", "price": price} for price in (5, 7, 9)]
    assert driver.store("dearest") == dict(zip(keys, dearest, strict=True))

    closed = driver.output("days_closed")
    assert [(int(each.headers["window_start"]), each.value) for each in closed] == [
        (keys[0][1], 1),
        (keys[1][1], 3),
    ]
    assert [record.value["price"] for record in driver.output("orders_late")] == [3]
    assert (
        driver.counts()["late/takings"]
        == driver.counts()["late/dearest"]
        == driver.counts()["late/days"]
        == 1
    )
    last = driver.output("takings_changes")[-1].value
    assert last == {
        "sum": 17,
        "since": "2026-03-29T16:00:00.000000Z",
        "until": "2026-03-30T16:00:00.000000Z",
    }
    seven = {
        start: order["price"] for (_, start, _), order in driver.store("last_of_seven_days").items()
    }
    assert seven[ms("03-22")] == 7, "the week that ends with 28 March"
    assert seven[ms("03-23")] == 3, "its week is still open, though its day is not"
    assert len(seven) == 8


def test_a_month_is_kept_for_its_retention(drive: Drive) -> None:
    driver = restaurant(drive)
    for day in ("01-31", "02-28", "03-10"):
        driver.pipe("orders", {"dish": "soup", "price": 1}, timestamp=ms(day, "23:30"))
    february = ms("02-01"), ms("03-01")
    assert driver.store("months") == {("soup", *february): 1, ("soup", ms("03-01"), ms("04-01")): 1}
    driver.pipe("orders", {"dish": "soup", "price": 1}, timestamp=ms("03-11", "00:01"))
    assert ("soup", *february) not in driver.store("months")


def test_the_first_day_of_1970_begins_before_1970(drive: Drive) -> None:
    driver = restaurant(drive)
    for dish in ("", "soup"):
        driver.pipe("orders", {"dish": dish, "price": 1}, timestamp=0)
        driver.pipe("orders", {"dish": dish, "price": 2}, timestamp=1)
    night = -7 * 3_600_000, 17 * 3_600_000
    assert driver.store("takings") == {("", *night): {"sum": 3}, ("soup", *night): {"sum": 3}}
    assert {key for key, _, _ in driver.store("dearest")} == {"", "soup"}
    assert driver.output("takings_changes")[-1].value["since"] == "1969-12-31T17:00:00.000000Z"


def test_a_store_with_another_zone_has_another_meaning() -> None:
    def store(window: TimeWindow) -> StoreColumn:
        pipeline = Pipeline("restaurant")
        pipeline.stream("orders", value=Order).group_by("dish").windowed_by(window).count(
            store="days"
        )
        ((column,),) = [group.store_columns for group in plan(pipeline).job.groups]
        return column

    berlin = store(tumbling("1 day", zone="Europe/Berlin"))
    assert store(tumbling("1 day", zone="Europe/Berlin")) == berlin
    for other in (
        tumbling("1 day", zone="Europe/Paris"),
        tumbling("1 day", zone="Europe/Berlin", offset="1 hour"),
        tumbling("1 day"),
        tumbling("2 days", zone="Europe/Berlin"),
        tumbling("1 month", zone="Europe/Berlin"),
    ):
        assert store(other).definition != berlin.definition


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (
            lambda: tumbling("1 day", zone="Europe/Berlín"),
            r"'Europe/Berlín' is not the name of a time zone",
        ),
        (lambda: tumbling("1 day", zone=""), r"'' is not the name of a time zone"),
        (lambda: tumbling("1 day", zone="Europe"), r"'Europe' is not the name of a time zone"),
        (lambda: tumbling("0 months"), r"the size must be above 0"),
        (lambda: tumbling("1 day", offset="24 hours"), r"shorter than a window"),
        (lambda: tumbling("1 month", offset="30 days"), r"shorter than a window"),
        (lambda: tumbling("1 month", offset="1 month"), r"shorter than a window"),
        (
            lambda: tumbling("1 week", offset="1 month"),
            r"an offset of months needs windows of months",
        ),
        (lambda: tumbling("250 ms", zone="Europe/Berlin"), r"begin at whole seconds"),
        (
            lambda: tumbling("1 day", grace="1 month"),
            r"'1 month' at .* is not a duration\. Only sizes, advances and offsets",
        ),
        (lambda: hopping("1 month", advance="1 week"), r"a multiple of the advance"),
        (lambda: hopping("36 hours", advance="1 day", zone="UTC"), r"a multiple of the advance"),
        (lambda: hopping("1 day", advance="0 s", zone="UTC"), r"the advance must be above 0"),
        (lambda: hopping("1 day", advance="1 ms"), r"each record would be in 86,400,000 windows"),
        (
            lambda: hopping("10 days", advance="1 s", zone="UTC"),
            r"each record would be in 864,000 windows",
        ),
        (lambda: tumbling("300000 years"), r"is too long"),
        (
            lambda: tumbling("1001 years"),
            r"is too long\. A window in a time zone has at most 1,000 years",
        ),
        (lambda: tumbling("700000 days", zone="Europe/Berlin"), r"at most 1,000 years"),
        (lambda: hopping("3000 years", advance="1000 years"), r"at most 1,000 years"),
    ],
)
def test_a_wrong_window_is_an_error_when_the_file_is_loaded(
    window: Callable[[], object], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        window()
