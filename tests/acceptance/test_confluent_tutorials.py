"""Confluent's tutorials for Kafka Streams, each as a pipeline, with results computed in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from statistics import mean
from typing import Any

import pytest
from msgspec import Struct

from sluice import (
    Context,
    Pipeline,
    Record,
    Serde,
    Timer,
    hopping,
    session,
    sliding,
    tumbling,
    within,
)
from tests.acceptance.conftest import Piped, Play, last_values, pairs, values

SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000
START = 1_700_000_000_000


class Rating(Struct):
    film: int
    stars: float


class Film(Struct):
    film: int
    title: str
    year: int
    revenue: int


class Ticket(Struct):
    title: str
    price: int


class Book(Struct):
    title: str
    author: str


class Click(Struct):
    ip: str
    url: str


class Album(Struct):
    title: str
    artist: str


class Purchase(Struct):
    song: str
    album: int


class Order(Struct):
    order: str
    product: str


class Shipment(Struct):
    order: str
    warehouse: str


class Temperature(Struct):
    device: str
    degrees: float


class Power(Struct):
    device: str
    watts: int


class Song(Struct):
    artist: str
    title: str


class Customer(Struct):
    name: str
    card: str
    birthday: str


class Acting(Struct):
    actor: str
    title: str
    genre: str


class Pressure(Struct):
    sensor: str
    pressure: int


class Trade(Struct):
    symbol: str
    price: float
    shares: int


def test_the_average_rating_of_each_film(play: Play) -> None:
    pipeline = Pipeline("average")
    ratings = pipeline.stream("ratings", value=Rating).group_by("film")
    ratings.aggregate(store="averages", rating="avg(stars)").to("average_ratings")
    chance = random.Random(1)
    rated = [Rating(chance.randrange(5), chance.randrange(2, 21) / 2) for _ in range(60)]

    driver = play(pipeline, [Piped("ratings", rating) for rating in rated])

    stars = defaultdict(list)
    for rating in rated:
        stars[str(rating.film)].append(rating.stars)
    expected = {film: {"rating": mean(given)} for film, given in stars.items()}
    assert driver.store("averages") == expected
    assert last_values(driver, "average_ratings") == expected


def test_tickets_are_counted_and_their_prices_added_up_for_each_film(play: Play) -> None:
    pipeline = Pipeline("tickets")
    by_title = pipeline.stream("tickets", value=Ticket).group_by("title")
    by_title.count(store="sold")
    by_title.aggregate(store="revenue", total="sum(price)")
    chance = random.Random(2)
    sold = [
        Ticket(chance.choice(["Alien", "Big", "Clue"]), chance.randrange(8, 20)) for _ in range(60)
    ]

    driver = play(pipeline, [Piped("tickets", ticket) for ticket in sold])

    assert driver.store("sold") == Counter(ticket.title for ticket in sold)
    revenue: Counter[str] = Counter()
    for ticket in sold:
        revenue[ticket.title] += ticket.price
    assert driver.store("revenue") == {title: {"total": total} for title, total in revenue.items()}


def test_the_best_and_the_worst_selling_film_of_each_year(play: Play) -> None:
    pipeline = Pipeline("extremes")
    by_year = pipeline.stream("films", value=Film).group_by("year")
    by_year.aggregate(
        store="extremes", least="min(revenue)", most="max(revenue)", best="max_by(title, revenue)"
    )
    chance = random.Random(3)
    revenues = chance.sample(range(1_000), 40)
    films = [
        Film(n, f"film {n}", 2000 + chance.randrange(4), revenue)
        for n, revenue in enumerate(revenues)
    ]

    driver = play(pipeline, [Piped("films", film) for film in films])

    years = defaultdict(list)
    for film in films:
        years[str(film.year)].append((film.revenue, film.title))
    assert driver.store("extremes") == {
        year: {"least": min(of_year)[0], "most": max(of_year)[0], "best": max(of_year)[1]}
        for year, of_year in years.items()
    }


def test_books_are_filtered_by_their_author(play: Play) -> None:
    pipeline = Pipeline("filtering")
    pipeline.stream("books", value=Book).filter("author = 'George R. R. Martin'").to(
        "books_by_martin"
    )
    books = [Book("A Storm of Swords", "George R. R. Martin"), Book("It", "Stephen King"),
             Book("A Game of Thrones", "George R. R. Martin")]  # fmt: skip

    driver = play(pipeline, [Piped("books", book) for book in books])

    assert [book["title"] for book in values(driver, "books_by_martin")] == [
        "A Storm of Swords",
        "A Game of Thrones",
    ]


def test_a_click_of_the_same_address_within_two_minutes_is_no_new_click(play: Play) -> None:
    pipeline = Pipeline("distinct")
    clicks = pipeline.stream("clicks", value=Click).select_key("ip")
    clicks.deduplicate("ip", within="2 minutes").to("distinct_clicks")
    chance = random.Random(4)
    records, time = [], START
    for number in range(60):
        time += chance.randrange(30 * SECOND)
        records.append(
            Piped(
                "clicks", Click(f"10.0.0.{chance.randrange(4)}", f"/page/{number}"), timestamp=time
            )
        )

    driver = play(pipeline, records)

    expected: list[str] = []
    first_at: dict[str, int] = {}
    for record in records:
        if record.timestamp - first_at.get(record.value.ip, -DAY) >= 2 * MINUTE:
            first_at[record.value.ip] = record.timestamp
            expected.append(record.value.url)
    assert [click["url"] for click in values(driver, "distinct_clicks")] == expected


def test_purchases_of_tracks_are_joined_with_their_albums_by_a_foreign_key(play: Play) -> None:
    pipeline = Pipeline("music")
    albums = pipeline.table("albums", value=Album)
    purchases = pipeline.table("purchases", value=Purchase)
    purchases.join(albums, on="album").select(song="left.song", artist="right.artist").to(
        "music_interest"
    )
    records = [
        Piped("albums", Album("Physical Graffiti", "Led Zeppelin"), "5"),
        Piped("purchases", Purchase("Houses of the Holy", 5), "100"),
        Piped("purchases", Purchase("We Will Rock You", 9), "101"),
        Piped("albums", Album("News of the World", "Queen"), "9"),
        Piped("albums", Album("Physical Graffiti (remastered)", "Zeppelin"), "5"),
    ]

    driver = play(pipeline, records)

    assert pairs(driver, "music_interest") == [
        ("100", {"song": "Houses of the Holy", "artist": "Led Zeppelin"}),
        ("101", {"song": "We Will Rock You", "artist": "Queen"}),
        ("100", {"song": "Houses of the Holy", "artist": "Zeppelin"}),
    ]


def _temperatures(seed: int, step_ms: int) -> list[Piped]:
    chance, records, time = random.Random(seed), [], START
    for _ in range(60):
        time += chance.randrange(step_ms)
        degrees = chance.randrange(40, 120) / 2
        records.append(
            Piped("temperatures", Temperature(chance.choice("ab"), degrees), timestamp=time)
        )
    return records


def test_devices_alarm_if_their_average_temperature_in_overlapping_windows_is_high(
    play: Play,
) -> None:
    pipeline = Pipeline("hopping")
    by_device = pipeline.stream("temperatures", value=Temperature).group_by("device")
    windows = by_device.windowed_by(hopping("10 minutes", advance="5 minutes"))
    windows.aggregate(store="averages", degrees="avg(degrees)").filter("degrees > 40").to("alarms")
    records = _temperatures(5, 3 * MINUTE)

    driver = play(pipeline, records)

    degrees = defaultdict(list)
    for record in records:
        for back in (0, 5 * MINUTE):
            start = record.timestamp - record.timestamp % (5 * MINUTE) - back
            degrees[record.value.device, start, start + 10 * MINUTE].append(record.value.degrees)
    averages = {window: {"degrees": mean(measured)} for window, measured in degrees.items()}
    assert driver.store("averages") == averages
    alarmed = {
        (record.key, int(record.headers["window_start"]))
        for record in driver.output("alarms")
        if record.value is not None
    }
    assert alarmed >= {
        (device, start) for (device, start, _), at in averages.items() if at["degrees"] > 40
    }


def test_the_average_temperature_of_the_last_half_second(play: Play) -> None:
    pipeline = Pipeline("sliding")
    by_device = pipeline.stream("temperatures", value=Temperature).group_by("device")
    by_device.windowed_by(sliding("500 ms")).aggregate(store="averages", degrees="avg(degrees)")
    records = _temperatures(6, 300)

    driver = play(pipeline, records)

    found = driver.store("averages")
    for record in records:
        device, time = record.value.device, record.timestamp
        recent = [
            other.value.degrees
            for other in records
            if other.value.device == device and time - 500 <= other.timestamp <= time
        ]
        assert found[device, time - 500, time] == {"degrees": mean(recent)}


def test_shipments_are_joined_with_orders_of_the_week_before(play: Play) -> None:
    pipeline = Pipeline("shipping")
    orders = pipeline.stream("orders", value=Order, key="order")
    shipments = pipeline.stream("shipments", value=Shipment, key="order")
    joined = orders.join(shipments, within(before="0 s", after="7 days"))
    joined.select(product="left.product", warehouse="right.warehouse").to("shipped_orders")
    records = [
        Piped("orders", Order("1", "phone"), timestamp=START),
        Piped("orders", Order("2", "lamp"), timestamp=START + MINUTE),
        Piped("shipments", Shipment("1", "Graz"), timestamp=START + 7 * DAY),
        Piped("shipments", Shipment("2", "Linz"), timestamp=START + 8 * DAY),
    ]

    driver = play(pipeline, records)

    assert pairs(driver, "shipped_orders") == [("1", {"product": "phone", "warehouse": "Graz"})]


def test_ratings_are_joined_with_the_table_of_films(play: Play) -> None:
    pipeline = Pipeline("rated")
    films = pipeline.table("films", value=Film, key="film")
    ratings = pipeline.stream("ratings", value=Rating, key="film")
    ratings.join(films).select(title="left.film", year="right.year", stars="left.stars").to(
        "rated_films"
    )
    records = [
        Piped("ratings", Rating(28, 9.0)),
        Piped("films", Film(28, "Alien", 1979, 1)),
        Piped("ratings", Rating(28, 8.5), timestamp=1),
        Piped("films", Film(28, "Alien", 1980, 1), timestamp=2),
        Piped("ratings", Rating(28, 10.0), timestamp=3),
    ]

    driver = play(pipeline, records)

    assert [(rated["year"], rated["stars"]) for rated in values(driver, "rated_films")] == [
        (1979, 8.5),
        (1980, 10.0),
    ]


def test_a_table_joined_with_a_table_follows_the_changes_of_both(play: Play) -> None:
    pipeline = Pipeline("both")
    films, books = pipeline.table("films", value=str), pipeline.table("books", value=str)
    films.left_join(books).select(film="left", book="right").to("films_of_books")
    records = [
        Piped("films", "Dune (1984)", "dune"),
        Piped("books", "Dune", "dune"),
        Piped("films", "Dune (2021)", "dune"),
        Piped("books", None, "dune"),
        Piped("films", None, "dune"),
    ]

    driver = play(pipeline, records)

    assert values(driver, "films_of_books") == [
        {"film": "Dune (1984)", "book": None},
        {"film": "Dune (1984)", "book": "Dune"},
        {"film": "Dune (2021)", "book": "Dune"},
        {"film": "Dune (2021)", "book": None},
        None,
    ]


class PowerSum:
    """Adds up a device's power, and sends the sum when five seconds of stream time have passed."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Power]) -> None:
        store = self.context.store("sums")
        if store.get("sum") is None:
            self.context.schedule("send", record.time + 5 * SECOND)
        store.put("sum", store.get("sum", 0) + record.value.watts)

    def on_timer(self, timer: Timer) -> None:
        store = self.context.store("sums")
        self.context.forward(timer.key, store.get("sum"))
        store.delete("sum")


