"""Programs that ask a model, a service or a database for each record, with results computed in plain Python."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Struct

from sluice import Pipeline, tumbling
from tests.acceptance.conftest import Piped, Play, pairs, values

MINUTE = 60_000


class Payment(Struct):
    account: str
    amount: int
    country: str


class Verdict(Struct):
    account: str
    suspicious: bool


WEIGHTS = {"NL": 1, "DE": 1, "XX": 5}


def judge(payments: list[Payment]) -> list[Verdict]:
    """A model that is faster for many payments at once."""
    points = [payment.amount * WEIGHTS[payment.country] for payment in payments]
    return [
        Verdict(payment.account, each > 400) for payment, each in zip(payments, points, strict=True)
    ]


def test_a_model_judges_batches_of_payments(play: Play) -> None:
    """Alert once an account has had three suspicious payments within an hour."""
    pipeline = Pipeline("payments", workers=2)
    payments = pipeline.stream("payments", value=Payment)
    suspicious = payments.map_batch(judge, returns=Verdict, size=7).filter("suspicious")
    counted = (
        suspicious.group_by("account").windowed_by(tumbling("1 hour")).count(store="suspicious")
    )
    counted.to_stream().filter("value = 3").select(account="_key").to("alerts")

    chance = random.Random(1)
    records: list[Piped] = []
    counts: Counter[tuple[str, int]] = Counter()
    alerts: list[str] = []
    for number in range(300):
        payment = Payment(
            f"a{chance.randrange(9)}", chance.randrange(500), chance.choice([*WEIGHTS])
        )
        at = number * MINUTE
        records.append(Piped("payments", as_json(payment), timestamp=at))
        if payment.amount * WEIGHTS[payment.country] > 400:
            window = payment.account, at // (60 * MINUTE)
            counts[window] += 1
            if counts[window] == 3:
                alerts.append(payment.account)
    driver = play(pipeline, records)
    assert sorted(value["account"] for value in values(driver, "alerts")) == sorted(alerts)
    assert len(alerts) > 10


def as_json(payment: Payment) -> dict[str, object]:
    return {name: getattr(payment, name) for name in payment.__struct_fields__}


class Trip(Struct):
    taxi: str
    cell: int


class Place(Struct):
    taxi: str
    district: str


ATTEMPTS: Counter[int] = Counter()
"""Cell → the attempts to find its district."""


async def locate(trip: Trip) -> Place:
    """A service that does not know some cells, and refuses the first attempt for others."""
    ATTEMPTS[trip.cell] += 1
    await asyncio.sleep(0.001 * (trip.cell % 3))
    if trip.cell % 10 == 9 or (trip.cell % 4 == 0 and ATTEMPTS[trip.cell] == 1):
        raise ConnectionError("503")
    return Place(trip.taxi, f"district {trip.cell // 10}")


def test_a_service_finds_the_districts_of_trips(play: Play) -> None:
    """Count the trips of each district. Trips that the service cannot place count as elsewhere."""
    ATTEMPTS.clear()
    pipeline = Pipeline("trips", workers=2)
    trips = pipeline.stream("trips", value=Trip, key="taxi")
    places = trips.call(
        locate, returns=Place, concurrency=8, retries=1, backoff="1 ms", otherwise=Place("", "elsewhere")
    )  # fmt: skip
    places.to("places")
    places.group_by("district").count(store="trips_of_district")

    chance = random.Random(2)
    records: list[Piped] = []
    of_taxi: dict[str, list[str]] = defaultdict(list)
    for number in range(200):
        taxi, cell = f"t{chance.randrange(5)}", chance.randrange(40)
        records.append(Piped("trips", {"taxi": taxi, "cell": cell}, timestamp=number))
        of_taxi[taxi].append("elsewhere" if cell % 10 == 9 else f"district {cell // 10}")
    driver = play(pipeline, records)
    expected = Counter(district for districts in of_taxi.values() for district in districts)
    assert driver.store("trips_of_district") == dict(expected)
    for taxi, districts in of_taxi.items():
        placed = [place["district"] for key, place in pairs(driver, "places") if key == taxi]
        assert placed == districts
    assert driver.counts()["otherwise/call-1"] == expected["elsewhere"]


class Order(Struct):
    id: int
    customer: int | None
    total: int


class Customer(Struct):
    country: str
    zip: str


@pytest.fixture
def crm(tmp_path: Path) -> str:
    file = tmp_path / "crm.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, country TEXT, zip TEXT)")
        rows = [(number, f"c{number % 4}", f"{number:05}") for number in range(0, 50, 2)]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
        database.commit()
    return f"sqlite:///{file}"


def test_orders_are_joined_with_customers_in_a_database(play: Play, crm: str) -> None:
    """Flink's look-up join: each order with its customer's country, and the sum per country."""
    pipeline = Pipeline("shop", workers=3)
    orders = pipeline.stream("orders", value=Order)
    known = orders.lookup(
        "customers", connection="crm", key="customer", column="id", returns=Customer, cache=10
    )
    known.select(id="left.id", country="right.country", zip="right.zip").to("enriched")
    known.filter("right IS NOT NULL").group_by("right.country").aggregate(
        store="totals", total="sum(left.total)"
    )

    chance = random.Random(3)
    records: list[Piped] = []
    enriched: dict[int, tuple[str | None, str | None]] = {}
    totals: Counter[str] = Counter()
    for number in range(300):
        customer = None if number % 50 == 0 else chance.randrange(50)
        records.append(
            Piped("orders", {"id": number, "customer": customer, "total": number}, timestamp=number)
        )
        if customer is None or customer % 2:
            enriched[number] = None, None
        else:
            enriched[number] = f"c{customer % 4}", f"{customer:05}"
            totals[f"c{customer % 4}"] += number
    driver = play(pipeline, records, {"crm": crm})
    found = {value["id"]: (value["country"], value["zip"]) for value in values(driver, "enriched")}
    assert found == enriched
    assert {key: value["total"] for key, value in driver.store("totals").items()} == dict(totals)
