"""Operators that process many rows at once have the same results, counts and states as row by row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import hopping, tumbling, within
from sluice.operators import columns, processor_operator
from sluice.operators.aggregation import calculation
from sluice.operators.aggregation.aggregate import Aggregate, WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Batched, Custom, Functions
from sluice.operators.base import LEFT, MOVED, RIGHT
from sluice.operators.columns import KeyedRows, KeyStates, RowFailedError
from sluice.operators.joins.by_key import StreamTableJoin, TableJoin
from sluice.operators.joins.foreign_key import ForeignKeyJoin
from sluice.operators.joins.stream_join import StreamJoin
from sluice.operators.joins.unmatched import keys_in_order
from sluice.operators.lateness import JoinLateness
from sluice.operators.operator import Operator
from sluice.operators.processor import Context, Record, StoreOptions
from sluice.operators.processor_operator import Process
from sluice.operators.table import Latest
from tests.unit.operators.feed import Given, run, run_in_columns


def add(key: str, total: int, value: int) -> int:
    if value == 13:
        raise ValueError("unlucky")
    return total + value


def larger(key: str, largest: int, value: int) -> int:
    return max(largest, value % 4)


def add_all_but_13(key: str, total: int, value: int | None) -> int:
    return add(key, total, value or 0)


def add_or_remove(key: str, total: int, value: int | None) -> int | None:
    return None if value and value % 5 == 0 else total + (value or 0)


def append(key: str, numbers: list[int], value: int) -> list[int]:
    numbers.append(value)
    if value == 13:
        raise ValueError("unlucky")
    return numbers


def append_all(key: str, numbers: list[int], values: list[int]) -> list[int]:
    numbers += values
    if 13 in values:
        raise ValueError("unlucky")
    return numbers


class Summing:
    """Sums the values of a key, and forwards the sums to two outputs, sometimes with headers of its own."""

    def init(self, context: Context) -> None:
        self.context, self.sums = context, context.store("sums")

    def process(self, record: Record[int | None]) -> None:
        total = self.sums.get("total", 0) + (record.value or 0)
        self.sums.put("total", total)
        self.context.forward(record.key, total, to="even" if total % 2 == 0 else "odd")
        if total % 3 == 0:
            self.sums.delete("total")
            self.context.forward(
                f"third of {record.key}", record.time, to="odd", headers={"own": b"yes"}
            )
        if record.value == 13:
            raise ValueError("unlucky")


def times_of(count: int) -> dict[str, Any]:
    return {name: np.ones(count, np.int64) for name in ("before", "after")}


def summing(**options: Any) -> Process:
    outputs = {"even": int, "odd": int}
    return Process(
        Summing, {"sums": StoreOptions(int, ttl=8)}, argument_type=int, outputs=outputs, **options
    )


TUMBLING = tumbling("5 ms", grace="2 ms")
HOPPING = hopping("6 ms", advance="2 ms", grace="3 ms")
MAKERS: dict[str, Callable[[], Operator[Any]]] = {
    "table": Latest,
    "table with old values": lambda: Latest(sends_old_values=True),
    "join with a table": lambda: StreamTableJoin("inner"),
    "left join with a table by a mapped key": lambda: StreamTableJoin("left", mapped=True),
    "join with a table that sends the mapped key": lambda: StreamTableJoin(
        "inner", mapped=True, mapped_key='the "key"'
    ),
    "join of streams": lambda: StreamJoin(
        "inner", within(before="5 ms", after="2 ms", grace="4 ms")
    ),
    "join of streams without grace": lambda: StreamJoin(
        "inner", within(before="0 s", after="3 ms")
    ),
    "function": lambda: Aggregate(Custom(int, add, value_type=int)),
    "function with old values": lambda: Aggregate(
        Custom(int, add, value_type=int), sends_old_values=True
    ),
    "function that removes aggregates, with old values": lambda: Aggregate(
        Custom(int, add_or_remove, value_type=int), sends_old_values=True, only_changes=True
    ),
    "largest with old values, if it changes": lambda: Aggregate(
        Custom(int, larger, value_type=int), sends_old_values=True, only_changes=True
    ),
    "function whose last results matter": lambda: Aggregate(
        Custom(None, add, value_type=int), only_last=True
    ),
    "function that removes aggregates": lambda: Aggregate(
        Custom(int, add_or_remove, value_type=int)
    ),
    "function of many values": lambda: Aggregate(
        Batched(list, append_all, value_type=list[int]), only_last=True
    ),
    "function of many values whose results all matter": lambda: Aggregate(
        Batched(list, append_all, value_type=list[int])
    ),
    "function of lists": lambda: Aggregate(Custom(list, append, value_type=list[int])),
    "function in windows": lambda: WindowedAggregate(
        Custom(int, add_all_but_13, value_type=int), TUMBLING
    ),
    "function in overlapping windows": lambda: WindowedAggregate(
        Custom(list, append, value_type=list[Any]), HOPPING
    ),
    "function in windows whose last results matter": lambda: WindowedAggregate(
        Custom(int, add_or_remove, value_type=int), HOPPING, only_last=True
    ),
    "processor": summing,
    "processor with another key": lambda: summing(is_keyed_by=True),
    "left join of streams": lambda: StreamJoin("left", within("5 ms", grace="4 ms")),
}


@st.composite
def rows(draw: st.DrawFn) -> list[Given]:
    """Rows of few keys, in and out of order, with tombstones and old values."""
    now, made = 0, []
    for number in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0, 1, 1, 2, 3, 20]))
        time = max(0, now - draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9])))
        key = draw(st.sampled_from(["a", "a", "b", "ü", None]))
        value = draw(st.sampled_from([None, number, number, number]))
        side, is_old = (
            draw(st.sampled_from([LEFT, RIGHT])),
            draw(st.sampled_from([False, False, False, True])),
        )
        headers = draw(st.sampled_from([None, '[{"key":"h","value":"dg=="}]']))
        made.append(
            Given(key, value, time, side, old=is_old, foreign=f"own {key}", headers=headers)
        )
    return made


@pytest.mark.parametrize("name", MAKERS)
@given(rows=rows(), cuts=st.sets(st.integers(1, 40)))
def test_columns_give_the_same_as_rows(name: str, rows: list[Given], cuts: set[int]) -> None:
    by_row, by_columns = run(MAKERS[name](), rows, cuts), run_in_columns(MAKERS[name](), rows, cuts)
    for key in {result.key for result in by_row.results}:
        # Keys meet nowhere, so only the order within a key is a result.
        of_key = [[each for each in ran.results if each.key == key] for ran in (by_columns, by_row)]
        if "last results" in name:
            # The last results of windows go only to a store, so their order does not matter.
            of_key = [sorted(results, key=lambda each: each.window or ()) for results in of_key]
        assert of_key[0] == of_key[1]
    assert len(by_columns.results) == len(by_row.results)
    assert sorted(map(str, by_columns.headers_of_results)) == sorted(
        map(str, by_row.headers_of_results)
    )
    assert by_columns.outputs == by_row.outputs
    assert by_columns.dropped == by_row.dropped
    assert sorted(map(str, by_columns.late)) == sorted(map(str, by_row.late))
    assert sorted(by_columns.rejected, key=repr) == sorted(by_row.rejected, key=repr)
    assert by_columns.states == by_row.states


TABLE_JOINS: dict[str, Callable[[], TableJoin]] = {
    "inner": lambda: TableJoin("inner"),
    "left, filtered": lambda: TableJoin("left", sends_old_values=True, filtered=(True, True)),
    "outer, filtered": lambda: TableJoin("outer", sends_old_values=True, filtered=(False, True)),
}


@st.composite
def batches_of_changes(draw: st.DrawFn) -> list[list[Given]]:
    """Changes of the rows of two tables."""
    keys, sides, values = (
        st.sampled_from("aab"),
        st.sampled_from([LEFT, RIGHT]),
        st.sampled_from([None, None, 1, 2, 3]),
    )
    change = st.builds(Given, keys, values, st.integers(0, 9), sides)
    return draw(st.lists(st.lists(change, max_size=12), min_size=1, max_size=3))


@pytest.mark.parametrize("name", TABLE_JOINS)
@given(batches=batches_of_changes())
def test_a_join_of_tables_gives_the_same_in_columns(name: str, batches: list[list[Given]]) -> None:
    made = TABLE_JOINS[name]
    rows = [row for batch in batches for row in batch]
    cuts = set(itertools.accumulate(map(len, batches)))
    by_row, by_columns = run(made(), rows, cuts), run_in_columns(made(), rows, cuts)
    for key in "ab":
        assert [each for each in by_columns.results if each.key == key] == [
            each for each in by_row.results if each.key == key
        ]
    assert by_columns.states == by_row.states


@st.composite
def rows_of_tables(draw: st.DrawFn) -> list[Given]:
    """Changes of a left table's rows, whose own keys belong to one foreign key each, and of a right table's rows."""
    made = []
    for number in range(draw(st.integers(1, 40))):
        key, side = draw(st.sampled_from("ab")), draw(st.sampled_from([LEFT, LEFT, MOVED, RIGHT]))
        own_key = (
            draw(st.sampled_from([f"{key}1", f"{key}2", f"{key}ü", None]))
            if side != RIGHT
            else None
        )
        value, time = draw(st.sampled_from([None, number, number])), draw(st.integers(0, 20))
        made.append(
            Given(
                key,
                value,
                time,
                side,
                old=draw(st.sampled_from([False, False, True])),
                foreign=own_key,
            )
        )
    return made


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("right_filtered", [False, True])
@given(rows=rows_of_tables(), cuts=st.sets(st.integers(1, 40)))
def test_a_foreign_key_join_gives_the_same_in_columns(
    how: Literal["inner", "left"], right_filtered: bool, rows: list[Given], cuts: set[int]
) -> None:
    joins = [ForeignKeyJoin(how, right_filtered=right_filtered) for _ in range(2)]
    by_row, by_columns = run(joins[0], rows, cuts), run_in_columns(joins[1], rows, cuts)
    for key in "ab":
        results = [
            [each for each in ran.results if str(each.key).startswith(key)]
            for ran in (by_row, by_columns)
        ]
        assert results[0] == results[1]
    assert by_columns.dropped == by_row.dropped
    assert by_columns.states == by_row.states


def test_a_function_of_many_values_is_called_once_per_key_and_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, list[int]]] = []

    def add_all(key: str, total: int, values: list[int]) -> int:
        calls.append((key, values))
        return total + sum(values)

    made = [Given("ab"[number % 2], number, number) for number in range(8)]
    ran = run_in_columns(
        Aggregate(Batched(int, add_all, value_type=int), only_last=True), made, {4}
    )
    assert calls == [("a", [0, 2]), ("b", [1, 3]), ("a", [4, 6]), ("b", [5, 7])]
    assert ran.values == [2, 4, 12, 16]
    calls.clear()
    monkeypatch.setattr(calculation, "_MOST_VALUES", 3)
    run_in_columns(Aggregate(Batched(int, add_all, value_type=int), only_last=True), made)
    assert calls == [("a", [0, 2, 4]), ("a", [6]), ("b", [1, 3, 5]), ("b", [7])]


PICKS = [Function(name, msgspec.Raw, second=int) for name in ("min_by", "max_by")]
FUNCTIONS: dict[str, tuple[list[Function], Callable[[int], list[Any]]]] = {
    "integers": (
        [Function("sum", int), Function("avg", int), Function("min", int), Function("count")],
        lambda number: [None if number % 3 else number, number, -number, None],
    ),
    "decimals": (
        [Function("sum", Decimal), Function("avg", Decimal)],
        lambda number: [number, None if number % 2 else number],
    ),
    "decimals with different numbers of decimal places": (
        [Function("sum", Decimal), Function("avg", Decimal)],
        lambda number: [number / 4, number / 8],
    ),
    "doubles": (
        [Function("sum", float), Function("avg", float), Function("avg", float)],
        lambda number: [number / 3, -number * 1e30, None if number % 2 else number * 1e-9],
    ),
    "doubles that overflow": (
        [Function("sum", float)],
        lambda number: [1.5e308 if number % 3 else -1.5e308],
    ),
    "doubles that overflow beside a set": (
        [Function("sum", float), Function("count_distinct", int)],
        lambda number: [1.5e308 if number % 3 else -1.5e308, number % 4],
    ),
    "picks": (
        [Function("first", int), Function("last", str), *PICKS],
        lambda number: [
            number % 5,
            None if number % 2 else str(number),
            *[{"x": [number], "y": number % 3}] * 2,
        ],
    ),
    "functions that need one record after the other": (
        [
            Function("count_distinct", int),
            Function("collect_list", int),
            Function("stddev_samp", float),
        ],
        lambda number: [number % 4, number, number / 3],
    ),
}


@pytest.mark.parametrize("only_last", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
@given(rows=rows(), cuts=st.sets(st.integers(1, 40)))
def test_sql_functions_give_the_same_in_columns(
    name: str, only_last: bool, rows: list[Given], cuts: set[int]
) -> None:
    functions, arguments = FUNCTIONS[name]
    given = [
        row._replace(value=None if row.value is None else arguments(row.value)) for row in rows
    ]
    operators = [Aggregate(Functions(*functions), only_last=only_last) for _ in range(2)]
    by_row, by_columns = run(operators[0], given, cuts), run_in_columns(operators[1], given, cuts)
    for key in ("a", "b", "ü"):
        results = [
            [result for result in ran.results if result.key == key] for ran in (by_row, by_columns)
        ]
        assert results[0] == results[1]
    assert by_columns.dropped == by_row.dropped
    assert sorted(by_columns.rejected, key=repr) == sorted(by_row.rejected, key=repr)
    assert by_columns.states == by_row.states


def test_a_processor_that_forwards_very_much_goes_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor_operator, "_MOST_RESULTS", 3)
    made = [Given("k", number, 100) for number in range(6)]
    processor, state = summing(), summing().new_state()
    texts = {name: pa.array([None] * 6, pa.string()) for name in ("value", "foreign", "headers")}
    rows = KeyedRows(["k"], np.array([0, 6]), texts | {"time": pa.array([1] * 6)}, times_of(6))
    with pytest.raises(RowFailedError):
        processor.process_columns(KeyStates(["k"], {"k": state}, summing().new_state), rows, None)
    by_row, by_columns = run(summing(), made), run_in_columns(summing(), made)
    assert (by_columns.results, by_columns.states) == (by_row.results, by_row.states)


@pytest.mark.parametrize(
    "make", [lambda: StreamJoin("inner", within("1 s")), lambda: ForeignKeyJoin("inner")]
)
def test_a_join_that_would_have_too_many_pairs_at_once_goes_row_by_row(
    make: Callable[[], Operator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Given("k", number, 100, number % 2, foreign=f"own {number}") for number in range(6)]
    with monkeypatch.context() as patch:
        patch.setattr(columns, "_MOST_PAIRS", 3)
        by_columns = run_in_columns(make(), made)
    by_row = run(make(), made)
    assert (by_columns.results, by_columns.states) == (by_row.results, by_row.states)


@pytest.mark.parametrize(("far", "goes_by_row"), [(1 << 60, False), (1 << 61, True)])
def test_a_join_of_streams_goes_row_by_row_if_times_are_too_far_apart(
    far: int, goes_by_row: bool
) -> None:
    def join() -> StreamJoin:
        return StreamJoin("inner", within(before="5 ms", after="2 ms", grace="9 ms"))

    keys, sides = ["a", "b", "c", "d"], (LEFT, RIGHT)
    made = [
        Given(key, 1, time, side) for time in (0, 1, far, far + 1) for key in keys for side in sides
    ]
    by_row, by_columns = run(join(), made), run_in_columns(join(), made)
    assert len(by_row.results) == 2 * 4 * len(keys)
    assert (sorted(by_columns.results), by_columns.states) == (
        sorted(by_row.results),
        by_row.states,
    )
    columns = {
        "value": pa.array(["1"] * 4),
        "time": pa.array([0, 0, 0, far]),
        "side": pa.array([0] * 4, pa.int32()),
    }
    latest = {name: np.array([0, 0, 0, far]) for name in ("left", "right")}
    rows = KeyedRows(keys, np.arange(5), columns, latest)
    assert (
        join().process_columns(KeyStates(keys, {}, join().new_state), rows, None) is None
    ) == goes_by_row


def test_a_join_goes_row_by_row_for_a_key_with_rows_of_partitions_that_differ_in_time() -> None:
    # The first row is of a partition that has reached 90, the second of one that has reached 10.
    made = {
        "value": pa.array(["1", "2"]),
        "time": pa.array([90, 10]),
        "side": pa.array([LEFT, RIGHT], pa.int32()),
    }
    latest = {"left": np.array([90, 10]), "right": np.array([-1, 10])}
    join = StreamJoin("inner", within("5 ms"))
    states = KeyStates(["k"], {}, join.new_state)
    assert (
        join.process_columns(states, KeyedRows(["k"], np.array([0, 2]), made, latest), None) is None
    )
    latest["left"] = np.array([90, 90])
    assert (
        join.process_columns(states, KeyedRows(["k"], np.array([0, 2]), made, latest), None)
        is not None
    )


def test_a_record_that_is_due_when_it_comes_is_not_joined_in_columns() -> None:
    # The partition of key "late" was idle while the other partitions have reached 50.
    columns = {
        "value": pa.array(["1", "2"]),
        "time": pa.array([10, 60]),
        "side": pa.array([LEFT, LEFT], pa.int32()),
    }
    latest = {name: np.array([10, 60]) for name in ("after", "left")}
    rows = KeyedRows(["late", "new"], np.array([0, 1, 2]), columns, latest | {"before": np.array([50, 50]),
                     "right": np.array([-1, -1])})  # fmt: skip
    assert keys_in_order(JoinLateness(within("5 ms")), rows).tolist() == [False, True]