def test_a_scheduled_operation_sends_the_power_of_each_device(play: Play) -> None:
    pipeline = Pipeline("power")
    powers = pipeline.stream("powers", value=Power, key="device")
    powers.process(PowerSum, stores={"sums": int}, returns=int).output.to("power_sums")
    records = [
        Piped("powers", Power("a", 10), timestamp=START),
        Piped("powers", Power("a", 5), timestamp=START + 4 * SECOND),
        Piped("powers", Power("a", 7), timestamp=START + 6 * SECOND),
        Piped("powers", Power("a", 1), timestamp=START + 20 * SECOND),
    ]

    driver = play(pipeline, records)

    # A timer fires after the record that advances stream time to it, as a punctuator does.
    assert pairs(driver, "power_sums") == [("a", 22)]


def test_rock_and_classical_songs_are_merged(play: Play) -> None:
    pipeline = Pipeline("merging")
    rock, classical = pipeline.stream("rock", value=Song), pipeline.stream("classical", value=Song)
    rock.merge(classical).to("all_songs")
    songs = [("rock", "Fly"), ("classical", "Air"), ("classical", "Bolero"), ("rock", "Run")]

    driver = play(
        pipeline,
        [Piped(topic, Song("x", title), timestamp=n) for n, (topic, title) in enumerate(songs)],
    )

    assert Counter(song["title"] for song in values(driver, "all_songs")) == Counter(
        title for _, title in songs
    )


