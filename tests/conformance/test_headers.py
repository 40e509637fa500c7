"""The headers of results are those of Kafka Streams, whether or not the stores keep headers.

`headers_of_results.jsonl` has the answers of the test driver of Kafka Streams 4.4.0 without record
caches. They are the same with `dsl.store.format=DEFAULT` and `HEADERS`. Each record has the header
`n`, its number. A result is a list of the key (with the window, if any), the value, the time and
the headers; `steps` has the results that each record has caused. `store` has the rows of the store
with `dsl.store.format=HEADERS`: Kafka Streams stores headers only for a processor that puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice import (
    Context,
    Pipeline,
    Record,
    Stream,
    Table,
    hopping,
    session,
    sliding,
    tumbling,
    within,
)
from sluice.testing import Output, TopologyTestDriver

Result = list[Any]
"""Key, value, time and headers."""


class Case(msgspec.Struct, frozen=True):
    """Records, and the answers of Kafka Streams."""

    name: str = msgspec.field(name="case")
    input: list[tuple[str, str, str | None, int]]
    """Topic, key, value and time of each record."""
    steps: list[list[Result]]
    store: list[list[Any]] | None


RECORDED = Path(__file__).with_name("headers_of_results.jsonl")
CASES = {case.name: case for case in msgspec.json.Decoder(Case).decode_lines(RECORDED.read_bytes())}

JOINED = "concat(coalesce(left, 'null'), '+', coalesce(right, 'null'))"
WITHIN = within("5 ms")
TEN = "10 ms"


class Exclaim:
    """Adds an exclamation mark to each value."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Record[str]) -> None:
        self.context.forward(f"{record.value}!")


class Latest:
    """Sends each value with the value before it, and with the headers that this value had."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[str]) -> None:
        store = self.context.store("store")
        before = store.get("value")
        if before is None:
            self.context.forward(record.key, record.value)
        else:
            value = f"{before}>{record.value}"
            self.context.forward(record.key, value, headers=store.headers("value"))
        store.put("value", record.value)


Build = Callable[[Pipeline], "Stream[Any] | Table[Any]"]


def left(pipeline: Pipeline) -> Stream[str]:
    return pipeline.stream("left", value=str, nulls="keep")


def right(pipeline: Pipeline) -> Stream[str]:
    return pipeline.stream("right", value=str)


def windows(pipeline: Pipeline, window: Any, **options: Any) -> Table[int]:
    return left(pipeline).group_by_key().windowed_by(window, **options).count(store="store")


def tables(pipeline: Pipeline) -> tuple[Table[str], Table[str]]:
    return pipeline.table("left", value=str), pipeline.table("right", value=str)


def aggregate_removed(pipeline: Pipeline) -> Table[str]:
    def add(total: str, value: str) -> Any:
        return None if value == "3" else total + value

    return left(pipeline).group_by_key().aggregate(str, add, store="store", returns=str)


def cogroup(pipeline: Pipeline) -> Table[str]:
    def add(total: str, value: str) -> str:
        return total + value

    one, other = left(pipeline).group_by_key(), right(pipeline).group_by_key()
    return one.cogroup(add).cogroup(other, add).aggregate(str, store="store", returns=str)


def join(how: str) -> Build:
    def build(pipeline: Pipeline) -> Stream[Any]:
        joined: Stream[Any] = left(pipeline).join(right(pipeline), WITHIN, how=how)  # type: ignore[call-overload]
        return joined.map_values(JOINED)

    return build


def join_self(pipeline: Pipeline) -> Stream[str]:
    stream = left(pipeline)
    return stream.join(stream, WITHIN).map_values(JOINED)


def stream_table(how: str) -> Build:
    def build(pipeline: Pipeline) -> Stream[Any]:
        table = pipeline.table("right", value=str)
        joined: Stream[Any] = left(pipeline).join(table, how=how)  # type: ignore[call-overload]
        return joined.map_values(JOINED)

    return build


def stream_global(pipeline: Pipeline) -> Stream[str]:
    table = pipeline.global_table("right", value=str)
    return left(pipeline).join(table, on="_key").map_values(JOINED)


def table_table(how: str, on: str | None = None) -> Build:
    def build(pipeline: Pipeline) -> Table[str]:
        one, other = tables(pipeline)
        return one.join(other, how=how, on=on).map_values(JOINED)  # type: ignore[arg-type]

    return build


BUILD: Mapping[str, Build] = {
    "count": lambda p: left(p).group_by_key().count(store="store"),
    "reduce": lambda p: left(p).group_by_key().reduce(lambda a, b: a + b, store="store"),
    "aggregate": lambda p: (
        left(p)
        .group_by_key()
        .aggregate(str, lambda total, value: total + value, store="store", returns=str)
    ),
    "aggregate_removed": aggregate_removed,
    "count_rekeyed": lambda p: (
        left(p).group_by("IF(value > '2', 'big', 'small')").count(store="store")
    ),
    "cogroup": cogroup,
    "tumbling": lambda p: windows(p, tumbling(TEN)),
    "hopping": lambda p: windows(p, hopping(TEN, advance="5 ms")),
    "sliding": lambda p: windows(p, sliding(TEN)),
    "session": lambda p: windows(p, session("5 ms")),
    "tumbling_on_close": lambda p: windows(p, tumbling(TEN), emit="window_close"),
    "session_on_close": lambda p: windows(p, session("5 ms"), emit="window_close"),
    "suppress_close": lambda p: windows(p, tumbling(TEN)).suppress_until_window_closes(),
    "suppress_session": lambda p: windows(p, session("5 ms")).suppress_until_window_closes(),
    "suppress_limit": lambda p: (
        left(p)
        .group_by_key()
        .reduce(lambda a, b: a + b, store="store")
        .suppress_until_time_limit(TEN)
    ),
    "suppress_table": lambda p: p.table("left", value=str).suppress_until_time_limit(TEN),
    "table": lambda p: p.table("left", value=str, store="store"),
    "to_table": lambda p: left(p).to_table(store="store"),
    "to_table_rekeyed": lambda p: left(p).select_key("value").to_table(store="store"),
    "table_filter": lambda p: p.table("left", value=str).filter("value > '2'"),
    "table_map": lambda p: p.table("left", value=str).map_values("concat(value, '!')"),
    "table_group_count": lambda p: (
        p.table("left", value=str).group_by("value").count(store="store")
    ),
    "join_inner": join("inner"),
    "join_left": join("left"),
    "join_outer": join("outer"),
    "join_self": join_self,
    "stream_table": stream_table("inner"),
    "stream_table_left": stream_table("left"),
    "stream_global": stream_global,
    "table_table": table_table("inner"),
    "table_table_left": table_table("left"),
    "table_table_outer": table_table("outer"),
    "foreign_key": table_table("inner", "value"),
    "foreign_key_left": table_table("left", "value"),
    "process_values": lambda p: left(p).process_values(Exclaim, returns=str).output,
    "process_store": lambda p: left(p).process(Latest, stores={"store": str}, returns=str).output,
}
OWN_HEADERS = {("b", "3+null"): "3", ("c", "null+4"): "4", ("e", "7+null"): "7"}
"""Key and value of the results for unmatched records → the number of the record.

