"""Plain values skip checks, so they must be values that every check accepts and that are read back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.operators.aggregation.aggregate import Aggregate
from sluice.operators.aggregation.calculation import Custom
from sluice.operators.encoding import Declared, encode_state, plain_texts, state_decoder
from sluice.operators.plain_values import plain_check
from sluice.operators.processor import Context, Record, StoreOptions
from sluice.operators.processor_operator import Process
from tests.unit.operators.feed import Given, run, run_in_columns


class Total(msgspec.Struct):
    count: int
    name: str | None = None
    mean: float = 0.0
    is_final: bool = False


class Short(msgspec.Struct, array_like=True, omit_defaults=True, tag="short"):
    count: int = 0


class WithTags(msgspec.Struct):
    tags: list[str]


class Checked(msgspec.Struct):
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("a count is not negative")


PLAIN: dict[str, tuple[Any, Any]] = {
    "integer": (int, -(2**63)),
    "float": (float, 0.1),
    "text": (str, "a" * 50_000),
    "optional": (int | None, None),
    "integer without a type": (Any, 2**63 - 1),
    "Struct": (Total, Total(1, "a", 1.5, True)),
    "Struct written as a list": (Short, Short(0)),
}
NOT_PLAIN: dict[str, tuple[Any, Any]] = {
    "too large for 64 bits": (int, 2**63),
    "Boolean in place of an integer": (int, True),
    "integer in place of a float": (float, 1),
    "NaN": (float, float("nan")),
    "infinity in a Struct": (Total, Total(1, mean=float("inf"))),
    "half of a pair of surrogates": (str, "\ud800"),
    "text of more than 50,000 characters": (str, "a" * 50_001),
    "null without a type": (Any, None),
    "Decimal": (Decimal, Decimal(1)),
    "list": (list[int], [1]),
    "Struct with a list": (WithTags, WithTags([])),
    "Struct with code of its own": (Checked, Checked(1)),
    "integer with a condition": (Annotated[int, msgspec.Meta(ge=0)], 1),
    "dict in place of a Struct": (Total, {"count": 1}),
    "Struct with a field of another type": (Total, Total("1")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_value_needs_no_other_check(name: str) -> None:
    kind, value = PLAIN[name]
    assert plain_check(kind)(value)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_any_other_value_is_not_plain(name: str) -> None:
    kind, value = NOT_PLAIN[name]
    assert not plain_check(kind)(value)


def test_a_subclass_is_not_plain() -> None:
    class Larger(Total):
        more: int = 0

    assert not plain_check(Total)(Larger(1))
    assert not plain_check(int)(type("Number", (int,), {})(1))


def outcome(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except Exception as error:
        return type(error), str(error)


numbers = st.one_of(st.integers(-(2**64), 2**64), st.floats(), st.booleans(), st.none())
texts = st.one_of(
    st.text(max_size=3),
    st.just("\ud800"),
    st.just('"\n'),
    st.text("0123456789", min_size=38, max_size=42),
)
values = st.one_of(
    numbers, texts, st.builds(Total, numbers, texts, numbers, numbers), st.builds(Short, numbers)
)


@pytest.mark.parametrize("kind", [int, float, bool, str, int | None, str | None, Any, Total, Short])
@given(value=values)
def test_values_have_the_same_text_with_and_without_checks(kind: Any, value: Any) -> None:
    declared, checking = Declared(kind), Declared(kind)
    checking.is_plain = lambda _: False
    assert outcome(declared.json, value) == outcome(checking.json, value)
    if declared.is_plain(value):
        assert declared.typed_texts([value, value]) == [checking.typed_json(value)] * 2
        read = state_decoder(kind)(encode_state(value))
        assert (type(read), read) == (type(value), value)


def test_texts_of_many_values() -> None:
    assert plain_texts([1, "a\nb\u2028", {"k": None}]) == ["1", '"a\\nb\u2028"', '{"k":null}']
    assert plain_texts([]) == []


SHARED = Total(0)


def add_to_shared(key: str, total: Total, value: int) -> Total:
    # A function that modifies and returns one object for all keys.
    SHARED.count = total.count + value
    return SHARED


@pytest.mark.parametrize("only_last", [False, True])
def test_keys_do_not_share_an_object_that_a_function_returns_for_all_of_them(
    only_last: bool,
) -> None:
    made = [Given("ab"[number % 2], 1 + 9 * (number % 2), number) for number in range(6)]
    for runs, cuts in ((run, {1, 2}), (run_in_columns, {3}), (run_in_columns, {*()})):
        function = Custom(lambda: Total(0), add_to_shared, value_type=Total)
        results = runs(Aggregate(function, only_last=only_last), made, cuts).results
        assert {result.key: result.value["count"] for result in results} == {"a": 3, "b": 30}


class Keeping:
    """Modifies the objects that it has put into its store and got from it."""

    def init(self, context: Context) -> None:
        self.context, self.totals = context, context.store("totals")

    def process(self, record: Record[int]) -> None:
        total = self.totals.get("total") or Total(0)
        total.count += record.value
        self.context.forward(record.key, self.totals.get("total"))
        self.totals.put("total", total)
        total.count = 1_000


def test_a_store_keeps_copies_of_structs() -> None:
    made = [Given("k", number, number) for number in (1, 2, 3)]
    for runs in (run, run_in_columns):
        results = runs(
            Process(Keeping, {"totals": StoreOptions(Total)}, argument_type=int), made
        ).results
        assert [result.value and result.value["count"] for result in results] == [None, 1, 3]
