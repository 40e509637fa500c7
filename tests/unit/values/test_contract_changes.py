"""A changed contract is compared with the earlier one: which records are rejected now?"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct
from pydantic import BaseModel, Field

from sluice.values.contract_changes import contract_changes
from sluice.values.contract_fields import contract_fields


def changes(before: Any, now: Any) -> dict[str, str]:
    """What has changed → the records that are rejected because of it."""
    found = contract_changes(contract_fields(before), contract_fields(now))
    return {change.text: change.rejected for change in found}


class Line(Struct):
    item: str


class TaxedLine(Struct):
    item: str
    vat: float


class Order(Struct):
    id: int
    lines: list[Line] = []
    note: str | None = None


def test_the_same_fields_are_no_change() -> None:
    assert changes(Order, Order) == {}
    assert changes(str, str) == {}
    assert changes(Any, Any) == {}


def test_a_required_field_rejects_records_without_it() -> None:
    class More(Order, kw_only=True):
        vat: float
        gross: float = 0.0

    assert changes(Order, More) == {
        "the field gross is new and optional": "",
        "the field vat is new and required": "records without it",
    }
    assert changes(More, Order) == {
        "the field gross was removed": "",
        "the field vat was removed": "",
    }


def test_a_field_of_an_object_in_a_list_is_named_by_its_path() -> None:
    class Taxed(Struct):
        id: int
        lines: list[TaxedLine] = []
        note: str | None = None

    assert changes(Order, Taxed) == {
        "the field lines[].vat is new and required": "records without it",
    }


def test_a_field_becomes_stricter() -> None:
    class Strict(Struct):
        id: str
        lines: list[Line]
        note: str = ""

    assert changes(Order, Strict) == {
        "the field id was BIGINT and is STRING": "records whose value does not fit",
        "the field lines was list, optional and is list": "records without it",
        "the field note was STRING or null, optional and is STRING, optional": "records with null",
    }
    assert {*changes(Strict, Order).values()} == {"records whose value does not fit", ""}


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


def test_choices_and_limits() -> None:
    class Few(Struct):
        size: Literal["s", "l"]
        count: Annotated[int, Meta(ge=0)]

    class Many(Struct):
        size: Literal["s", "l", "xl"]
        count: int

    class Named(Struct):
        size: Size
        count: Annotated[int, Meta(ge=0)]

    assert changes(Few, Named) == {}
    assert changes(Few, Many) == {
        'the field size was one of ["l","s"] and is one of ["l","s","xl"]': "",
        "the field count was BIGINT with ge 0 and is BIGINT": "records whose value does not fit",
    }
    narrower = 'the field size was one of ["l","s","xl"] and is one of ["l","s"]'
    assert changes(Many, Few)[narrower] == "records whose value does not fit"


def test_unknown_fields_are_forbidden() -> None:
    class Closed(Order, forbid_unknown_fields=True):
        pass

    class Less(Struct, forbid_unknown_fields=True):
        id: int
        lines: list[Line] = []

    assert changes(Order, Closed) == {
        "the value forbids unknown fields": "records with other fields",
    }
    assert changes(Closed, Less) == {"the field note was removed": "records with it"}


def test_members_of_a_union() -> None:
    class Paid(Struct, tag="paid"):
        id: int

    class Sent(Struct, tag="sent"):
        id: int
        at: str

    class Lost(Struct, tag="lost"):
        id: int

    assert changes(Paid | Sent, Paid | Sent | Lost) == {"values of Lost are new": ""}
    assert changes(Paid | Sent | Lost, Paid | Sent) == {
        "values of Lost are no longer declared": "records with a Lost",
    }


def test_models_of_pydantic() -> None:
    class Model(BaseModel):
        id: int
        note: str = ""

    class Later(BaseModel):
        id: int
        note: str = ""
        vat: float
        tag: str | None = Field(None, alias="Tag")

    assert changes(Model, Later) == {
        "the field Tag is new and optional": "",
        "the field vat is new and required": "records without it",
    }


@pytest.mark.parametrize("contract", [str, Any, Order])
def test_the_fields_are_plain_texts(contract: Any) -> None:
    fields = contract_fields(contract)
    assert fields
    assert all(isinstance(text, str) for text in (*fields, *fields.values()))
