"""Contracts become Spark SQL types; errors name the unsupported field."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from msgspec import UNSET, Meta, Struct, UnsetType

from sluice import Context, Decimal2, Pipeline, Record
from sluice.errors import TopologyError
from sluice.values.contract_parts import parts_of, quote_counter
from sluice.values.contract_values import needs_plain_data
from sluice.values.contracts import Digits, field_reader, field_types, fields, sql_type


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    ONE = 1
    TWO = "two"


class Part(Struct, rename="kebab"):
    part_no: int
    price: Decimal2 | None


class Everything(Struct, rename={"order_id": "order-id"}):
    order_id: int
    text: str
    yes: bool
    ratio: float
    when: datetime
    day: date
    raw: bytes
    colour: Colour
    level: Level
    kind: Literal["a", "b"]
    size: Literal[1, 2]
    price: Annotated[Decimal, Digits(9, 3)]
    tags: list[str]
    pair: tuple[int, ...]
    unique: set[str]
    part: Part
    parts: list[Part]
    by_name: dict[str, Part]
    perhaps: int | None = None


def test_fields_have_spark_sql_types_under_their_names_in_the_json() -> None:
    part = "STRUCT<`part-no`: BIGINT, price: DECIMAL(12,2)>"
    assert fields(Everything) == {
        "order-id": "BIGINT",
        "text": "STRING",
        "yes": "BOOLEAN",
        "ratio": "DOUBLE",
        "when": "TIMESTAMP",
        "day": "DATE",
        "raw": "BINARY",
        "colour": "STRING",
        "level": "BIGINT",
        "kind": "STRING",
        "size": "BIGINT",
        "price": "DECIMAL(9,3)",
        "tags": "ARRAY<STRING>",
        "pair": "ARRAY<BIGINT>",
        "unique": "ARRAY<STRING>",
        "part": part,
        "parts": f"ARRAY<{part}>",
        "by_name": f"MAP<STRING, {part}>",
        "perhaps": "BIGINT",
    }
    assert field_types(Everything)["order-id"] is int


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            Decimal,
            r"Odd\.field: DecimalType has no Spark SQL type\. Use Annotated\[Decimal, Digits\(12, 2\)\]\.",
        ),
        (int | str, r"Odd\.field: UnionType has no Spark SQL type"),
        (Mixed, r"Odd is not a contract: Enums must contain either all str or all int values"),
        (Literal[1, "a"], r"Odd\.field must be a choice of str values"),
    ],
)
def test_types_that_spark_does_not_have(kind: Any, says: str) -> None:
    odd = msgspec.defstruct("Odd", [("field", kind)])
    with pytest.raises(TopologyError, match=says):
        fields(odd)


class Array(Struct, array_like=True):
    one: int


class Twins(Struct):
    id: int
    ID: int


T = TypeVar("T")


class Page(Struct, Generic[T], tag="page", tag_field="kind"):
    rows: list[T]


class Numbers(Page[int]):
    pass


class Pages(Struct, tag=1):
    of_text: Page[str]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Array, r"Odd\.field: a Struct with array_like=True has no names in JSON\. Declare it without array_like"),
        (list[Array], r"Odd\.field: a Struct with array_like=True"),
        (Twins, r"Odd\.field\.ID: the fields id and ID differ only in case"),
        (Annotated[datetime, Meta(tz=False)], r"Odd\.field: tz=False is impossible.* Declare it as datetime"),
        (Annotated[Decimal, Digits(39, 2)], r"Odd\.field: Digits\(39, 2\) has no Spark SQL type\. Declare 1 to 38"),
        (Annotated[Decimal, Digits(2, 5)], r"Odd\.field: Digits\(2, 5\)"),
        (Annotated[Decimal, Digits(0, 0)], r"Odd\.field: Digits\(0, 0\)"),
        (Annotated[Decimal, Digits(2, -1)], r"Odd\.field: Digits\(2, -1\)"),
        (dict[str, Annotated[Decimal, Digits("2", "1")]], r"Odd\.field: Digits\('2', '1'\)"),
    ],
)  # fmt: skip
def test_declarations_that_no_record_could_satisfy(kind: Any, says: str) -> None:
    odd = msgspec.defstruct("Odd", [("field", kind)])
    with pytest.raises(TopologyError, match=says):
        fields(odd)


def test_a_field_cannot_be_unset() -> None:
    odd = msgspec.defstruct("Odd", [("field", int | UnsetType, UNSET)])
    says = r"field: SQL has no UNSET\. Declare a default of another type, such as None\."
    for contract in (odd, msgspec.defstruct("Outer", [("odd", list[odd])])):  # type: ignore[valid-type]
        with pytest.raises(TopologyError, match=says):
            fields(contract)
    assert fields(msgspec.defstruct("Even", [("field", int | UnsetType, 1)])) == {"field": "BIGINT"}


def test_an_array_is_no_contract() -> None:
    with pytest.raises(TopologyError, match=r"^Array: a Struct with array_like=True"):
        fields(Array)


def test_a_generic_struct_is_a_contract_once_its_types_are_known() -> None:
    says = r"^Page\[int\] is a generic type with parameters, which cannot be a contract\. Declare a subclass: class PageValues\(Page\[int\]\): pass\.$"
    with pytest.raises(TopologyError, match=says):
        sql_type(Page[int])
    with pytest.raises(TopologyError, match="AnyType has no Spark SQL type"):
        fields(Page)
    assert fields(Numbers) == {"kind": "STRING", "rows": "ARRAY<BIGINT>"}
    assert not needs_plain_data(Pages)


class Kept:
    """A processor that does nothing."""

    def init(self, context: Context) -> None: ...

    def process(self, record: Record[Part]) -> None: ...


def test_a_class_that_tasks_cannot_import_is_refused_at_any_depth() -> None:
    class Line(Struct):
        amount: int

    class Kind(Enum):
        SALE = "sale"

    for local in (Line, Kind):
        for kind in (local, list[local], dict[str, local], local | None):  # type: ignore[valid-type]
            stream = Pipeline("shop").stream("sales", value=Part)
            says = rf"{local.__name__} is defined in a function\. Define it at the top level"
            with pytest.raises(TopologyError, match=rf"map_values .*returns=.*{says}"):
                stream.map_values(lambda part: None, returns=kind)  # type: ignore[arg-type]
            with pytest.raises(TopologyError, match=rf"aggregate into 's' .*returns=.*{says}"):
                stream.group_by_key().aggregate(
                    list,
                    lambda lines, part: lines,
                    returns=kind,  # type: ignore[arg-type]
                    store="s",
                )
            with pytest.raises(TopologyError, match=rf"process .*stores\['last'\]=.*{says}"):
                stream.process(Kept, stores={"last": (kind, "1 day")})
            with pytest.raises(TopologyError, match=rf"process .*outputs\['lines'\]=.*{says}"):
                stream.process(Kept, outputs={"lines": kind})
    with pytest.raises(TopologyError, match="Line is defined in a function"):
        Pipeline("shop").stream("lines", value=Line)


def test_a_tag_is_a_field() -> None:
    assert fields(Pages) == {
        "type": "BIGINT",
        "of_text": "STRUCT<kind: STRING, rows: ARRAY<STRING>>",
    }
    pages = Pages(Page(["a"]))
    assert field_reader(Pages, "type")(pages) == 1


@pytest.mark.parametrize("value", [int, dict, None, Colour])
def test_a_contract_is_a_struct(value: Any) -> None:
    with pytest.raises(
        TopologyError, match=r"is not a contract\. Declare the value as a msgspec\.Struct\."
    ):
        fields(value)


class Line(Struct):
    name: str
    price: Decimal2
    tags: list[str]
    grid: list[list[int]]


class Bill(Struct):
    number: int
    kind: Literal["a", "b"]
    colour: Colour
    level: Level
    day: date
    best: Line
    lines: list[Line]
    pairs: tuple[int, ...]


LINE = Line("x", Decimal("1.5"), ["a", "b"], [[1], [2, 3]])
BILL = Bill(1, "a", Colour.RED, Level.LOW, date(2022, 12, 5), LINE, [LINE, LINE], (1, 2))


def test_the_quotation_marks_of_a_value_can_be_counted() -> None:
    count = quote_counter(Bill)
    assert count is not None
    # Amounts are JSON numbers in a topic; msgspec writes them as strings by default.
    encoder = msgspec.json.Encoder(decimal_format="number")
    bills = [BILL, Bill(2, "b", Colour.BLUE, Level.HIGH, date(2022, 1, 1), LINE, [], ())]
    for several in (bills, bills[:1], bills[1:], []):
        assert count(several) == sum(encoder.encode(bill).count(b'"') for bill in several)
    numbers = quote_counter(msgspec.defstruct("Numbers", [("number", int)]))
    assert numbers is not None
    assert numbers(bills) == 4


@pytest.mark.parametrize("kind", [str | None, dict[str, int], set[str], Any])
def test_quotation_marks_of_variable_values_cannot_be_counted(kind: Any) -> None:
    assert quote_counter(msgspec.defstruct("Varies", [("field", kind)])) is None


def test_quotation_marks_of_optional_fields_cannot_be_counted() -> None:
    assert quote_counter(Everything) is None
    assert quote_counter(msgspec.defstruct("Outer", [("parts", list[Everything])])) is None


class Deep(Struct):
    one: Decimal2
    perhaps: Decimal2 | None
    line: Line
    lines: list[Line]
    sums: dict[str, Decimal2]
    part: Part | None
    rows: list[list[Decimal2]]


def test_amounts_are_found_at_any_depth() -> None:
    line = Line("x", Decimal(3), [], [])
    rows = [[Decimal(7)], [Decimal(8), Decimal(9)]]
    full = Deep(
        Decimal(1), Decimal(2), line, [line, line], {"a": Decimal(5)}, Part(1, Decimal(6)), rows
    )
    bare = Deep(Decimal(10), None, line, [], {}, None, [])
    results = {part.path: part.collector()([full, bare]) for part in parts_of(Deep) if part.digits}
    assert results == {
        "$.one": [1, 10],
        "$.perhaps": [2],
        "$.line.price": [3, 3],
        "$.lines[...].price": [3, 3],
        "$.sums[...]": [5],
        "$.part.price": [6],
        "$.rows[...][...]": [7, 8, 9],
    }
    assert {part.digits for part in parts_of(Deep)} - {None} == {(12, 2)}
