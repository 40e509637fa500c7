"""Tables in a real PostgreSQL that a run fills from a real broker, also after crashes and a rebuild."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from sluice import Context, Pipeline, PostgresTable, Record, Timer
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.errors import BatchDiffers, EngineError, SettingsError
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names, sale, sales_of
from tests.support.postgres import new_database

Query = Callable[[str], list[tuple[Any, ...]]]


def shops(names: Names, quantity: str = "smallint", copied: str = "true") -> Pipeline:
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    totals = sales.group_by("shop").aggregate(store="totals", n="count(*)", revenue="sum(amount)")
    totals.to(PostgresTable("totals", connection="warehouse", key="shop"))
    sales.select("shop", "quantity", "at").to(
        PostgresTable("log", connection="warehouse", types={"quantity": quantity})
    )
    sales.filter(copied).select("shop").to(names("copies"))
    return pipeline


@pytest.fixture
def url(postgres: str) -> str:
    return new_database(postgres)


@pytest.fixture
def query(url: str) -> Iterator[Query]:
    with psycopg.connect(url, autocommit=True) as database:
        yield lambda statement: database.execute(statement.encode()).fetchall()


def crash_before_the_marker(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends as after a crash right before the Kafka transaction."""

    def crash(*_: object) -> dict[str, int]:
        raise EngineError("a crash")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalOutput, "send", crash)
        with pytest.raises(EngineError, match="a crash"):
            running.run()


def totals(query: Query) -> dict[str, tuple[int, str]]:
    return {
        shop: (n, str(revenue)) for shop, n, revenue in query("SELECT shop, n, revenue FROM totals")
    }


def appended(query: Query) -> str:
    return "".join(shop for (shop,) in query('SELECT shop FROM log ORDER BY shop, "_offset"'))