Kafka Streams sends these results with the headers of another record (KAFKA-20413).
"""


def test_every_recorded_case_has_a_pipeline() -> None:
    assert BUILD.keys() == CASES.keys()


def piped(case: Case, *, keep_headers: bool, by_one: bool) -> TopologyTestDriver:
    """A driver that has read the records of a case in one batch, or in a batch for each record."""
    pipeline = Pipeline("headers", workers=2, keep_headers=keep_headers)
    result = BUILD[case.name](pipeline)
    stream = result.to_stream() if isinstance(result, Table) else result
    stream.to("out")
    driver = TopologyTestDriver(pipeline, clock=1_000)
    for number, (topic, key, value, time) in enumerate(case.input, start=1):
        driver.pipe(topic, value, key=key, timestamp=time, headers={"n": str(number)})
        if by_one:
            driver.commit()
    return driver


def result_of(record: Output) -> Result:
    """A record as in the recorded answers."""
    headers = dict(record.headers)
    key = record.key
    if "window_start" in headers:
        key += f"@{headers.pop('window_start')}-{headers.pop('window_end')}"
    value = None if record.value is None else str(record.value)
    return [key, value, record.timestamp, [f"{name}={text}" for name, text in headers.items()]]


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
@pytest.mark.parametrize("keep_headers", [False, True], ids=["default", "with headers"])
@pytest.mark.parametrize("name", CASES)
def test_results_have_the_headers_that_they_have_in_kafka_streams(
    name: str, keep_headers: bool, by_one: bool
) -> None:
    case = CASES[name]
    if name == "process_store" and not keep_headers:
        pytest.skip("the processor needs a store that keeps headers")
    expected: list[Result] = []
    for step in case.steps:
        for key, value, time, headers in step:
            number = OWN_HEADERS.get((key, value)) if keep_headers else None
            if number is not None and name in ("join_left", "join_outer"):
                headers = [f"n={number}"]
            expected.append([key, value, time, headers])
    with piped(case, keep_headers=keep_headers, by_one=by_one) as driver:
        assert [result_of(record) for record in driver.output("out")] == expected


STORED = [
    name
    for name, case in CASES.items()
    if case.store and not name.startswith(("suppress", "table_table", "foreign", "process"))
]


def kept(driver: TopologyTestDriver) -> dict[str, tuple[str, list[str]]]:
    """The value and the headers of each row of the store."""
    headers = driver.store_headers("store")
    rows: dict[str, tuple[str, list[str]]] = {}
    for key, value in driver.store("store").items():
        text = key if isinstance(key, str) else f"{key[0]}@{key[1]}-{key[2]}"
        rows[text] = str(value), [f"{name}={each.decode()}" for name, each in headers[key]]
    return rows


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
@pytest.mark.parametrize("name", STORED)
def test_a_row_keeps_the_headers_of_the_result_that_has_last_changed_it(
    name: str, by_one: bool
) -> None:
    case = CASES[name]
    last: dict[str, list[str]] = {}
    for step in case.steps:
        for key, _, _, headers in step:
            last[key] = headers
    if name == "tumbling_on_close":
        # A row has the headers of the window's last record, not of the record that closes it.
        last = {
            "a@0-10": ["n=2"], "b@0-10": ["n=3"], "a@10-20": ["n=4"], "b@30-40": ["n=5"],
            "a@30-40": ["n=6"],
        }  # fmt: skip
    assert case.store is not None
    is_session = name.startswith("session")
    expected = {key: (value, [] if is_session else last[key]) for key, value, _ in case.store}
    with piped(case, keep_headers=True, by_one=by_one) as driver:
        assert kept(driver) == expected


def test_a_processor_keeps_the_headers_that_it_puts() -> None:
    case = CASES["process_store"]
    with piped(case, keep_headers=True, by_one=True) as driver:
        headers = driver.store_headers("store")
    assert case.store is not None
    assert {key: [*of_key["value"]] for key, of_key in headers.items()} == {
        key: [("n", header.removeprefix("n=").encode())] for key, _, [header] in case.store
    }
