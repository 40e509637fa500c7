"""If an operator fails for a row, the row is rejected and changes neither state nor output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest

from sluice import Digits, hopping, session, sliding, tumbling
from sluice.operators.aggregation.aggregate import Aggregate, TableAggregate, WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Calculation, Custom, Functions
from sluice.operators.aggregation.sessions import SessionAggregate
from sluice.operators.aggregation.sliding import SlidingAggregate
from sluice.operators.base import Row, rejects_record
from sluice.operators.encoding import Declared, encode_state, state_decoder, to_json
from sluice.operators.operator import Operator
from sluice.operators.processor import Context, Record, StoreOptions, Timer
from sluice.operators.processor_operator import Process
from tests.unit.operators.feed import Given, Ran, run

POISON = 13


class Poison(Exception):
    """The error that the functions of these tests raise."""


def adds(key: str, so_far: list[int], value: int) -> list[int]:
    so_far.append(value)
    if value == POISON:
        raise Poison("13")
    return so_far


def takes_out(key: str, so_far: list[int], value: int) -> list[int]:
    so_far.remove(value)
    if value == POISON:
        raise Poison("13")
    return so_far


def joins(key: str, one: list[int], other: list[int]) -> list[int]:
    one.extend(other)
    if POISON + 1 in one:
        raise Poison("14")
    return one


def reduces(key: str, so_far: int, value: int) -> int:
    return so_far + 26 // (value - POISON)


def lists() -> Calculation:
    return Custom(list, adds, takes_out, joins, value_type=list[int], argument_type=int)


class Author:
    """Changes a list and a number, forwards the value, and only then fails."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        store = self.context.store("lists")
        values = store.get("all", [])
        values.append(record.value)
        store.put("all", values)
        self.context.store("numbers").put("last", record.value)
        self.context.forward(record.key, values)
        if record.value == POISON:
            store.put("other", [1])
            store.delete("all")
            for each in dict(store.items()).values():
                each.append("spoilt")
            self.context.schedule("never", record.time)
            raise Poison("13")

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, "the timer of a record that was rejected")


def author() -> Operator[Any]:
    return Process(
        Author, {"lists": StoreOptions(list[int]), "numbers": StoreOptions(int)}, argument_type=int
    )


OPERATORS: dict[str, Callable[[], Operator[Any]]] = {
    "aggregate": lambda: Aggregate(lists()),
    "aggregate that sends old values too": lambda: Aggregate(lists(), sends_old_values=True),
    "reduce": lambda: Aggregate(Custom(None, reduces, value_type=int, argument_type=int)),
    "tumbling windows": lambda: WindowedAggregate(lists(), tumbling("3 ms")),
    "hopping windows": lambda: WindowedAggregate(lists(), hopping("4 ms", advance="2 ms")),
    "sliding windows": lambda: SlidingAggregate(
        lists(), sliding("2 ms", "100 ms"), sends_old_values=True
    ),
    "sessions": lambda: SessionAggregate(lists(), session("2 ms", "100 ms")),
    "process": author,
}


def outcome(ran: Ran) -> tuple[Any, ...]:
    return ran.results, ran.states, ran.dropped


@pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("cuts", [[], [2], [3], [2, 3], [1, 2, 3, 4, 5]], ids=str)
def test_a_failing_record_changes_nothing(
    make: Callable[[], Operator[Any]], cuts: Sequence[int]
) -> None:
    before, after = (
        [Given("a", 1, 0), Given("b", 2, 1)],
        [Given("a", 3, 2), Given("b", 4, 3), Given("a", 1, 2)],
    )
    poison = Given("a", POISON, 1)
    ran = run(make(), [*before, poison, *after], cuts)
    good = run(make(), [*before, *after], [cut - (cut > 2) for cut in cuts])
    assert outcome(ran) == outcome(good)
    (rejection,) = ran.rejected
    assert (rejection.key, rejection.value, rejection.time) == ("a", POISON, 1)
    assert rejection.why in ("Poison: 13", "ZeroDivisionError: integer division or modulo by zero")


def test_the_first_record_of_a_key_may_fail() -> None:
    ran = run(Aggregate(lists()), [Given("a", POISON, 0)])
    assert (ran.results, ran.states) == ([], {})
    assert len(ran.rejected) == 1


def test_a_failing_merger_leaves_both_sessions_unchanged() -> None:
    rows = [Given("a", 1, 0), Given("a", 14, 6), Given("a", 2, 3), Given("a", 5, 6)]
    operator = SessionAggregate(
        Custom(list, adds, None, joins, list[int], int), session("3 ms", "100 ms")
    )
    ran = run(operator, rows)
    assert [(one.why, one.value) for one in ran.rejected] == [("Poison: 14", 2), ("Poison: 14", 5)]
    assert ran.windows == {("a", (0, 0)): [1], ("a", (6, 6)): [14]}