@pytest.mark.spark
def test_personal_data_is_masked(play: Play) -> None:
    pipeline = Pipeline("masking")
    customers = pipeline.stream("customers", value=Customer)
    customers.select(
        name="regexp_replace(name, '[a-z]', '*')", card="concat('****', substring(card, 13, 4))"
    ).to("masked")

    driver = play(pipeline, [Piped("customers", Customer("Ann", "4000123412341234", "1990-01-01"))])

    assert values(driver, "masked") == [{"name": "A**", "card": "****1234"}]


def test_clicks_form_sessions_that_end_after_five_idle_minutes(play: Play) -> None:
    pipeline = Pipeline("sessions")
    by_ip = pipeline.stream("clicks", value=Click).group_by("ip")
    by_ip.windowed_by(session("5 minutes", grace="30 seconds")).count(store="sessions")
    chance = random.Random(7)
    times = sorted(START + chance.randrange(4 * 60 * MINUTE) for _ in range(50))

    driver = play(
        pipeline, [Piped("clicks", Click("10.0.0.1", "/"), timestamp=time) for time in times]
    )

    sessions: list[list[int]] = []
    for time in times:
        if sessions and time - sessions[-1][-1] <= 5 * MINUTE:
            sessions[-1].append(time)
        else:
            sessions.append([time])
    assert driver.store("sessions") == {
        ("10.0.0.1", each[0], each[-1]): len(each) for each in sessions
    }


