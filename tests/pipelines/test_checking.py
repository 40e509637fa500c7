"""`sluice check` reports errors that only Spark finds with file, line and step, before any record is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice import Context, Pipeline, Record, session, within
from sluice.engine.batch.storage import Storage
from sluice.engine.run.compatibility import CompatibilityError
from sluice.engine.run.pipeline_check import NoRecords, check_job
from sluice.engine.run.streaming_query import JobQuery
from sluice.errors import TopologyError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.sql.argument_counts import COUNTS
from sluice.sql.function_names import REGISTERED
from sluice.state.ledger.ledger import Ledger
from sluice.topology.streams import Stream
from tests.support.states import make_snapshot


class Sale(Struct):
    item: str
    amount: int
    tags: list[str] = []


def check(spark: SparkSession, pipeline: Pipeline, home: Path) -> str:
    settings = Settings.read({"SLUICE_HOME": str(home)})
    with Ledger.open(settings.ledger) as ledger:
        return check_job(spark, plan(pipeline).job, settings, ledger)


WRONG: dict[str, tuple[Callable[[Stream[Any]], object], str]] = {
    "a step": (
        lambda s: s.select(x="tags.foo").to("out"),
        r"select at .*'x = tags\.foo'.* resolve \"tags\[foo\]",
    ),
    "syntax": (
        lambda s: s.filter("item in ['a']").to("out"),
        r"filter at .*Spark says: Syntax error",
    ),
    "a combinable aggregate": (
        lambda s: s.group_by("item").aggregate(store="n", x="count(tags.foo)"),
        r"store n at .* resolve \"tags\[foo\]",
    ),
    "an aggregate of sessions": (
        lambda s: (
            s.group_by("item").windowed_by(session("1 s")).aggregate(store="n", x="max(tags.foo)")
        ),
        r"store n at .* resolve \"tags\[foo\]",
    ),
    "a key": (
        lambda s: s.deduplicate("tags.foo", within="1 ms").to("out"),
        r"deduplicate at .*\"tags\[foo\]",
    ),
    "an interval as a key": (
        lambda s: s.group_by("make_dt_interval(amount)").count(store="n"),
        r"store n at .*: an interval cannot be a key. Convert it to a number",
    ),
    "an interval in a key": (
        lambda s: s.select_key("array(struct(item, make_interval(amount)))").to("out"),
        r"select key at .*: an interval cannot be a key",
    ),
    "a shape as a key": (
        lambda s: s.select_key("st_geomfromwkb(encode(item, 'utf-8'))").to("out"),
        r"select key at .*: a value of type geometry\(0\) cannot be a key. Convert it to a text",
    ),
    "a map from doubles as a key": (
        lambda s: s.group_by("map(amount / 2, item)").count(store="n"),
        r"store n at .*: a map from doubles or bytes cannot be a key. Cast the map's keys to STRING",
    ),
    "a map from bytes as an id": (
        lambda s: s.deduplicate("map(encode(item, 'utf-8'), 1)", within="1 ms").to("out"),
        r"deduplicate at .*: a map from doubles or bytes cannot be a key",
    ),
    "a key of fields with one name": (
        lambda s: s.group_by("from_json(item, 'a INT, A INT')").count(store="n"),
        r"store n at .*: a key has two fields named a. Give them different names",
    ),
    "a table's output": (
        lambda s: (
            s.group_by("item")
            .aggregate(store="n", items="collect_list(item)")
            .select(x="items.foo")
            .to("out")
        ),
        r"select at .* resolve .*items\[foo\]",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_from_spark_names_file_line_and_step(
    wrong: str, spark: SparkSession, tmp_path: Path
) -> None:
    write, says = WRONG[wrong]
    pipeline = Pipeline("mistaken", workers=1)
    write(pipeline.stream("sales", value=Sale))
    with pytest.raises(TopologyError, match=says) as said:
        check(spark, pipeline, tmp_path)
    assert re.search(r"test_checking\.py:\d+", str(said.value))


def test_an_error_is_reported_once_if_logging_is_configured_elsewhere(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger(
        "SQLQueryContextLogger"
    ).disabled = False  # logging.config does this to every existing logger
    test_an_error_from_spark_names_file_line_and_step("a step", spark, tmp_path)
    assert "DATATYPE_MISMATCH" not in capfd.readouterr().err


class Named(Struct):
    item: str
    amount: str


class Noted(Struct):
    item: str
    amount: int
    note: str | None = None


def remember(spark: SparkSession, pipeline: Pipeline, home: Path) -> None:
    """Record the pipeline in the ledger, as a run does."""
    settings = Settings.read({"SLUICE_HOME": str(home)})
    job = plan(pipeline).job
    storage = Storage.of(job, 1, settings)
    query = JobQuery(spark, storage, NoRecords(spark), dict.fromkeys(job.topics, 1))
    with Ledger.open(settings.ledger) as ledger:
        ledger.generations.register(query.info)
        ledger.snapshots.publish(make_snapshot(0, pipeline=pipeline.name))


def counted(key: str = "item", *, value: type = Sale, keyed: str = "item") -> Pipeline:
    pipeline = Pipeline("changing", workers=1)
    pipeline.stream("sales", value=value, key=keyed).group_by(key).count(store="n")
    return pipeline


class Echo:
    """Forwards the amount of each sale."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Sale]) -> None:
        self.context.forward(record.key, record.value.amount)