def test_a_failing_subtractor_leaves_the_group_unchanged() -> None:
    custom = Custom(
        list, lambda key, so_far, value: [*so_far, value], takes_out, None, list[int], int
    )
    operator = TableAggregate(custom)
    rows = [
        Given("g", POISON, 0, foreign="a"),
        Given("g", 1, 1, foreign="b"),
        Given("g", POISON, 2, old=True, foreign="a"),
        Given("g", 2, 3, foreign="c"),
    ]
    ran = run(operator, rows)
    assert ran.values == [[POISON], [POISON, 1], [POISON, 1, 2]]
    assert [one.value for one in ran.rejected] == [POISON]


@pytest.mark.parametrize("cuts", [[], [2, 3]], ids=str)
def test_a_row_that_comes_again_replaces_the_value_that_could_not_be_subtracted(
    cuts: Sequence[int],
) -> None:
    failing = [1]

    def take_out(key: str, so_far: list[int], value: int) -> list[int]:
        if failing:
            raise ValueError(failing.pop())
        return [other for other in so_far if other != value]

    custom = Custom(
        list, lambda key, so_far, value: [*so_far, value], take_out, None, list[int], int
    )
    rows = [
        Given("g", 5, 0, foreign="a"),
        Given("g", 5, 1, old=True, foreign="a"),
        Given("g", 6, 2, foreign="a"),
        Given("g", 6, 3, old=True, foreign="a"),
    ]
    ran = run(TableAggregate(custom), rows, cuts)
    assert ran.values == [[5], [6], []]
    assert [one.why for one in ran.rejected] == ["ValueError: 1"]


def test_a_change_within_a_group_is_atomic() -> None:
    operator, ran = TableAggregate(lists()), Ran()
    state = operator.new_state()
    operator.process(state, Row("g", "1", 0, -1, 0), ran)
    operator.change(state, Row("g", "1", 1, 0, 1, old=True), Row("g", "13", 1, 0, 1), ran)
    assert (state.windows, ran.values) == ({0: (0, [1])}, [[1]])
    assert [(one.value, one.why) for one in ran.rejected] == [(POISON, "Poison: 13")]


def changed(values: Sequence[int | None], other: int) -> Ran:
    """A group in which the row `a` takes the values one after the other, beside the row `b`; a cut after each."""
    operator, ran = TableAggregate(lists()), Ran()
    state = operator.new_state()
    operator.process(state, Row("g", str(other), 0, -1, 0, foreign="b"), ran)
    for before, after in zip([None, *values], values, strict=False):
        old = None if before is None else Row("g", str(before), 0, -1, 0, old=True, foreign="a")
        new = None if after is None else Row("g", str(after), 0, -1, 0, foreign="a")
        if old and new:
            operator.change(state, old, new, ran)
        elif row := old or new:
            operator.process(state, row, ran)
        state = state_decoder(operator.state_type)(encode_state(state))
    return ran


@pytest.mark.parametrize("other", [7, POISON])
@pytest.mark.parametrize(
    "values", [(1, 13, 2), (13, 2), (1, 13, 13, 2), (1, 13, None, 3), (13, None, 13, 2), (3, None)]
)
def test_a_value_that_was_never_added_is_not_subtracted(
    values: Sequence[int | None], other: int
) -> None:
    ran = changed(values, other)
    assert sorted(ran.values[-1]) == [
        *([] if values[-1] is None else [values[-1]]),
        *([7] if other == 7 else []),
    ]
    assert [one.value for one in ran.rejected] == [
        value for value in (other, *values) if value == POISON
    ]


class Alarm(Author):
    """Schedules a timer per record; the failing record's timer changes everything before it fails."""

    def process(self, record: Record) -> None:
        self.context.store("lists").put("all", [record.value])
        self.context.schedule(
            f"t{record.value}", record.time + 2, clock="wall" if record.time > 50 else "event"
        )

    def on_timer(self, timer: Timer) -> None:
        self.context.store("lists").get("all", []).append(99)
        self.context.schedule(timer.name, timer.time + 1)
        self.context.forward(timer.key, timer.name)
        if timer.name == f"t{POISON}":
            raise Poison("13")
        self.context.cancel(timer.name)


