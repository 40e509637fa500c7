"""A pipeline's Delta tables, in a real Spark session: created or checked, written once per batch, and fenced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sluice.errors import BatchDiffers, EngineError, LeaseError
from sluice.sinks.delta_sink import DeltaSink, DeltaTarget
from sluice.sinks.target import BatchId, Published, Rows
from sluice.values.sink_tables import DeltaTable
from tests.support.delta import delta_rows, written_snapshot

NOTHING = pa.table({})
TOTALS = (("shop", "STRING"), ("n", "BIGINT"))
AMOUNTS = (("amount", "BIGINT"),)


class Lake:
    """A folder with one Delta table, and the pipeline `shops` that writes it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.name = str(folder / "totals")

    def target(
        self, key: str | None = "shop", fields: tuple[tuple[str, str], ...] = TOTALS, **types: str
    ) -> DeltaTarget:
        table = DeltaTable(self.name, key=key, types=types)
        return DeltaTarget(table.output, "shops.py:7", table, False, fields)

    def elsewhere(self) -> DeltaTarget:
        """A table that does not exist."""
        table = DeltaTable(f"{self.name}_elsewhere", key="shop")
        return DeltaTarget(table.output, "shops.py:7", table, False, TOTALS)

    def sink(self, target: DeltaTarget | None = None, pipeline: str = "shops") -> DeltaSink:
        return DeltaSink(self.spark, pipeline, target or self.target())

    def begun(
        self, target: DeltaTarget | None = None, published: Published | None = None
    ) -> DeltaSink:
        sink = self.sink(target)
        sink.begin(published)
        return sink

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement in which {} is the table."""
        return [
            tuple(row)
            for row in self.spark.sql(statement.replace("{}", f"delta.`{self.name}`")).collect()
        ]

    def rows(self, columns: str = "shop, n") -> list[tuple[Any, ...]]:
        return sorted(self.sql(f"SELECT {columns} FROM {{}}"))

    def values(self) -> list[tuple[Any, ...]]:
        """The rows as another program reads them, which takes less time than in Spark."""
        return sorted((row["shop"], row["n"]) for row in delta_rows(Path(self.name)))

    def commits(self) -> list[str]:
        """The files of all commits."""
        return sorted(file.name for file in Path(self.name, "_delta_log").glob("*.json"))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def batch(number: int, begun: int = 5, generation: int = 1) -> BatchId:
    return BatchId(generation, number, begun)


def published(number: int, ends: dict[str, int] | None = None, **more: Any) -> Published:
    return Published(batch(number, **more), frozenset(), {"sales": ends or {}})


def written(
    sink: DeltaSink, number: int, *rows: tuple[Any, ...], deleted: tuple[str, ...] = (), **more: Any
) -> int:
    output = sink.target.output
    (count,) = sink.write(
        batch(number, **more), {output: Rows(rows, [(key,) for key in deleted], NOTHING)}
    ).values()
    return count


def test_rows_are_replaced_deleted_and_written_once(lake: Lake) -> None:
    sink = lake.begun()
    assert written(sink, 0, ("a", 1), ("b", 2)) == 2
    assert written(sink, 1, ("a", 3), ("c'\\", None), deleted=("b", "x")) == 4
    assert lake.values() == [("a", 3), ("c'\\", None)]
    assert written(sink, 2) == 0
    again = lake.begun(published=published(1))
    before = lake.commits()
    assert written_snapshot(Path(lake.name)) == "1.2"
    assert written(again, 2) == 0
    with pytest.raises(BatchDiffers, match="got 0 records, and would get 1 now"):
        written(again, 2, ("a", 100))
    assert lake.commits() == before, "the batch was not written again"
    assert written(again, 2, ("a", 4), begun=6) == 1
    assert lake.values()[0] == ("a", 4), "a batch with other records is another batch"


@pytest.mark.heavy
def test_appended_rows_are_not_repeated_in_another_batch(lake: Lake) -> None:
    """As after a rebuild: the rows of a batch that was not published come again in batches with other ids."""
    target = lake.target(None, AMOUNTS)
    sink = lake.begun(target)
    assert written(sink, 0, ("sales", 0, 7, 0, 1), ("sales", 0, 7, 1, 2)) == 2
    assert written(sink, 1, ("sales", 0, 8, 0, 3), ("sales", 1, 2, 0, 4)) == 2
    assert not lake.begun(target, published(1, ends={"0": 9, "1": 3})).state.may_repeat
    rebuilt = lake.begun(target, published(0, ends={"0": 8}, generation=2))
    assert rebuilt.state.may_repeat
    written(rebuilt, 1, ("sales", 0, 8, 0, 3), ("sales", 0, 9, 0, 5), generation=2)
    again = lake.begun(target, published(1, ends={"0": 10, "1": 2}, generation=2))
    assert again.state.may_repeat, "the row of partition 1 is still ahead"
    written(again, 2, ("sales", 1, 2, 0, 4), generation=2)
    assert lake.rows("amount") == [(1,), (2,), (3,), (4,), (5,)]
    assert not lake.begun(
        target, published(2, ends={"0": 10, "1": 3}, generation=2)
    ).state.may_repeat


@pytest.mark.heavy
def test_an_earlier_writer_cannot_commit(lake: Lake) -> None:
    earlier = lake.begun()
    written(earlier, 0, ("a", 1))
    later = lake.begun(published=published(0))
    for rows in ([("a", 666)], []):
        with pytest.raises(LeaseError, match="lost its lease"):
            written(earlier, 1, *rows)
    written(later, 1, ("a", 2))
    assert lake.rows() == [("a", 2)]


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["shop", None])
def test_a_writer_that_is_paused_within_its_transaction(
    lake: Lake, key: str | None, tmp_path: Path
) -> None:
    """Another driver takes over after the writer's transaction has read the table, and before it commits."""
    target = lake.target(key)
    paused = lake.begun(target)
    reads, goes_on = tmp_path / "reads", tmp_path / "goes on"
    made = paused._frame

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reads.touch()
        while not goes_on.exists():
            time.sleep(0.05)
        yield from batches

    def frame(*of: Any) -> DataFrame:
        rows = made(*of)
        return rows.mapInArrow(wait, rows.schema)

    paused._frame = frame  # type: ignore[method-assign, assignment]
    row = ("a", 666) if key else ("sales", 0, 7, 0, "a", 666)
    with ThreadPoolExecutor(1) as driver:
        writing = driver.submit(written, paused, 0, row)
        while not reads.exists() and not writing.done():
            time.sleep(0.05)
        later = DeltaSink(lake.spark.newSession(), "shops", target)
        later.begin(None)
        goes_on.touch()
        with pytest.raises(LeaseError, match="lost its lease"):
            writing.result()
    assert lake.rows() == []


