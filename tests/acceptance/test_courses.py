"""The programs of courses on Kafka Streams and Flink, each as a pipeline, with results computed in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from statistics import mean
from typing import Any

from msgspec import Struct

from sluice import (
    Context,
    Pipeline,
    Record,
    Timer,
    epoch_ms,
    every_records,
    hopping,
    last_records,
    session,
    tumbling,
    within,
)
from tests.acceptance.conftest import Piped, Play, last_values, pairs, values

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
START = 1_700_000_000_000 - 1_700_000_000_000 % HOUR


class Employee(Struct):
    id: str
    department: str
    salary: int


class Invoice(Struct):
    store: str
    amount: float
    at: int


class Heartbeat(Struct):
    machine: str
    at: int


class Impression(Struct):
    advertiser: str
    campaign: str


class Inventory(Struct):
    inventory: str
    news_type: str


class Code(Struct):
    transaction: str
    code: int
    at: int


class Login(Struct):
    user: str
    at: int


class Quote(Struct):
    symbol: str
    price: float
    volume: int


class Ride(Struct):
    ride: int
    driver: int
    is_start: bool
    longitude: float
    latitude: float
    at: int


class Fare(Struct):
    ride: int
    driver: int
    tip: float
    at: int


def test_salaries_of_departments_follow_employees_who_move(play: Play) -> None:
    pipeline = Pipeline("salaries")
    employees = pipeline.table("employees", value=Employee, key="id")
    by_department = employees.group_by("department")
    by_department.aggregate(
        store="departments", people="count(*)", total="sum(salary)", average="avg(salary)"
    )
    chance = random.Random(1)
    changes = [
        Employee(
            str(chance.randrange(8)),
            chance.choice(["engineering", "support"]),
            chance.randrange(3_000, 9_000),
        )
        for _ in range(40)
    ]

    driver = play(pipeline, [Piped("employees", change) for change in changes])

    salaries = defaultdict(list)
    for employee in {change.id: change for change in changes}.values():
        salaries[employee.department].append(employee.salary)
    assert driver.store("departments") == {
        department: {"people": len(of), "total": sum(of), "average": mean(of)}
        for department, of in salaries.items()
    }


def test_invoices_of_each_store_are_counted_in_windows_of_five_minutes(play: Play) -> None:
    pipeline = Pipeline("invoices")
    invoices = pipeline.stream("invoices", value=Invoice, key="store", event_time=epoch_ms("at"))
    invoices.group_by_key().windowed_by(tumbling("5 minutes", grace="2 minutes")).count(
        store="invoices_per_window"
    )
    chance = random.Random(2)
    sent = [
        Invoice(chance.choice("AB"), 10, START + 20 * SECOND * n - chance.randrange(5 * MINUTE))
        for n in range(60)
    ]

    driver = play(pipeline, [Piped("invoices", invoice) for invoice in sent])

    counts: Counter[tuple[str, int, int]] = Counter()
    latest = 0
    for invoice in sent:
        latest = max(latest, invoice.at)
        begin = invoice.at - invoice.at % (5 * MINUTE)
        if latest < begin + 7 * MINUTE:
            counts[invoice.store, begin, begin + 5 * MINUTE] += 1
    assert driver.store("invoices_per_window") == counts
    assert driver.counts()["late/invoices_per_window"] == 60 - sum(counts.values()) > 0


def test_the_heartbeats_of_the_last_minute_show_which_machines_are_down(play: Play) -> None:
    pipeline = Pipeline("heartbeats")
    beats = pipeline.stream("heartbeats", value=Heartbeat, key="machine", event_time=epoch_ms("at"))
    windows = beats.group_by_key().windowed_by(hopping("1 minute", advance="30 seconds"))
    windows.count(store="beats").suppress_until_window_closes().filter("value < 3").to("alarms")
    every = {"good": 15, "bad": 40}
    sent = [
        Heartbeat(name, START + second * SECOND)
        for name, gap in every.items()
        for second in range(0, 600, gap)
    ]
    sent.sort(key=lambda beat: beat.at)

    driver = play(pipeline, [Piped("heartbeats", beat) for beat in sent])

    starts = range(START - 30 * SECOND, START + 600 * SECOND, 30 * SECOND)
    last = sent[-1].at
    expected = set()
    for name in every:
        for start in starts:
            beats_in_window = sum(
                beat.machine == name and start <= beat.at < start + MINUTE for beat in sent
            )
            if 0 < beats_in_window < 3 and start + MINUTE <= last:
                expected.add((name, start))
    alarms = [record for record in driver.output("alarms") if record.value is not None]
    assert {(alarm.key, int(alarm.headers["window_start"])) for alarm in alarms} == expected


def test_clicks_of_users_form_sessions(play: Play) -> None:
    pipeline = Pipeline("user_sessions")
    clicks = pipeline.stream("clicks", value=Login, key="user", event_time=epoch_ms("at"))
    clicks.group_by_key().windowed_by(session("5 minutes")).count(store="clicks_of_session")
    minutes = {"ann": [0, 2, 6, 20, 24], "bob": [1, 3, 30]}
    sent = sorted((minute, user) for user, at in minutes.items() for minute in at)

    driver = play(
        pipeline, [Piped("clicks", Login(user, START + minute * MINUTE)) for minute, user in sent]
    )

    assert driver.store("clicks_of_session") == {
        ("ann", START, START + 6 * MINUTE): 3,
        ("ann", START + 20 * MINUTE, START + 24 * MINUTE): 2,
        ("bob", START + MINUTE, START + 3 * MINUTE): 2,
        ("bob", START + 30 * MINUTE, START + 30 * MINUTE): 1,
    }


def test_an_advertisers_campaigns_have_a_click_rate(play: Play) -> None:
    pipeline = Pipeline("campaigns")
    shown = (
        pipeline.stream("impressions", value=Impression, key="campaign")
        .group_by_key()
        .count(store="shown")
    )
    clicked = (
        pipeline.stream("ad_clicks", value=Impression, key="campaign")
        .group_by_key()
        .count(store="clicked")
    )
    shown.left_join(clicked).select(rate="coalesce(right, 0) / left").to("click_rates")
    chance = random.Random(3)
    shows = [Impression("x", chance.choice(["spring", "summer"])) for _ in range(30)]
    clicks = [Impression("x", chance.choice(["spring", "summer"])) for _ in range(9)]

    driver = play(
        pipeline,
        [Piped("impressions", show) for show in shows]
        + [Piped("ad_clicks", click, timestamp=1) for click in clicks],
    )

    shown_of, clicked_of = (
        Counter(each.campaign for each in shows),
        Counter(each.campaign for each in clicks),
    )
    rates = {campaign: {"rate": clicked_of[campaign] / shown_of[campaign]} for campaign in shown_of}
    assert last_values(driver, "click_rates") == rates


def test_a_click_joins_the_impression_of_the_last_ten_seconds(play: Play) -> None:
    pipeline = Pipeline("impressions_and_clicks")
    impressions = pipeline.stream("impressions", value=str)
    clicks = pipeline.stream("ad_clicks", value=str)
    joined = impressions.left_join(clicks, within(before="0 s", after="10 seconds"))
    joined.select(impression="left", click="right").to("impressions_with_clicks")
    records = [
        Piped("impressions", "i1", "ad", START),
        Piped("ad_clicks", "c1", "ad", START + 4 * SECOND),
        Piped("impressions", "i2", "ad", START + 20 * SECOND),
        Piped("ad_clicks", "c2", "other", START + 60 * SECOND),
    ]

    driver = play(pipeline, records)

    assert values(driver, "impressions_with_clicks") == [
        {"impression": "i1", "click": "c1"},
        {"impression": "i2", "click": None},
    ]


def test_the_three_inventories_with_most_clicks_of_each_type_of_news(play: Play) -> None:
    pipeline = Pipeline("top_three")
    inventories = pipeline.global_table("active_inventories", value=Inventory)
    clicks = pipeline.stream("clicks", value=str)
    joined = clicks.join(inventories, on="value").select(
        inventory="right.inventory", news="right.news_type"
    )
    joined.group_by("news").aggregate(
        dict, count_click, store="clicks_of_news", returns=dict[str, int]
    )
    chance = random.Random(4)
    known = [Inventory(str(number), chance.choice(["sports", "politics"])) for number in range(8)]
    clicked = [str(chance.randrange(9)) for _ in range(60)]

    driver = play(
        pipeline,
        [Piped("active_inventories", inventory, inventory.inventory) for inventory in known]
        + [Piped("clicks", inventory, timestamp=1) for inventory in clicked],
    )

    expected: dict[str, Counter[str]] = defaultdict(Counter)
    for inventory in clicked:
        if int(inventory) < len(known):
            expected[known[int(inventory)].news_type][inventory] += 1
    found = driver.store("clicks_of_news")
    for news, counts in expected.items():
        best = sorted(found[news].items(), key=lambda item: (-item[1], item[0]))[:3]
        assert best == sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]


def count_click(counts: dict[str, int], click: Any) -> dict[str, int]:
    counts[click["inventory"]] = counts.get(click["inventory"], 0) + 1
    return counts


def test_a_one_time_code_is_valid_for_five_minutes(play: Play) -> None:
    pipeline = Pipeline("codes")
    requested = pipeline.stream(
        "requested", value=Code, key="transaction", event_time=epoch_ms("at")
    )
    entered = pipeline.stream("entered", value=Code, key="transaction", event_time=epoch_ms("at"))
    joined = requested.join(entered, within(before="0 s", after="5 minutes"))
    joined.select(valid="left.code = right.code").to("validations")
    records = [
        Piped("requested", Code("1", 111, START), timestamp=START),
        Piped("requested", Code("2", 222, START), timestamp=START),
        Piped("requested", Code("3", 333, START), timestamp=START),
        Piped("entered", Code("1", 111, START + 4 * MINUTE), timestamp=START + 4 * MINUTE),
        Piped("entered", Code("2", 229, START + 4 * MINUTE), timestamp=START + 4 * MINUTE),
        Piped("entered", Code("3", 333, START + 6 * MINUTE), timestamp=START + 6 * MINUTE),
    ]

    driver = play(pipeline, records)

    assert pairs(driver, "validations") == [("1", {"valid": True}), ("2", {"valid": False})]


def test_the_last_log_in_of_each_user(play: Play) -> None:
    pipeline = Pipeline("last_logins")
    users = pipeline.table("users", value=str)
    logins = pipeline.stream("logins", value=Login, key="user").to_table(store="last_login")
    logins.join(users).select(name="right", at="left.at").to("last_logins")
    records = [
        Piped("users", "Ann", "a"),
        Piped("logins", Login("a", 5), timestamp=1),
        Piped("logins", Login("a", 9), timestamp=2),
        Piped("users", "Anna", "a", timestamp=3),
    ]

    driver = play(pipeline, records)

    assert values(driver, "last_logins") == [
        {"name": "Ann", "at": 5},
        {"name": "Ann", "at": 9},
        {"name": "Anna", "at": 9},
    ]


def test_statistics_of_a_stock_in_each_ten_seconds(play: Play) -> None:
    pipeline = Pipeline("stocks")
    quotes = pipeline.stream("quotes", value=Quote, key="symbol")
    windows = quotes.group_by_key().windowed_by(tumbling("10 seconds", grace="5 seconds"))
    windows.aggregate(
        store="statistics", trades="count(*)", least="min(price)", most="max(price)", mean="avg(price)",
        volume="sum(volume)",
    )  # fmt: skip
    chance = random.Random(5)
    records = [
        Piped(
            "quotes",
            Quote(chance.choice("XY"), chance.randrange(100, 200) / 4, n),
            timestamp=START + n * SECOND,
        )
        for n in range(60)
    ]

    driver = play(pipeline, records)

    quoted = defaultdict(list)
    for record in records:
        begin = record.timestamp - record.timestamp % (10 * SECOND)
        quoted[record.value.symbol, begin, begin + 10 * SECOND].append(record.value)
    assert driver.store("statistics") == {
        window: {
            "trades": len(quotes_of),
            "least": min(quote.price for quote in quotes_of),
            "most": max(quote.price for quote in quotes_of),
            "mean": mean(quote.price for quote in quotes_of),
            "volume": sum(quote.volume for quote in quotes_of),
        }
        for window, quotes_of in quoted.items()
    }


def test_the_average_price_of_the_last_ten_trades_and_of_each_ten(play: Play) -> None:
    pipeline = Pipeline("trades")
    trades = pipeline.stream("trades", value=Quote, key="symbol").group_by_key()
    trades.windowed_by(last_records(10)).aggregate(store="moving", mean="avg(price)").to(
        "moving_means"
    )
    trades.windowed_by(every_records(10), emit="window_close").aggregate(
        store="tens", mean="avg(price)"
    ).to("tens")
    chance = random.Random(6)
    quotes = [Quote(chance.choice("XYY"), chance.randrange(100, 200) / 4, n) for n in range(70)]

    driver = play(pipeline, [Piped("trades", quote, timestamp=START) for quote in quotes])

    prices: dict[str, list[float]] = defaultdict(list)
    moving, tens = [], []
    for quote in quotes:
        of_symbol = prices[quote.symbol]
        of_symbol.append(quote.price)
        moving.append((quote.symbol, {"mean": mean(of_symbol[-10:])}))
        if len(of_symbol) % 10 == 0:
            tens.append((quote.symbol, {"mean": mean(of_symbol[-10:])}))
    assert pairs(driver, "moving_means") == moving
    assert pairs(driver, "tens") == tens


def _rides(seed: int) -> list[Ride]:
    chance = random.Random(seed)
    rides = []
    for number in range(25):
        begin = START + chance.randrange(5 * HOUR)
        place = -74.0 + chance.randrange(-40, 40) / 20, 40.7 + chance.randrange(-20, 20) / 20
        rides.append(Ride(number, number % 4, True, *place, begin))
        if chance.random() < 0.8:
            rides.append(
                Ride(number, number % 4, False, *place, begin + chance.randrange(4 * HOUR))
            )
    return sorted(rides, key=lambda ride: ride.at)


def test_rides_outside_of_the_city_are_removed(play: Play) -> None:
    pipeline = Pipeline("cleansing")
    rides = pipeline.stream("rides", value=Ride, key="ride", event_time=epoch_ms("at"))
    in_city = "longitude BETWEEN -74.05 AND -73.7 AND latitude BETWEEN 40.5 AND 41.0"
    rides.filter(in_city).to("rides_in_city")
    sent = _rides(6)

    driver = play(pipeline, [Piped("rides", ride, timestamp=ride.at) for ride in sent])

    expected = [
        (ride.ride, ride.is_start)
        for ride in sent
        if -74.05 <= ride.longitude <= -73.7 and 40.5 <= ride.latitude <= 41
    ]
    assert [
        (ride["ride"], ride["is_start"]) for ride in values(driver, "rides_in_city")
    ] == expected


def test_rides_and_their_fares_find_each_other_in_any_order(play: Play) -> None:
    pipeline = Pipeline("rides_and_fares")
    rides = pipeline.stream("rides", value=Ride, key="ride", event_time=epoch_ms("at")).filter(
        "is_start"
    )
    fares = pipeline.stream("fares", value=Fare, key="ride", event_time=epoch_ms("at"))
    rides.join(fares, within("12 hours")).select(ride="left.ride", tip="right.tip").to(
        "rides_with_fares"
    )
    starts = [ride for ride in _rides(7) if ride.is_start]
    chance = random.Random(8)
    records = [Piped("rides", ride, timestamp=ride.at) for ride in starts]
    for ride in starts:
        at = ride.at + chance.randrange(-HOUR, HOUR)
        records.append(
            Piped("fares", Fare(ride.ride, ride.driver, ride.ride / 2, at), timestamp=at)
        )
    chance.shuffle(records)

    driver = play(pipeline, records)

    found = values(driver, "rides_with_fares")
    assert sorted(each["ride"] for each in found) == sorted(ride.ride for ride in starts)
    assert all(each["tip"] == each["ride"] / 2 for each in found)


def test_the_driver_with_the_highest_tips_of_each_hour(play: Play) -> None:
    pipeline = Pipeline("hourly_tips")
    fares = pipeline.stream("fares", value=Fare, key="driver", event_time=epoch_ms("at"))
    tips = (
        fares.group_by_key()
        .windowed_by(tumbling("1 hour"))
        .aggregate(store="tips_of_driver", tips="sum(tip)")
    )
    hourly = tips.suppress_until_window_closes().to_stream()
    hourly.select(
        hour="unix_millis(date_trunc('HOUR', _timestamp))", driver="_key", tips="tips"
    ).group_by("hour").aggregate(
        store="best_of_hour", driver="max_by(driver, tips)", tips="max(tips)"
    )
    chance = random.Random(9)
    paid = [Fare(n, n % 4, chance.randrange(1, 400) / 4, START + n * 5 * MINUTE) for n in range(60)]

    driver = play(pipeline, [Piped("fares", fare, timestamp=fare.at) for fare in paid])

    tips_of: dict[int, Counter[str]] = defaultdict(Counter)
    for fare in paid:
        tips_of[fare.at - fare.at % HOUR][str(fare.driver)] += fare.tip  # type: ignore[assignment]  # tips are floats
    expected = {}
    for hour, drivers in tips_of.items():
        if hour + HOUR <= paid[-1].at:
            best = max(drivers, key=lambda each: drivers[each])
            expected[str(hour)] = {"driver": best, "tips": drivers[best]}
    assert driver.store("best_of_hour") == expected


class LongRides:
    """Sends an alert if a ride has not ended two hours after its start."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Ride]) -> None:
        store = self.context.store("started")
        if record.value.is_start:
            store.put("driver", record.value.driver)
            self.context.schedule("long", record.time + 2 * HOUR)
        else:
            store.delete("driver")
            self.context.cancel("long")

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, self.context.store("started").get("driver"))


def test_rides_that_have_not_ended_after_two_hours_are_reported(play: Play) -> None:
    pipeline = Pipeline("long_rides")
    rides = pipeline.stream("rides", value=Ride, key="ride", event_time=epoch_ms("at"))
    rides.process(LongRides, stores={"started": int}, returns=int).output.to("long_rides")
    sent = _rides(10)

    driver = play(pipeline, [Piped("rides", ride, timestamp=ride.at) for ride in sent])

    expected, ended = {}, {ride.ride: ride.at for ride in sent if not ride.is_start}
    for ride in sent:
        due = ride.at + 2 * HOUR
        if ride.is_start:
            # The record that advances stream time to the timer comes first: it may be the end of
            # this very ride.
            advancing = next((other for other in sent if other.at >= due), None)
            if (
                advancing is not None
                and advancing.ride != ride.ride
                and ended.get(ride.ride, due) >= due
            ):
                expected[str(ride.ride)] = ride.driver
    assert last_values(driver, "long_rides") == expected