def test_a_failing_timer_counts_as_fired_and_changes_nothing() -> None:
    operator = Process(Alarm, {"lists": StoreOptions(list[int])}, argument_type=int)
    ran = run(operator, [Given("a", POISON, 0), Given("b", 1, 1), Given("c", 2, 10)])
    assert [(one.key, one.value) for one in ran.results] == [("b", "t1")]
    assert [(one.key, one.timer, one.time, one.value) for one in ran.rejected] == [
        ("a", f"t{POISON}", 2, None)
    ]
    kept = state_decoder(operator.state_type)(ran.states["a"])
    assert (kept.stores.s0["all"][1], kept.event) == ([POISON], {})


def test_a_failing_wall_clock_timer_counts_as_fired_and_changes_nothing() -> None:
    operator = Process(Alarm, {"lists": StoreOptions(list[int])}, argument_type=int)
    ran = run(operator, [Given("a", POISON, 100)])
    state = state_decoder(operator.state_type)(ran.states["a"])
    before = encode_state(state.stores)
    operator.tick(state, "a", 102, 100, ran)
    assert [(one.timer, one.time) for one in ran.rejected] == [(f"t{POISON}", 102)]
    assert (ran.results, state.wall, encode_state(state.stores)) == ([], {}, before)


@pytest.mark.parametrize(
    ("function", "values", "why"),
    [
        (
            Function("sum", Decimal),
            ["99999999999999999999999999999999999999", "1"],
            "more than 38 digits",
        ),
        (Function("avg", Decimal), ["1.5", "9" * 36 + ".8"], "more than 38 digits"),
        (Function("sum", float), [1.7e308, 1.7e308], "larger than any double"),
        (Function("max", int), [1, "two"], "Expected `int | null`, got `str`"),
        (Function("sum", float), [1.0, "NaN"], "Expected `float | null`, got `str`"),
    ],
)
def test_a_sum_that_overflows_rejects_only_the_record(
    function: Function, values: list[Any], why: str
) -> None:
    several = Functions(
        Function("count_distinct", msgspec.Raw), function, Function("collect_list", msgspec.Raw)
    )
    raws = [
        msgspec.Raw(value.encode()) if function.argument is Decimal else value for value in values
    ]
    ran, state = Ran(), Aggregate(several).new_state()
    operator = WindowedAggregate(several, hopping("2 ms", advance="1 ms"))
    for value in raws[:1]:
        operator.process(state, Row("a", to_json([1, value, 1]), 5, 5, 5), ran)
    before, results = encode_state(state), list(ran.results)
    operator.process(state, Row("a", to_json([2, raws[1], 2]), 5, 5, 5), ran)
    assert (encode_state(state), ran.results) == (before, results)
    assert why in ran.rejected[0].why


def test_integers_add_up_exactly_beyond_64_bits() -> None:
    ran = run(Aggregate(Functions(Function("sum", int), Function("avg", int))),
              [Given("a", [2**63 - 1] * 2, 0), Given("a", [2**63 - 1] * 2, 1)], cuts=[1])  # fmt: skip
    assert ran.values[-1] == [2**64 - 2, float(2**63)]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "nan cannot be written"),
        ({"a": [None, float("-inf")]}, "-inf cannot be written"),
        (Decimal("sNaN"), "sNaN cannot be written"),
        ("\ud800", "surrogates not allowed"),
        (object(), "unsupported"),
    ],
)
def test_values_that_json_cannot_represent_are_rejected(value: Any, why: str) -> None:
    declared = Decimal if isinstance(value, Decimal) else Any
    made = Custom(lambda: None, lambda key, so_far, given: value, value_type=declared)
    assert why in run(Aggregate(made), [Given("a", 1, 0)]).rejected[0].why

    class Sends(Author):
        def process(self, record: Record) -> None:
            self.context.forward(record.key, value)

    assert why in run(Process(Sends), [Given("a", 1, 0)]).rejected[0].why

    class Keeps(Author):
        def process(self, record: Record) -> None:
            self.context.store("kept").put("odd", value)

    ran = run(Process(Keeps, {"kept": StoreOptions(declared)}), [Given("a", 1, 0)])
    assert (why in ran.rejected[0].why or "surrogates" in ran.rejected[0].why, ran.states) == (
        True,
        {},
    )


class Price(msgspec.Struct):
    amount: Annotated[Decimal, Digits(12, 2)]


