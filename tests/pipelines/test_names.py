"""The names of fields have no meaning: every operator gives the same results, whatever the fields are called.

A Struct with the only field `value` is an object, too, and never mistaken for a single value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from pyspark.sql import DataFrame

from sluice import Column, Context, Decimal2, Pipeline, Record, session, struct, tumbling, within
from sluice.topology import Stream, Table
from tests.pipelines.conftest import Drive

SIGNS = [
    "$schema", "order-id", "order_x2d_id", "@type", "a b", "dc:creator", "flow, net", "load<5m", "x>y", "(x)", "{x}",
    ".a", "[0]", "http.status", "it's", "a`b", "100%", "a/b", "#", "?", "1st", " a", "größe", "名前",
]  # fmt: skip
KEYWORDS = [
    "order", "group", "select", "from", "end", "key", "value", "timestamp", "left", "right", "null", "true", "case",
    "not", "in", "is", "date", "interval", "array", "count", "on", "using", "table", "current_date", "all", "x",
]  # fmt: skip
OWN = [
    "pos", "col", "error", "items", "emitted", "path", "time", "window_start", "_window_size", "v", "c0", "new_key",
    "new_key_",
]  # fmt: skip
NAMES = ["sum", *SIGNS, *KEYWORDS, *OWN]
_ATTRIBUTES = {f"f{number}": name for number, name in enumerate(NAMES)}
Odd = msgspec.defstruct(
    "Odd", [(each, int) for each in _ATTRIBUTES], rename=_ATTRIBUTES, module=__name__
)


class Sole(Struct):
    """An object with one field, which has the name of a single value."""

    value: int


def odd(number: int) -> dict[str, int]:
    """The record with a number: a different value in each field."""
    return {name: 100 * number + place for place, name in enumerate(NAMES, 1)}


def sole(number: int) -> dict[str, int]:
    return {"value": 100 * number + 1}


def total(*records: Mapping[str, int]) -> dict[str, int]:
    """The sum of each field."""
    return {name: sum(record[name] for record in records) for name in records[0]}


def backticks(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def each(template: str) -> dict[str, str]:
    """An expression for each field."""
    return {name: template.format(backticks(name)) for name in NAMES}


ALL = f"least({', '.join(each('{}').values())}) > 0"
"""A condition that reads every field."""
WHOLE = f"struct({', '.join(each('{}').values())})"
BOTH: dict[str, Column] = {
    "l": each("left.{}"),
    "r": "right.value",
    "left": "left",
    "right": "right",
    "both": "struct(left, right)",
}
"""Columns that read the fields of both sides of a join, and the sides themselves."""


def both(left: Mapping[str, int], right: Mapping[str, int] | None) -> dict[str, Any]:
    sides = {"left": left, "right": right}
    return {"l": left, "r": None if right is None else right["value"], **sides, "both": sides}


def same(value: Any) -> Any:
    return type(value)(*msgspec.structs.astuple(value))


def keyed(value: Any) -> tuple[str, Any]:
    return "k", same(value)


def twice(value: Any) -> list[Any]:
    return [value, same(value)]


def keyed_twice(value: Any) -> list[tuple[str, Any]]:
    return [("k", value), ("l", value)]


def first(value: Any) -> Sole:
    return Sole(value.f0)


def nothing() -> Sole:
    return Sole(0)


def add(total: Any, value: Any) -> Any:
    pairs = zip(msgspec.structs.astuple(total), msgspec.structs.astuple(value), strict=True)
    return type(value)(*(a + b for a, b in pairs))


def subtract(total: Any, value: Any) -> Any:
    return type(value)(
        *(a - b for a, b in zip(*map(msgspec.structs.astuple, (total, value)), strict=True))
    )


def unchanged(frame: DataFrame) -> DataFrame:
    return frame


class Forward:
    """Forwards each value, and the sum of the key's values to a second output."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Any]) -> None:
        sums = self.context.store(type(record.value).__name__)
        sums.put("sum", add(sums.get("sum"), record.value) if sums.get("sum") else record.value)
        self.context.forward(record.key, record.value)
        self.context.forward(record.key, sums.get("sum"), to="totals")


Output = tuple["Stream[Any] | Table[Any]", "list[Any] | dict[str, Any]"]
"""What is written, and the expected values: all of them, or the last of each key."""
Operators = Callable[["Stream[Any]", "Table[Any]", "Table[Any]"], dict[str, Output]]
R2, R3, R4 = odd(2), odd(3), odd(4)
V0, V1, V2, V3, V4 = (sole(number) for number in range(5))