def test_tables_after_runs_and_a_crash(
    start: Start, url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(shops, sales=2)
    with pytest.raises(SettingsError, match="There is no connection 'warehouse'"):
        running.run()
    running.settings = replace(running.settings, connections={"SLUICE_CONNECTION_WAREHOUSE": url})

    running.send("sales", sale("a"), sale("b"), sale("bad", quantity=40_000))
    running.send("sales", sale("a"), partition=1)
    running.run()
    expected = {"a": 2, "b": 1, "bad": 1}
    assert {shop: n for shop, (n, _) in totals(query).items()} == expected
    assert appended(query) == "aab"
    assert running.reasons() == ["not_encoded"]
    audited(running, {"totals": 3, "log": 3}, query)

    running.send("sales", sale("a"), sale("c"))
    crash_before_the_marker(running, monkeypatch)
    assert appended(query) == "aaabc", "the tables are one batch ahead"
    assert running.snapshot().batch == 0
    before = query("SELECT xmin::text FROM totals ORDER BY shop")
    running.run()
    assert query("SELECT xmin::text FROM totals ORDER BY shop") == before, (
        "nothing was written again"
    )
    assert {shop: n for shop, (n, _) in totals(query).items()} == expected | {"a": 3, "c": 1}
    assert appended(query) == "aaabc"
    audited(running, {"totals": 5, "log": 5}, query)


@pytest.mark.heavy
def test_tables_after_a_crash_and_a_rebuild(
    start: Start, url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a batch without a marker are written again in a batch with another id, and replace themselves."""
    running = start(shops, sales=2)
    running.settings = replace(running.settings, connections={"SLUICE_CONNECTION_WAREHOUSE": url})
    running.send("sales", sale("a"), sale("b"))
    running.run()
    running.send("sales", sale("d"))
    crash_before_the_marker(running, monkeypatch)
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert "d" not in running.store("totals")
    running.send("sales", sale("d"))
    running.run()
    assert {shop: n for shop, (n, _) in totals(query).items()} == {"a": 1, "b": 1, "d": 2}
    assert appended(query) == "abdd"
    assert len(running.output("copies")) == 4
    assert totals(query) == {
        shop: (value["n"], f"{value['revenue']:.2f}")
        for shop, value in running.store("totals").items()
    }


@pytest.mark.fault(
    "F42", "a column's type, or the pipeline, changes between two attempts of a batch"
)
def test_a_batch_that_has_changed_since_it_was_written_is_refused(
    start: Start, url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(shops)
    running.settings = replace(running.settings, connections={"SLUICE_CONNECTION_WAREHOUSE": url})
    running.send("sales", sale("a"))
    running.run()
    running.send("sales", sale("b", quantity=40_000), sale("c"))
    crash_before_the_marker(running, monkeypatch)
    assert appended(query) == "ac"
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("ALTER TABLE log ALTER quantity TYPE integer")
    running.pipeline = shops(running.names, "integer")
    for _ in range(2):
        with pytest.raises(
            BatchDiffers, match="warehouse:log got 1 record, and would get 2 now"
        ) as refused:
            running.run()
    assert f"sluice rebuild {running.pipeline.name}" in refused.value.next_step
    assert (running.snapshot().batch, appended(query), running.reasons()) == (0, "ac", [])
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert running.run() == 2
    assert (appended(query), running.reasons()) == ("abc", [])
    assert [shop for shop, _ in running.output("copies")] == ["a", "b", "c"]

    running.send("sales", sale("d"), sale("e"))
    running.crash_before_publishing()
    running.pipeline = shops(running.names, "integer", "shop <> 'e'")
    copies = running.names("copies")
    with pytest.raises(BatchDiffers, match=f"{copies} got 2 records, and would get 1 now"):
        running.run()
    running.pipeline = shops(running.names, "integer")
    running.run()
    assert [shop for shop, _ in running.output("copies")] == [*"abcde"]
    assert running.store("totals").keys() == {*"abcde"}


class Reminder:
    """Sets two timers of the wall clock, which are due at once, and forwards two records from each."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Amount]) -> None:
        for name in ("first", "second"):
            self.context.schedule(name, record.value.n, clock="wall")

    def on_timer(self, timer: Timer) -> None:
        for number in range(2):
            self.context.forward(timer.key, f"{timer.name} {number} of {timer.key} at {timer.time}")


def reminders(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    amounts = pipeline.stream(names("amounts"), value=Amount, key="n")
    texts = amounts.process(Reminder, returns=str).output
    texts.to(PostgresTable("reminders", connection="warehouse"))
    # A later step that keeps state, and another route from the same timers to the same table.
    lengths = (
        texts.select_key("concat('key of ', value)").group_by_key().reduce(longer, store="longest")
    )
    lengths.to_stream().to(PostgresTable("longest", connection="warehouse"))
    texts.to(names("reminders"), value=str)
    return pipeline


def longer(a: str, b: str) -> str:
    return max(a, b, key=len)


@pytest.mark.fault(
    "F32", "a driver killed between the table's commit and Kafka's when timers fire, then a rebuild"
)
def test_rows_of_timers_are_appended_once(
    start: Start, url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(reminders, amounts=2)
    running.settings = replace(running.settings, connections={"SLUICE_CONNECTION_WAREHOUSE": url})
    for n in (5, 6, 7):  # due in 1970
        running.send("amounts", b'{"n":%d}' % n, partition=n % 2)
    running.run()
    for n in (8, 9):
        running.send("amounts", b'{"n":%d}' % n)
    crash_before_the_marker(running, monkeypatch)
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert running.run() == 2
    for n in (8, 9):
        running.send("amounts", b'{"n":%d}' % n)
        running.run()
    # A timer that is set again for the same time sends other rows than the first one.
    ns = (5, 6, 7, 8, 8, 9, 9)
    expected = sorted(
        f"{name} {number} of {n} at {n}"
        for name in ("first", "second")
        for number in (0, 1)
        for n in ns
    )
    for table in ("reminders", "longest"):
        assert sorted(text for (text,) in query(f"SELECT value FROM {table}")) == expected
        assert query(f'SELECT DISTINCT "_topic", "_partition" FROM {table}') == [("", -1)]
        assert sorted(due for (due,) in query(f'SELECT DISTINCT "_offset" FROM {table}')) == [
            5,
            6,
            7,
            8,
            9,
        ]
    texts = [
        (message.value() or b"").decode()
        for message in running.messages(running.names("reminders"))
    ]
    assert sorted(texts) == expected


def audited(running: Running, rows: dict[str, int], query: Query) -> None:
    """The audits of all batches count these rows, and the database has the newest snapshot."""
    with running.ledger() as ledger:
        audits = ledger.audits.all(GenerationRef(running.pipeline.name, 1))
    for table, number in rows.items():
        assert sum(audit.outputs.get(f"warehouse:{table}", 0) for audit in audits) == number
    assert query("SELECT concat(generation, '.', batch) FROM sluice_batches") == [
        (running.snapshot().id,)
    ]
