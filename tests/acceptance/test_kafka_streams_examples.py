"""The programs of Confluent's kafka-streams-examples, each as a pipeline, with results computed in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec import Struct

from sluice import Context, Decimal2, Pipeline, Record, tumbling, within
from tests.acceptance.conftest import Piped, Play, last_values, pairs, values

MINUTE, HOUR = 60_000, 3_600_000
START = 1_700_000_000_000 - 1_700_000_000_000 % HOUR


class View(Struct):
    page: str
    industry: str


class Profile(Struct):
    region: str


class Playing(Struct):
    song: int
    seconds: int


class Song(Struct):
    song: int
    genre: str
    name: str


class Order(Struct):
    id: str
    customer: int
    product: str
    quantity: int
    price: Decimal2


class Validation(Struct):
    order: str
    check: str
    result: str


@pytest.mark.spark
def test_words_of_lines_are_counted(play: Play) -> None:
    pipeline = Pipeline("word_count")
    lines = pipeline.stream("lines", value=str)
    words = lines.flat_map_values("split(lower(value), '[^a-z]+')").filter("value <> ''")
    words.group_by("value").count(store="words").to("word_counts")
    texts = ["Hello Kafka Streams", "all streams lead to Kafka", "join kafka summit!"]

    driver = play(pipeline, [Piped("lines", text) for text in texts])

    expected = Counter(" ".join(texts).lower().replace("!", "").split())
    assert driver.store("words") == expected
    assert last_values(driver, "word_counts") == expected


def test_texts_are_written_in_upper_case_and_keyed_by_themselves(play: Play) -> None:
    pipeline = Pipeline("map_function")
    lines = pipeline.stream("lines", value=str)
    lines.map_values("upper(value)").to("shouted", value=str)
    lines.map(lambda key, text: (text, text.upper()), returns=str).to("shouted_by_text", value=str)

    driver = play(pipeline, [Piped("lines", "hello", "a"), Piped("lines", "world", "b")])

    assert pairs(driver, "shouted") == [("a", "HELLO"), ("b", "WORLD")]
    assert pairs(driver, "shouted_by_text") == [("hello", "HELLO"), ("world", "WORLD")]


def test_odd_numbers_are_added_up(play: Play) -> None:
    pipeline = Pipeline("sum")
    numbers = pipeline.stream("numbers", value=int).filter("value % 2 = 1")
    numbers.group_by("1").reduce(lambda total, number: total + number, store="sum").to("odd_sums")

    driver = play(pipeline, [Piped("numbers", number) for number in range(100)])

    assert driver.store("sum") == {"1": sum(range(1, 100, 2))}
    assert values(driver, "odd_sums")[-1] == 2500


def test_users_who_click_three_times_within_a_minute_are_reported(play: Play) -> None:
    pipeline = Pipeline("anomalies")
    clicks = pipeline.stream("clicks", value=str).group_by("value")
    clicks.windowed_by(tumbling("1 minute")).count(store="per_minute").filter("value >= 3").to(
        "anomalous_users"
    )
    chance = random.Random(1)
    records = [
        Piped("clicks", chance.choice(["ann", "bob", "cay"]), timestamp=START + 8_000 * number)
        for number in range(60)
    ]

    driver = play(pipeline, records)

    counts = Counter(
        (record.value, record.timestamp - record.timestamp % MINUTE) for record in records
    )
    expected = {window: count for window, count in counts.items() if count >= 3}
    # A filtered table sends a deletion for a row that does not pass, as in Kafka Streams.
    reported = {
        (record.key, int(record.headers["window_start"])): record.value
        for record in driver.output("anomalous_users")
        if record.value is not None
    }
    assert reported == expected


def test_users_are_counted_by_the_region_in_which_they_live_now(play: Play) -> None:
    pipeline = Pipeline("user_regions")
    regions = pipeline.table("user_regions", value=str)
    regions.group_by("value").count(store="users").filter("value >= 2").to("large_regions")
    moves = [
        ("alice", "asia"),
        ("bob", "americas"),
        ("cay", "asia"),
        ("dave", "europe"),
        ("alice", "europe"),
    ]

    driver = play(pipeline, [Piped("user_regions", region, user) for user, region in moves])

    assert driver.store("users") == {"asia": 1, "americas": 1, "europe": 2}
    assert last_values(driver, "large_regions") == {"asia": None, "americas": None, "europe": 2}


def test_page_views_are_counted_by_the_viewers_region_in_each_five_minutes(play: Play) -> None:
    pipeline = Pipeline("view_regions")
    profiles = pipeline.table("profiles", value=Profile)
    views = pipeline.stream("views", value=View)
    by_region = (
        views.left_join(profiles)
        .select(region="coalesce(right.region, 'unknown')")
        .group_by("region")
    )
    by_region.windowed_by(tumbling("5 minutes")).count(store="views_by_region")
    chance = random.Random(2)
    records, home, counts = [], dict[str, str](), Counter[tuple[str, int, int]]()
    for number in range(60):
        time, user = START + number * 20_000, chance.choice(["ann", "bob", "cay"])
        if chance.random() < 0.3:
            home[user] = chance.choice(["asia", "europe"])
            records.append(Piped("profiles", Profile(home[user]), user, time))
        else:
            records.append(Piped("views", View("index", "x"), user, time))
            start = time - time % (5 * MINUTE)
            counts[home.get(user, "unknown"), start, start + 5 * MINUTE] += 1

    driver = play(pipeline, records)

    assert driver.store("views_by_region") == counts


def test_the_clicks_of_each_region_follow_from_clicks_and_users_regions(play: Play) -> None:
    pipeline = Pipeline("region_clicks")
    clicks, regions = (
        pipeline.stream("user_clicks", value=int),
        pipeline.table("user_regions", value=str),
    )
    joined = clicks.left_join(regions).select(region="coalesce(right, 'unknown')", clicks="left")
    joined.group_by("region").aggregate(store="clicks_of_region", clicks="sum(clicks)").to(
        "clicks_of_regions"
    )
    clicked = [
        ("alice", 13),
        ("bob", 4),
        ("chao", 25),
        ("bob", 19),
        ("dave", 56),
        ("eve", 78),
        ("alice", 40),
    ]
    lives = {
        "alice": "asia",
        "bob": "americas",
        "chao": "asia",
        "dave": "europe",
        "alice_2": "europe",
    }

    driver = play(
        pipeline,
        [Piped("user_regions", region, user) for user, region in lives.items()]
        + [Piped("user_clicks", count, user, 1) for user, count in clicked],
    )

    expected: Counter[str] = Counter()
    for user, count in clicked:
        expected[lives.get(user, "unknown")] += count
    assert last_values(driver, "clicks_of_regions") == {
        region: {"clicks": clicks} for region, clicks in expected.items()
    }


def test_orders_are_completed_with_global_tables_of_customers_and_products(play: Play) -> None:
    pipeline = Pipeline("enriched")
    customers = pipeline.global_table("customers", value=str)
    products = pipeline.global_table("products", value=str)
    orders = pipeline.stream("orders", value=Order)
    named = orders.join(customers, on="customer").select(
        id="left.id", product="left.product", customer="right"
    )
    completed = named.join(products, on="product")
    completed.select(id="left.id", customer="left.customer", product="right").to("completed_orders")
    records = [
        Piped("customers", "Ann", "7"),
        Piped("products", "tea kettle", "kettle"),
        Piped("orders", Order("1", 7, "kettle", 1, 20), timestamp=1),  # type: ignore[arg-type]  # JSON has a number
        Piped("orders", Order("2", 8, "kettle", 1, 20), timestamp=1),  # type: ignore[arg-type]
    ]

    driver = play(pipeline, records)

    assert values(driver, "completed_orders") == [
        {"id": "1", "customer": "Ann", "product": "tea kettle"}
    ]


class Entry(Struct, order=True):
    plays: int
    name: str


def enter(chart: list[Entry], row: Any) -> list[Entry]:
    return sorted([*chart, Entry(**row["entry"])])


def leave(chart: list[Entry], row: Any) -> list[Entry]:
    return [entry for entry in chart if entry != Entry(**row["entry"])]


def test_the_songs_of_each_genre_are_ranked_by_their_plays(play: Play) -> None:
    pipeline = Pipeline("charts")
    songs = pipeline.table("songs", value=Song, key="song")
    plays = pipeline.stream("plays", value=Playing, key="song").filter("seconds >= 30")
    played = plays.join(songs).select(song="right.song", genre="right.genre", name="right.name")
    counts = played.group_by("concat(genre, '/', name)").count(store="plays_of_song")
    ranked = counts.select(
        genre="split(_key, '/')[0]", entry={"plays": "value", "name": "split(_key, '/')[1]"}
    )
    ranked.group_by("genre").aggregate(list, enter, leave, store="charts", returns=list[Entry])
    chance = random.Random(3)
    catalogue = [
        Song(number, chance.choice(["punk", "jazz"]), f"song {number}") for number in range(14)
    ]
    played_songs = [Playing(chance.randrange(14), chance.choice([10, 40, 200])) for _ in range(60)]

    driver = play(
        pipeline,
        [Piped("songs", song) for song in catalogue]
        + [Piped("plays", each, timestamp=1) for each in played_songs],
    )

    expected: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for song, count in Counter(each.song for each in played_songs if each.seconds >= 30).items():
        expected[catalogue[song].genre].append({"plays": count, "name": catalogue[song].name})
    for chart in expected.values():
        chart.sort(key=lambda entry: (entry["plays"], entry["name"]))
    assert driver.store("charts") == expected


class OnlyOnce:
    """Passes a record on unless a record with the same id has passed within ten minutes."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[str]) -> None:
        seen = self.context.store("seen")
        last = seen.get(record.value)
        seen.put(record.value, record.time)
        if last is None or record.time - last > 10 * MINUTE:
            self.context.forward(record.key, record.value)