@pytest.mark.heavy
def test_two_writers_that_begin_at_once(lake: Lake) -> None:
    """Both read the same epoch. The later commit has the table if its random number is larger."""
    first, second = lake.begun(), lake.sink()
    second.columns = first.columns
    larger, smaller = first.version + 2**24, first.version - 1
    with pytest.raises(LeaseError):
        second._commit(smaller, second.state, None)
    second._commit(larger, second.state, None)
    with pytest.raises(LeaseError):
        written(first, 0, ("a", 1))
    written(second, 0, ("a", 2))
    assert lake.rows() == [("a", 2)]


@pytest.mark.heavy
def test_a_commit_that_conflicts_with_another_program_is_repeated(lake: Lake) -> None:
    sink = lake.begun()
    written(sink, 0, ("a", 1))
    change, calls = sink._change, list[object]()

    def conflict(rows: Rows | None) -> None:
        calls.append(rows)
        if len(calls) < 3:
            raise PySparkException(
                "[DELTA_CONCURRENT_APPEND] files were added by a concurrent update"
            )
        change(rows)

    sink._change = conflict  # type: ignore[method-assign]
    written(sink, 1, ("a", 2))
    assert (lake.rows(), len(calls)) == ([("a", 2)], 3)


@pytest.mark.heavy
def test_a_table_that_lost_batches(lake: Lake) -> None:
    lake.sql("CREATE TABLE {} (shop STRING, n BIGINT) USING delta")
    with pytest.raises(EngineError, match=r"has no batch, but batch 1\.4 is published"):
        lake.begun(published=Published(batch(4), frozenset({lake.target().output}), {}))
    written(lake.begun(), 3, ("a", 1))
    lake.begun(published=published(4, generation=2))
    with pytest.raises(
        EngineError, match=r"ends at batch 1\.3, but batch 1\.4 is published"
    ) as raised:
        lake.begun(published=published(4))
    lake.spark.sql(str(raised.value).partition("missing rows: ")[2].removesuffix("."))
    written(lake.begun(published=published(4)), 5, ("a", 2))
    assert lake.rows() == [("a", 2)]
    gone = lake.elsewhere()
    with pytest.raises(EngineError, match=r"The table .* is gone, but batch 1\.5 is published"):
        lake.begun(gone, Published(batch(5), frozenset({gone.output}), {}))