def joined(value: type[Any] = Sale, keyed: str = "item") -> Pipeline:
    pipeline = Pipeline("changing", workers=1)
    sales = pipeline.stream("sales", value=value, key=keyed)
    sales.join(pipeline.stream("returns", value=Sale, key="item"), within("1 minute")).to("both")
    return pipeline


def larger(so_far: Any, sale: Any) -> Any:
    return max(so_far, sale, key=_amount)


def _amount(sale: Any) -> int:
    return int(sale.amount)


def reduced(adder: Callable[[Any, Any], Any]) -> Pipeline:
    pipeline = Pipeline("changing", workers=1)
    pipeline.stream("sales", value=Sale, key="item").group_by_key().reduce(adder, store="largest")
    return pipeline


def every_change() -> Pipeline:
    pipeline = Pipeline("changing", workers=1)
    sales = pipeline.stream("sales", value=Sale, key="item")
    sales.group_by("item").count(store="n").to_stream().to("every_change")
    return pipeline


def keeping(*stores: str, everything: bool = False) -> Pipeline:
    """A pipeline whose stores with these names, or all of them, keep headers."""
    pipeline = Pipeline("changing", workers=1, keep_headers=everything or stores)
    sales = pipeline.stream("sales", value=Sale, key="item")
    sales.group_by_key().count(store="n")
    sales.to_table(store="latest")
    sales.process(Echo, stores={"seen": int}, returns=int)
    sales.process(Echo, stores={"hidden": int}, returns=int, queryable=False)
    pipeline.global_table("items", value=Sale)
    sales.left_join(pipeline.stream("returns", value=Sale, key="item"), within("1 minute"))
    return pipeline