def test_a_stream_is_split_by_genre(play: Play) -> None:
    pipeline = Pipeline("splitting")
    actings = pipeline.stream("actings", value=Acting)
    branches = actings.split(drama="genre = 'drama'", fantasy="genre = 'fantasy'", other="true")
    for name, branch in branches.items():
        branch.to(f"{name}_actings")
    actings_of = [("Meryl", "drama"), ("Ian", "fantasy"), ("Will", "comedy"), ("Nicole", "drama")]

    driver = play(
        pipeline, [Piped("actings", Acting(actor, "t", genre)) for actor, genre in actings_of]
    )

    assert [acting["actor"] for acting in values(driver, "drama_actings")] == ["Meryl", "Nicole"]
    assert [acting["actor"] for acting in values(driver, "fantasy_actings")] == ["Ian"]
    assert [acting["actor"] for acting in values(driver, "other_actings")] == ["Will"]


class ParsedFilm(Struct):
    id: int
    title: str
    year: int
    genre: str


def parse(text: str) -> ParsedFilm:
    number, title, genre = text.split("::")
    name, _, year = title.rpartition(" ")
    return ParsedFilm(int(number), name, int(year.strip("()")), genre)


def test_raw_lines_become_typed_records_with_keys(play: Play) -> None:
    pipeline = Pipeline("transforming")
    films = pipeline.stream("raw_films", value=str).map_values(parse, returns=ParsedFilm)
    films.select_key("id").to("films")
    lines = ["294::Die Hard (1988)::action", "354::Tree of Life (2011)::drama", "not a film"]

    driver = play(pipeline, [Piped("raw_films", line) for line in lines])

    assert pairs(driver, "films") == [
        ("294", {"id": 294, "title": "Die Hard", "year": 1988, "genre": "action"}),
        ("354", {"id": 354, "title": "Tree of Life", "year": 2011, "genre": "drama"}),
    ]
    (letter,) = driver.dead_letters()
    assert letter.value == b"not a film"