@pytest.mark.heavy
def test_a_table_has_one_writer(lake: Lake) -> None:
    lake.begun()
    other = lake.sink(pipeline="sales")
    with pytest.raises(
        EngineError, match=r"shops already writes the table delta:.*totals \(shops\.py:7\)"
    ) as raised:
        other.begin(None)
    lake.spark.sql(str(raised.value).partition("no longer writes it: ")[2].removesuffix("."))
    other.begin(None)
    with pytest.raises(EngineError, match="sales already writes the table"):
        lake.begun()


def test_an_existing_table_that_does_not_fit(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE {} (shop CHAR(5), total INT, tags ARRAY<INT>, other STRING NOT NULL, v VARIANT, "
        "m MAP<INT, INT>) USING delta"
    )
    fields = (
        ("shop", "STRING"),
        ("total", "STRING"),
        ("tags", "ARRAY<STRING>"),
        ("n", "BIGINT"),
        ("v", ""),
        ("m", ""),
    )
    with pytest.raises(EngineError) as raised:
        lake.begun(lake.target("shop", fields))
    assert str(raised.value) == (
        f"The table delta:{lake.name} (shops.py:7) does not fit: the column shop is string, in which "
        "different keys can be equal; the column total is int, but the field is STRING; the column tags is array<int>, "
        f"but the field is ARRAY<STRING>; it has no column n (ALTER TABLE delta.`{lake.name}` ADD COLUMN `n` BIGINT); "
        "Sluice cannot write the type variant of the column v; Sluice cannot write the type map<int,int> of the column "
        "m; the column other is NOT NULL, but the pipeline does not write it. Change the table, or what the pipeline "
        "writes. Nothing was read."
    )
    assert lake.rows("shop") == []


@pytest.mark.heavy
def test_columns_that_require_values_or_limit_their_length(lake: Lake) -> None:
    """Values that Delta Lake would reject are found before a batch is written, so that no record ends every run."""
    lake.sql(
        "CREATE TABLE {} (shop STRING, n BIGINT NOT NULL, code VARCHAR(3), "
        "part STRUCT<a: BIGINT NOT NULL, b: BIGINT>, codes ARRAY<VARCHAR(3)>) USING delta"
    )
    fields = (*TOTALS, ("code", "STRING"), ("part", "STRUCT<a: BIGINT, b: BIGINT>"))
    target = lake.target(fields=fields)
    sink = lake.begun(target)
    _, n, code, part = sink.columns[target.output]
    for column, value in ((n, b"null"), (code, b'"abcd"'), (part, b'{"b":1}')):
        with pytest.raises(ValueError, match=rf"^column {column.name} "):
            column.encode(value)
    written(sink, 0, ("a", n.encode(b"1"), code.encode(b'"abc"'), part.encode(b'{"a":1}')))
    assert [tuple(row) for row in lake.rows("shop, n, code, part.a, part.b")] == [
        ("a", 1, "abc", 1, None)
    ]
    with pytest.raises(
        EngineError, match=r"Sluice cannot write the type array<string> of the column codes"
    ):
        lake.begun(lake.target(fields=(*fields, ("codes", "ARRAY<STRING>"))), published(0))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "zone"),
    [("TIMESTAMP", UTC), pytest.param("TIMESTAMP_NTZ", None, marks=pytest.mark.heavy)],
)
def test_a_key_that_is_a_time(lake: Lake, kind: str, zone: tzinfo | None) -> None:
    target = lake.target("at", (("at", kind), ("n", "BIGINT")))
    sink = lake.begun(target)
    at = datetime(2026, 1, 31, 10, 30, 0, 5, tzinfo=zone)
    written(sink, 0, (at, 1))
    written(sink, 1, (at, 2))
    assert lake.rows("n") == [(2,)]


@pytest.mark.heavy
def test_rows_that_arrow_rejects_are_an_error_of_the_table(lake: Lake) -> None:
    sink = lake.begun()
    with pytest.raises(
        EngineError, match=r"The rows for delta:.* were not written: .* too large"
    ) as raised:
        written(sink, 0, ("a", 2**80))
    assert raised.value.next_step.startswith("Nothing from the batch was published.")
    assert lake.rows() == []


@pytest.mark.heavy
def test_a_table_partitioned_by_its_key(lake: Lake) -> None:
    lake.sql("CREATE TABLE {} (shop STRING, n BIGINT) USING delta PARTITIONED BY (shop)")
    sink = lake.begun()
    shop, _ = sink.columns[sink.target.output]
    with pytest.raises(ValueError, match="must not be empty: partition columns store '' as null"):
        shop.encode(b'""')
    written(sink, 0, ("a b/=%", 1), (" ", 2))
    assert lake.rows() == [(" ", 2), ("a b/=%", 1)]


