"""Look-ups of records in a table of a database: `lookup`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from msgspec import Struct

from sluice import Digits, Pipeline
from sluice.errors import EngineError, SettingsError, SluiceError, TopologyError
from sluice.lookups.row_cache import RowCache
from sluice.orchestration.dag_facts import facts_of
from sluice.state.remote.opening import open_shard
from sluice.testing import TopologyTestDriver
from tests.support.postgres import new_database


class Order(Struct):
    """An order of a customer."""

    customer: str | None
    amount: int


class Customer(Struct):
    """A row of the table."""

    name: str
    limit: Annotated[Decimal, Digits(10, 2)] | None = None


class Database:
    """A database of SQLite, which a test changes."""

    def __init__(self, file: Path) -> None:
        self.url = f"sqlite:///{file}"
        self._connection = sqlite3.connect(file, isolation_level=None)
        self.run('CREATE TABLE customers (id TEXT PRIMARY KEY, name TEXT, "limit" NUMERIC(10, 2))')
        for row in ("('a', 'Ada', 10.5)", "('b', 'Bo', NULL)", "('c', NULL, 3)"):
            self.run(f"INSERT INTO customers VALUES {row}")

    def run(self, statement: str) -> None:
        self._connection.execute(statement)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "customers.db")


Look = Callable[..., TopologyTestDriver]


@pytest.fixture
def look(database: Database) -> Iterator[Look]:
    """Makes the driver of a pipeline that looks orders up."""
    made: list[TopologyTestDriver] = []

    def driver(*, workers: int = 1, url: str | None = None, **options: Any) -> TopologyTestDriver:
        connections = {"crm": database.url if url is None else url}
        made.append(TopologyTestDriver(looked_up(workers, **options), connections=connections))
        return made[-1]

    yield driver
    for one in made:
        one.__exit__(None, None, None)


def looked_up(workers: int = 1, **options: Any) -> Pipeline:
    pipeline = Pipeline("customers", workers=workers)
    orders = pipeline.stream("orders", value=Order, nulls="keep")
    given = {
        "connection": "crm",
        "key": "customer",
        "column": "id",
        "returns": Customer,
        "backoff": "1 ms",
    }
    known = orders.lookup("customers", **{**given, **options})
    known.select(amount="left.amount", name="right.name", limit="right.limit").to("known")
    return pipeline


def pipe(driver: TopologyTestDriver, *customers: str | None) -> None:
    for number, customer in enumerate(customers):
        driver.pipe("orders", {"customer": customer, "amount": number}, key="k", timestamp=number)


def names(driver: TopologyTestDriver) -> list[str | None]:
    return [record.value["name"] for record in driver.read("known")]


@pytest.mark.parametrize("workers", [1, 3])
def test_records_get_the_rows_of_their_keys(look: Look, workers: int) -> None:
    driver = look(workers=workers)
    pipe(driver, "a", "b", "a", "unknown", None)
    driver.pipe("orders", None, key="k", timestamp=9)
    values = [record.value for record in driver.read("known")]
    assert values == [
        {"amount": 0, "name": "Ada", "limit": 10.5}, {"amount": 1, "name": "Bo", "limit": None},
        {"amount": 2, "name": "Ada", "limit": 10.5}, {"amount": 3, "name": None, "limit": None},
        {"amount": 4, "name": None, "limit": None},
    ]  # fmt: skip
    assert driver.counts()["null_value/lookup-1"] == 1


@pytest.mark.parametrize(
    ("on_missing", "wanted"), [("null", ["Ada", None, None]), ("drop", ["Ada"]), ("error", ["Ada"])]
)
def test_the_author_says_what_happens_without_a_row(
    look: Look, on_missing: str, wanted: list[Any]
) -> None:
    driver = look(on_missing=on_missing)
    pipe(driver, "a", "unknown", None)
    assert names(driver) == wanted
    assert driver.counts().get("missing/lookup-1", 0) == (2 if on_missing == "drop" else 0)
    letters = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    lost = [
        "LookupError: the table has no row for 'unknown'",
        "LookupError: the table has no row for None",
    ]
    assert letters == (lost if on_missing == "error" else [])


def test_a_row_that_does_not_fit_rejects_its_record(look: Look) -> None:
    driver = look()
    pipe(driver, "c", "a")
    assert names(driver) == ["Ada"]
    (letter,) = driver.dead_letters()
    assert (
        letter.headers["sluice.detail"]
        == "ValidationError: Expected `str`, got `null` - at `$.name`"
    )


def test_a_key_with_several_rows_rejects_its_record(look: Look, database: Database) -> None:
    database.run("CREATE TABLE visits (id TEXT, name TEXT, 'limit' NUMERIC)")
    database.run("INSERT INTO visits VALUES ('a', 'one', 1), ('a', 'two', 2), ('b', 'Bo', 1)")
    pipeline = Pipeline("visits")
    orders = pipeline.stream("orders", value=Order)
    orders.lookup("visits", connection="crm", key="customer", column="id", returns=Customer).to(
        "known"
    )
    with TopologyTestDriver(pipeline, connections={"crm": database.url}) as driver:
        pipe(driver, "a", "b")
        assert [record.value["right"]["name"] for record in driver.output("known")] == ["Bo"]
        (letter,) = driver.dead_letters()
        assert letter.headers["sluice.detail"] == "LookupError: 2 rows of visits have id 'a'"


class Numbered(Struct):
    """An order with the number of its customer as text."""

    id: str


class Named(Struct):
    """A name."""

    name: str


def test_keys_are_compared_as_the_column_writes_them(database: Database) -> None:
    """007 is no number of a customer, and neither is a number that the database cannot hold."""
    database.run("CREATE TABLE numbered (id INTEGER PRIMARY KEY, name TEXT)")
    database.run("INSERT INTO numbered VALUES (7, 'Seven'), (-1, 'Minus')")
    pipeline = Pipeline("numbers")
    pipeline.stream("orders", value=Numbered).lookup(
        "numbered", connection="crm", key="id", returns=Named
    ).to("known")  # fmt: skip
    with TopologyTestDriver(pipeline, connections={"crm": database.url}) as driver:
        for key in ("7", "007", "-1", "1_0", "x", "99999999999999999999", "' OR 1=1 --"):
            driver.pipe("orders", {"id": key}, timestamp=0)
        found = {
            record.value["left"]["id"]: record.value["right"] for record in driver.output("known")
        }
        assert found == {
            "7": {"name": "Seven"}, "-1": {"name": "Minus"}, "007": None, "1_0": None, "x": None, "' OR 1=1 --": None,
        }  # fmt: skip
        (letter,) = driver.dead_letters()
        assert letter.value == {"id": "99999999999999999999"}
        assert "too large" in letter.headers["sluice.detail"]


def test_a_database_that_takes_different_keys_for_equal_ends_the_run(database: Database) -> None:
    """A record must neither lose the row that its database finds, nor get a row that may be another key's."""
    database.run("CREATE TABLE clients (id TEXT COLLATE NOCASE, name TEXT, 'limit' NUMERIC)")
    database.run("INSERT INTO clients VALUES ('Ada', 'Ada L.', 1)")
    pipeline = Pipeline("clients")
    orders = pipeline.stream("orders", value=Order)
    orders.lookup("clients", connection="crm", key="customer", column="id", returns=Customer).to(
        "known"
    )
    with TopologyTestDriver(pipeline, connections={"crm": database.url}) as driver:
        pipe(driver, "Ada")
        assert [record.value["right"]["name"] for record in driver.output("known")] == ["Ada L."]
        pipe(driver, "ADA")
        with pytest.raises(
            EngineError,
            match="a row of clients whose id is 'Ada', which is none of the requested keys",
        ):
            driver.commit()