@pytest.mark.parametrize("amount", ["1_000", " 5 ", "+5", "\uff15", "007"])
@pytest.mark.parametrize("returned", [Price, lambda text: {"amount": text}], ids=["struct", "dict"])
def test_a_text_in_an_amounts_place_is_written_as_json_writes_numbers(
    returned: Any, amount: str
) -> None:
    assert Declared(Price).json(returned("7.50")) == '{"amount":7.50}'
    wrong = returned(amount)
    operators: list[Operator[Any]] = [
        Aggregate(
            Custom(lambda: Price(Decimal(0)), lambda key, so_far, value: wrong, value_type=Price)
        ),
        processor(lambda context: context.store("kept").put("x", wrong), Price),
        processor(lambda context: context.forward("k", wrong), Price),
    ]
    for operator in operators:
        (rejection,) = run(operator, [Given("a", 1, 0)]).rejected
        assert f"{amount!r} is not written as a number in JSON - at `$.amount`" in rejection.why


def processor(process: Callable[[Context], None], kind: Any) -> Process:
    class Calls(Author):
        def process(self, record: Record) -> None:
            process(self.context)

    return Process(Calls, {"kept": StoreOptions(kind)}, outputs={"output": kind})


def test_values_of_the_wrong_type_are_rejected_at_once() -> None:
    wrong = Custom(int, lambda key, so_far, value: str(value), value_type=int)
    assert (
        "Expected `int | null`, got `str`"
        in run(Aggregate(wrong), [Given("a", 1, 0)]).rejected[0].why
    )
    large = Custom(int, lambda key, so_far, value: 2**64, value_type=int)
    assert "OverflowError" in run(Aggregate(large), [Given("a", 1, 0)]).rejected[0].why


MISTAKES: dict[str, Callable[[Context], None]] = {
    "Expected `int`, got `str`": lambda context: context.store("n").put("x", "1"),
    "a key of store 'n' must be a str, not int": lambda context: context.store("n").put(1, 1),  # type: ignore[arg-type]
    "can't serialize ints": lambda context: context.store("n").put("x", 2**64),
    "1.5 is not a time in ms": lambda context: context.schedule("t", 1.5),  # type: ignore[arg-type]
    "the name of a timer must be a str, not int": lambda context: context.schedule(1, 5),  # type: ignore[arg-type]
    "clock='walls' must be 'event' or 'wall'": lambda context: context.schedule(
        "t",
        5,
        clock="walls",  # type: ignore[arg-type]
    ),
    "clock='' must be 'event' or 'wall'": lambda context: context.punctuate("t", 5, clock=""),  # type: ignore[arg-type]
    "clock=None must be 'event' or 'wall'": lambda context: context.cancel("t", clock=None),  # type: ignore[arg-type]
    "9223372036854775807 ms is not a time": lambda context: context.forward("k", 1, time=2**63 - 1),
    "-1 ms is not a time in the years 1970 to 9999": lambda context: context.forward(
        "k", 1, time=-1
    ),
    "unknown output 'typo'; the outputs are output": lambda context: context.forward(
        "k", 1, to="typo"
    ),
    "a value of type object cannot be a key": lambda context: context.forward(object(), 1),
    "Expected `int`, got `array`": lambda context: context.forward("k", [1]),
    "contains an integer of more than 64 bits": lambda context: context.forward("k", 2**63),
}


@pytest.mark.parametrize(("why", "mistake"), MISTAKES.items(), ids=MISTAKES)
def test_errors_in_a_processor_reject_the_record(
    why: str, mistake: Callable[[Context], None]
) -> None:
    class Mistaken(Author):
        def process(self, record: Record) -> None:
            self.context.store("n").put("seen", 1)
            mistake(self.context)

    ran = run(
        Process(Mistaken, {"n": StoreOptions(int)}, outputs={"output": int}), [Given("a", 1, 0)]
    )
    assert why in ran.rejected[0].why
    assert (ran.results, ran.states) == ([], {})


def test_a_function_that_exits_rejects_the_record() -> None:
    def leaves(key: str, so_far: int, value: int) -> int:
        raise SystemExit(3)

    assert (
        run(Aggregate(Custom(int, leaves)), [Given("a", 1, 0)]).rejected[0].why == "SystemExit: 3"
    )


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, GeneratorExit, BaseException])
def test_errors_that_reject_no_record_restore_the_state_too(error: type[BaseException]) -> None:
    """The output ends the run for such an error, and needs the record's key for the message."""

    def fails(key: str, so_far: int, value: int) -> int:
        raise error("stop")

    ran = run(Aggregate(Custom(int, fails)), [Given("a", 1, 0)])
    assert (ran.rejected[0].why, ran.rejected[0].key, ran.states) == (
        f"{error.__name__}: stop",
        "a",
        {},
    )
    assert not rejects_record(error())