@pytest.mark.heavy
def test_a_table_in_the_folder_of_another(lake: Lake) -> None:
    lake.begun()
    inner = DeltaTable(f"{lake.name}/sales", key="shop")
    with pytest.raises(EngineError, match="would be in the folder of another Delta table"):
        lake.begun(DeltaTarget(inner.output, "shops.py:7", inner, False, TOTALS))


def test_types_of_columns(lake: Lake) -> None:
    """A table with columns of all kinds, and a row as a record's JSON gives it."""
    types = {
        "i8": "TINYINT", "i16": "SMALLINT", "i": "INT", "price": "DECIMAL(12,2)", "x": "DOUBLE", "f": "FLOAT",
        "b": "BOOLEAN", "day": "DATE", "at": "TIMESTAMP", "local": "TIMESTAMP_NTZ", "raw": "BINARY",
        "tags": "ARRAY<STRING>", "by": "MAP<STRING, BIGINT>", "shop": "STRUCT<`name`: STRING, n: DECIMAL(3,1)>",
        "nothing": "INT",
    }  # fmt: skip
    values = {
        "i8": b"-128", "i16": b"7", "i": b"8", "price": b"9.90", "x": b"0.1", "f": b"0.5", "b": b"true",
        "day": b'"2026-01-31"', "at": b'"2026-01-01T10:00:00.123456+02:00"', "local": b'"2026-01-01T10:00:00"',
        "raw": b'"AP8="', "tags": b'["a",null]', "by": b'{"a":1}', "shop": b'{"name":"x"}', "nothing": b"null",
    }  # fmt: skip
    target = lake.target(None, tuple(types.items()))
    sink = lake.begun(target)
    columns = sink.columns[target.output]
    assert [column.name for column in columns[4:]] == [*types]
    assert [column.arrow for column in columns] == [column.arrow for column in target.declared]
    written(
        sink, 0, ("sales", 0, 7, 0, *(column.encode(values[column.name]) for column in columns[4:]))
    )
    (row,) = lake.spark.sql(f"SELECT * FROM delta.`{lake.name}`").collect()
    assert row.asDict(recursive=True) == {
        "_topic": "sales", "_partition": 0, "_offset": 7, "_row": 0, "i8": -128, "i16": 7, "i": 8,
        "price": Decimal("9.90"), "x": 0.1, "f": 0.5, "b": True, "day": date(2026, 1, 31),
        "at": datetime.fromtimestamp(1767254400.123456), "local": datetime(2026, 1, 1, 10), "raw": b"\0\xff",
        "tags": ["a", None], "by": {"a": 1}, "shop": {"name": "x", "n": None}, "nothing": None,
    }  # fmt: skip


@pytest.mark.heavy
def test_columns_of_any_name(lake: Lake) -> None:
    names = ["$schema", "dc:creator", "it's", "a`b", "http.status", "100%", "order", "größe"]
    nested = ("nested", "STRUCT<`part-no`: BIGINT, `load<5m`: ARRAY<STRUCT<`dc:x`: STRING>>>")
    sink = lake.begun(
        lake.target(
            key="order-id", fields=(("order-id", "STRING"), *((n, "BIGINT") for n in names), nested)
        )
    )
    value = {"part-no": 1, "load<5m": [{"dc:x": "y"}]}
    assert written(sink, 0, ("a", *range(8), value), ("b", *range(8), value)) == 2
    assert written(sink, 1, ("a", *range(1, 9), value), deleted=("b",)) == 2
    assert lake.spark.read.format("delta").load(lake.name).columns == ["order-id", *names, "nested"]
    assert lake.rows("`order-id`, `a``b`, `größe`, nested.`load<5m`[0].`dc:x`") == [
        ("a", 4, 8, "y")
    ]


@pytest.mark.heavy
def test_a_renamed_pipeline_takes_over_its_table(lake: Lake) -> None:
    earlier = lake.begun()
    assert written(earlier, 0, ("a", 1)) == 1
    renamed = DeltaSink(lake.spark, "markets", lake.target(), formerly=("older", "shops"))
    renamed.begin(Published(batch(0), frozenset({lake.target().output}), {}))
    with pytest.raises(LeaseError, match="lost its lease"):
        written(earlier, 1, ("a", 666))
    assert written(renamed, 1, ("a", 2)) == 1
    assert lake.rows() == [("a", 2)]
    again = DeltaSink(lake.spark, "markets", lake.target())
    again.begin(Published(batch(1), frozenset({lake.target().output}), {}))
    assert written(again, 1, ("a", 2)) == 1
    assert lake.rows() == [("a", 2)]
    with pytest.raises(EngineError, match="markets already writes the table"):
        lake.begun()
