"""The aggregates of a table are those of its rows, however its rows have changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Table, session, sliding, tumbling
from sluice.values.windows import AnyWindow
from tests.pipelines.conftest import Drive


class Sale(Struct):
    amount: int


def _increased(total: int, sale: Sale) -> int:
    return total + sale.amount


def _increased_up_to_8(total: int, sale: Sale) -> int | None:
    increased = total + sale.amount
    return None if increased > 8 else increased


def _together(one: int, other: int) -> int:
    return one + other


def _sum_of_amounts(one: Sale, other: Sale) -> Sale:
    return Sale(one.amount + other.amount)


def _by_python(grouped: Any) -> Any:
    merger = {"merger": _together} if "session" in str(grouped.window) else {}
    return grouped.aggregate(int, _increased, store="totals", returns=int, **merger)


AGGREGATES: dict[str, tuple[Callable[[Any], Table[Any]], str]] = {
    "sum": (lambda grouped: grouped.aggregate(store="totals", n="sum(amount)"), "n"),
    "count": (lambda grouped: grouped.count(store="totals"), "value"),
    "last": (lambda grouped: grouped.aggregate(store="totals", n="last(amount)"), "n"),
    "collect_list": (
        lambda grouped: grouped.aggregate(store="totals", amounts="collect_list(amount)"),
        "size(amounts)",
    ),
    "a function": (_by_python, "value"),
    "reduce": (lambda grouped: grouped.reduce(_sum_of_amounts, store="totals"), "amount"),
}
"""Name → an aggregate in windows, and the number of its rows that is added up."""

STEPS: dict[str, Callable[[Pipeline, Table[Any], str], Table[Any]]] = {
    "nothing": lambda pipeline, table, number: table.select(number=number),
    "a filter": lambda pipeline, table, number: table.select(number=number).filter("number < 5"),
    "a join with itself": lambda pipeline, table, number: (
        table.select(number=number).join(table.select(number=number)).select(number="left.number")
    ),
    "a time limit": lambda pipeline, table, number: (
        table.select(number=number).suppress_until_time_limit("2 ms").select("number")
    ),
}

RECORDS = [
    ("a", 1, 10),
    ("a", 2, 10),
    ("b", 4, 10),
    ("a", 3, 12),
    ("b", 1, 30),
    ("a", 2, 30),
    ("b", 5, 31),
    ("a", 1, 11),
]
"""Key, amount and time."""

WINDOWS: dict[str, AnyWindow] = {
    "session": session("5 ms", grace="1 second"),
    "sliding": sliding("5 ms", grace="1 second"),
    "tumbling": tumbling("5 ms", grace="1 second"),
}


@pytest.mark.parametrize("cut", [False, True], ids=["one batch", "each record"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("aggregate", "window"),
    [
        *((name, "session") for name in AGGREGATES),
        *itertools.product(("sum", "a function"), ("sliding", "tumbling")),
    ],
)
def test_the_sum_of_a_windowed_table_is_that_of_its_rows(
    drive: Drive, aggregate: str, window: str, step: str, cut: bool
) -> None:
    pipeline = Pipeline("sums", workers=2)
    make, number = AGGREGATES[aggregate]
    totals = make(pipeline.stream("sales", value=Sale).group_by_key().windowed_by(WINDOWS[window]))
    rows = STEPS[step](pipeline, totals, number)
    rows.to("rows")
    rows.group_by("'all'").aggregate(
        store="all", sum="sum(number)", rows="count(*)", numbers="collect_sorted(number)"
    )
    driver = drive(pipeline)
    for key, amount, time in RECORDS:
        driver.pipe("sales", {"amount": amount}, key, timestamp=time)
        if cut:
            driver.commit()
    last = {}
    for record in driver.output("rows"):
        last[record.key, record.headers["window_start"], record.headers["window_end"]] = (
            record.value
        )
    numbers = sorted(value["number"] for value in last.values() if value is not None)
    assert driver.store("all")["all"] == {
        "sum": sum(numbers),
        "rows": len(numbers),
        "numbers": numbers,
    }


def test_a_count_of_keys_is_the_number_of_keys(drive: Drive) -> None:
    """In Kafka Streams, each key's first count replaces a count of 0, so that the number of keys stays 1."""
    pipeline = Pipeline("keys", workers=2)
    counts = pipeline.stream("sales", value=Sale).group_by_key().count(store="counts")
    counts.group_by("'all'").count(store="keys")
    driver = drive(pipeline)
    for key in "abcab":
        driver.pipe("sales", {"amount": 1}, key)
    assert driver.store("keys") == {"all": 3}


@pytest.mark.parametrize("cut", [False, True])
def test_a_key_whose_aggregate_was_removed_is_counted_again(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("removed", workers=2)
    grouped: Any = pipeline.stream("sales", value=Sale).group_by_key()
    sums = grouped.aggregate(int, _increased_up_to_8, store="sums", returns=int)
    sums.group_by("'all'").aggregate(store="all", keys="count(*)", sum="sum(value)")
    driver = drive(pipeline)
    counts = []
    for key, amount in (("a", 5), ("b", 1), ("a", 5), ("a", 5)):
        driver.pipe("sales", {"amount": amount}, key)
        if cut:
            counts.append(driver.store("all")["all"])
    assert driver.store("all") == {"all": {"keys": 2, "sum": 6}}
    assert driver.store("sums") == {"a": 5, "b": 1}
    if cut:
        assert [row["keys"] for row in counts] == [1, 2, 1, 2]


@pytest.mark.parametrize("cut", [False, True])
def test_the_final_results_of_windows_are_added_up_once(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("closed", workers=2)
    sales = pipeline.stream("sales", value=Sale).group_by_key()
    for name, window in WINDOWS.items():
        counts = sales.windowed_by(replace(window, grace_ms=0)).count(store=f"{name}_counts")
        closed = counts.suppress_until_window_closes()
        closed.group_by("_key").aggregate(
            store=f"{name}_closed", sales="sum(value)", windows="count(*)"
        )
    driver = drive(pipeline)
    for amount, time in ((8, 1), (1, 5), (2, 6), (4, 11), (4, 11), (9, 100)):
        driver.pipe("sales", {"amount": amount}, "a", timestamp=time)
        if cut:
            driver.commit()
    assert driver.store("tumbling_closed") == {"a": {"sales": 5, "windows": 3}}
    assert driver.store("session_closed") == {"a": {"sales": 5, "windows": 1}}
    # [0, 5], [1, 6], [2, 7], [6, 11] and [7, 12] contain 2, 3, 2, 3 and 2 sales.
    assert driver.store("sliding_closed") == {"a": {"sales": 12, "windows": 5}}