def stores(odds: Stream[Any], table: Table[Any], shared: Table[Any]) -> dict[str, Output]:
    """Stores that Spark computes in any order."""
    groups, soles, last = odds.group_by_key(), odds.map_values(first, returns=Sole), NAMES[-1]
    by_last = {str(record[last]): record for record in (R2, R3, R4)}
    return {
        "sums": (groups.aggregate(each("sum({})"), store="sums"), {"a": total(R2, R3), "b": R4}),
        "averages": (odds.group_by(backticks(last)).aggregate(each("avg({})"), store="averages"), by_last),
        "sums_joined": (groups.aggregate(each("max({})"), store="max").join(shared).select(BOTH), {"a": both(R3, V1)}),
        "soles_counted": (soles.group_by("value").count(store="counted"), {"201": 1, "301": 1, "401": 1}),
        "soles_summed": (
            soles.group_by_key().aggregate({"value": "sum(value)"}, store="value"), {"a": {"value": 502}, "b": V4},
        ),
    }  # fmt: skip


def steps(odds: Stream[Any], table: Table[Any], shared: Table[Any]) -> dict[str, Output]:
    """Steps without a state."""
    soles, every, last = odds.map_values(first, returns=Sole), [R2, R3, R4], NAMES[-1]
    mapped, name, lasts = (
        odds.map_values(same, returns=Odd),
        backticks(last),
        [record[last] for record in every],
    )
    return {
        "unchanged": (odds, every),
        "filtered": (odds.filter(ALL).filter_not(f"NOT ({ALL})"), every),
        "picked": (odds.select(*NAMES), every),
        "computed": (odds.select(all=struct(each("{} + 0"))), [{"all": r} for r in every]),
        "of_select": (odds.select(*NAMES).filter(ALL).map_values(f"{name} + 1"), [number + 1 for number in lasts]),
        "structs": (odds.select(all=WHOLE), [{"all": record} for record in every]),
        "of_structs": (odds.select(all=WHOLE).map_values(f"`all`.{name}"), lasts),
        "mapped": (mapped, every),
        "mapped_filtered": (mapped.filter(ALL), every),
        "keyed": (odds.map(keyed, returns=Odd).filter(ALL), every),
        "elements": (odds.flat_map_values(f"array({WHOLE})").map_values(f"value.{name}"), lasts),
        "rekeyed": (odds.select_key(name), every),
        "selected_with_key": (odds.select({name: backticks(name) for name in NAMES}, _key="_key || 'x'"), every),
        "transformed": (odds.transform(unchanged, returns=Odd).filter(ALL), every),
        "merged": (mapped.merge(odds).filter(ALL), [r for r in every for _ in range(2)]),
        "soles": (soles, [V2, V3, V4]),
        "soles_filtered": (soles.filter("value > 300").map_values(same, returns=Sole), [V3, V4]),
        "soles_keyed": (soles.map(keyed, returns=Sole), [V2, V3, V4]),
        "soles_twice": (soles.flat_map_values(twice, returns=Sole), [V2, V2, V3, V3, V4, V4]),
        "soles_keyed_twice": (soles.flat_map(keyed_twice, returns=Sole).filter("value > 400"), [V4, V4]),
        "soles_peeked": (soles.peek(same).select_key("value").merge(soles), [V2, V2, V3, V3, V4, V4]),
        "soles_transformed": (soles.transform(unchanged, returns=Sole), [V2, V3, V4]),
        "soles_selected": (soles.select("value"), [V2, V3, V4]),
        "soles_single": (soles.map_values("value"), [201, 301, 401]),
    }  # fmt: skip