def test_events_that_were_seen_within_ten_minutes_are_dropped(play: Play) -> None:
    pipeline = Pipeline("once")
    events = pipeline.stream("events", value=str)
    events.process(OnlyOnce, stores={"seen": (int, "10 minutes")}, returns=str).output.to(
        "new_events", value=str
    )
    sent = [("a", 0), ("b", 1), ("a", 5), ("a", 14), ("a", 30), ("b", 31)]

    driver = play(
        pipeline, [Piped("events", event, "k", START + minute * MINUTE) for event, minute in sent]
    )

    assert values(driver, "new_events") == ["a", "b", "a", "b"]


class Reservation:
    """Reserves products from the stock, and says whether there was enough."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[dict[str, Any]]) -> None:
        store = self.context.store("reserved")
        order, stock = record.value["left"], record.value["right"]
        reserved = store.get("quantity", 0)
        has_enough = reserved + order["quantity"] <= (stock or 0)
        if has_enough:
            store.put("quantity", reserved + order["quantity"])
        self.context.forward(
            record.key, Validation(order["id"], "inventory", "PASS" if has_enough else "FAIL")
        )


def test_an_inventory_reserves_products_until_the_stock_is_used_up(play: Play) -> None:
    pipeline = Pipeline("inventory")
    stock = pipeline.table("stock", value=int)
    orders = pipeline.stream("orders", value=Order, key="product").left_join(stock)
    reservations = orders.process(Reservation, stores={"reserved": int}, returns=Validation)
    reservations.output.to("order_validations")
    quantities = [2, 3, 9, 1]
    records = [Piped("stock", 6, "kettle")]
    for number, quantity in enumerate(quantities):
        order = {
            "id": str(number),
            "customer": 1,
            "product": "kettle",
            "quantity": quantity,
            "price": 1,
        }
        records.append(Piped("orders", order, timestamp=1 + number))

    driver = play(pipeline, records)

    assert [value["result"] for value in values(driver, "order_validations")] == [
        "PASS",
        "PASS",
        "FAIL",
        "PASS",
    ]


def test_an_order_is_validated_once_all_its_checks_have_passed(play: Play) -> None:
    pipeline = Pipeline("validations")
    orders = pipeline.stream("orders", value=Order, key="id")
    checks = pipeline.stream("order_validations", value=Validation, key="order")
    passed = checks.filter("result = 'PASS'").group_by_key().count(store="passed").to_stream()
    joined = passed.filter("value = 3").join(orders, within("5 minutes"))
    joined.select(id="right.id", state="'VALIDATED'").to("validated_orders")
    failed = checks.filter("result = 'FAIL'").join(orders, within("5 minutes"))
    failed.select(id="right.id", state="'FAILED'").to("failed_orders")
    order = {"customer": 1, "product": "kettle", "quantity": 1, "price": 1}
    records = [Piped("orders", order | {"id": number}, timestamp=START) for number in ("1", "2")]
    results = [("1", "PASS"), ("2", "PASS"), ("1", "PASS"), ("2", "FAIL"), ("1", "PASS")]
    for place, (number, result) in enumerate(results):
        check = Validation(number, f"check {place}", result)
        records.append(Piped("order_validations", check, timestamp=START + 1_000 * place))

    driver = play(pipeline, records)

    assert values(driver, "validated_orders") == [{"id": "1", "state": "VALIDATED"}]
    assert values(driver, "failed_orders") == [{"id": "2", "state": "FAILED"}]


def test_the_most_viewed_articles_of_each_industry_and_hour(play: Play) -> None:
    pipeline = Pipeline("top_articles")
    views = pipeline.stream("views", value=View).group_by("concat(industry, '/', page)")
    hourly = views.windowed_by(tumbling("1 hour")).count(store="views_of_page")
    pages = hourly.select(page="split(_key, '/')[1]", industry="split(_key, '/')[0]", views="value")
    by_industry = pages.group_by(
        "concat(industry, ' ', CAST(unix_millis(_window_start) AS STRING))"
    )
    by_industry.aggregate(
        store="top", page="max_by(page, 1000 * views - CAST(page AS INT))", views="max(views)"
    )
    chance = random.Random(11)
    records = []
    for number in range(60):
        view = View(str(chance.randrange(6)), chance.choice(["news", "sports"]))
        records.append(Piped("views", view, timestamp=START + number * 5 * MINUTE))

    driver = play(pipeline, records)

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        hour = record.timestamp - record.timestamp % HOUR
        counts[f"{record.value.industry} {hour}"][record.value.page] += 1
    expected = {}
    for key, views_of in counts.items():
        most = max(views_of.values())
        first = min((page for page in views_of if views_of[page] == most), key=int)
        expected[key] = {"page": first, "views": most}
    assert driver.store("top") == expected


def test_purchases_are_counted_by_days_that_begin_in_the_evening(play: Play) -> None:
    pipeline = Pipeline("daily")
    day = tumbling("1 day", grace="1 hour", zone="Europe/Berlin", offset="18 hours")
    pipeline.stream("purchases", value=str).group_by_key().windowed_by(day).count(store="per_day")
    berlin, chance = ZoneInfo("Europe/Berlin"), random.Random(5)
    # Summer time begins and ends in these months, so some of the days have 23 or 25 hours.
    begins = [datetime(2026, month, 20, tzinfo=berlin) for month in (3, 10)]
    times = [
        begin.timestamp() + chance.uniform(0, 12 * 86_400) for begin in begins for _ in range(150)
    ]

    driver = play(
        pipeline,
        [
            Piped("purchases", "book", chance.choice(["ann", "bob"]), round(time * 1_000))
            for time in sorted(times)
        ],
    )

    counts: Counter[datetime] = Counter()
    for time in times:
        local = datetime.fromtimestamp(time, berlin)
        first_day = local.date() if local.hour >= 18 else local.date() - timedelta(days=1)
        counts[datetime(first_day.year, first_day.month, first_day.day, 18, tzinfo=berlin)] += 1
    counted: Counter[datetime] = Counter()
    for (_, start, end), count in driver.store("per_day").items():
        begin = datetime.fromtimestamp(start / 1_000, berlin)
        counted[begin] += count
        assert datetime.fromtimestamp(end / 1_000, berlin) == begin + timedelta(days=1)
    assert counted == counts


def test_a_tables_changes_are_written_with_old_and_new_value(play: Play) -> None:
    pipeline = Pipeline("captured")
    pipeline.table("regions", value=str).changes().to("region_changes")
    moves = [("ann", "asia"), ("bob", "europe"), ("ann", "europe"), ("bob", None)]

    driver = play(pipeline, [Piped("regions", region, user) for user, region in moves])

    assert [(key, *value.values()) for key, value in pairs(driver, "region_changes")] == [
        ("ann", "insert", None, "asia"),
        ("bob", "insert", None, "europe"),
        ("ann", "update", "asia", "europe"),
        ("bob", "delete", "europe", None),
    ]
