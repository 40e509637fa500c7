"""A value is checked against the recorded fields of a contract."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Struct

from sluice import Digits
from sluice.values.contract_check import problems_of
from sluice.values.contract_fields import contract_fields

pytestmark = pytest.mark.unit


class Line(Struct):
    item: str
    count: int


class Order(Struct, forbid_unknown_fields=True):
    id: int
    kind: Literal["GENERAL", "RESTAURANT"]
    amount: Annotated[Decimal, Digits(6, 2)]
    at: datetime
    lines: list[Line]
    rates: dict[str, float] = {}
    note: str | None = None


RIGHT = {
    "id": 7,
    "kind": "GENERAL",
    "amount": 12.5,
    "at": "2026-11-21T12:00:00",
    "lines": [{"item": "tea", "count": 1}],
    "rates": {"vat": 0.2},
}


def check(**changed: object) -> list[tuple[str, str]]:
    text = msgspec.json.encode(RIGHT | changed).decode()
    problems = problems_of(contract_fields(Order), text)
    return [(problem.path, problem.detail) for problem in problems]


def test_a_right_value_has_no_problems() -> None:
    assert check() == []
    assert check(note=None) == []
    assert check(amount="9999.99") == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"id": "7"}, ("id", "Expected a BIGINT, got a text")),
        ({"id": True}, ("id", "Expected a BIGINT, got a boolean")),
        ({"id": 2**63}, ("id", f"{2**63} is out of the range of BIGINT")),
        ({"id": None}, ("id", "Expected a BIGINT, got null")),
        ({"kind": "OTHER"}, ("kind", 'Expected one of ["GENERAL","RESTAURANT"], got "OTHER"')),
        ({"amount": 1.234}, ("amount", "1.234 has 3 decimal places, but DECIMAL(6,2) has 2")),
        ({"amount": 10_000}, ("amount", "10000 has more digits than DECIMAL(6,2)")),
        ({"amount": "much"}, ("amount", '"much" is not a number')),
        ({"at": "noon"}, ("at", '"noon" is not a TIMESTAMP in ISO 8601')),
        ({"lines": {}}, ("lines", "Expected a list, got an object")),
        ({"lines": [{"item": "tea"}]}, ("lines[0].count", "The field is missing")),
        ({"lines": [RIGHT["lines"], {}]}, ("lines[0]", "Expected an object, got a list")),
        ({"rates": {"vat": "x"}}, ("rates.vat", "Expected a DOUBLE, got a text")),
        ({"extra": 1}, ("extra", "The contract does not name this field")),
    ],
)
def test_a_problem_names_its_place(changed: dict[str, object], problem: tuple[str, str]) -> None:
    assert check(**changed)[0] == problem


@pytest.mark.parametrize("text", ["", "{", '{"id": NaN}', "[" * 100_000])
def test_what_is_not_json_has_one_problem(text: str) -> None:
    (problem,) = problems_of(contract_fields(Order), text)
    assert problem.path == ""


def test_a_value_that_is_no_object_has_one_problem() -> None:
    assert problems_of(contract_fields(Order), "[1]") == [("", "Expected an object, got a list")]