def in_order(odds: Stream[Any], table: Table[Any], shared: Table[Any]) -> dict[str, Output]:
    """Operators that need each key's records in order."""
    mapped, soles, near = (
        odds.map_values(same, returns=Odd),
        odds.map_values(first, returns=Sole),
        within("1 s"),
    )
    groups, sole_groups, name = mapped.group_by_key(), soles.group_by_key(), backticks(NAMES[0])
    processed = odds.process(Forward, stores={"Odd": Odd}, returns=Odd, outputs={"totals": Odd})
    sole_processed = soles.process(
        Forward, stores={"Sole": Sole}, returns=Sole, outputs={"totals": Sole}
    )
    latest, sole_latest = mapped.to_table(store="latest"), soles.to_table(store="sole_latest")
    windows = groups.windowed_by(tumbling("1 minute")).aggregate(each("max({})"), store="windows")
    limited = groups.aggregate(each("sum({})"), store="summed").suppress_until_time_limit("1 s")
    sessions, row_pairs = session("1 s"), [both(R2, V1), both(R3, V1)]
    near_pairs = [
        both(left, right) for left, right in ((R2, V2), (R3, V2), (R2, V3), (R3, V3), (R4, V4))
    ]
    unmatched = [{"left": R2, "right": None}, {"left": R3, "right": None}]
    last_rows = {"a": both(R3, None), "b": both(R4, None)}
    last_soles = {"a": {"left": V3, "right": None}, "b": {"left": V4, "right": None}}
    added = sole_groups.aggregate(nothing, add, returns=Sole, store="added")
    once = mapped.deduplicate("_offset", within="1 day")
    sole_sum, sole_sums = {"value": 502}, {"a": {"value": 502}, "b": V4}
    pairs, sole_pairs = (
        [{"left": left, "right": V1} for left in lefts] for lefts in ((R2, R3), (V2, V3))
    )
    return {
        "processed": (processed.output.filter(ALL), [R2, R3, R4]),
        "totals": (processed["totals"].select(*NAMES), [R2, total(R2, R3), R4]),
        "latest_values": (latest, {"a": R3, "b": R4}),
        "latest_filtered": (latest.filter(ALL).select(*NAMES), {"a": R3, "b": R4}),
        "deduplicated": (mapped.deduplicate(name, within="1 day").filter(ALL), [R2, R3, R4]),
        "reduced": (groups.reduce(add, store="reduced").filter(ALL), {"a": total(R2, R3), "b": R4}),
        "sessions": (groups.windowed_by(sessions).reduce(add, store="sessions"), {"a": total(R2, R3), "b": R4}),
        "closed": (windows.suppress_until_window_closes().filter(ALL), [R3]),
        "limited": (limited.to_stream().filter(ALL), [total(R2, R3)]),
        "lists": (groups.aggregate(last=f"last({WHOLE})", store="lists"), {"a": {"last": R3}, "b": {"last": R4}}),
        "pairs": (mapped.left_join(soles, near).select(BOTH), near_pairs),
        "unmatched": (mapped.outer_join(soles.filter("false"), near), unmatched),
        "rows": (mapped.join(table).select(BOTH), [both(R2, V0), both(R3, V0)]),
        "tables": (latest.left_join(table).select(BOTH), last_rows),
        "foreign": (latest.join(table, on="_key").filter(f"left.{name} > 0"), {"a": None}),
        "joined": (odds.join(shared).select(BOTH), row_pairs),
        "lookups": (mapped.join(shared), pairs),
        "soles_with_shared": (soles.join(shared), sole_pairs),
        "soles_sides": (soles.join(shared).select(n="left.value + right.value"), [{"n": 302}, {"n": 402}]),
        "looked_up": (once.join(shared).select(BOTH), row_pairs),
        "joined_again": (mapped.join(soles, near).join(table).map_values(f"left.left.{name}"), [201, 301, 201, 301]),
        "soles_processed": (sole_processed.output, [V2, V3, V4]),
        "soles_totals": (sole_processed["totals"].filter("value > 500"), [sole_sum]),
        "soles_latest": (sole_latest.filter("value > 300"), {"a": V3, "b": V4}),
        "soles_deduplicated": (soles.deduplicate("value", within="1 day"), [V2, V3, V4]),
        "soles_reduced": (sole_groups.reduce(add, store="sole_reduced").select("value"), sole_sums),
        "soles_added": (added.filter("value > 0"), sole_sums),
        "soles_in_sessions": (sole_groups.windowed_by(sessions).reduce(add, store="sole_sessions"), sole_sums),
        "soles_paired": (soles.left_join(soles, near).filter("left.value < right.value"), [{"left": V2, "right": V3}]),
        "soles_joined": (soles.join(table).select(n="left.value + right.value"), [{"n": 202}, {"n": 302}]),
        "soles_joined_tables": (sole_latest.outer_join(table), last_soles),
        "soles_of_table": (table.to_stream().map_values(lambda value: value and same(value), returns=Sole), [V0, None]),
        "soles_subtracted": (table.group_by("value").reduce(add, subtract, store="subtracted"), {"1": {"value": 0}}),
        "soles_summed": (table.group_by("value").aggregate({"value": "count(*)"}, store="n"), {"1": {"value": 0}}),
    }  # fmt: skip


