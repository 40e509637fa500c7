"""A value that Spark would read back as null, or rounded, is rejected where a function returns or a topic has it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct, field

from sluice import Decimal2
from sluice.operators.aggregation.calculation import Custom
from sluice.operators.encoding import Declared
from sluice.values.json_limits import (
    LONGEST_NAME,
    LONGEST_STRING,
    Amounts,
    refuse_long_strings,
    require_time,
)

EAST, WEST = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))


class Line(Struct):
    amount: Decimal2
    count: int = 1


class Bill(Struct):
    total: Decimal2
    lines: list[Line] = []
    by_shop: dict[str, Decimal2] = field(default_factory=dict, name="byShop")
    paid: datetime | None = None
    rest: Decimal2 | None = None


FINE = Decimal("1.50")


@pytest.mark.parametrize(
    ("bill", "message"),
    [
        (
            Bill(Decimal("12345678901234.50")),
            r"\$.total: 12345678901234.50 is not a decimal\(12,2\)",
        ),
        (Bill(Decimal("1.239")), r"\$.total: 1.239 is not"),
        (Bill(FINE, [Line(FINE), Line(Decimal("0.001"))]), r"\$.lines\[...\].amount: 0.001 is not"),
        (Bill(FINE, by_shop={"a": Decimal("1E+10")}), r"\$.byShop\[...\]: 1E\+10 is not"),
        (Bill(FINE, rest=Decimal("9" * 500)), r"\$.rest: 9{40}… is not"),
        (Bill("NaN"), "NaN is not"),  # type: ignore[arg-type]
        (Bill(Decimal("1." + "0" * 1001)), "is not"),
        (Bill(FINE, [Line(FINE, 2**63)]), "64 bits"),
        (
            Bill(FINE, paid=datetime(9999, 12, 31, 23, tzinfo=WEST)),
            r"\$.paid: 9999-12-31T23:00:00-05:00 is outside",
        ),
        (Bill(FINE, paid=datetime(1, 1, 1, tzinfo=EAST)), "is outside the years 1 to 9999 in UTC"),
    ],
)
def test_a_result_that_does_not_fit_is_rejected(bill: Bill, message: str) -> None:
    with pytest.raises((ValueError, OverflowError), match=message) as error:
        Declared(Bill).json(bill)
    assert len(str(error.value)) < 200
    with pytest.raises((ValueError, OverflowError, msgspec.ValidationError)):
        of_aggregate(Bill, bill)


def test_spark_reads_no_offset_of_more_than_18_hours() -> None:
    with pytest.raises(ValueError, match="offset of more than 18 hours"):
        Declared(datetime).json(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=19))))


def of_aggregate(kind: Any, aggregate: Any) -> str | None:
    calculation = Custom(lambda: None, lambda key, old, new: aggregate, value_type=kind)
    return calculation.result(calculation.add("k", None, 1))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Bill, Bill(FINE, [Line(Decimal("9999999999.99"))]),
         '{"total":1.50,"lines":[{"amount":9999999999.99,"count":1}],"byShop":{},"paid":null,"rest":null}'),
        (Line, {"amount": "2.50"}, '{"amount":2.50,"count":1}'),
        (list[Line], [{"amount": "2.50"}], '[{"amount":2.50,"count":1}]'),
        (Decimal2, Decimal("1.2300"), "1.2300"),
        (Decimal2 | None, Decimal("-0.01"), "-0.01"),
        (datetime, datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), '"9999-12-31T23:59:59.999999Z"'),
        (datetime, datetime(1, 1, 1), '"0001-01-01T00:00:00.000000Z"'),
        (int, 2**63 - 1, "9223372036854775807"),
    ],
)  # fmt: skip
def test_a_result_becomes_the_json_of_its_type(kind: Any, value: Any, text: str) -> None:
    assert Declared(kind).json(value) == text
    if not isinstance(value, dict | list):
        assert of_aggregate(kind, value) == text


class Short(Struct, omit_defaults=True):
    count: int = 0
    inner: Line | None = None


class Pair(Struct, array_like=True):
    left: int
    right: Short


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Short, Short(), '{"count":0,"inner":null}'),
        (Pair, Pair(1, Short(2)), '{"left":1,"right":{"count":2,"inner":null}}'),
        (dict[str, Short], {"a": Short(3)}, '{"a":{"count":3,"inner":null}}'),
    ],
)
def test_a_result_has_all_fields_although_its_type_leaves_out_defaults_or_names(
    kind: Any, value: Any, text: str
) -> None:
    assert Declared(kind).json(value) == text == of_aggregate(kind, value)


class Totals(Struct):
    by_shop: dict[str, int] | None = None
    parts: list[dict[str, Line]] = []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, int], {1: 2, "1": 3}),
        (Totals, Totals({1: 2, "1": 3})),  # type: ignore[dict-item]
        (Totals, {"parts": [{date(2026, 1, 1): Line(FINE), "2026-01-01": Line(FINE)}]}),
    ],
)
def test_a_result_with_two_keys_of_the_same_name_is_rejected(kind: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="two keys of a dict have the same name in JSON"):
        Declared(kind).json(value)
    assert Declared(dict[str, int]).json({1: 2, 3: 4}) == '{"1":2,"3":4}'


@pytest.mark.parametrize(
    "value",
    [
        Decimal("1" * 39),
        Decimal("1" * 1001),
        {"a": [Decimal("1.23456789012345678901E-10")]},
        Line(Decimal("0." + "1" * 39)),
        {"k" * 50_001: 1},
        "x" * 20_000_001,
        [["x" * 19_000_000] * 3],
        json.loads("[" * 101 + "]" * 101),
        [{"a": {1: "x", "1": "y"}}],
        10**38 + 1,
        {"n": [-(7**400)]},
    ],
    ids=[
        "39 digits",
        "1001 digits",
        "exponent",
        "decimals",
        "name",
        "string",
        "size",
        "depth",
        "equal names",
        "integer",
        "list",
    ],
)
def test_a_result_without_a_declared_type_is_rejected_if_spark_cannot_store_it_exactly(
    value: Any,
) -> None:
    with pytest.raises(
        ValueError, match=r"digits|characters|declared type|nested|same name"
    ) as error:
        Declared(Any).json(value)
    assert len(str(error.value)) < 200
    with pytest.raises(
        (ValueError, TypeError, OverflowError),
        match=r"characters|declared type|nested|same name|can't serialize ints",
    ):
        of_aggregate(Any, value)


@pytest.mark.parametrize(
    "value",
    [Decimal("1" * 38), Decimal("1.5E-10"), Decimal("1E+300"), 5e-324, 1.2345678901234567e300, 2**64 - 1, 10**38 - 1,
     {"id": "1" * 50, "price": Decimal("2.5")}, {"k" * 50_000: 1}, "x" * 20_000_000, {1: 2, 3: 4}],
    ids=range(11),
)  # fmt: skip
def test_other_results_without_a_declared_type_are_kept(value: Any) -> None:
    assert json.loads(Declared(Any).json(value), parse_float=Decimal) is not None


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"%s":1}' % ("k" * LONGEST_NAME), True),
        ('{"%s":1}' % ("k" * (LONGEST_NAME + 1)), False),
        ('{"%s"  : 1}' % ("k" * (LONGEST_NAME + 1)), False),
        ('{"a":"%s"}' % ("k" * (LONGEST_NAME + 1)), True),
        ('{"a":"%s"}' % ("k" * (LONGEST_STRING + 1)), False),
        ('{"a":"%s"}' % ('\\"' * LONGEST_NAME + "k" * LONGEST_STRING), False),
        ('{"%s":1}' % ("\\n" * LONGEST_NAME), True),
        ('{"%s":1}' % ('\\"\\\\' * (LONGEST_NAME // 2)), True),
        ('{"%s":1}' % ('\\"\\\\' * (LONGEST_NAME // 2) + "k"), False),
        ('{"%s":1}' % ("é" * LONGEST_NAME), True),
        ('{"%s":1}' % ("😀" * (LONGEST_NAME // 2)), True),
        ('{"%s":1}' % ("😀" * (LONGEST_NAME // 2) + "k"), False),
        ("[" + "12," * LONGEST_NAME + "1]", True),
        ('["a",' + "12," * LONGEST_NAME + '"b:"]', True),
        ('{"a":[' + "12," * LONGEST_NAME + '1],"%s":1}' % ("k" * (LONGEST_NAME + 1)), False),
    ],
    ids=range(15),
)
def test_strings_and_names_have_the_limits_of_java(text: str, fits: bool) -> None:
    if fits:
        refuse_long_strings(text.encode())
    else:
        with pytest.raises(ValueError, match="characters") as error:
            refuse_long_strings(text.encode())
        assert len(str(error.value)) < 200


@given(
    st.lists(
        st.decimals(allow_nan=True, allow_infinity=True)
        | st.decimals(-20_000, 20_000, places=2)
        | st.decimals(-20_000, 20_000, places=0).map(
            lambda amount: amount.scaleb(-2) * Decimal("1.000")
        ),
        max_size=3,
    )
)
@example([Decimal("7.72494492966110701419525414426E-12")])  # Arrow converts it to 0.00
@example([Decimal("9999.99"), Decimal("9999.99")])
@example([Decimal("9999.990"), Decimal("1E3"), Decimal("0.000")])
def test_amounts_fit_if_neither_their_fraction_nor_their_size_changes(
    amounts: list[Decimal],
) -> None:
    def fits(amount: Decimal) -> bool:
        return (
            amount.is_finite()
            and abs(amount) < 10_000
            and (Fraction(amount) * 100).denominator == 1
        )

    def is_accepted(amount: Decimal) -> bool:
        try:
            Amounts(6, 2).require(amount, "$")
        except ValueError:
            return False
        return True

    assert [*map(is_accepted, amounts)] == [*map(fits, amounts)]
    if Amounts(6, 2).surely_include(amounts):
        assert all(map(fits, amounts))


@pytest.mark.parametrize(
    ("time", "zone", "fits"),
    [
        (datetime(9999, 12, 31, 23), "America/New_York", False),
        (datetime(9999, 12, 31, 23), "Europe/Berlin", True),
        (datetime(1, 1, 1), "Europe/Berlin", False),
        (datetime(1, 1, 1), "UTC", True),
        (datetime(1, 1, 1, tzinfo=WEST), "Europe/Berlin", True),
    ],
)
def test_a_time_without_a_zone_is_in_the_pipelines_zone(
    time: datetime, zone: str, fits: bool
) -> None:
    if fits:
        require_time(time, "$", ZoneInfo(zone))
    else:
        with pytest.raises(ValueError, match="outside the years"):
            require_time(time, "$", ZoneInfo(zone))
