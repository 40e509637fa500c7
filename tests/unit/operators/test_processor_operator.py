"""Processors (stores, timers, outputs) and deduplication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sluice.operators.base import Row
from sluice.operators.deduplicate import Deduplicate
from sluice.operators.processor import Context, Processor, Record, StoreOptions, Timer
from sluice.operators.processor_operator import Process
from tests.unit.operators.feed import Given, Ran, run


class Totals(msgspec.Struct):
    total: int


class Author:
    """A processor that calls one function for records and one for timers."""

    def __init__(self, record: Any, timer: Any = None) -> None:
        self.record, self.timer = record, timer

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        self.record(self.context, record)

    def on_timer(self, timer: Timer) -> None:
        self.timer(self.context, timer)


def process(record: Any, timer: Any = None, **stores: StoreOptions) -> Process:
    return Process(lambda: Author(record, timer), stores)


def points(context: Context, record: Record) -> None:
    store = context.store("points")
    total = store.get("total", 0) + record.value
    store.put("total", total)
    context.forward(record.key, {"total": total})


def test_a_store_belongs_to_the_records_key_and_lasts_across_batches() -> None:
    rows = [Given("a", 1, 0), Given("b", 5, 1), Given("a", 2, 2)]
    ran = run(process(points, points=StoreOptions(int)), rows, cuts=[1, 2])
    assert [(result.key, result.value) for result in ran.results] == [
        ("a", {"total": 1}),
        ("b", {"total": 5}),
        ("a", {"total": 3}),
    ]


@pytest.mark.parametrize("cuts", [[], [1]])
def test_a_store_returns_the_same_value_within_a_batch_as_in_the_next(cuts: list[int]) -> None:
    def record(context: Context, record: Record) -> None:
        typed, plain = context.store("typed"), context.store("plain")
        context.forward(record.key, [type(store.get("x")).__name__ for store in (typed, plain)])
        typed.put("x", {"total": 1})
        plain.put("x", (1, 2))

    stores = {"typed": StoreOptions(Totals), "plain": StoreOptions()}
    ran = run(process(record, **stores), [Given("a", 1, 0), Given("a", 2, 1)], cuts)
    assert ran.values == [["NoneType", "NoneType"], ["Totals", "list"]]


def test_an_undeclared_store_keeps_only_values_that_it_gives_back() -> None:
    ran = run(
        process(lambda context, record: context.store("s").put("x", {1}), s=StoreOptions()),
        [Given("a", 1, 0)],
    )
    assert (
        ran.rejected[0].why
        == "TypeError: a value of type set needs a declared type: stores={'s': ...}"
    )


def test_items_by_key_and_prefix_omit_deleted_ones() -> None:
    def record(context: Context, record: Record) -> None:
        store = context.store("seen")
        for name in ("b1", "a2", "a1", "a3"):
            store.put(name, name)
        store.delete("a3")
        store.delete("never there")
        context.forward(None, [list(store.items("a")), store.get("a3")])

    assert run(process(record, seen=StoreOptions(str)), [Given("k", 1, 0)]).values == [
        [[["a1", "a1"], ["a2", "a2"]], None]
    ]


def test_items_omit_those_deleted_during_the_iteration() -> None:
    def record(context: Context, record: Record) -> None:
        store = context.store("seen")
        for name in ("a1", "a2", "a3"):
            store.put(name, name)
        names = []
        for name, _ in store.items(""):
            names.append(name)
            store.delete("a2")
        context.forward(None, names)

    assert run(process(record, seen=StoreOptions(str)), [Given("k", 1, 0)]).values == [["a1", "a3"]]


@pytest.mark.parametrize(("time", "there"), [(10, 1), (11, None)])
def test_an_entry_lives_for_its_ttl_whatever_the_batches(time: int, there: int | None) -> None:
    def record(context: Context, record: Record) -> None:
        if record.value == "put":
            context.store("s").put("x", 1)
        else:
            context.forward(
                None, [context.store("s").get("x"), len(list(context.store("s").items()))]
            )

    rows = [Given("k", "put", 0), Given("other", "look", time), Given("k", "look", 3)]
    for cuts in ([], [1, 2]):
        ran = run(process(record, s=StoreOptions(int, ttl=10)), rows, cuts)
        assert ran.values[-1] == [there, there or 0]
    assert ("k" in ran.states) == (there is not None)


def test_records_go_to_named_outputs() -> None:
    def record(context: Context, record: Record) -> None:
        context.forward("x", record.value, to="big" if record.value > 9 else "output", time=99)

    ran = run(process(record), [Given("k", 1, 0), Given("k", 10, 0)])
    assert ran.outputs == {"output": 1, "big": 1}
    assert {result.time for result in ran.results} == {99}


def once(context: Context, record: Record) -> None:
    context.forward(record.key, record.value)
    if record.value == "set":
        context.schedule("t", record.time + 10)
    if record.value == "cancel":
        context.cancel("t")


def told(context: Context, timer: Timer) -> None:
    context.forward(timer.key, f"{timer.name} {timer.time}")


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3]])
def test_an_event_timer_fires_when_stream_time_reaches_it(cuts: list[int]) -> None:
    rows = [Given("a", "set", 0), Given("b", "x", 10), Given("a", "y", 11)]
    ran = run(process(once, told), rows, cuts)
    assert [(result.value, result.time) for result in ran.results if result.key == "a"] == [
        ("set", 0),
        ("t 10", 10),
        ("y", 11),
    ]


def test_a_timer_fires_after_the_record_that_advances_time() -> None:
    assert run(process(once, told), [Given("a", "set", 0), Given("a", "y", 10)]).values == [
        "set",
        "y",
        "t 10",
    ]


def test_a_cancelled_timer_does_not_fire() -> None:
    rows = [Given("a", "set", 0), Given("a", "cancel", 5), Given("a", "y", 50)]
    assert run(process(once, told), rows).values == ["set", "cancel", "y"]


@pytest.mark.parametrize("cuts", [[], [1, 2]])
def test_a_repeated_timer_fires_for_every_passed_time(cuts: list[int]) -> None:
    def record(context: Context, record: Record) -> None:
        if record.value:
            context.schedule("tick", 10, every=10)

    assert run(
        process(record, told), [Given("a", True, 0), Given("b", False, 35)], cuts
    ).values == [
        "tick 10",
        "tick 20",
        "tick 30",
    ]


def test_a_wall_clock_timer_fires_once_per_run() -> None:
    def record(context: Context, record: Record) -> None:
        context.schedule("tick", 100, every=10, clock="wall")

    operator, ran = process(record, told), Ran()
    state = operator.new_state()
    operator.process(state, Row("a", "1", 0, -1, 0), ran)
    assert operator.wall_due(state) == 100
    operator.tick(state, "a", 99, 0, ran)
    operator.tick(state, "a", 135, 0, ran)
    assert ran.values == ["tick 100"]
    assert operator.wall_due(state) == 140


def test_values_have_the_declared_type_and_null_is_none() -> None:
    seen: list[Any] = []
    operator = Process(
        lambda: Author(lambda context, record: seen.append(record.value)), argument_type=list[int]
    )
    run(operator, [Given("a", [1], 0), Given("a", None, 0)])
    assert seen == [[1], None]


USES_OF_A_KEY: dict[str, Callable[[Context], object]] = {
    "get": lambda context: context.store("points").get("total"),
    "put": lambda context: context.store("points").put("total", 1),
    "delete": lambda context: context.store("points").delete("total"),
    "items": lambda context: list(context.store("points").items()),
    "timer": lambda context: context.schedule("tick", 100),
    "wall timer": lambda context: context.schedule("tick", 100, clock="wall"),
}


@pytest.mark.parametrize("name", USES_OF_A_KEY)
def test_a_record_without_a_key_is_processed_but_has_no_state(name: str) -> None:
    def record(context: Context, record: Record) -> None:
        context.cancel("tick")
        context.forward(record.key, [context.key, record.value, context.stream_time])
        if record.value == "use":
            USES_OF_A_KEY[name](context)

    operator = process(record, told, points=StoreOptions(int))
    ran = run(
        operator,
        [Given("a", "use", 0), Given(None, 1, 7), Given(None, "use", 8), Given(None, 2, 9)],
    )
    assert [(result.key, result.value[1]) for result in ran.results] == [
        ("a", "use"),
        (None, 1),
        (None, 2),
    ]
    (rejection,) = ran.rejected
    assert "ValueError: " in rejection.why
    assert "the record has no key" in rejection.why
    assert ran.dropped == {}


def test_a_call_whose_code_does_not_run_rejects_the_record() -> None:
    class Hidden(Author):
        def process(self, record: Record) -> Any:
            return (self.context.store(name) for name in "a")

    (rejection,) = run(Process(lambda: Hidden(None)), [Given("a", 1, 0)]).rejected
    assert rejection.why == "TypeError: the function returned a generator, so its code did not run"


class Silent:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        self.context.schedule("t", 0)


def asks_for_a_store(context: Context, record: Record) -> None:
    context.store("nothing")


def asks_for_a_delay(context: Context, record: Record) -> None:
    context.schedule("t", -60_000)


def repeats_backwards(context: Context, record: Record) -> None:
    context.schedule("t", 1, every=-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Author(asks_for_a_store), "TopologyError: The processor has no store 'nothing'"),
        (lambda: Author(asks_for_a_delay), "ValueError: timer 't': -60000 is before 1970"),
        (lambda: Author(repeats_backwards), "ValueError: timer 't': every=-1 must be at least 0"),
        (Silent, "TypeError: a processor that sets timers needs a method on_timer"),
    ],
)
def test_mistakes_of_a_processor_are_reported(make: Any, message: str) -> None:
    made: Processor = make()
    (rejection,) = run(Process(lambda: made), [Given("a", 1, 0)]).rejected
    assert rejection.why.startswith(message)


def test_a_delay_instead_of_a_timers_time_rejects_the_record() -> None:
    def record(context: Context, record: Record) -> None:
        context.schedule("t", 60_000)

    ran = run(process(record, told), [Given("a", 1, 1_700_000_000_000)])
    assert [rejection.why.partition(";")[0] for rejection in ran.rejected] == [
        "ValueError: timer 't': 60000 is before 1700000000000, the current event time"
    ]
    assert ran.results == []


def test_stores_may_be_added_and_removed_between_runs() -> None:
    ran = run(process(points, gone=StoreOptions(), points=StoreOptions(int)), [Given("a", 3, 0)])
    operator = process(points, points=StoreOptions(int), added=StoreOptions(str))
    state = msgspec.msgpack.decode(ran.states["a"], type=operator.state_type)
    operator.process(state, Row("a", "4", 1, 0, 1), ran)
    assert ran.values == [{"total": 3}, {"total": 7}]


def record(id_: str | None, time: int, value: str = "v") -> Given:
    return Given(id_, value, time, foreign="own key")


@pytest.mark.parametrize(("time", "passed"), [(100, 1), (110, 1), (111, 2)])
def test_the_first_record_of_an_id_passes(time: int, passed: int) -> None:
    ran = run(Deduplicate(10), [record("x", 100), record("x", time)], cuts=[1])
    assert len(ran.results) == passed
    assert ran.dropped["duplicate"] == 2 - passed


def test_a_duplicate_does_not_extend_the_time() -> None:
    assert len(run(Deduplicate(10), [record("x", 0), record("x", 8), record("x", 16)]).results) == 2


def test_an_id_is_forgotten_once_stream_time_passes_it() -> None:
    ran = run(Deduplicate(10), [record("x", 100), record("y", 111), record("x", 95)])
    assert len(ran.results) == 3
    assert not run(
        Deduplicate(10), [record("x", 0), record(None, 9), record("y", 11)]
    ).states.keys() - {"y"}


def test_a_record_keeps_its_key_and_passes_without_an_id() -> None:
    ran = run(Deduplicate(10), [record(None, 0), record(None, 0)])
    assert [(result.key, result.value) for result in ran.results] == [("own key", "v")] * 2