class TimedRating(Struct):
    title: str
    at: int


def test_ratings_of_ten_minutes_are_counted_by_the_time_inside_the_value(play: Play) -> None:
    from sluice import epoch_ms

    pipeline = Pipeline("tumbling")
    ratings = pipeline.stream("ratings", value=TimedRating, event_time=epoch_ms("at"))
    ratings.group_by("title").windowed_by(tumbling("10 minutes", grace="1 day")).count(
        store="per_ten_minutes"
    )
    chance = random.Random(8)
    rated = [
        TimedRating(chance.choice(["Alien", "Big"]), START + chance.randrange(60 * MINUTE))
        for _ in range(60)
    ]

    driver = play(pipeline, [Piped("ratings", rating) for rating in rated])

    expected: Counter[tuple[str, int, int]] = Counter()
    for rating in rated:
        start = rating.at - rating.at % (10 * MINUTE)
        expected[rating.title, start, start + 10 * MINUTE] += 1
    assert driver.store("per_ten_minutes") == expected


def test_only_the_final_count_of_a_window_is_sent(play: Play) -> None:
    pipeline = Pipeline("final")
    by_sensor = pipeline.stream("pressures", value=Pressure).group_by("sensor")
    per_ten_seconds = by_sensor.windowed_by(tumbling("10 seconds", grace="5 seconds"))
    per_ten_seconds.count(store="alerts").suppress_until_window_closes().to("final_alerts")
    chance = random.Random(9)
    times = [START + 700 * n - chance.randrange(4 * SECOND) for n in range(60)]

    driver = play(
        pipeline, [Piped("pressures", Pressure("s", 40), timestamp=time) for time in times]
    )

    counts = Counter(time - time % (10 * SECOND) for time in times)
    closed = {start: count for start, count in counts.items() if start + 15 * SECOND <= max(times)}
    sent = [
        (int(record.headers["window_start"]), record.value)
        for record in driver.output("final_alerts")
    ]
    assert sent == sorted(closed.items())


def test_values_that_cannot_be_read_go_to_the_dead_letters(play: Play) -> None:
    pipeline = Pipeline("errors")
    pipeline.stream("powers", value=Power).to("good_powers")

    driver = play(
        pipeline,
        [Piped("powers", b"{"), Piped("powers", Power("a", 1)), Piped("powers", {"device": "a"})],
    )

    assert values(driver, "good_powers") == [{"device": "a", "watts": 1}]
    assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == [
        "malformed",
        "contract",
    ]


def test_the_format_of_values_is_changed_from_json_to_csv(play: Play) -> None:
    def to_csv(song: dict[str, Any]) -> bytes:
        return f"{song['artist']};{song['title']}".encode()

    pipeline = Pipeline("formats")
    pipeline.stream("songs", value=Song).to("songs_as_csv", value=Serde(dict, encode=to_csv))

    driver = play(pipeline, [Piped("songs", Song("Queen", "Innuendo"))])

    assert values(driver, "songs_as_csv") == [b"Queen;Innuendo"]


def test_all_messages_of_a_topic_are_counted(play: Play) -> None:
    pipeline = Pipeline("messages")
    pipeline.stream("page_views", value=str).group_by("'all'").count(store="messages")

    driver = play(pipeline, [Piped("page_views", f"view {n}", key=str(n)) for n in range(37)])

    assert driver.store("messages") == {"all": 37}


