"""Built-in and Python aggregate functions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from sluice.errors import TopologyError
from sluice.operators.aggregation.aggregate import Aggregate, TableAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Custom, Functions
from sluice.operators.base import Row
from tests.unit.operators.feed import Given, Ran, Result, run


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (Function("count"), [None, 1, None], 3),
        (Function("count", int), [None, 1, None], 1),
        (Function("count", msgspec.Raw), [{"a": 1}, None], 1),
        (Function("sum", int), [1, None, 2], 3),
        (Function("sum", int), [None], None),
        (Function("sum", float), [0.5, 1], 1.5),
        (Function("min", int), [3, None, 1, 2], 1),
        (Function("min", int), [None], None),
        (Function("max", str), ["b", "c", "a"], "c"),
        (Function("max", bool), [False, True], True),
        (Function("avg", int), [1, 2, None], 1.5),
        (Function("avg", int), [None], None),
        (Function("collect_list", int), [2, None, 1, 2], [2, 1, 2]),
        (Function("collect_list", msgspec.Raw), [{"a": [1]}, None, "x"], [{"a": [1]}, "x"]),
        (Function("collect_set", str), ["b", "a", "b", None], ["b", "a"]),
        (Function("collect_set", msgspec.Raw), [[1], [1], [2]], [[1], [2]]),
        (Function("count_distinct", int), [1, 2, 1, None], 2),
        (Function("count_distinct", msgspec.Raw), [[1], [1], [2]], 2),
        (Function("first", int), [None, 2, 1], 2),
        (Function("last", int), [2, 1, None], 1),
        (Function("first", msgspec.Raw), [None, {"a": 1}], {"a": 1}),
        (Function("top", int, (2,)), [1, 3, None, 2, 3], [3, 3]),
        (Function("top", int, (2,)), [1], [1]),
    ],
)
def test_a_function_has_this_result_over_two_batches(
    function: Function, values: list[Any], expected: Any
) -> None:
    ran = run(
        Aggregate(Functions(function)), [Given("a", [value], 0) for value in values], cuts=[1]
    )
    assert ran.values[-1] == [expected]


def result_text(function: Function, *arguments: str) -> str | None:
    functions = Functions(function)
    aggregate = functions.new_aggregate()
    for argument in arguments:
        aggregate = functions.add("a", aggregate, functions.read(argument))
        kept = msgspec.msgpack.encode(aggregate)
        aggregate = msgspec.msgpack.decode(kept, type=functions.kind)
    return functions.result(aggregate)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("sum", ["[0.10]", "[0.20]"], "[0.30]"),
        (
            "sum",
            ["[12345678901234567890123456789012345.01]", "[0.02]"],
            "[12345678901234567890123456789012345.03]",
        ),
        ("avg", ["[1.00]", "[1.00]", "[0.00]"], "[0.666667]"),
        ("max", ["[9.10]", "[10.05]"], "[10.05]"),
        ("collect_set", ["[2.50]", "[2.5]"], "[[2.50]]"),
    ],
)
def test_decimals_stay_exact(name: str, arguments: list[str], expected: str) -> None:
    assert result_text(Function(name, Decimal), *arguments) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("collect_set", '[[{"a":[1.50],"b":2},[null]]]'), ("count_distinct", "[2]")],
)
def test_maps_are_equal_whatever_the_order_of_their_entries(name: str, expected: str) -> None:
    maps = '[{"b":2,"a":[1.50]}]', '[{"a":[1.50],"b":2}]', "[[null]]"
    assert result_text(Function(name, msgspec.Raw, maps=True), *maps) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("count", [1]), ("sum", [2]), ("avg", [2.0]), ("collect_list", [[2]])]
)
def test_a_table_subtracts_its_old_value(name: str, expected: list[Any]) -> None:
    operator = TableAggregate(Functions(Function(name, int), subtracts=True))
    ran = run(operator, [Given("a", [1], 0), Given("a", [1], 5, old=True), Given("a", [2], 5)])
    assert ran.values[-1] == expected


def test_a_count_over_a_table_stays_at_0_and_a_sum_is_null() -> None:
    functions = Functions(Function("count"), Function("sum", int), subtracts=True)
    ran = run(
        TableAggregate(functions), [Given("a", [None, 7], 3), Given("a", [None, 7], 9, old=True)]
    )
    assert ran.results[-1][:3] == ("a", [0, None], 9)
    assert ran.states


@pytest.mark.parametrize("name", ["first", "last", "approx_count_distinct"])
def test_functions_that_cannot_subtract_are_rejected_over_a_table(name: str) -> None:
    with pytest.raises(TopologyError, match=f"{name} over a table cannot subtract"):
        Functions(Function(name, int, (1,)), subtracts=True)


@pytest.mark.parametrize(
    ("name", "argument", "parameters", "message"),
    [
        ("middle", int, (), "Unknown aggregate function middle"),
        ("sum", str, (), "sum needs a number, not a text or a time"),
        ("max", msgspec.Raw, (), "max needs a value with an order, not an object or a list"),
        ("percentile", str, (0.5,), "percentile needs a number"),
        ("bool_and", int, (), "bool_and needs a condition, not a whole number"),
        ("max_by", str, (), "second argument of max_by needs a value with an order, not nothing"),
        ("top", int, (0,), "at least 1"),
    ],
)
def test_mistakes_are_reported_when_built(
    name: str, argument: type, parameters: tuple[float, ...], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        Function(name, argument, parameters)


class Letters(msgspec.Struct):
    words: list[str] = []
    running: int = 0


def test_reduce_starts_with_the_first_value() -> None:
    reduce = Custom(None, lambda key, words, word: f"{words}-{word}", value_type=str)
    words = [
        Given("A", "Apple", 0),
        Given("A", "Alpha", 1),
        Given("B", "Bus", 2),
        Given("A", "Ant", 3),
    ]
    ran = run(Aggregate(reduce), [*words, Given("B", "Baby", 4)], cuts=[2])
    assert ran.windows == {("A", None): "Apple-Alpha-Ant", ("B", None): "Bus-Baby"}


def test_a_python_aggregate_keeps_its_type() -> None:
    def add(key: str, letters: Letters, word: str) -> Letters:
        return Letters([*letters.words, word], letters.running + 1)

    ran = run(
        Aggregate(Custom(Letters, add, value_type=Letters)),
        [Given("A", w, 0) for w in ("x", "y")],
        cuts=[1],
    )
    assert ran.values[-1] == {"words": ["x", "y"], "running": 2}


@pytest.mark.parametrize("cuts", [[], [1], [1, 2]])
def test_a_function_gets_the_same_aggregate_within_a_batch_as_in_the_next(cuts: list[int]) -> None:
    def add(key: str, so_far: Any, n: int) -> Any:
        return n, {"was": type(so_far).__name__, "at": (n,)}

    ran = run(Aggregate(Custom(list, add)), [Given("a", n, n) for n in range(3)], cuts)
    assert ran.values == [[n, {"was": "list", "at": [n]}] for n in range(3)]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda n: {n}, "set"),
        (lambda n: Decimal(n), "Decimal"),
        (lambda n: {"amounts": [1, Decimal(n)]}, "Decimal"),
        (lambda n: [Decimal("sNaN")], "Decimal"),
        (lambda n: (1, Letters([], n)), "Letters"),
    ],
)
def test_a_value_that_the_next_batch_would_not_get_back_needs_a_declared_type(
    made: Any, kind: str
) -> None:
    ran = run(
        Aggregate(Custom(dict, lambda key, so_far, n: made(n))),
        [Given("a", 1, 0), Given("a", 2, 1)],
    )
    why = f"TypeError: a value of type {kind} needs a declared type: returns=..."
    assert ([rejection.why for rejection in ran.rejected], ran.results) == ([why, why], [])


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3]])
def test_after_none_an_aggregate_starts_again(cuts: list[int]) -> None:
    custom = Custom(int, lambda key, total, n: None if total + n > 9 else total + n)
    ran = run(Aggregate(custom), [Given("a", 5, time) for time in range(4)], cuts)
    assert (ran.values, ran.rejected) == ([5, None, 5, None], [])


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3]])
def test_nothing_is_subtracted_from_an_aggregate_that_is_none(cuts: list[int]) -> None:
    def add(key: str, total: int, n: int) -> int | None:
        return None if n == 0 else total + n

    rows = [
        Given("a", 0, 0, foreign="x"),
        Given("a", 0, 1, foreign="x", old=True),
        Given("a", 7, 2, foreign="x"),
    ]
    custom = Custom(int, add, lambda key, total, n: total - n, value_type=int)
    ran = run(TableAggregate(custom), rows, cuts)
    assert (ran.values, ran.rejected) == ([None, None, 7], [])


def test_keys_do_not_share_an_initializers_list() -> None:
    shared: list[int] = []

    def append(key: str, numbers: list[int], number: int) -> list[int]:
        numbers.append(number)
        return numbers

    custom = Custom(lambda: shared, append, value_type=list[int])
    ran = run(Aggregate(custom), [Given("a", 1, 0), Given("b", 2, 0), Given("a", 3, 0)], cuts=[])
    assert ran.values == [[1], [2], [1, 3]]


def test_a_python_subtractor_subtracts() -> None:
    custom = Custom(
        int, lambda key, total, n: total + n, lambda key, total, n: total - n, value_type=int
    )
    rows = [Given("a", 5, 0), Given("a", 5, 1, old=True), Given("a", 3, 1)]
    assert run(TableAggregate(custom), rows).values == [5, 0, 3]


@pytest.mark.parametrize("call", ["subtract", "merge"])
def test_a_missing_python_function_is_reported(call: str) -> None:
    with pytest.raises(TopologyError, match="subtractor" if call == "subtract" else "merger"):
        getattr(Custom(int, lambda key, total, n: total + n), call)("a", 1, 2)


def test_unwindowed_null_keys_and_values_are_dropped_and_counted() -> None:
    ran = run(
        Aggregate(Functions(Function("count"))),
        [Given("a", None, 0), Given(None, [1], 0), Given("a", [None], 0)],
    )
    assert (ran.values, ran.dropped) == ([[1]], {"null_value": 1, "null_key": 1})


def test_a_tombstone_of_a_table_adds_nothing() -> None:
    operator = TableAggregate(Functions(Function("count"), subtracts=True))
    ran = run(
        operator, [Given("a", [None], 0), Given("a", [None], 1, old=True), Given(None, None, 1)]
    )
    assert (ran.values, ran.dropped) == ([[1], [0]], {})


def test_a_row_regrouped_to_a_null_key_only_leaves_its_old_group() -> None:
    operator = TableAggregate(Functions(Function("count"), subtracts=True))
    ran = run(
        operator, [Given("a", [None], 0), Given("a", [None], 1, old=True), Given(None, [None], 1)]
    )
    assert (ran.values, ran.dropped) == ([[1], [0]], {"null_key": 1})


def test_a_row_that_changes_within_its_group_is_one_update() -> None:
    operator, ran = (
        TableAggregate(Functions(Function("sum", int), subtracts=True), sends_old_values=True),
        Ran(),
    )
    state = operator.new_state()
    operator.process(state, Row("g", "[2]", 5, -1, 5), ran)
    operator.change(state, Row("g", "[2]", 3, 5, 5, old=True), Row("g", "[7]", 3, 5, 5), ran)
    assert ran.results == [
        Result("g", [2], 5),
        Result("g", [2], 5, None, True),
        Result("g", [7], 5),
    ]


def test_an_aggregates_time_is_the_largest_of_its_inputs() -> None:
    ran = run(
        Aggregate(Functions(Function("count"))), [Given("a", [None], 7), Given("a", [None], 3)]
    )
    assert [result.time for result in ran.results] == [7, 7]


def test_the_old_value_is_sent_before_the_new_one() -> None:
    operator = Aggregate(Functions(Function("count")), sends_old_values=True)
    ran = run(operator, [Given("a", [None], 1), Given("a", [None], 2)])
    assert [(result.value, result.old, result.time) for result in ran.results] == [
        ([1], False, 1),
        ([1], True, 2),
        ([2], False, 2),
    ]


@pytest.mark.parametrize(
    ("name", "parameters", "with_all", "without_seven"),
    [
        ("min", (), 2, 2),
        ("max", (), 7, 5),
        ("top", (2,), [7, 7], [7, 5]),
        ("collect_set", (), [5, 7, 2], [5, 7, 2]),
        ("collect_sorted", (), [2, 5, 7, 7], [2, 5, 7]),
        ("count_distinct", (), 3, 3),
    ],
)
def test_a_tables_rows_come_back_when_the_row_that_hid_them_is_gone(
    name: str, parameters: tuple[float, ...], with_all: Any, without_seven: Any
) -> None:
    operator = TableAggregate(Functions(Function(name, int, parameters), subtracts=True))
    rows = [Given("a", [n], at) for at, n in enumerate((5, 7, 2, 7))]
    ran = run(operator, rows)
    assert ran.values[-1] == [with_all]
    once = run(operator, [*rows, Given("a", [7], 9, old=True)])
    twice = run(operator, [*rows, Given("a", [7], 9, old=True), Given("a", [7], 10, old=True)])
    values = [ran.values[-1] for ran in (once, twice)]
    assert values[0] == [7 if name == "max" else without_seven], "one 7 is left"
    if name == "max":
        assert values[1] == [without_seven]


def test_the_best_row_of_a_table_gives_way_when_it_is_gone() -> None:
    functions = Functions(Function("max_by", str, second=int), subtracts=True)
    rows = [
        Given("a", [{"x": x, "y": y}], at)
        for at, (x, y) in enumerate([("tea", 3), ("pot", 9), ("cup", 3)])
    ]
    gone = Given("a", [{"x": "pot", "y": 9}], 9, old=True)
    assert [
        ran.values[-1]
        for ran in (
            run(TableAggregate(functions), rows),
            run(TableAggregate(functions), [*rows, gone]),
        )
    ] == [
        ["pot"],
        ["cup"],
    ]


def test_a_group_without_rows_is_deleted_if_a_value_is_subtracted() -> None:
    ran = Ran()
    operator = TableAggregate(Functions(Function("count"), subtracts=True))
    state = operator.new_state()
    operator.process(state, Row("a", "[null]", 0, -1, 0, old=True), ran)
    assert [(result.key, result.value) for result in ran.results] == [("a", None)]
    assert operator.is_empty(state)
