"""A pipeline's tables in a real PostgreSQL: created or checked, written once per batch, and fenced."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from threading import Timer
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from sluice.errors import BatchDiffers, EngineError, LeaseError
from sluice.sinks.postgres_sink import PostgresTables, PostgresTarget
from sluice.sinks.target import BatchId, Published, Rows
from sluice.values.sink_tables import PostgresTable
from tests.support.pooler import pooled
from tests.support.postgres import new_database

NOTHING = pa.table({})
TOTALS = (("shop", "STRING"), ("n", "BIGINT"))

Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def url(postgres: str) -> str:
    return new_database(postgres)


@pytest.fixture
def query(url: str) -> Iterator[Query]:
    with psycopg.connect(url, autocommit=True) as database:

        def run(statement: str) -> list[tuple[Any, ...]]:
            cursor = database.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield run


def target(
    name: str = "totals",
    key: str | None = "shop",
    fields: tuple[tuple[str, str], ...] = TOTALS,
    **types: str,
) -> PostgresTarget:
    table = PostgresTable(name, connection="warehouse", key=key, types=types)
    return PostgresTarget(table.output, "shops.py:7", table, False, fields)


def begun(
    url: str,
    *targets: PostgresTarget,
    generation: int = 1,
    published: int | None = None,
    outputs: Set[str] = frozenset(),
) -> PostgresTables:
    tables = PostgresTables("warehouse", url, "shops", targets or (target(),))
    batch_id = None if published is None else BatchId(generation, published, 0)
    tables.begin(None if batch_id is None else Published(batch_id, outputs, {}))
    return tables


def batch(number: int, begun: int = 0, generation: int = 1) -> BatchId:
    return BatchId(generation, number, begun)


def rows(*written: tuple[str | None, ...], deleted: tuple[str, ...] = ()) -> dict[str, Rows]:
    return {"warehouse:totals": Rows(written, [(key,) for key in deleted], NOTHING)}


def test_rows_are_replaced_and_deleted(url: str, query: Query) -> None:
    tables = begun(url)
    assert tables.write(batch(0), rows(("a", "1"), ("b", "2"))) == {"warehouse:totals": 2}
    assert tables.write(batch(1), rows(("a", "3"), ("c", None), deleted=("b", "x"))) == {
        "warehouse:totals": 4
    }
    assert query("SELECT shop, n FROM totals ORDER BY shop") == [("a", 3), ("c", None)]
    of_batch = (
        "SELECT generation, batch, rows -> 'warehouse:totals' ->> 'count' FROM sluice_batches"
    )
    assert query(of_batch) == [(1, 1, "4")]


@pytest.mark.parametrize("size", [1, 2])
def test_tables_are_written_through_a_pooler_of_transactions(
    url: str,
    query: Query,
    size: int,
) -> None:
    """PgBouncer, for example. Nothing of one transaction is left for the next client."""
    targets = [target(f"totals_{number}") for number in range(8)]
    with pooled(url, size) as address, psycopg.connect(address, autocommit=True) as other:
        tables = begun(address, *targets)
        for number in range(3):
            written = {each.output: Rows([("a", str(number))], [], NOTHING) for each in targets}
            assert {*tables.write(batch(number), written).values()} == {1}
            assert other.execute("SHOW lock_timeout").fetchone() == ("0",)
            assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    assert query("SELECT * FROM totals_7") == [("a", 2)]


def test_settings_of_the_database_do_not_matter(url: str, query: Query) -> None:
    name = url.rpartition("/")[2]
    settings = {"default_transaction_isolation": "serializable", "statement_timeout": "100ms"}
    for setting, value in settings.items():
        query(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    tables = begun(url)
    with psycopg.connect(url) as slow:
        slow.execute("LOCK TABLE sluice_batches IN EXCLUSIVE MODE")
        ending = Timer(0.5, slow.rollback)
        ending.start()
        assert tables.write(batch(0), rows(("a", "1"))) == {"warehouse:totals": 1}
        ending.join()


@pytest.mark.fault("F42", "the rows of a batch are others when it is repeated")
@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (
            rows(("a", "1"), ("b", "2"), ("c", "3")),
            "warehouse:totals got 2 records, and would get 3 now",
        ),
        (rows(("a", "1")), "warehouse:totals got 2 records, and would get 1 now"),
        (rows(("a", "1"), ("b", "3")), "the 2 records for warehouse:totals have other contents"),
        (
            rows(("a", "1"), deleted=("b",)),
            "the 2 records for warehouse:totals have other contents",
        ),
    ],
)
def test_a_repeated_batch_with_other_rows_is_refused(
    now: dict[str, Rows], difference: str, url: str, query: Query
) -> None:
    begun(url).write(batch(0), rows(("a", "1"), ("b", "2")))
    again = begun(url, published=None)
    with pytest.raises(BatchDiffers, match=re.escape(difference)) as refused:
        again.write(batch(0), now)
    assert "sluice rebuild shops" in refused.value.next_step
    assert query("SELECT shop, n FROM totals ORDER BY shop") == [("a", 1), ("b", 2)]
    assert again.write(batch(0), rows(("b", "2"), ("a", "1"))) == {"warehouse:totals": 2}, (
        "in another order"
    )


def test_a_repeated_batch_changes_nothing(url: str, query: Query) -> None:
    begun(url).write(batch(0), rows(("a", "1")))
    query("UPDATE totals SET n = 100")
    again = begun(url, published=None)
    assert again.write(batch(0), rows(("a", "1"))) == {"warehouse:totals": 1}
    assert query("SELECT n FROM totals") == [(100,)], "the batch was not written again"
    assert again.write(batch(0, begun=1), rows(("a", "2"))) == {"warehouse:totals": 1}
    assert query("SELECT n FROM totals") == [(2,)], "a batch with other records is another batch"


def test_a_table_that_was_added_gets_the_rows_of_a_repeated_batch(url: str, query: Query) -> None:
    begun(url).write(batch(0), rows(("a", "1")))
    query("UPDATE totals SET n = 100")
    added = target("more")
    more = begun(url, target(), added)
    both = rows(("a", "1")) | {added.output: Rows([("b", "2")], [], NOTHING)}
    assert more.write(batch(0), both) == {"warehouse:totals": 1, "warehouse:more": 1}
    assert query("SELECT n FROM totals UNION ALL SELECT n FROM more") == [(100,), (2,)]


@pytest.mark.fault("F52", "a table's database loses the epoch of a paused driver")
def test_a_writer_whose_epoch_the_database_has_lost_cannot_write(url: str, query: Query) -> None:
    begun(url).write(batch(0), rows(("a", "1")))
    query("CREATE TABLE replica AS SELECT * FROM sluice_batches")
    paused = begun(url)
    query("DELETE FROM sluice_batches")
    query("INSERT INTO sluice_batches SELECT * FROM replica")
    begun(url).write(batch(1), rows(("b", "2")))
    with pytest.raises(LeaseError, match="lost its lease"):
        paused.write(batch(2), rows(("c", "666")))
    assert query("SELECT shop FROM totals ORDER BY shop") == [("a",), ("b",)]


def test_an_earlier_writer_cannot_write(url: str, query: Query) -> None:
    earlier = begun(url)
    earlier.write(batch(0), rows(("a", "1")))
    begun(url)
    with pytest.raises(LeaseError, match="lost its lease"):
        earlier.write(batch(1), rows(("a", "666")))
    assert query("SELECT n FROM totals") == [(1,)]


def test_a_database_that_lost_batches(url: str, query: Query) -> None:
    begun(url).write(batch(3), rows(("a", "1")))
    begun(url, published=3)
    begun(url, published=4, generation=2)
    with pytest.raises(
        EngineError, match=r"end at batch 1\.3, but batch 1\.4 is written"
    ) as raised:
        begun(url, published=4)
    query(str(raised.value).partition("missing rows: ")[2].removesuffix("."))
    begun(url, published=4).write(batch(5), rows(("a", "2")))
    assert query("SELECT n FROM totals") == [(2,)]


@pytest.mark.fault(
    "F50", "a table's database loses its newest commits between two batches of one run"
)
def test_a_database_that_loses_a_batch_during_a_run_gets_no_later_batch(
    url: str, query: Query
) -> None:
    tables = begun(url)
    tables.write(batch(0), rows(("a", "1")))
    query("CREATE TABLE replica AS SELECT * FROM sluice_batches")
    tables.write(batch(1), rows(("b", "2")))
    query("DELETE FROM totals WHERE shop = 'b'; DELETE FROM sluice_batches")
    query("INSERT INTO sluice_batches SELECT * FROM replica")
    with pytest.raises(
        EngineError, match=r"end at batch 1\.0, but batch 1\.1 is written.*fail-over"
    ) as raised:
        tables.write(batch(2), rows(("c", "3")))
    assert query("SELECT shop FROM totals") == [("a",)]
    query(str(raised.value).partition("missing rows: ")[2].removesuffix("."))
    begun(url, published=1).write(batch(2), rows(("c", "3")))
    assert query("SELECT shop FROM totals ORDER BY shop") == [("a",), ("c",)]


def test_a_batch_of_an_earlier_generation_is_older_than_a_written_one(
    url: str, query: Query
) -> None:
    begun(url).write(batch(3), rows(("a", "1")))
    outputs = {"warehouse:totals"}
    tables = PostgresTables("warehouse", url, "shops", (target(),))
    tables.begin(Published(batch(4, generation=2), outputs, {}, is_written=False))
    with pytest.raises(EngineError, match=r"end at batch 1\.3, but batch 2\.4 is written"):
        tables.begin(Published(batch(4, generation=2), outputs, {}))


def test_an_empty_database_that_should_have_rows(url: str, query: Query) -> None:
    begun(
        url, target("new"), published=4, outputs={"warehouse:totals"}
    )  # a table that was added to the pipeline
    query("DELETE FROM sluice_batches")
    with pytest.raises(EngineError, match=r"have no batch, but batch 1\.4 is written") as raised:
        begun(url, published=4, outputs={"warehouse:totals"})
    query(str(raised.value).partition("missing rows: ")[2].removesuffix("."))
    begun(url, published=4, outputs={"warehouse:totals"}).write(batch(5), rows(("a", "2")))
    assert query("SELECT n FROM totals") == [(2,)]


def test_appended_rows_replace_themselves(url: str, query: Query) -> None:
    """A batch that is written again with another id, as after a rebuild, does not duplicate its rows."""
    appended = target("log", None, (("amount", "BIGINT"),))
    tables = begun(url, appended)
    for number, more in enumerate(([], [("sales", "0", "8", "0", "3")])):
        written = [("sales", "0", "7", "0", "1"), ("sales", "0", "7", "1", "2"), *more]
        tables.write(batch(number), {appended.output: Rows(written, [], NOTHING)})
    assert query('SELECT amount FROM log ORDER BY "_offset", "_row"') == [(1,), (2,), (3,)]


def test_rows_of_windows(url: str, query: Query) -> None:
    table = PostgresTable("per_minute", connection="warehouse", key="shop")
    windowed = PostgresTarget(table.output, "shops.py:9", table, True, (("n", "BIGINT"),))
    tables = begun(url, windowed)
    minutes = [
        (f"2026-01-01T08:0{minute}:00+00:00", f"2026-01-01T08:0{minute + 1}:00+00:00")
        for minute in range(2)
    ]
    tables.write(
        batch(0),
        {table.output: Rows([("a", *minutes[0], "1"), ("a", *minutes[1], "2")], [], NOTHING)},
    )
    tables.write(
        batch(1), {table.output: Rows([("a", *minutes[1], "3")], [("a", *minutes[0])], NOTHING)}
    )
    assert query("SELECT shop, window_start = '2026-01-01 08:01Z', n FROM per_minute") == [
        ("a", True, 3)
    ]


def test_types_and_quoting(url: str, query: Query) -> None:
    query('CREATE SCHEMA "Shop"')
    fields = (
        ("order", "STRING"),
        ("Total", "DECIMAL(12,2)"),
        ("tags", "ARRAY<STRING>"),
        ("at", "TIMESTAMP"),
        ("x", ""),
    )
    quoted = target("Shop.Order", "order", fields, x="smallint")
    tables = begun(url, quoted)
    row = ("a\tb\\N", "1.50", '["x"]', "2026-01-01T08:00:00+00:00", None)
    tables.write(batch(0), {quoted.output: Rows([row], [], NOTHING)})
    (stored,) = query(
        'SELECT "order", "Total"::text, tags, at = \'2026-01-01 08:00Z\', x FROM "Shop"."Order"'
    )
    assert stored == ("a\tb\\N", "1.50", ["x"], True, None)
    assert [str(column.type) for column in tables.columns[quoted.output]] == [
        "text", "numeric(12,2)", "jsonb", "timestamp with time zone", "smallint",
    ]  # fmt: skip
    begun(url, quoted)


def test_a_table_that_does_not_fit(url: str, query: Query) -> None:
    query(
        "CREATE TABLE totals (shop integer, n text, owner text NOT NULL, made timestamptz NOT NULL DEFAULT now())"
    )
    fields = (*TOTALS, ("size", "DOUBLE"))
    with pytest.raises(EngineError) as error:
        begun(url, target(fields=fields))
    for problem in (
        "warehouse:totals (shops.py:7) does not fit: the column shop is integer, but the field is STRING",
        "the column n is text, but the field is BIGINT",
        'it has no column size (ALTER TABLE "totals" ADD "size" double precision)',
        "the column owner is NOT NULL without a default",
        'its rows are not unique by "shop" (ALTER TABLE "totals" ADD PRIMARY KEY ("shop"))',
    ):
        assert problem in str(error.value)
    query("DROP TABLE totals; CREATE TABLE totals (shop text UNIQUE, n integer)")
    with pytest.raises(EngineError, match="the column n is integer, not bigint"):
        begun(url, target(n="bigint"))
    begun(url, target())
    with pytest.raises(
        EngineError, match=r"the types of its columns n are unknown.*types=\{\"n\": \"text\"\}"
    ):
        begun(url, target("other", fields=(("shop", "STRING"), ("n", ""))))


def test_a_view_is_no_table(url: str, query: Query) -> None:
    query(
        "CREATE TABLE kept (shop text PRIMARY KEY, n bigint); CREATE VIEW totals AS SELECT * FROM kept"
    )
    with pytest.raises(
        EngineError, match="does not fit: it is a view, and only a table can have"
    ) as error:
        begun(url, target())
    assert "ALTER TABLE" not in str(error.value)


def test_a_constraint_that_the_database_checks(url: str, query: Query) -> None:
    query("CREATE TABLE totals (shop text PRIMARY KEY, n bigint CHECK (n < 10))")
    tables = begun(url)
    with pytest.raises(
        EngineError,
        match=r'violates check constraint "totals_n_check".*Failing row contains \(b, 10\)',
    ):
        tables.write(batch(0), rows(("a", "1"), ("b", "10")))
    assert query("SELECT * FROM totals") == []
    tables.write(batch(0), rows(("a", "1"), ("b", "9")))
    assert query("SELECT count(*) FROM totals") == [(2,)]


def test_a_missing_value_does_not_fit_a_column_that_requires_one(url: str, query: Query) -> None:
    query("CREATE TABLE totals (shop text PRIMARY KEY, n bigint NOT NULL DEFAULT 0, note text)")
    _, n, note = begun(url, target(fields=(*TOTALS, ("note", "STRING")))).columns[
        "warehouse:totals"
    ]
    with pytest.raises(ValueError, match=r"^column n \(bigint\): must not be null: null$"):
        n.encode(b"null")
    assert note.encode(b"null") is None


def test_a_connection_that_ends_in_the_middle(url: str, query: Query) -> None:
    """The transaction is rolled back, and the next attempt writes every row."""
    query(
        "CREATE TABLE totals (shop text PRIMARY KEY, n bigint);"
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;"
        "CREATE TRIGGER die AFTER INSERT ON totals FOR EACH STATEMENT EXECUTE FUNCTION die()"
    )
    tables = begun(url)
    with pytest.raises(
        EngineError, match="in the database of warehouse failed: terminating connection"
    ):
        tables.write(batch(0), rows(("a", "1")))
    query("DROP TRIGGER die ON totals")
    assert query("SELECT * FROM totals") == []
    tables.write(batch(0), rows(("a", "1")))
    assert query("SELECT * FROM totals") == [("a", 1)]


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    tables = PostgresTables(
        "warehouse", "postgresql://me:secret@127.0.0.1:1/db", "shops", [target()]
    )
    with pytest.raises(
        EngineError, match="in the database of warehouse failed: connection failed"
    ) as error:
        tables.begin(None)
    assert "secret" not in str(error.value)


def test_notes_of_batches_from_before_the_first_release_are_refused(url: str, query: Query) -> None:
    query(
        "CREATE TABLE sluice_batches (pipeline text, job text, epoch bigint, PRIMARY KEY (pipeline, job))"
    )
    with pytest.raises(
        EngineError, match=r"The table sluice_batches .* is from before the first release"
    ) as refused:
        begun(url)
    assert "DROP TABLE sluice_batches" in refused.value.next_step
    query("DROP TABLE sluice_batches")
    assert begun(url).epoch > 0


def test_a_table_has_one_writer(url: str, query: Query) -> None:
    """Rows of two pipelines that read one topic would have the same `_topic`, `_partition` and `_offset`."""
    begun(url, target("log", None))
    other = PostgresTables("elsewhere", url, "sales", [target("public.log", None)])
    with pytest.raises(
        EngineError,
        match=r"The pipeline shops already writes the table public\.log \(shops\.py:7\)",
    ):
        other.begin(None)
    begun(url, target("totals"))  # the pipeline no longer writes `log`
    other.begin(None)
    assert sorted(query("SELECT pipeline, tables FROM sluice_batches")) == [
        ("sales", ["public.log"]),
        ("shops", ["public.totals"]),
    ]
    with pytest.raises(EngineError, match=r"both write to the table public\.totals"):
        begun(url, target("totals"), target("public.totals"))


def test_a_column_that_changes_during_a_run(url: str, query: Query) -> None:
    amounts = target(fields=(("shop", "STRING"), ("n", "DECIMAL(10,4)")))
    tables = begun(url, amounts)
    query("ALTER TABLE totals ALTER n TYPE numeric(10,2)")
    with pytest.raises(
        EngineError, match=r"columns of the table warehouse:totals \(shops\.py:7\) changed"
    ):
        tables.write(batch(0), rows(("a", "1.2345")))
    begun(url, amounts).write(batch(0), rows(("a", "1.23")))
    assert [str(n) for (n,) in query("SELECT n FROM totals")] == ["1.23"]


def test_a_key_column_tells_all_keys_apart(url: str, query: Query) -> None:
    query("CREATE COLLATION folded (provider=icu, locale='und-u-ks-level2', deterministic=false)")
    query("CREATE TABLE totals (shop text COLLATE folded PRIMARY KEY, n bigint)")
    with pytest.raises(
        EngineError, match=r"the column shop is text, in which different keys can be equal"
    ) as raised:
        begun(url)
    statement = str(raised.value).partition("(ALTER")[2].partition(");")[0].partition(").")[0]
    query(f"ALTER{statement}")
    tables = begun(url)
    tables.write(batch(0), rows(("a", "1"), ("A", "2")))
    assert len(query("SELECT n FROM totals")) == 2


def test_a_table_that_is_gone(url: str, query: Query) -> None:
    begun(url).write(batch(0), rows(("a", "1")))
    query("DROP TABLE totals")
    with pytest.raises(
        EngineError, match=r"The table warehouse:totals \(shops\.py:7\) is gone"
    ) as raised:
        begun(url, published=0)
    query(str(raised.value).partition("empty table: ")[2].partition(", and then")[0])
    begun(url, published=0).write(batch(1), rows(("b", "2")))
    assert query("SELECT shop, n FROM totals") == [("b", 2)]


def test_columns_of_any_name(url: str, query: Query) -> None:
    names = [
        "$schema",
        "order-id",
        "a b",
        "dc:creator",
        "flow, net",
        "it's",
        'the "id"',
        "100%",
        "%s",
        "order",
        "é",
    ]
    fields = (("@type", "STRING"), *((name, "BIGINT") for name in names))
    tables = begun(url, target(key="@type", fields=fields))
    numbers = tuple(map(str, range(len(names))))
    tables.write(batch(0), rows(("a", *numbers), ("b", *numbers)))
    tables.write(batch(1), rows(("a", *reversed(numbers)), deleted=("b",)))
    columns = query(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'totals'"
    )
    assert {name for (name,) in columns} == {"@type", *names}
    assert query("SELECT * FROM totals") == [("a", *map(int, reversed(numbers)))]


def test_a_renamed_pipeline_takes_over_its_tables(url: str, query: Query) -> None:
    earlier = begun(url)
    earlier.write(batch(0), rows(("a", "1")))
    query("UPDATE totals SET n = 100")
    renamed = PostgresTables("warehouse", url, "markets", (target(),), formerly=("older", "shops"))
    renamed.begin(Published(batch(0), frozenset({"warehouse:totals"}), {}))
    renamed.write(batch(0), rows(("a", "1")))
    assert query("SELECT n FROM totals") == [(100,)], "the batch was not written again"
    with pytest.raises(EngineError):
        earlier.write(batch(1), rows(("a", "666")))
    renamed.write(batch(1), rows(("a", "2")))
    assert query("SELECT n FROM totals") == [(2,)]
    assert query("SELECT pipeline FROM sluice_batches") == [("markets",)]
    again = PostgresTables("warehouse", url, "markets", (target(),), formerly=("shops",))
    again.begin(Published(batch(1), frozenset({"warehouse:totals"}), {}))


def test_another_pipeline_does_not_take_over_tables(url: str, query: Query) -> None:
    begun(url).write(batch(0), rows(("a", "1")))
    other = PostgresTables("warehouse", url, "markets", (target(),), formerly=("older",))
    with pytest.raises(EngineError, match="The pipeline shops already writes the table"):
        other.begin(None)
