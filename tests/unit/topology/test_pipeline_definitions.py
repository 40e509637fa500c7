"""What authors can write, and the errors for mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import Struct

from sluice import WALL_CLOCK, Context, Decimal2, Pipeline, Record, Timer, session, struct, tumbling
from sluice.errors import TopologyError
from sluice.plan import plan
from sluice.topology import nodes
from sluice.topology.author_functions import with_key
from sluice.topology.durations import milliseconds
from sluice.topology.streams import Stream
from sluice.values.function_wrappers import Not


class Sale(Struct):
    shop: str
    amount: Decimal2
    at: datetime
    on_credit: bool = False


class Shop(Struct):
    shop: str
    city: str


class Photo(Struct):
    file: bytes


class Tree(Struct):
    left: Tree | None = None


class Point(NamedTuple):
    x: int


class OfSales:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Sale]) -> None:
        """Does nothing."""


class NoInit:
    def process(self, record: Record[Sale]) -> None:
        """Does nothing."""


class NoTimer(OfSales):
    def on_timer(self) -> None:
        """Takes no timer."""


class OfShops(OfSales):
    def process(self, record: Record[Shop]) -> None:  # type: ignore[override]
        """Does nothing."""


def is_in_oslo(shop: Shop) -> bool:
    return shop.city == "Oslo"


async def waits(sale: Sale) -> bool:
    return False


def yields(sale: Sale) -> Iterator[bool]:
    yield False


class Waits:
    async def __call__(self, sale: Sale) -> bool:
        return False


class Yields(OfSales):
    def process(self, record: Record[Sale]) -> Iterator[None]:  # type: ignore[override]
        yield


class WaitsForTimer(OfSales):
    async def on_timer(self, timer: Timer) -> None:
        """Does nothing."""


def count_shop(count: int, shop: Shop) -> int:
    return count + 1


def shop_sales() -> Stream[dict[str, Any]]:
    stream = sales()
    return stream.join(pipeline_of(stream).table("shops", value=Shop))


def sales() -> Stream[Sale]:
    return Pipeline("shop").stream("sales", value=Sale, key="shop", event_time="at")


def pipeline_of(stream: Stream[Any]) -> Pipeline:
    assert isinstance(stream.pipeline, Pipeline)
    return stream.pipeline


def joined(windowed: bool, store: str = "n") -> None:
    stream = sales()
    groups = stream.group_by("shop")
    table = (groups.windowed_by(tumbling("1 minute")) if windowed else groups).count(store=store)
    table.join(pipeline_of(stream).global_table("shops", value=Shop))


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a filter on a field that is not there": (
        lambda: sales().filter("amuont > 1"),
        r"shop: filter at .*'amuont > 1' reads unknown fields: amuont\. Known fields: .*amount.*shop",
    ),
    "a filter that reads several": (
        lambda: sales().filter("x > y"),
        r"'x > y' reads unknown fields: x, y",
    ),
    "a filter that is no SQL": (
        lambda: sales().filter("amount >"),
        r"shop: filter at .*'amount >' is not a Spark SQL expression \(column \d+\)",
    ),
    "a filter that is empty": (
        lambda: sales().filter(" "),
        r"' ' is not a Spark SQL expression|' ' contains no expression",
    ),
    "a filter that aggregates": (
        lambda: sales().filter("sum(amount) > 1"),
        r"'sum\(amount\) > 1' must not aggregate here",
    ),
    "a condition that is a query": (lambda: sales().filter("SELECT 1"), r"'SELECT 1' is a statement"),
    "a condition that hides a query": (lambda: sales().filter("shop IN (SELECT 1)"), r"contains a query"),
    "two expressions in one": (lambda: sales().filter("true; shop = 'a'"), r"more than one"),
    "an expression with a name": (lambda: sales().select(x="amount AS y"), r"'amount AS y' .*name"),
    "an expression with a comment": (lambda: sales().filter("amount > 1 -- big"), r"comment"),
    "a star": (lambda: sales().select(x="at.*"), r"'at\.\*'"),
    "filter_not on a field that is not there": (lambda: sales().filter_not("amuont > 1"), r"filter_not at .*amuont"),
    "a mapped field that is not there": (lambda: sales().select("amuont"), r"select at .*amuont"),
    "a field that a mapping took away": (
        lambda: sales().select("amount").filter("shop = 'a'"),
        r"\"shop = 'a'\" reads unknown fields: shop",
    ),
    "grouping by an aggregate": (lambda: sales().group_by("max(shop)"), r"group_by at .*must not aggregate here"),
    "an aggregate that does not aggregate": (
        lambda: sales().group_by("shop").aggregate(store="s", total="amount"),
        r"aggregate into 's' at .*'amount' must aggregate, like count\(\*\) or sum\(x\)",
    ),
    "an aggregate over other rows": (
        lambda: sales().group_by("shop").aggregate(store="s", total="sum(amount) OVER (PARTITION BY shop)"),
        r"OVER",
    ),
    "an aggregate of nothing": (lambda: sales().group_by("shop").aggregate(store="s"), r"'s' .*at least one column"),
    "two stores of a name": (
        lambda: (g := sales().group_by("shop"), g.count(store="n"), g.count(store="n")),
        r"store 'n' at test_pipeline_definitions\.py:\d+ is already used at test_pipeline_definitions\.py:\d+",
    ),
    "two sinks of a name": (
        lambda: [stream.to("out") for stream in 2 * [sales()]],  # type: ignore[func-returns-value]
        r"topic 'out' .* is already used",
    ),
    "a sink into its own source": (lambda: sales().to("sales"), r"topic 'sales' .* is already used"),
    "a sink into its own dead letters": (lambda: sales().to("shop_dead_letters"), r"shop_dead_letters"),
    "a store with the name of a table": (
        lambda: joined(windowed=False, store="shops"),
        r"store 'shops' .* is already used at ",
    ),
    "a store's name with a slash": (
        lambda: sales().group_by("shop").count(store="a/b"),
        r"'a/b' at .* is not a valid store name",
    ),
    "a topic's name that is empty": (lambda: sales().to(""), r"'' at .* is not a valid topic name"),
    "a pipeline's name with a path": (lambda: Pipeline("../etc"), r"'\.\./etc' at .* is not a valid pipeline name"),
    "a pipeline's name with a dot": (lambda: Pipeline("a.b"), r"'a\.b' at .* is not a valid pipeline name"),
    "a key that is not there": (
        lambda: Pipeline("p").stream("s", value=Sale, key="city"),
        r"Sale has no field 'city'\. Its fields: shop, amount, at, on_credit",
    ),
    "an event time that is not there": (
        lambda: Pipeline("p").stream("s", value=Sale, event_time="when"),
        r"no field 'when'",
    ),
    "an event time that is no time": (
        lambda: Pipeline("p").stream("s", value=Sale, event_time="shop"),
        r"event_time='shop' is STRING, not a datetime",
    ),
    "an unknown zone": (
        lambda: Pipeline("p", zone="Europe/Atlantis"),
        r"'Europe/Atlantis' is not the name of a time zone",
    ),
    "a zone that is a path": (lambda: Pipeline("p", zone="../../etc/passwd"), r"is not the name of a time zone"),
    "no workers": (lambda: Pipeline("p", workers=0), r"workers=0 must be 1 to 1024"),
    "a value that is no Struct": (
        lambda: Pipeline("p").stream("s", value=dict),
        r"an object's keys must be str",
    ),
    "a windowed store joined with a table": (
        lambda: joined(windowed=True),
        r"the keys of n have windows. Make a plain key first",
    ),
    "a window of no length": (lambda: tumbling("0 seconds"), r"the size must be above 0"),
    "a window with negative grace": (
        lambda: tumbling("1 second", grace=timedelta(milliseconds=-1)),
        r"grace must be at least 0",
    ),
    "a window in fortnights": (
        lambda: tumbling("1 fortnight"),
        r"'1 fortnight' at .* is not a duration\. Write for example",
    ),
    "a field that an object within the value has not": (
        lambda: (s := sales()).join(pipeline_of(s).table("shops", value=Shop)).select(x="right.citty"),
        r"'right\.citty' reads the unknown field citty of right\. Its fields: shop, city",
    ),
    "a field of a text": (lambda: sales().filter("shop.city = 'a'"), r"unknown field city of shop, which is STRING"),
    "a function that Spark has not": (
        lambda: sales().select(x="uper(shop)"),
        r"unknown Spark SQL function uper\. Did you mean upper",
    ),
    **{
        f"{text}, which a repeated batch computes differently": (
            lambda text=text: sales().select(x=text),  # type: ignore[misc]
            rf"select at test_pipeline_definitions.py:\d+: .*: {name} would have another result if a batch is repeated "
            rf"after a crash\. .*{instead}",
        )
        for text, name, instead in (
            ("monotonically_increasing_id()", "monotonically_increasing_id", "_partition and _offset"),
            ("amount * random()", "random", "xxhash64"),
            ("uuid()", "uuid", "xxhash64"),
            ("current_time()", "current_time", r"current_timestamp\(\)"),
            ("now()", "now", r"current_timestamp\(\)"),
            ("localtimestamp()", "localtimestamp", r"current_timestamp\(\)"),
            ("reflect('java.util.UUID', 'randomUUID')", "reflect", "a Python function"),
            ("aes_encrypt(shop, 'abcdefghijklmnop', 'CBC')", "aes_encrypt", "an initialization vector"),
        )
    },
    **{
        f"{text}, which depends on Spark's clock": (
            lambda text=text: sales().select(x=text),  # type: ignore[misc]
            r"would give another time if a batch is repeated after a crash\. Use current_timestamp\(\)",
        )
        for text in (
            "timestamp'now'", "date('Tomorrow')", "cast('now UTC' as timestamp)", "to_date('today')",
            "_timestamp > 'yesterday'", "_timestamp BETWEEN 'today' AND '2030-01-01'",
        )
    },
    **{
        f"{text} over other rows": (lambda text=text: sales().select(x=text), "needs other rows")  # type: ignore[misc]
        for text in ("rank()", "lag(amount)")
    },
    "a count of nothing": (lambda: sales().group_by("shop").aggregate(store="s", n="count()"), r"Write count\(\*\)"),
    "an aggregate of the current time": (
        lambda: sales().group_by("shop").aggregate(store="s", at="max(current_timestamp())"),
        r"uses the current time in an aggregate\. Make the current time a field of the record first",
    ),
    "the headers of a result": (
        lambda: sales().deduplicate("shop", within="1 hour").filter("_headers['a'] = 'b'"),
        r"unknown fields: _headers\. Results of stateful steps and tables have no topic, headers",
    ),
    "the topic of a table's changes": (
        lambda: sales().group_by("shop").count(store="n").to_stream().map_values("_topic"), "unknown fields: _topic"
    ),
    **{
        f"{kind} that is nested too deeply": (
            lambda text=text: sales().select(x=text),  # type: ignore[misc]
            r"select at test_pipeline_definitions.py:\d+: .*\.\.\. is nested too deeply: .*Compute parts of it",
        )
        for kind, text in (
            ("a chain", "+".join(["amount"] * 600)),
            ("a bracket", "(" * 150 + "amount" + ")" * 150),
            ("a call", "abs(" * 41 + "amount" + ")" * 41),
            ("a case", "CASE WHEN amount > 1 THEN " * 41 + "2" + " END" * 41),
            ("a negation", "NOT " * 300 + "amount > 1"),
        )
    },
    "a condition that is none": (lambda: sales().filter("amount + 1"), r"'amount \+ 1' is .*, not a condition"),
    "a text that is taken apart": (lambda: sales().flat_map_values("shop"), r"'shop' is STRING, not an array"),
    "a sum of texts": (
        lambda: sales().group_by("shop").aggregate(store="s", x="sum(shop)"),
        r"sum needs a number, but shop is STRING\. .*CAST",
    ),
    **{
        f"objects or lists without an order in {text}": (
            lambda text=text: sales().group_by("shop").aggregate(store="s", x=text),  # type: ignore[misc]
            r"needs a value with an order, but .* is (STRUCT|ARRAY)<.*Compare one of its fields",
        )
        for text in (
            "max(struct(amount))",
            "min(array(amount))",
            "max_by(shop, struct(amount))",
            "top(array(amount), 2)",
        )
    },
    **{
        f"bytes as text in {text}": (
            lambda text=text: Pipeline("p").stream("photos", value=Photo).select(x=text),  # type: ignore[misc]
            r"uses file, which is BINARY, as text\. .*Write CAST\(file AS STRING\)",
        )
        for text in ("upper(file)", "concat('a', file)", "file || 'a'", "file LIKE 'a%'", "file::STRING")
    },
    "an aggregate of an aggregate": (
        lambda: sales().group_by("shop").aggregate(store="s", x="sum(max(amount))"),
        r"aggregates the aggregate",
    ),
    "a field beside an aggregate": (
        lambda: sales().group_by("shop").aggregate(store="s", x="sum(amount) + amount"),
        r"reads amount outside of an aggregate",
    ),
    "a sum of different values": (
        lambda: sales().group_by("shop").aggregate(store="s", x="sum(DISTINCT amount)"),
        r"DISTINCT is supported only in count",
    ),
    "the top of nothing said": (
        lambda: sales().group_by("shop").aggregate(store="s", x="top(amount)"),
        r"a number of values to keep\. Write top\(amount, 3\)",
    ),
    "a key that is always null": (lambda: sales().group_by("CAST(NULL AS STRING)"), r"is always null"),
    "a function as an expression": (
        lambda: sales().to_table(store="s").group_by(len),  # type: ignore[arg-type]
        r"expected an SQL expression \(str\), got builtin",
    ),
    "a number as a condition": (
        lambda: sales().filter(3),  # type: ignore[call-overload]
        r"filter at .*: expected an SQL expression \(str\) or a function of \(value\), got int: 3",
    ),
    "a list of fields as an array": (
        lambda: sales().flat_map_values(["shop", "item"]),  # type: ignore[call-overload]
        r"got list: .* Write one expression over several fields as \"struct\(shop, item\)\"\.",
    ),
    "a function of too many": (
        lambda: sales().map_values(lambda key, sale, more: sale),  # type: ignore[arg-type, misc]
        r"map_values at .*<lambda>\(key, sale, more\) must take \(value\) or \(key, value\)",
    ),
    "a type for SQL": (
        lambda: sales().flat_map_values("split(shop, '')", returns=str),  # type: ignore[call-overload]
        r"flat_map_values at .*: returns= is only allowed with a Python function",
    ),
    "an adder of too few": (
        lambda: sales().group_by("shop").aggregate(int, lambda n: n + 1, store="n", returns=int),  # type: ignore[arg-type, misc]
        r"adder: <lambda>\(n\) must take \(aggregate, value\) or \(key, aggregate, value\)",
    ),
    "a first aggregate that is no function": (
        lambda: sales().group_by("shop").aggregate(0, lambda n, sale: n, store="n"),  # type: ignore[call-overload]
        r"initializer: expected a function of \(\), got int: 0",
    ),
    "a session without a merger": (
        lambda: sales().group_by("shop").windowed_by(session("1 s")).aggregate(int, lambda n, v: n, store="n"),
        r"needs a function merger",
    ),
    "a merger without a session": (
        lambda: sales().group_by("shop").aggregate(int, lambda n, v: n, store="n", merger=lambda n, m: n),
        r"merger= is for session windows",
    ),
    "a merger of SQL": (
        lambda: sales().group_by("shop").aggregate(store="n", n="count(*)", merger=lambda n, m: n),  # type: ignore[call-overload]
        r"SQL aggregates take no functions and no type",
    ),
    "a table's aggregate without a subtractor": (
        lambda: Pipeline("p").table("t", value=Shop).group_by("city").aggregate(int, lambda n, v: n, store="n"),  # type: ignore[call-overload]
        r"needs a function subtractor",
    ),
    "a result of no type": (
        lambda: sales().map_values(lambda sale: sale, returns=3),  # type: ignore[call-overload]
        r"map_values at .*returns=3 is not a contract",
    ),
    "a window that is a text": (
        lambda: sales().group_by("shop").windowed_by("1 minute"),  # type: ignore[arg-type]
        r"windowed_by at .*: expected a window, such as tumbling.*, got str: '1 minute'",
    ),
    "a duration that is a fraction": (lambda: tumbling(1.5), r"1\.5 at .* is not a duration"),  # type: ignore[arg-type]
    "a window whose ends leave 64 bits": (
        lambda: tumbling("100000001 days"),
        r"'100000001 days' at .*test_pipeline_definitions\.py:\d+ is too long\. A duration has at most 100000000 days",
    ),
    "a timedelta whose ends leave 64 bits": (lambda: tumbling(timedelta.max), r"at .* is too long"),
    "a duration of 5,000 digits": (lambda: tumbling("9" * 5_000 + " ms"), r"at .* is too long"),
    "a duration without a unit": (
        lambda: tumbling(60),  # type: ignore[arg-type]
        r'60 at .* is not a duration\. Write for example "60 seconds" or "60 ms"\.',
    ),
    "idle for less than nothing": (
        lambda: Pipeline("p", idle_timeout=timedelta(milliseconds=-1)),
        r"idle_timeout is -1, but must be",
    ),
    "two streams of different pipelines": (
        lambda: sales().merge(Pipeline("other").stream("sales", value=Sale)),
        r"merge at .*belongs to another pipeline, 'other'",
    ),
    "a join with a text": (
        lambda: sales().join("shops"),  # type: ignore[call-overload]
        r"join at .*: expected a stream or a table, got str: 'shops'",
    ),
    "an unknown policy": (
        lambda: Pipeline("p").stream("s", value=Sale, invalid_time="ignore"),  # type: ignore[arg-type]
        r"unknown invalid_time='ignore'\. Choose 'dead_letter', 'skip', 'fail', 'clock'",
    ),
    "an unknown policy of an output": (
        lambda: sales().to("out", on_error="ignore"),  # type: ignore[arg-type]
        r"unknown on_error='ignore'",
    ),
    "a processor that is no class": (
        lambda: sales().process(lambda record: None),  # type: ignore[call-overload]
        r"expected a class with a method process",
    ),
    "a processor without init": (
        lambda: sales().process(NoInit),  # type: ignore[arg-type]
        r"process at .*: NoInit has no method init\. Add: def init\(self, context\)",
    ),
    "a processor of other values": (
        lambda: sales().process(OfShops),  # type: ignore[arg-type]
        r"process at .*: record is declared as Shop, but the values are Sale\. Declare it as Sale\.",
    ),
    "a timer's method without the timer": (
        lambda: sales().process(NoTimer),
        r"process at .*: on_timer: on_timer\(self\) .*must take \(self, timer\)",
    ),
    "a processor's stores without types": (
        lambda: sales().process(OfSales, stores=["total"]),  # type: ignore[call-overload]
        r"process at .*: expected stores=\{name: type\}, got list: \['total'\]",
    ),
    "an async function": (
        lambda: sales().filter(waits),
        r"filter at .*: waits is async\. Define it without async, or pass it to call",
    ),
    "a part of an async function": (lambda: sales().foreach(partial(waits)), r"foreach at .* is async"),
    "an object with an async call": (lambda: sales().peek(Waits()), r"peek at .*Waits object at .* is async"),
    "a generator as a condition": (
        lambda: sales().filter_not(yields),
        r"filter_not at .*: yields is a generator, whose code does not run when it is called\. Return the result",
    ),
    "an adder that yields": (
        lambda: sales().group_by_key().aggregate(int, lambda n, sale: (yield n), store="n", returns=int),  # type: ignore[misc]
        r"adder: <lambda> is a generator",
    ),
    "a processor that yields": (
        lambda: sales().process(Yields),  # type: ignore[arg-type]
        r"process at .*: process: process is a generator",
    ),
    "a processor with an async timer": (lambda: sales().process(WaitsForTimer), r"on_timer: on_timer is async"),
    "a condition that is neither SQL nor a function": (
        lambda: sales().filter(None),  # type: ignore[call-overload]
        r"filter at .*: expected an SQL expression \(str\) or a function of \(value\), got NoneType: None",
    ),
    "a key of one field in a list": (
        lambda: sales().group_by(["shop"]),
        r"group_by at .*: \['shop'\] is not a key of several fields",
    ),
    "a function of other values": (
        lambda: sales().filter(is_in_oslo),  # type: ignore[arg-type]
        r"filter at .*: shop is declared as Shop, but the values are Sale\. Declare it as Sale\.",
    ),
    "a function of a Struct behind SQL": (
        lambda: sales().select("shop").filter(is_in_oslo),  # type: ignore[arg-type]
        r"filter at .*: shop is declared as Shop, but the values are plain JSON data\. Declare it as Any and read its "
        r"fields as shop\['field'\], or make the values first: map_values\(function, returns=Shop\)\.",
    ),
    "an adder of other values": (
        lambda: sales().group_by_key().aggregate(int, count_shop, store="n", returns=int),  # type: ignore[arg-type]
        r"aggregate into 'n' at .*: adder: shop is declared as Shop, but the values are Sale",
    ),
    "an initializer that is a value": (
        lambda: sales().group_by_key().aggregate([], count_shop, store="n"),  # type: ignore[call-overload]
        r"initializer: expected a function of \(\), got list: \[\]\. Pass a function without parameters: lambda: \[\]",
    ),
    "a field of one side of a join": (
        lambda: shop_sales().filter("city = 'Oslo'"),
        r"reads unknown fields: city\. Did you mean right\.city\? Known fields: ",
    ),
    "an aggregate that is misspelt": (
        lambda: sales().group_by("shop").aggregate(store="s", mean="averge(amount)"),
        r"unknown Spark SQL function averge\. Did you mean avg",
    ),
    "suppress without windows": (
        lambda: sales().group_by_key().count(store="n").suppress_until_window_closes(),
        r"suppress at .*: the table is not windowed\. Aggregate with windowed_by",
    ),
    "an event time that is text": (
        lambda: Pipeline("p").stream("s", value=Shop, event_time="city"),
        r"event_time='city' is STRING, not a datetime or an int\. Declare city as datetime",
    ),
    "a contract that is a named tuple": (
        lambda: Pipeline("p").stream("s", value=Point),
        r"Point: NamedTupleType has no Spark SQL type\. Declare it as a msgspec\.Struct",
    ),
    "a contract with keys that are numbers": (
        lambda: Pipeline("p").stream("s", value=dict[int, str]),
        r"an object's keys must be str",
    ),
    "a contract that holds itself": (lambda: Pipeline("p").stream("s", value=Tree), r"a contract that contains itself"),
    "a duration in digits of another script": (
        lambda: tumbling("\uff15 seconds"),
        '.\uff15 seconds. at .* is not a duration. Write for example "15 seconds"',
    ),
    "a window of half a second in words": (lambda: tumbling("0.5 seconds"), r"'0\.5 seconds' at .* is not a duration"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_reported_with_their_place(wrong: str) -> None:
    write, says = WRONG[wrong]
    with pytest.raises(TopologyError, match=says):
        write()


AT_FAULT: list[Callable[[], object]] = [
    lambda: sales().filter("amuont > 1"),
    lambda: sales().group_by("shop").aggregate(store="s"),
    lambda: joined(windowed=True),
    lambda: Pipeline("p", workers=0),
    lambda: Pipeline("p", zone="nowhere"),
    lambda: Pipeline("p").stream("s", value=Sale, event_time="shop"),
    lambda: Pipeline("p").stream("s", value=dict),
    lambda: sales().to("a b"),
    lambda: tumbling("0 s"),
    lambda: tumbling("soon"),
]


@pytest.mark.parametrize("write", AT_FAULT)
def test_every_error_names_the_authors_line(write: Callable[[], object]) -> None:
    with pytest.raises(TopologyError) as said:
        write()
    line = re.search(r"test_pipeline_definitions\.py:(\d+)", str(said.value))
    assert line is not None, said.value
    source = Path(__file__).read_text().splitlines()
    assert "lambda" in source[int(line[1]) - 1] or "table.join" in source[int(line[1]) - 1]


def test_a_topology_is_data() -> None:
    stream = sales()
    big = stream.filter("amount > 100").select("shop", cents="amount * 100")
    big.to("big")
    big.group_by("shop").windowed_by(tumbling("15 seconds", grace="1 minute")).count(store="n")
    source, kept, mapped, sink, counted = stream.pipeline.nodes
    assert isinstance(source, nodes.Source)
    assert source.fields == {
        "shop": "STRING",
        "amount": "DECIMAL(12,2)",
        "at": "TIMESTAMP",
        "on_credit": "BOOLEAN",
    }
    assert isinstance(kept, nodes.Filter)
    assert isinstance(mapped, nodes.Select)
    assert mapped.columns == {"shop": "shop", "cents": "amount * 100"}
    assert isinstance(sink, nodes.Sink)
    assert isinstance(counted, nodes.Aggregate)
    assert (counted.parent, counted.window) == (mapped, tumbling("15 seconds", grace="1 minute"))
    assert nodes.sources_of(counted) == (source,)


def test_expressions_can_read_topic_partition_and_offset() -> None:
    sales().filter(
        "_partition = 0 AND _offset > 5 AND _timestamp > at AND _key <> shop AND _topic = 'sales'"
    )


def test_a_name_may_be_used_by_a_topic_and_a_store() -> None:
    stream = sales()
    stream.group_by("shop").count(store="n").to("n")


def test_a_table_is_joined_and_mapped() -> None:
    stream = sales()
    shops = pipeline_of(stream).global_table("shops", value=Shop, key="shop")
    count = stream.group_by("shop").count(store="n")
    table = count.join(shops, how="left").select(n="left", city="right.city", shop="_key")
    table.to("counts")
    assert list(table.fields) == ["n", "city", "shop"]
    with pytest.raises(TopologyError, match="reads unknown fields: left"):
        table.select(x="left")


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("15 seconds", 15_000),
        ("1 second", 1_000),
        ("250 ms", 250),
        ("250ms", 250),
        ("3 Milliseconds", 3),
        ("2 minutes", 120_000),
        ("1 h", 3_600_000),
        ("2 d", 172_800_000),
        (timedelta(minutes=1, milliseconds=1), 60_001),
    ],
)
def test_durations(written: str | timedelta, means: int) -> None:
    assert milliseconds(written) == means


def test_dead_letters_go_to_a_topic_named_after_the_pipeline() -> None:
    assert Pipeline("shop").dead_letters == "shop_dead_letters"


def test_columns_may_be_nested_and_have_any_name() -> None:
    stream = sales().select(
        {"store": "shop", "on_error": "amount"}, at={"day": {"number": "day(at)"}, "shop's": "shop"}
    )
    node = stream.node
    assert isinstance(node, nodes.Select)
    assert node.columns == {
        "store": "shop",
        "on_error": "amount",
        "at": "named_struct('day', named_struct('number', day(at)), 'shop\\'s', shop)",
    }
    assert stream.fields["at"] == "STRUCT<day: STRUCT<number: >, `shop's`: STRING>"
    with pytest.raises(
        TopologyError, match=r"select at .*'at\.days' reads the unknown field days of at"
    ):
        stream.select(x="at.days")
    with pytest.raises(TopologyError, match="reads unknown fields: shopp"):
        sales().select(at={"shop": "shopp"})


def test_a_struct_inside_other_sql() -> None:
    assert (
        struct({"a": "shop", "b": {"c": "at"}})
        == "named_struct('a', shop, 'b', named_struct('c', at))"
    )
    with pytest.raises(TopologyError, match=r"more than one|not a Spark SQL expression"):
        struct({"a": "shop, at"})


def test_an_aggregates_columns_may_have_any_name() -> None:
    table = (
        sales()
        .group_by("shop")
        .aggregate({"store": "count(*)", "adder": "max(at)"}, store="n", total="sum(amount)")
    )
    assert list(table.fields) == ["store", "adder", "total"]


def test_a_selected_key_becomes_the_records_key() -> None:
    stream = sales().select(_key="upper(_key)", shop="_key")
    assert list(stream.fields) == ["shop"]
    assert [type(node).__name__ for node in stream.pipeline.nodes] == [
        "Source",
        "Select",
        "SelectKey",
        "Select",
    ]
    with pytest.raises(TopologyError, match=r"select at .*: the names _offset are reserved"):
        sales().select(_offset="amount")
    # A value without fields would replace the record's value.
    for columns in ({"_key": "shop"}, {"_timestamp": "at"}, {"_headers": {"shop": "shop"}}, {}):
        with pytest.raises(TopologyError, match=r"select at .* needs at least one column") as empty:
            sales().select(**columns)
        assert "select_key" in empty.value.next_step


FUNCTIONS: list[tuple[Callable[..., object], object]] = [
    (lambda value: value, "v"),
    (lambda key, value: (key, value), ("k", "v")),
    (lambda value, more=1: (value, more), ("v", 1)),
    (lambda *arguments: arguments, ("v",)),
    (str.upper, "V"),
    (partial(lambda first, value: (first, value), 1), (1, "v")),
    (str, "v"),
]


@pytest.mark.parametrize(("function", "result"), FUNCTIONS)
def test_a_function_takes_the_value_or_key_and_value(
    function: Callable[..., object], result: object
) -> None:
    assert with_key("here", function, "value")("k", "v") == result
    assert Not(with_key("here", function, "value"))("k", "v") is False


def test_print_writes_each_record_with_a_label(capsys: pytest.CaptureFixture[str]) -> None:
    stream = sales()
    stream.print()
    stream.print("a label")
    printing = [
        node.function for node in pipeline_of(stream).nodes if isinstance(node, nodes.Apply)
    ]
    for function in printing:
        function("north", 3)
    assert capsys.readouterr().out == "[sales]: north, 3\n[a label]: north, 3\n"


def test_through_writes_the_records_and_goes_on_with_them() -> None:
    stream = sales()
    stream.through("checked").to("out")
    sinks = [node for node in pipeline_of(stream).nodes if isinstance(node, nodes.Sink)]
    assert [(sink.topic, sink.parent) for sink in sinks] == [
        ("checked", stream.node),
        ("out", stream.node),
    ]


def test_a_source_may_be_timed_by_the_wall_clock() -> None:
    clicks = Pipeline("p").stream("sales", value=Sale, event_time=WALL_CLOCK, invalid_time="skip")
    assert isinstance(clicks.node, nodes.Source)
    assert (clicks.node.event_time, clicks.node.on_time) == (WALL_CLOCK, "clock"), (
        "every record has a time"
    )


def test_which_of_a_tables_changes_are_written_is_checked() -> None:
    with pytest.raises(TopologyError, match=r"unknown emit='last'\. Choose 'every', 'latest'"):
        sales().to_table(store="newest").to("out", emit="last")  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["on_records", "continuous", None, "@daily", "*/5 * * * *"])
def test_schedules(schedule: str | None) -> None:
    assert Pipeline("p", schedule=schedule).schedule == schedule


@pytest.mark.parametrize("schedule", ["", "sometimes", "* * *", "@never", 5])
def test_a_schedule_that_is_none_is_an_error(schedule: Any) -> None:
    with pytest.raises(TopologyError, match=r"schedule=.* is not a schedule"):
        Pipeline("p", schedule=schedule)


def test_a_minimum_interval_is_for_new_records_only() -> None:
    assert Pipeline("p", min_interval="5 minutes").min_interval_ms == 300_000
    with pytest.raises(TopologyError, match='min_interval= needs schedule="on_records"'):
        Pipeline("p", schedule="@hourly", min_interval="5 minutes")


class OfAnything(OfSales):
    def process(self, record: Record) -> None:
        """Does nothing."""


def cities(shops: list[Shop]) -> list[str]:
    return [shop.city for shop in shops]


def each_city(shops: list[Shop]) -> Iterator[str]:
    yield from cities(shops)


def is_anywhere(shop: Shop | None) -> bool:
    return shop is not None


def test_functions_may_be_declared_for_the_streams_values() -> None:
    sales().process(OfSales)
    sales().process(OfAnything)
    pipeline = Pipeline("p")
    pipeline.stream("shops", value=Shop).filter(is_in_oslo).filter_not(is_anywhere)
    lists = pipeline.stream("lists", value=list[Shop])
    for function in (cities, each_city):
        lists.flat_map_values(function, returns=str)
    pipeline.stream("sales", value=Sale).map_values(
        lambda sale: Shop(sale.shop, ""), returns=Shop
    ).filter(is_in_oslo)


@pytest.mark.parametrize(
    "text",
    ["+".join(["amount"] * 199), "(" * 40 + "amount" + ")" * 40, "abs(" * 40 + "amount" + ")" * 40,
     "current_timestamp()", "coalesce(shop, 'today')", "shop = 'now'", "aes_encrypt(shop, 'abcdefghijklmnop', 'ecb')",
     "coalesce(" * 39 + "amount" + ", 1, length(shop))" * 39],  # each level's type depends on three branches
)  # fmt: skip
def test_expressions_up_to_the_limits_are_planned(text: str) -> None:
    pipeline = Pipeline("p")
    pipeline.stream("sales", value=Sale).select(x=text).to("out")
    plan(pipeline)