def test_the_volume_weighted_average_price_of_a_share(play: Play) -> None:
    pipeline = Pipeline("shares")
    by_symbol = pipeline.stream("trades", value=Trade).group_by("symbol")
    sums = by_symbol.aggregate(store="sums", spent="sum(price * shares)", shares="sum(shares)")
    sums.select(price="spent / shares").to("average_prices")
    trades = [
        Trade("A", 10.0, 100),
        Trade("B", 3.5, 10),
        Trade("A", 12.0, 300),
        Trade("A", 8.0, 100),
    ]

    driver = play(pipeline, [Piped("trades", trade) for trade in trades])

    assert last_values(driver, "average_prices") == {
        "A": {"price": 5400 / 500},
        "B": {"price": 3.5},
    }


class Login(Struct):
    app: str
    user: str


def test_log_ins_to_three_programs_are_counted_together(play: Play) -> None:
    pipeline = Pipeline("cogrouped")
    columns = {"all_logins": "count(*)", "users": "count(DISTINCT user)"}
    first, *others = (
        pipeline.stream(f"logins_{app}", value=Login).group_by("app") for app in "abc"
    )
    together = first.cogroup(columns)
    for other in others:
        together = together.cogroup(other, columns)
    together.aggregate(store="logins")
    chance = random.Random(10)
    logins = [
        Login(chance.choice(["mail", "chat"]), chance.choice(["ann", "bob", "cay"]))
        for _ in range(60)
    ]

    driver = play(
        pipeline, [Piped(f"logins_{'abc'[n % 3]}", login) for n, login in enumerate(logins)]
    )

    assert driver.store("logins") == {
        app: {
            "all_logins": sum(login.app == app for login in logins),
            "users": len({login.user for login in logins if login.app == app}),
        }
        for app in ("mail", "chat")
    }


def test_each_record_chooses_its_output_topic(play: Play) -> None:
    pipeline = Pipeline("dynamic")
    orders = pipeline.stream("orders", value=Order)
    orders.route(
        "IF(product LIKE 'gold%', 'special_orders', 'orders_processed')",
        ["special_orders", "orders_processed"],
    )
    products = ["gold ring", "lamp", "gold watch", "tea"]

    driver = play(
        pipeline, [Piped("orders", Order(str(n), product)) for n, product in enumerate(products)]
    )

    assert [order["product"] for order in values(driver, "special_orders")] == [
        "gold ring",
        "gold watch",
    ]
    assert [order["product"] for order in values(driver, "orders_processed")] == ["lamp", "tea"]


class StreamTimeSums:
    """Sends the sum of each key's values at every full five seconds of stream time."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Power]) -> None:
        store = self.context.store("sums")
        store.put("sum", store.get("sum", 0) + record.value.watts)
        self.context.punctuate("five seconds", 5 * SECOND)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, self.context.store("sums").get("sum"))


def test_a_punctuator_sends_the_sums_so_far_at_full_five_seconds(play: Play) -> None:
    pipeline = Pipeline("punctuated")
    powers = pipeline.stream("powers", value=Power, key="device")
    powers.process(StreamTimeSums, stores={"sums": int}, returns=int).output.to("power_sums")
    seconds = [0, 4, 6, 9, 17]

    driver = play(
        pipeline,
        [Piped("powers", Power("a", 10), timestamp=START + each * SECOND) for each in seconds],
    )

    # Due at the first record, and whenever a full five seconds are reached; a jump over several
    # counts once.
    assert values(driver, "power_sums")[-2:] == [30, 50]


def test_a_join_with_a_table_sees_the_row_of_the_records_time(play: Play) -> None:
    pipeline = Pipeline("as_of")
    prices = pipeline.table("prices", value=int)
    sales = pipeline.stream("sales", value=int)
    sales.join(prices).select(amount="left * right").to("amounts")
    records = [
        Piped("prices", 10, "tea", START),
        Piped("sales", 2, "tea", START + SECOND),
        Piped("prices", 12, "tea", START + 2 * SECOND),
        Piped("sales", 3, "tea", START + 3 * SECOND),
    ]

    driver = play(pipeline, records)

    assert [value["amount"] for value in values(driver, "amounts")] == [20, 36]