def test_a_cached_row_may_be_stale(look: Look, database: Database) -> None:
    driver = look(staleness="1 hour")
    pipe(driver, "a", "d")
    assert names(driver) == ["Ada", None]
    database.run("UPDATE customers SET name = 'Ada Lovelace' WHERE id = 'a'")
    database.run("INSERT INTO customers VALUES ('d', 'Dot', 1)")
    pipe(driver, "a", "d")
    assert names(driver) == ["Ada", None]


def test_rows_of_another_database_with_the_same_name_are_not_found(
    look: Look, tmp_path: Path
) -> None:
    first = look()
    pipe(first, "a")
    assert names(first) == ["Ada"]
    other = Database(tmp_path / "other.db")
    other.run("UPDATE customers SET name = 'Ann' WHERE id = 'a'")
    second = look(url=other.url)
    pipe(second, "a")
    assert names(second) == ["Ann"]


class Described(Struct):
    """A row of the table, of which each column is text."""

    name: str | None
    limit: str | None


def test_each_type_has_cached_rows_of_its_own(look: Look) -> None:
    first = look()
    pipe(first, "a", "c")
    assert names(first) == ["Ada"]  # c has no name
    second = look(returns=Described)
    pipe(second, "b", "c", "a")
    assert names(second) == ["Bo"]  # SQLite's limits are numbers, not texts
    assert len(second.dead_letters()) == 2


def test_without_staleness_each_batch_reads_again(look: Look, database: Database) -> None:
    driver = look(staleness="0 seconds")
    pipe(driver, "a")
    assert names(driver) == ["Ada"]
    database.run("UPDATE customers SET name = 'Ada Lovelace' WHERE id = 'a'")
    pipe(driver, "a")
    assert names(driver) == ["Ada Lovelace"]


def test_a_cache_has_a_limited_number_of_rows() -> None:
    now = 0.0
    cache = RowCache(size=2, staleness_ms=10_000, clock=lambda: now)
    cache.add(["a", "b"], {"a": "1"}, read_at=0)
    assert cache.rows(["a", "b"]) == ({"a": "1", "b": None}, [])
    cache.rows(["a"])
    cache.add(["c"], {"c": "3"}, read_at=0)
    assert cache.rows(["a", "b", "c"]) == ({"a": "1", "c": "3"}, ["b"])
    now = 10.0
    assert cache.rows(["a", "c"]) == ({}, ["a", "c"])