_KEPT_NONE = "it did not keep the headers of records, and now keeps them"
CHANGES: dict[str, tuple[Pipeline, Pipeline, str]] = {
    "kept headers of an aggregate": (keeping(), keeping("n"), f"store n: {_KEPT_NONE}"),
    "kept headers of a table": (keeping(), keeping("latest"), f"store latest: {_KEPT_NONE}"),
    "kept headers of a global table": (keeping(), keeping("items"), f"store items: {_KEPT_NONE}"),
    "kept headers of a processor": (keeping(), keeping("seen"), f"store seen: {_KEPT_NONE}"),
    "kept headers of a hidden store": (
        keeping(),
        keeping("hidden"),
        r"step process-\d+ has changed or moved: .*, with the headers of records'",
    ),
    "kept headers of a join": (
        keeping("n", "latest", "seen", "hidden", "items"),
        keeping(everything=True),
        r"step join-\d+ has changed or moved: .*, with the headers of records'",
    ),
    "headers that are kept no more": (
        keeping("latest"),
        keeping(),
        "store latest: it kept the headers of records, and now keeps none",
    ),
    "a store's key": (
        counted(),
        counted("amount"),
        r"store n: key 'item' became 'amount'.*sluice rebuild changing",
    ),
    "the order of records": (
        counted(),
        every_change(),
        "store n: its definition changed: it took records in any order, and now takes them in order",
    ),
    "a stream's key": (
        counted("_key"),
        counted("_key", keyed="amount"),
        "key item, .* became .*key amount, .*amount BIG",
    ),
    "the type of a key": (
        counted("amount"),
        counted("amount", value=Named),
        "amount BIGINT' became .*amount STRING'",
    ),
    "a type under a join": (
        joined(),
        joined(Named),
        r"step join-2 .*of struct<item.*amount:bigint.*amount:string",
    ),
    "a field under a join": (joined(), joined(Noted), r"step join-2 .* became .*note:string"),
    "a joined stream's key": (
        joined(),
        joined(keyed="amount"),
        "step join-2 .*key item,.* became .*key amount,",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_states_meaning_is_rejected(
    change: str, spark: SparkSession, tmp_path: Path
) -> None:
    before, now, says = CHANGES[change]
    remember(spark, before, tmp_path)
    check(spark, before, tmp_path)
    with pytest.raises(CompatibilityError, match=says):
        check(spark, now, tmp_path)


def test_unused_fields_may_be_added_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    remember(spark, counted("item", value=Noted), tmp_path)
    check(spark, counted("item", value=Sale), tmp_path)
    check(spark, counted("item", value=Named), tmp_path)


def test_changed_code_of_a_function_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    def changed(so_far: Any, sale: Any) -> Any:
        return min(so_far, sale, key=_amount)

    changed.__name__, changed.__qualname__ = larger.__name__, larger.__qualname__
    remember(spark, reduced(larger), tmp_path)
    assert check(spark, reduced(larger), tmp_path) == ""
    said = check(spark, reduced(changed), tmp_path)
    assert said.startswith(
        "The code of larger (store largest) has changed. The state computed by the old code is kept"
    )


def test_all_functions_of_spark_are_known(spark: SparkSession) -> None:
    names = {
        row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if row[0].isidentifier()
    }
    assert names == REGISTERED


@pytest.mark.heavy
def test_the_numbers_of_arguments_are_those_of_spark(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    functions = catalyst.analysis.FunctionRegistry.expressions()
    literals = getattr(getattr(catalyst.expressions, "Literal$"), "MODULE$")
    null = literals.apply(None)

    def accepts(name: str, number: int) -> bool:
        arguments = jvm.java.util.ArrayList([null] * number)
        as_sequence = jvm.scala.jdk.javaapi.CollectionConverters.asScala(arguments).toSeq()
        try:
            expression = functions.apply(name)._2().apply(as_sequence)
            expression.checkInputDataTypes()
        except (PySparkException, Py4JJavaError) as error:
            mistakes = ("WRONG_NUM_ARGS", "REQUIRED_PARAMETER_NOT_FOUND")
            return not any(mistake in str(error) for mistake in mistakes)
        return True

    # Spark's parser reads these itself, with a unit of time as the first of three arguments.
    own_syntax = {"timestampadd", "timestampdiff", "dateadd", "date_add", "datediff", "date_diff"}
    wrong: list[str] = []
    for name, counts in sorted(COUNTS.items()):
        for number in range(9):
            if name not in own_syntax and counts.include(number) != accepts(name, number):
                wrong.append(f"{name}: {number}")
    assert wrong == []


class Nothing:
    """A processor."""

    def init(self, context: Context) -> None:
        pass

    def process(self, record: Record) -> None:
        pass


def test_stores_of_processors_may_be_added_but_not_become_queryable(
    spark: SparkSession, tmp_path: Path
) -> None:
    def processed(*, queryable: bool = True, **stores: type) -> Pipeline:
        pipeline = Pipeline("changing", workers=1)
        pipeline.stream("sales", value=Sale).process(Nothing, stores=stores, queryable=queryable)
        return pipeline

    remember(spark, processed(first=int), tmp_path)
    check(spark, processed(second=str, first=int), tmp_path)
    check(spark, processed(second=str), tmp_path)
    with pytest.raises(
        CompatibilityError, match=r"store first: the type of its values 'map<string,bigint>' became"
    ):
        check(spark, processed(first=str), tmp_path)
    with pytest.raises(CompatibilityError, match="step process-1 has changed or moved"):
        check(spark, processed(first=int, queryable=False), tmp_path)
