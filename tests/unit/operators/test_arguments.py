"""An author's function may change its arguments and its earlier results: no other call sees that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from sluice import hopping, session, sliding, tumbling
from sluice.operators.aggregation.aggregate import Aggregate, TableAggregate, WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Custom, Functions
from sluice.operators.aggregation.sessions import SessionAggregate
from sluice.operators.aggregation.sliding import SlidingAggregate
from sluice.operators.operator import Operator
from sluice.operators.processor import Context, Record, StoreOptions
from sluice.operators.processor_operator import Process
from tests.unit.operators.feed import Given, run


class Basket(msgspec.Struct):
    items: list[int]


class Sealed(msgspec.Struct, frozen=True):
    """A value that cannot be assigned to, but that holds a list."""

    items: list[int]


SEEN: list[list[int]] = []
"""The lists that functions have been called with, or have returned."""


def spoil(*lists: list[int]) -> None:
    """Change these lists, and those of all earlier calls."""
    SEEN.extend(lists)
    for each in SEEN:
        each.append(99)


def items_of(value: Any) -> list[int]:
    return value["items"] if isinstance(value, dict) else value.items  # type: ignore[no-any-return]


def adds(key: str, so_far: Any, value: Any) -> Any:
    made = Basket(items_of(so_far) + items_of(value))
    return msgspec.to_builtins(made) if isinstance(so_far, dict) else type(so_far)(made.items)


def takes_out(key: str, so_far: Any, value: Any) -> Any:
    left = [item for item in items_of(so_far) if item not in items_of(value)]
    return {"items": left} if isinstance(so_far, dict) else type(so_far)(left)


def spoiling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call the function, then change its arguments and all lists of earlier calls."""

    def call(key: str, *arguments: Any) -> Any:
        result = msgspec.json.decode(
            msgspec.json.encode(function(key, *arguments)), type=type(arguments[0])
        )
        spoil(*map(items_of, arguments))
        SEEN.append(items_of(result))
        return result

    return call


def record_by_record(spoils: bool) -> Callable[[], Any]:
    class Author:
        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            baskets = self.context.store("baskets")
            basket = baskets.get("all", Basket([]))
            basket.items.extend(record.value.items)
            baskets.put("all", basket)
            baskets.put("first", Basket([*record.value.items]))
            self.context.forward(
                record.key, [*basket.items, *(each.items for _, each in baskets.items())]
            )
            if spoils:
                spoil(
                    basket.items, record.value.items, *(each.items for _, each in baskets.items())
                )

    return Author


Make = Callable[[bool, Any], Operator[Any]]


def custom(spoils: bool, kind: Any, *, reduces: bool = False) -> Custom:
    adder, subtractor, merger = (
        spoiling(each) if spoils else each for each in (adds, takes_out, adds)
    )
    empty: Any = {"items": []} if kind is Any else kind([])
    return Custom(None if reduces else lambda: empty, adder, subtractor, merger, kind, kind)


OPERATORS: dict[str, Make] = {
    "aggregate": lambda spoils, kind: Aggregate(custom(spoils, kind), sends_old_values=True),
    "reduce": lambda spoils, kind: Aggregate(custom(spoils, kind, reduces=True)),
    "table": lambda spoils, kind: TableAggregate(custom(spoils, kind), sends_old_values=True),
    "tumbling": lambda spoils, kind: WindowedAggregate(custom(spoils, kind), tumbling("4 ms")),
    "hopping": lambda spoils, kind: WindowedAggregate(
        custom(spoils, kind), hopping("4 ms", advance="1 ms")
    ),
    "hopping reduce": lambda spoils, kind: WindowedAggregate(
        custom(spoils, kind, reduces=True), hopping("4 ms", advance="1 ms"), sends_old_values=True
    ),
    "sliding": lambda spoils, kind: SlidingAggregate(
        custom(spoils, kind), sliding("3 ms", "9 ms"), sends_old_values=True
    ),
    "sliding reduce": lambda spoils, kind: SlidingAggregate(
        custom(spoils, kind, reduces=True), sliding("3 ms")
    ),
    "session": lambda spoils, kind: SessionAggregate(
        custom(spoils, kind), session("2 ms", "9 ms"), sends_old_values=True
    ),
    "process": lambda spoils, kind: Process(
        record_by_record(spoils), {"baskets": StoreOptions(Basket)}, argument_type=Basket
    ),
}


@pytest.mark.parametrize(
    "kind", [Basket, Sealed, Any], ids=["struct", "frozen struct with a list", "undeclared"]
)
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4]], ids=["one batch", "a batch per record"])
@pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)
def test_changed_arguments_spoil_no_other_call(make: Make, cuts: Sequence[int], kind: Any) -> None:
    rows = [
        Given("a", {"items": [1]}, 10, foreign="x"),
        Given("a", {"items": [2]}, 11, foreign="y"),
        Given("a", {"items": [1]}, 12, old=make is OPERATORS["table"], foreign="x"),
        Given("b", {"items": [4]}, 14, foreign="z"),
        Given("a", {"items": [5]}, 13, foreign="x"),
    ]
    SEEN.clear()
    spoilt, right = run(make(True, kind), rows, cuts), run(make(False, kind), rows, cuts)
    assert not spoilt.rejected
    assert (spoilt.results, spoilt.states) == (right.results, right.states)


def test_a_store_keeps_what_was_put_and_hands_out_copies() -> None:
    class Author:
        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            one, other = self.context.store("one"), self.context.store("other")
            shared = [1]
            one.put("a", shared)
            shared.append(2)
            one.put("b", shared)
            other.put("c", shared)
            one.get("a", []).append(3)
            for name, value in one.items():
                value.append(len(name))
            self.context.forward(None, [one.get("a"), one.get("b"), other.get("c")])

    stores = {"one": StoreOptions(list[int]), "other": StoreOptions()}
    assert run(Process(Author, stores), [Given("k", 1, 0)]).values == [[[1], [1, 2], [1, 2]]]


def test_windows_share_the_decoded_arguments_of_sql_functions() -> None:
    several = Functions(Function("collect_list", msgspec.Raw), Function("count"))
    text = '[{"n":1},null]'
    assert several.read(text) is several.read(text)
    assert several.read('[{"n":2},null]') == ['{"n":2}', None]
    assert several.read(None) == (None, None)