def test_the_row_that_a_record_found_is_recorded(look: Look, database: Database) -> None:
    driver = look()
    pipe(driver, "a", "unknown")
    driver.commit()
    with open_shard(driver._run.storage.locations[0]) as shard:
        recorded = {answer.key: answer.value for answer in shard.answers(None, 9)}
    assert recorded == {"a": '{"name":"Ada","limit":10.50}', "unknown": None}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"url": ""}, SettingsError, r"There is no connection 'crm'.*SLUICE_CONNECTION_CRM"),
        ({"url": "nonsense"}, SettingsError, "URL of connection 'crm' cannot be parsed"),
        ({"url": "nosuch://x/y"}, SettingsError, "has no driver on this host"),
        ({"column": "nr"}, EngineError, "has a table customers, but no column nr in it"),
        (
            {"url": "sqlite:////no/such/folder/x.db", "retries": 0},
            EngineError,
            "the database cannot be read: .*unable to open",
        ),
    ],
)
def test_a_database_that_cannot_be_used_ends_the_run(
    look: Look, options: dict[str, Any], error: Any, text: str
) -> None:
    driver = look(**options)
    pipe(driver, "a")
    with pytest.raises(error, match=text):
        driver.commit()


def test_no_password_is_shown(look: Look) -> None:
    url = "postgresql://shop:s3cret@127.0.0.1:1/shop?connect_timeout=1"
    driver = look(url=url, retries=0)
    pipe(driver, "a")
    with pytest.raises(SluiceError, match="the database cannot be read") as error:
        driver.commit()
    assert "s3cret" not in f"{error.value!r} {driver._run.storage!r} {error.value.__cause__!r}"


def test_airflow_gives_the_run_the_url_of_the_connection() -> None:
    assert facts_of(looked_up()).databases == ("crm",)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"returns": int}, "returns=.* has no columns"),
        ({"connection": "postgresql://u:p@h/d"}, "not a valid name of a connection"),
        ({"key": "nr"}, "nr"),
        ({"key": "upper(customer)", "column": None}, r"is not the name of a column.*column=\"id\""),
        ({"on_missing": "skip"}, "unknown on_missing='skip'"),
        ({"cache": 0}, "cache is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"staleness": 5}, "5 at .* is not a duration"),
    ],
)
def test_wrong_uses_are_errors_of_the_file(options: dict[str, Any], error: str) -> None:
    with pytest.raises(TopologyError, match=error):
        looked_up(**options)


class Visit(Struct):
    """A visit to a shop, which is a row of PostgreSQL."""

    shop: str


class Shop(Struct):
    """A shop, with columns of many types."""

    city: str
    opened: datetime
    size: Annotated[Decimal, Digits(8, 2)]
    tags: list[str]
    note: dict[str, int]


ID = "0b7f0a7e-0c6e-4b27-9d66-1f6b3a9d2c11"


def test_rows_of_postgresql_are_read(postgres: str) -> None:
    url = new_database(postgres)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE SCHEMA map")
        database.execute(
            "CREATE TABLE map.shops (id uuid PRIMARY KEY, city text NOT NULL, opened timestamptz, size numeric(8, 2), "
            "tags text[], note jsonb)"
        )
        database.execute(
            "INSERT INTO map.shops VALUES (%s, 'Goa', '2026-01-02 03:04:05+00', 12.5, '{tea,pots}', '{\"floors\": 2}')",
            [ID],
        )
    pipeline = Pipeline("visits", workers=2)
    visits = pipeline.stream("visits", value=Visit)
    visits.lookup("map.shops", connection="map", key="shop", column="id", returns=Shop).to("found")
    with TopologyTestDriver(pipeline, connections={"map": url}) as driver:
        for shop in (ID, ID.upper(), "no uuid", ID.replace("0b", "1b")):
            driver.pipe("visits", {"shop": shop}, timestamp=0)
        found = {
            record.value["left"]["shop"]: record.value["right"] for record in driver.output("found")
        }
    row = {
        "city": "Goa",
        "opened": "2026-01-02T03:04:05.000000Z",
        "size": 12.5,
        "tags": ["tea", "pots"],
        "note": {"floors": 2},
    }
    assert found == {ID: row, ID.upper(): row, "no uuid": None, ID.replace("0b", "1b"): None}


def test_a_key_that_postgresql_refuses_rejects_only_its_record(postgres: str) -> None:
    """PostgreSQL's texts have no NUL, and it fills a `char(9)` with blanks."""
    url = new_database(postgres)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            'CREATE TABLE customers (id char(9) PRIMARY KEY, name text, "limit" numeric)'
        )
        database.execute("INSERT INTO customers VALUES ('a', 'Ada', 1)")
    with TopologyTestDriver(looked_up(), connections={"crm": url}) as driver:
        pipe(driver, "a", "a\0b", "c")
        assert names(driver) == ["Ada", None]
        (letter,) = driver.dead_letters()
        assert letter.value["customer"] == "a\0b"