@pytest.mark.parametrize(
    "operators",
    [
        pytest.param(steps, marks=[pytest.mark.spark, pytest.mark.heavy]),
        stores,
        pytest.param(in_order, marks=pytest.mark.spark),
    ],
)
def test_names_have_no_meaning(drive: Drive, operators: Operators) -> None:
    pipeline = Pipeline("names")
    odds, shared = pipeline.stream("odd", value=Odd), pipeline.global_table("sole", value=Sole)
    outputs = operators(
        odds, pipeline.table("row", value=Sole) if operators is in_order else shared, shared
    )
    for topic, (handle, _) in outputs.items():
        handle.to(f"to_{topic}")
    driver = drive(pipeline)
    if operators is in_order:
        driver.pipe("row", sole(0), key="a", timestamp=1)
    driver.pipe("sole", sole(1), key="a", timestamp=2)
    for number, key, at in ((2, "a", 3), (3, "a", 900), (4, "b", 200_000)):
        driver.pipe("odd", odd(number), key=key, timestamp=at)
    if operators is in_order:
        driver.pipe("row", None, key="a", timestamp=200_001)
    assert driver.dead_letters() == []
    for topic, (_, expected) in outputs.items():
        records = driver.output(f"to_{topic}")
        if isinstance(expected, dict):
            assert {record.key: record.value for record in records} == expected, topic
        else:
            values = [record.value for record in records]
            assert sorted(values, key=json.dumps) == sorted(expected, key=json.dumps), topic
    if operators is not steps:
        assert driver.store("sums" if operators is stores else "summed") == {
            "a": total(R2, R3),
            "b": R4,
        }


class Place(Struct):
    value: str


class OfText(Struct):
    value: str


class OfNumber(Struct):
    value: float | None


class OfAmount(Struct):
    value: Decimal2


class OfTruth(Struct):
    value: bool


class OfTime(Struct):
    value: datetime


class OfList(Struct):
    value: list[Place]


class OfNames(Struct):
    value: dict[str, int]


class OfObject(Struct):
    value: Place


VALUES: dict[type[Struct], tuple[Any, Any]] = {
    OfText: ("x", "x"), OfNumber: (1.5, 1.5), OfAmount: (Decimal("1.50"), 1.5), OfTruth: (False, False),
    OfTime: (datetime(2026, 1, 1), "2026-01-01T00:00:00.000000Z"), OfList: ([Place("x")], [{"value": "x"}]),
    OfNames: ({"value": 1}, {"value": 1}), OfObject: (Place("x"), {"value": "x"}),
}  # fmt: skip


def test_an_object_with_the_field_value_can_have_any_type(drive: Drive) -> None:
    pipeline = Pipeline("types")
    soles = pipeline.stream("sole", value=Sole)
    for contract in VALUES:
        made = soles.map_values(MAKES[contract], returns=contract)
        made.to(f"to_{contract.__name__}")
        made.select(n="struct(value)").to(f"n_{contract.__name__}")
    driver = drive(pipeline)
    driver.pipe("sole", {"value": 1}, key="a", timestamp=1)
    assert driver.dead_letters() == []
    for contract, (_, value) in VALUES.items():
        assert [record.value for record in driver.output(f"to_{contract.__name__}")] == [
            {"value": value}
        ]
        assert [record.value for record in driver.output(f"n_{contract.__name__}")] == [
            {"n": {"value": value}}
        ]


class Maker:
    """Makes a value of a contract."""

    def __init__(self, contract: type[Struct]) -> None:
        self.contract = contract

    def __call__(self, value: Sole) -> Any:
        return self.contract(VALUES[self.contract][0])


MAKES = {contract: Maker(contract) for contract in VALUES}


WORDS = ["all", "distinct", "values", "any", "fetch", "while", "array", "interval", "nulls", "x"]
Worded = msgspec.defstruct(
    "Worded", [(f"f{number}", str) for number in range(len(WORDS))],
    rename={f"f{number}": word for number, word in enumerate(WORDS)}, module=__name__,
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS[:-1])
def test_a_field_named_like_a_word_of_sql_is_read_without_backticks(
    drive: Drive, word: str
) -> None:
    pipeline = Pipeline("words")
    stream = pipeline.stream("in", value=Worded)
    stream.select(
        first=f"concat({word}, x)", last=f"concat(x, {word})", or_else=f"coalesce({word}, x)",
        among=f"{word} IN (x, '{word}')",
        chosen=f"CASE WHEN {word} = '{word}' THEN {word} ELSE x END", text=f"CAST({word} AS STRING) || x",
    ).to("out")  # fmt: skip
    stream.group_by_key().aggregate(
        store="counted", least=f"min({word})", by=f"max_by(x, {word})", n=f"count({word})"
    )
    driver = drive(pipeline)
    driver.pipe("in", {name: name for name in WORDS}, "k")
    assert [record.value for record in driver.output("out")] == [
        {
            "first": f"{word}x", "last": f"x{word}", "or_else": word, "among": True, "chosen": word, "text": f"{word}x",
        }
    ]  # fmt: skip
    assert driver.store("counted") == {"k": {"least": word, "by": "x", "n": 1}}
