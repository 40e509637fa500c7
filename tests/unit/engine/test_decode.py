"""Decoding follows the contract or rejects the value with the exact reason; it never guesses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from sluice import Decimal2, Pipeline, Serde
from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.dead_letters import RejectedRecord, dead_letter_records
from sluice.engine.batch.side_outputs import Collected, SideOutput, SideOutputs
from sluice.engine.read import stream_reader as sourcing
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.global_tables import TableReader
from sluice.engine.read.record_keys import key_texts
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.read.value_columns import failing_places
from sluice.kafka.dead_letter_topic import UNREADABLE
from sluice.plan import Source, plan
from sluice.plan.node_steps import source_of
from sluice.topology import nodes


class Line(Struct):
    item: str
    amount: Decimal2


class Order(Struct):
    orderId: int
    shop: str
    amount: Decimal2
    kind: Literal["GENERAL", "RESTAURANT"]
    lines: list[Line]
    at: datetime


GOOD = (
    b'{"orderId": 1, "shop": "a", "amount": 27.00, "kind": "GENERAL",'
    b' "lines": [{"item": "x", "amount": 2.00}], "at": "2022-12-05T08:55:27"}'
)


def decoder(
    contract: type[Struct], fields: tuple[str, ...] | None = None, zone: str = "UTC"
) -> ValueDecoder:
    pipeline = Pipeline("p", zone=zone)
    pipeline.stream("t", value=contract)
    (source,) = pipeline.nodes
    assert isinstance(source, nodes.Source)
    return ValueDecoder(source_of(source, tuple(source.fields) if fields is None else fields))


def refused(raw: bytes | None, contract: type[Struct] = Order) -> tuple[str, str]:
    """Reason and detail for a rejected value between two good ones."""
    rows, values, letters = decoder(contract).decode([raw])
    assert (rows, values, len(letters)) == ([], [], 1), (values, letters)
    assert letters[0].row == 0
    return letters[0].reason, letters[0].detail


def taken(raw: bytes, contract: type[Struct] = Order, zone: str = "UTC") -> dict[str, Any]:
    """The columns of an accepted value."""
    its = decoder(contract, zone=zone)
    rows, values, letters = its.decode([raw])
    assert (rows, letters) == ([0], [])
    return {name: its.columns.column(values, name).to_pylist()[0] for name in its.source.types}


def order(**changed: str) -> bytes:
    """A valid order with some fields' JSON replaced."""
    fields = {
        "orderId": "1", "shop": '"a"', "amount": "27.00", "kind": '"GENERAL"',
        "lines": '[{"item": "x", "amount": 2.00}]', "at": '"2022-12-05T08:55:27"',
    }  # fmt: skip
    return (
        "{" + ", ".join(f'"{name}": {text}' for name, text in (fields | changed).items()) + "}"
    ).encode()


BAD: dict[str, tuple[bytes | None, str, str]] = {
    "null": (None, "null_value", "the value is null"),
    "empty": (b"", "empty_value", "the value has no bytes"),
    "blank": (b"  ", "malformed", "Input data was truncated"),
    "no JSON": (b"hello", "malformed", "JSON is malformed: invalid character (byte 0)"),
    "cut off": (GOOD[:-1], "malformed", "Input data was truncated"),
    "JSON's null": (b"null", "contract", "Expected `object`, got `null`"),
    "an array": (b"[" + GOOD + b"]", "contract", "Expected `object`, got `array`"),
    "a text": (b'"a"', "contract", "Expected `object`, got `str`"),
    "a number": (b"1", "contract", "Expected `object`, got `int`"),
    "a missing field": (b'{"orderId": 1}', "contract", "Object missing required field `shop`"),
    "a missing nested field": (
        order(lines='[{"item": "x"}]'),
        "contract",
        "Object missing required field `amount` - at `$.lines[0]`",
    ),
    "a text for a number": (order(orderId='"1"'), "contract", "Expected `int`, got `str` - at `$.orderId`"),
    "a fraction for an int": (order(orderId="1.5"), "contract", "Expected `int`, got `float` - at `$.orderId`"),
    "true for an int": (order(orderId="true"), "contract", "Expected `int`, got `bool` - at `$.orderId`"),
    "null for a text": (order(shop="null"), "contract", "Expected `str`, got `null` - at `$.shop`"),
    "a number for a text": (order(shop="1"), "contract", "Expected `str`, got `int` - at `$.shop`"),
    "an object for a list": (order(lines="{}"), "contract", "Expected `array`, got `object` - at `$.lines`"),
    "an unknown choice": (order(kind='"general"'), "contract", "Invalid enum value 'general' - at `$.kind`"),
    "a field in another case": (
        GOOD.replace(b'"orderId"', b'"orderid"'),
        "contract",
        "Object missing required field `orderId`",
    ),
    "NaN": (order(amount="NaN"), "malformed", f"JSON is malformed: invalid character (byte {order().index(b'27.00')})"),
    "Infinity": (
        order(amount="Infinity"),
        "malformed",
        f"JSON is malformed: invalid character (byte {order().index(b'27.00')})",
    ),
    **{
        f"{text} for an amount": (
            order(amount=f'"{text}"'),
            "contract",
            f"{text!r} is not written as a number in JSON - at `$.amount`",
        )
        for text in ("1_000", " 5 ", "\uff15", "+5", ".5", "5.", "007", "nan", "+Infinity", "\u0660")
    },
    **{
        f"{text!r}, which Python refuses too, for an amount": (
            order(amount=f'"{text}"'),
            "contract",
            "Invalid decimal string - at `$.amount`",
        )
        for text in ("1,5", "0x10", "", "1E 2", "1e+")
    },
    "an escaped digit of another script for an amount": (
        order(amount='"\\uff15"'),
        "contract",
        "'\uff15' is not written as a number in JSON - at `$.amount`",
    ),
    "an amount with a space in a list": (
        order(lines='[{"item": "x", "amount": 1}, {"item": "x", "amount": "1 "}]'),
        "contract",
        "'1 ' is not written as a number in JSON - at `$.lines[...].amount`",
    ),
    "NaN as text": (order(amount='"NaN"'), "digits", "$.amount: NaN is not a decimal(12,2)"),
    "Infinity as text": (order(amount='"-Infinity"'), "digits", "$.amount: -Infinity is not a decimal(12,2)"),
    "three decimals": (order(amount="27.005"), "digits", "$.amount: 27.005 is not a decimal(12,2)"),
    "41 decimals, which Arrow takes for 0.00": (
        order(amount="7.72494492966110701419525414426E-12"),
        "digits",
        "$.amount: 7.72494492966110701419525414426E-12 is not a decimal(12,2)",
    ),
    "a nested third decimal": (
        order(lines='[{"item": "x", "amount": 2.00}, {"item": "y", "amount": 0.001}]'),
        "digits",
        "$.lines[...].amount: 0.001 is not a decimal(12,2)",
    ),
    "eleven digits before the point": (
        order(amount="12345678901.00"),
        "digits",
        "$.amount: 12345678901.00 is not a decimal(12,2)",
    ),
    "a power beyond all digits": (order(amount="1e500"), "digits", "$.amount: 1E+500 is not a decimal(12,2)"),
    "a number of 60 digits": (order(amount="1" * 60), "digits", f"$.amount: {'1' * 40}… is not a decimal(12,2)"),
    "a leading zero": (order(orderId="01"), "malformed", "JSON is malformed: invalid number (byte 13)"),
    "a trailing comma": (
        GOOD[:-1] + b",}",
        "malformed",
        f"JSON is malformed: trailing comma in object (byte {len(GOOD)})",
    ),
    "a trailing second object": (
        GOOD + GOOD,
        "malformed",
        f"JSON is malformed: trailing characters (byte {len(GOOD) + 1})",
    ),
    "a trailing word": (GOOD + b" x", "malformed", f"JSON is malformed: trailing characters (byte {len(GOOD) + 2})"),
    "a field twice": (order()[:-1] + b', "shop": "b"}', "duplicate_field", "field 'shop' occurs twice"),
    "a field twice, alike": (order()[:-1] + b', "shop": "a"}', "duplicate_field", "field 'shop' occurs twice"),
    "a number twice": (order()[:-1] + b', "orderId": 1}', "duplicate_field", "field 'orderId' occurs twice"),
    "a field twice with spaces before its colon": (
        order()[:-1] + b', "orderId" \n\t: 1}',
        "duplicate_field",
        "field 'orderId' occurs twice",
    ),
    "a field twice, once spelt with an escape": (
        order()[:-1] + b', "\\u006frderId": 1}',
        "duplicate_field",
        "field 'orderId' occurs twice",
    ),
    "a nested field twice": (
        order(lines='[{"item": "x", "item": "y", "amount": 2.00}]'),
        "duplicate_field",
        "field 'item' occurs twice",
    ),
    "a list twice": (order()[:-1] + b', "lines": []}', "duplicate_field", "field 'lines' occurs twice"),
    "a field twice in one that nobody reads": (
        order()[:-1] + b', "more": {"a": 1, "a": 2}}',
        "duplicate_field",
        "field 'a' occurs twice",
    ),
    "a date that is none": (
        order(at='"2022-13-05T08:55:27"'),
        "contract",
        "Invalid RFC3339 encoded datetime - at `$.at`",
    ),
    "a date without a time": (order(at='"2022-12-05"'), "contract", "Invalid RFC3339 encoded datetime - at `$.at`"),
    "epoch milliseconds": (order(at="1670230527000"), "contract", "Expected `datetime`, got `int` - at `$.at`"),
    "epoch milliseconds as text": (
        order(at='"1670230527000"'),
        "contract",
        "Invalid RFC3339 encoded datetime - at `$.at`",
    ),
    "a raw NUL": (b"\x00" + GOOD, "malformed", "JSON is malformed: invalid character (byte 0)"),
    "a raw NUL behind": (GOOD + b"\x00", "malformed", f"JSON is malformed: trailing characters (byte {len(GOOD) + 1})"),
    "a raw NUL in a text": (order(shop='"a\0b"'), "malformed", "JSON is malformed: invalid character (byte 25)"),
    "a byte-order mark": (b"\xef\xbb\xbf" + GOOD, "malformed", "JSON is malformed: invalid character (byte 0)"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "malformed", "JSON is malformed: invalid character (byte 0)"),
    "half a surrogate pair": (order(shop='"\\ud800"'), "malformed", "a string has an unpaired surrogate"),
    "Latin-1": (
        order().replace(b'"a"', b'"\xe9"'),
        "not_utf8",
        "'utf-8' codec can't decode byte 0xe9 in position 0: unexpected end of data",
    ),
    "bytes that are no UTF-8 in a field that nobody reads": (
        order()[:-1] + b', "more": "\xed\xa0\x80"}',
        "not_utf8",
        f"'utf-8' codec can't decode byte 0xed in position {len(order()) + 10}: invalid continuation byte",
    ),
    "deep nesting": (order()[:-1] + b', "more": ' + b"[" * 100_000, "malformed", "nested more than 100 levels deep"),
    "nesting that JSON readers give up on": (
        order()[:-1] + b', "more": ' + b"[" * 960 + b"]" * 960 + b"}", "malformed", "nested more than 100 levels deep"
    ),
    "nesting of objects": (
        order()[:-1] + b', "more": ' + b'{"a":' * 100 + b"1" + b"}" * 101,
        "malformed", "nested more than 100 levels deep",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_value_is_rejected_with_its_reason(kind: str) -> None:
    raw, reason, detail = BAD[kind]
    result = refused(raw)
    assert result[0] == reason
    assert result[1] == detail or (detail.endswith(": ") and result[1].startswith(detail)), result[
        1
    ]


ODD_BUT_GOOD = {
    "white space": GOOD.replace(b": ", b" :\n\t ").replace(b", ", b" , ") + b"\r\n ",
    "fields in another order": b'{"lines": [], "at": "2022-12-05T08:55:27", '
    + order()[1:-1].rsplit(b', "lines"')[0]
    + b"}",
    "unknown fields": order()[:-1] + b', "more": {"a": [1, {"b": null}]}, "shop2": "b"}',
    "an unknown field with a number of 5000 digits": order()[:-1]
    + b', "more": '
    + b"9" * 5000
    + b"}",
    "an unknown field in another case": order()[:-1] + b', "SHOP": "b"}',
    "an unknown field, deeply nested": order()[:-1] + b', "more": ' + b"[" * 99 + b"]" * 99 + b"}",
    "a text full of brackets": order(shop='"' + "[{" * 200 + '"')[:-1] + b', "more": 1}',
    "escaped quotation marks": order(shop=r'"a\"b\\\"c"'),
    "quotation marks by number": order(shop=r'"\u0022shop\u0022: \u0022a"'),
    "a text that looks like a field": order(shop=r'"\"shop\": \"b\""'),
    "an amount as text": order(amount='"27.00"'),
    "an amount without decimals": order(amount="27"),
    "an amount with zeros behind": order(amount="27.00000"),
    "an amount with an exponent": order(amount="2.7e1"),
    "the largest amount": order(amount="9999999999.99"),
    "a negative amount": order(amount="-0.01"),
    "a space in the time": order(at='"2022-12-05 08:55:27"'),
    "a NUL by number": order(shop=r'"a\u0000b"'),
    "no lines": order(lines="[]"),
}


@pytest.mark.parametrize("kind", ODD_BUT_GOOD)
def test_an_unusual_valid_value_is_accepted(kind: str) -> None:
    raw = ODD_BUT_GOOD[kind]
    rows, values, letters = decoder(Order).decode([GOOD, raw])
    assert (rows, letters) == ([0, 1], [])
    assert values[1] == msgspec.json.decode(raw, type=Order)


def test_a_value_of_a_megabyte_is_accepted() -> None:
    text = "é" * 500_000
    assert taken(order(shop=f'"{text}"'))["shop"] == text


def test_a_bad_record_leaves_the_others_in_order() -> None:
    many: list[bytes | None] = [order(orderId=str(n)) for n in range(1000)]
    many[500], many[501], many[999] = b"{", order(amount="1.234"), None
    rows, values, letters = decoder(Order).decode(many)
    assert rows == [n for n in range(1000) if n not in (500, 501, 999)]
    assert [value.orderId for value in values] == rows
    assert {letter.row: letter.reason for letter in letters} == {
        500: "malformed",
        501: "digits",
        999: "null_value",
    }


# --- contracts of every kind ---


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Colour(Enum):
    RED = "red"


class Rich(Struct):
    level: Level
    colour: Colour
    size: Literal[1, 2]
    day: date
    raw: bytes
    pair: tuple[int, ...]
    tags: set[str]
    sums: dict[str, Decimal2]
    by_name: dict[str, Line]
    perhaps: Decimal2 | None
    moments: list[datetime]
    order_no: int = field(name="order-no")
    note: str | None = None
    best: Line | None = None


RICH = (
    b'{"level": 2, "colour": "red", "size": 1, "day": "2022-12-05", "raw": "AAE=", "pair": [1, 2], "tags": ["x"],'
    b' "sums": {"a": 1.5}, "by_name": {"b": {"item": "y", "amount": 3}}, "perhaps": null,'
    b' "moments": ["2022-12-05T00:00:00"], "order-no": 7}'
)


def test_few_that_fail_among_many_are_found_with_few_checks() -> None:
    bad, checks = {0, 4_711, 4_712, 9_999}, []

    def fits(begin: int, end: int) -> bool:
        checks.append(end - begin)
        return not bad & {*range(begin, end)}

    assert [*failing_places(10_000, fits)] == sorted(bad)
    assert len(checks) < 120
    assert [*failing_places(0, fits)] == []


def test_every_kind_of_field_becomes_a_column() -> None:
    assert taken(RICH, Rich) == {
        "level": 2,
        "colour": "red",
        "size": 1,
        "day": date(2022, 12, 5),
        "raw": b"\x00\x01",
        "pair": [1, 2],
        "tags": ["x"],
        "sums": [("a", Decimal("1.50"))],
        "by_name": [("b", {"item": "y", "amount": Decimal("3.00")})],
        "perhaps": None,
        "moments": [datetime(2022, 12, 5, tzinfo=UTC)],
        "order-no": 7,
        "note": None,
        "best": None,
    }


@pytest.mark.parametrize(
    ("now", "then", "reason", "detail"),
    [
        (b'"level": 2', b'"level": 3', "contract", "Invalid enum value 3 - at `$.level`"),
        (b'"level": 2', b'"level": 1, "level": 2', "duplicate_field", "field 'level' occurs twice"),
        (b'"a": 1.5', b'"a": 1, "a": 2', "duplicate_field", "field 'a' occurs twice"),
        (b'"a": 1.5', b'"a": 1.555', "digits", "$.sums[...]: 1.555 is not a decimal(12,2)"),
        (
            b'"perhaps": null',
            b'"perhaps": 0.001',
            "digits",
            "$.perhaps: 0.001 is not a decimal(12,2)",
        ),
        (
            b'"amount": 3',
            b'"amount": 3.333',
            "digits",
            "$.by_name[...].amount: 3.333 is not a decimal(12,2)",
        ),
        (
            b'"day": "2022-12-05"',
            b'"day": "2022-02-30"',
            "contract",
            "Invalid RFC3339 encoded date - at `$.day`",
        ),
        (
            b'"raw": "AAE="',
            b'"raw": "%%"',
            "contract",
            "Invalid base64 encoded string - at `$.raw`",
        ),
    ],
)
def test_invalid_fields_of_every_kind_are_rejected(
    now: bytes, then: bytes, reason: str, detail: str
) -> None:
    assert now in RICH
    assert refused(RICH.replace(now, then), Rich) == (reason, detail)


class Choice(Struct):
    level: Level


class Piece(Struct, omit_defaults=True):
    sku: str
    qty: int = 1
    colour: Colour = Colour.RED
    day: date = date(2022, 12, 5)
    price: Decimal2 = Decimal("1.50")
    tags: list[str] = []


class Basket(Struct):
    first: Piece
    pieces: list[Piece]
    by_name: dict[str, Piece]
    last: Piece | None = None


@pytest.mark.parametrize(
    "given", ["", ', "qty": 1, "colour": "red", "day": "2022-12-05", "price": 1.5, "tags": []']
)
def test_nested_defaults_are_values_although_their_struct_omits_them(given: str) -> None:
    piece = f'{{"sku": "x"{given}}}'
    text = (
        f'{{"first": {piece}, "pieces": [{piece}], "by_name": {{"a": {piece}}}, "last": {piece}}}'
    )
    full = {
        "sku": "x", "qty": 1, "colour": "red", "day": date(2022, 12, 5), "price": Decimal("1.50"), "tags": [],
    }  # fmt: skip
    assert taken(text.encode(), Basket) == {
        "first": full,
        "pieces": [full],
        "by_name": [("a", full)],
        "last": full,
    }


class Tagged(Struct, tag="t", tag_field="kind"):
    x: int


class Tags(Struct, tag=True, omit_defaults=True):
    one: Tagged
    more: list[Tagged] = []


@pytest.mark.parametrize("tagged", ['{"kind": "t", "x": 1}', '{"x": 1}'])
def test_a_tag_is_a_column(tagged: str) -> None:
    one = {"kind": "t", "x": 1}
    assert taken(tagged.encode(), Tagged) == one
    text = f'{{"type": "Tags", "one": {tagged}, "more": [{tagged}]}}'
    assert taken(text.encode(), Tags) == {"type": "Tags", "one": one, "more": [one]}
    assert refused(b'{"kind": "other", "x": 1}', Tagged) == (
        "contract",
        "Invalid value 'other' - at `$.kind`",
    )
    its = decoder(Tagged)
    assert its.columns.json(its.decode([tagged.encode()])[1]).to_pylist() == ['{"kind":"t","x":1}']


class Sums(Struct):
    total: Decimal2
    parts: dict[str, list[Decimal2]]


@pytest.mark.parametrize("text", ["0E+30", "-0E+9999", "0E-38", "0." + "0" * 38, "10." + "0" * 38])
def test_zeros_do_not_make_an_amount_too_long(text: str) -> None:
    amounts = taken(f'{{"total": {text}, "parts": {{"a": [1.25, {text}]}}}}'.encode(), Sums)
    number = Decimal(text)
    assert amounts == {"total": number, "parts": [("a", [Decimal("1.25"), number])]}


@pytest.mark.parametrize("decimals", [39, 41, 61, 105, 500])
def test_an_amount_has_at_most_38_decimals_even_if_they_are_zeros(decimals: int) -> None:
    amount = "1.5".ljust(decimals + 2, "0")
    detail = f"$.total: {amount[:40]}… has more than 38 decimals"
    assert refused(f'{{"total": {amount}, "parts": {{}}}}'.encode(), Sums) == ("digits", detail)


def test_duplicate_fields_are_found_even_if_quotes_add_up() -> None:
    assert refused(b'{"level": 1, "level": 2}', Choice) == (
        "duplicate_field",
        "field 'level' occurs twice",
    )


# --- times and zones ---


@pytest.mark.parametrize(
    ("zone", "text", "utc"),
    [
        ("UTC", "2022-12-05T08:55:27", "2022-12-05T08:55:27"),
        ("UTC", "2022-12-05T08:55:27Z", "2022-12-05T08:55:27"),
        ("UTC", "2022-12-05T08:55:27+05:30", "2022-12-05T03:25:27"),
        ("UTC", "2022-12-05T08:55:27.060293", "2022-12-05T08:55:27.060293"),
        ("Europe/Berlin", "2022-12-05T08:55:27", "2022-12-05T07:55:27"),
        ("Europe/Berlin", "2022-07-05T08:55:27", "2022-07-05T06:55:27"),
        ("Europe/Berlin", "2022-12-05T08:55:27Z", "2022-12-05T08:55:27"),
        ("Europe/Berlin", "2022-12-05T08:55:27-08:00", "2022-12-05T16:55:27"),
        # Clocks set back: the earlier of both times; set forward: a time in the missing hour, after
        # it.
        ("Europe/Berlin", "2022-10-30T02:30:00", "2022-10-30T00:30:00"),
        ("Europe/Berlin", "2022-03-27T02:30:00", "2022-03-27T01:30:00"),
    ],
)
def test_a_time_without_a_zone_has_the_pipelines_zone(zone: str, text: str, utc: str) -> None:
    assert taken(order(at=f'"{text}"'), zone=zone)["at"] == datetime.fromisoformat(utc).replace(
        tzinfo=UTC
    )


def test_a_batch_may_mix_times_with_and_without_zones() -> None:
    its = decoder(Order, ("at",), zone="America/New_York")
    _, values, _ = its.decode(
        [order(at='"2022-12-05T03:00:00"'), order(at='"2022-12-05T08:00:00Z"')]
    )
    eight = datetime(2022, 12, 5, 8, tzinfo=UTC)
    assert its.columns.column(values, "at").to_pylist() == [eight, eight]


def test_nested_times_have_the_pipelines_zone_too() -> None:
    assert taken(RICH, Rich, zone="Europe/Berlin")["moments"] == [
        datetime(2022, 12, 4, 23, tzinfo=UTC)
    ]


# --- values written with the contract are read back ---

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
amounts = st.decimals(
    Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2, allow_nan=False
)
span = (datetime(1970, 1, 2), datetime(2100, 1, 1))
zoned = st.datetimes(*span, timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]))
moments = st.datetimes(*span) | zoned
orders = st.builds(
    Order,
    orderId=st.integers(-(2**63), 2**63 - 1),
    shop=texts,
    amount=amounts,
    kind=st.sampled_from(["GENERAL", "RESTAURANT"]),
    lines=st.lists(st.builds(Line, item=texts, amount=amounts), max_size=3),
    at=moments,
)


@given(
    st.lists(orders, max_size=5),
    st.sampled_from(["number", "string"]),
    st.sampled_from(["UTC", "Asia/Kolkata"]),
)
def test_any_valid_order_becomes_its_columns(
    written: list[Order], decimal_format: Literal["number", "string"], zone: str
) -> None:
    its = decoder(Order, zone=zone)
    encoder = msgspec.json.Encoder(decimal_format=decimal_format)
    rows, values, letters = its.decode([encoder.encode(one) for one in written])
    assert letters == []
    assert rows == list(range(len(written)))
    columns = {name: its.columns.column(values, name).to_pylist() for name in its.source.types}
    for name in ("orderId", "shop", "amount", "kind"):
        assert columns[name] == [getattr(one, name) for one in written]
    assert columns["lines"] == [
        [{"item": i.item, "amount": i.amount} for i in one.lines] for one in written
    ]
    expected = [
        one.at if one.at.tzinfo else one.at.replace(tzinfo=ZoneInfo(zone)) for one in written
    ]
    assert columns["at"] == expected


@given(orders, st.data())
def test_orders_with_duplicate_fields_are_rejected(one: Order, data: st.DataObject) -> None:
    fields = list(
        msgspec.json.decode(msgspec.json.encode(one), type=dict[str, msgspec.Raw]).items()
    )
    again = data.draw(st.sampled_from(fields))
    fields.insert(data.draw(st.integers(0, len(fields))), again)
    raw = (
        b"{"
        + b",".join(b'"%s":%s' % (name.encode(), bytes(value)) for name, value in fields)
        + b"}"
    )
    assert refused(raw) == ("duplicate_field", f"field {again[0]!r} occurs twice")


def json_of(one: Order, data: st.DataObject) -> bytes:
    """JSON that msgspec decodes as an order, perhaps with fields twice, others than the contract's, and escapes."""
    fields = list(
        msgspec.json.decode(msgspec.json.encode(one), type=dict[str, msgspec.Raw]).items()
    )
    others = [
        ("more", msgspec.Raw(text))
        for text in (b"1", b'"x"', b'{"a":"b"}', b"[" * 600 + b"]" * 600)
    ]
    extra = data.draw(st.lists(st.sampled_from([*fields, *others]), max_size=2))
    text = (
        b"{"
        + b",".join(b'"%s":%s' % (name.encode(), bytes(value)) for name, value in [*extra, *fields])
        + b"}"
    )
    return text.replace(b"shop", rb"\u0073hop") if data.draw(st.booleans()) else text


@given(st.lists(orders, min_size=1, max_size=4), st.data())
def test_counting_quotation_marks_finds_what_parsing_again_finds(
    written: list[Order], data: st.DataObject
) -> None:
    raw = [json_of(one, data) for one in written]
    its, plain = decoder(Order), decoder(Order)
    plain.__dict__["_count_quotes"] = None  # parses each text again
    rows, values, letters = its.decode([*raw])
    assert (rows, values, letters) == plain.decode([*raw])


# --- the task that reads: metadata, event time, dead letters ---

NOW = datetime(2022, 12, 5, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


class Reading:
    """A reader of a pipeline's streams or tables that receives records like Spark's tasks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **pipeline: Any) -> None:
        self.pipeline = Pipeline("p", **pipeline)
        self.side_outputs = SideOutputs()
        self._taken: list[SideOutput] = []
        monkeypatch.setattr(sourcing, "this_batch", lambda: BatchStart(0, NOW_MS))

    def stream(self, reads: str = "_key", **stream: Any) -> Reading:
        given: dict[str, Any] = {"value": Order, "event_time": "at"} | stream
        self.pipeline.stream("orders", **given).group_by(reads).count(store="n")
        job = plan(self.pipeline).job
        self.reader: StreamReader | TableReader = StreamReader.of(job, self.side_outputs)
        return self

    def table(self, key: str | Callable[[bytes], str] | None = None) -> Reading:
        self.pipeline.stream("others", value=str)
        self.pipeline.global_table("orders", value=Order, key=key)
        job = plan(self.pipeline).job
        self.reader = TableReader.of(job, self.side_outputs, interleaved=False)
        return self

    def read(
        self,
        *values: bytes | None,
        keys: list[bytes | None] | None = None,
        headers: str | None = None,
        times: list[datetime] | None = None,
        partition: int = 3,
    ) -> list[Any]:
        batch = self.records(*values, keys=keys, headers=headers, times=times, partition=partition)
        return [row for made in self.reader(iter([batch])) for row in made.to_pylist()]

    @staticmethod
    def records(
        *values: bytes | None,
        keys: list[bytes | None] | None = None,
        headers: str | None = None,
        times: list[datetime] | None = None,
        partition: int = 3,
    ) -> pa.RecordBatch:
        count = len(values)
        return pa.RecordBatch.from_pydict({
            "topic": ["orders"] * count,
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(100, 100 + count), pa.int64()),
            "timestamp": pa.array(times or [NOW] * count, pa.timestamp("us", "UTC")),
            "key": pa.array(keys or [b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([headers] * count, pa.string()),
        })  # fmt: skip

    @property
    def collected(self) -> Collected:
        """The side outputs of all records that were read."""
        self._taken += self.side_outputs.take()
        return Collected(self._taken)

    @property
    def letters(self) -> list[dict[str, Any]]:
        """The dead letters with their headers as a dictionary."""
        tables = self.collected.records("p_dead_letters")
        rows = [row for table in tables for row in table.to_pylist()]
        return [
            row | {"headers": {h["key"]: h["value"].decode() for h in row["headers"]}}
            for row in rows
        ]

    @property
    def counts(self) -> dict[str, int]:
        return self.collected.stats.counts


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(tmp_path, monkeypatch)


def test_the_later_steps_get_the_rows_of_a_partition_together(reading: Reading) -> None:
    """They take some time for each batch of rows. Rows of two partitions would have to be divided again."""
    reading.stream()
    read = [
        reading.records(GOOD, keys=[b"a"]),
        reading.records(b"{"),
        reading.records(GOOD, GOOD, keys=[b"b", b"c"]),
        reading.records(GOOD, keys=[b"d"], partition=4),
        reading.records(b"{", partition=4),
    ]
    made = [
        (batch.column("_partition").to_pylist(), batch.column("_key").to_pylist())
        for batch in reading.reader(iter(read))
    ]
    assert made == [([3, 3, 3], ["a", "b", "c"]), ([4], ["d"])]
    assert reading.counts == {"read": 6, "dead_letter/malformed": 2}


def test_a_dead_letter_has_the_original_bytes_and_position(reading: Reading) -> None:
    headers = '[{"key":"trace","value":"AP8="},{"key":"none"}]'
    rows = reading.stream().read(GOOD, b"\xff{", keys=[b"k", b"\x00\xfe"], headers=headers)
    assert [row["_key"] for row in rows] == ["k"]
    (table,) = reading.collected.records("p_dead_letters")
    (letter,) = table.to_pylist()
    assert (letter["key"], letter["value"]) == (b"\x00\xfe", b"\xff{")
    results = [(header["key"], header["value"]) for header in letter["headers"]]
    assert results == [
        ("trace", b"\x00\xff"),
        ("none", None),
        ("sluice.reason", b"malformed"),
        ("sluice.detail", b"JSON is malformed: invalid character (byte 0)"),
        ("sluice.topic", b"orders"),
        ("sluice.partition", b"3"),
        ("sluice.offset", b"101"),
        ("sluice.timestamp", b"2022-12-05T12:00:00+00:00"),
    ]
    assert reading.counts == {"read": 2, "dead_letter/malformed": 1}


def test_dead_letters_have_the_order_of_their_offsets(reading: Reading) -> None:
    reading.stream().read(
        order(at='"2099-01-01T00:00:00"'), b"{", order(amount="1.111"), None, GOOD
    )
    assert [letter["headers"]["sluice.offset"] for letter in reading.letters] == [
        "100",
        "101",
        "102",
        "103",
    ]


UNTIMELY = {
    "more than an hour ahead": (
        "2022-12-05T13:00:00.001",
        "future",
        "is after 1670245200000 ms, the latest time allowed",
    ),
    "far in the future": ("2099-01-01T00:00:00Z", "future", "is after"),
    "in the last year there is": ("9999-12-31T23:59:59.999999Z", "future", "is after"),
    "before 1970": (
        "1969-12-31T23:59:59.999Z",
        "event_time",
        "the event time, -1 ms, is before 1970",
    ),
    "in the first year": ("0001-01-01T00:00:00", "event_time", "is before 1970"),
}


@pytest.mark.parametrize("kind", UNTIMELY)
def test_a_record_with_an_invalid_time_is_rejected(kind: str, reading: Reading) -> None:
    text, reason, detail = UNTIMELY[kind]
    rows = reading.stream().read(GOOD, order(at=f'"{text}"'), GOOD)
    assert len(rows) == 2
    (letter,) = reading.letters
    assert letter["headers"]["sluice.reason"] == reason
    assert detail in letter["headers"]["sluice.detail"]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "9999-12-31T23:59:59"])
def test_a_time_outside_the_calendar_is_rejected(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for zone in ("Asia/Tokyo", "America/New_York"):
        reading = Reading(tmp_path / zone, monkeypatch, zone=zone).stream()
        assert len(reading.read(order(at='"2022-12-05T08:00:00Z"'), order(at=f'"{text}"'))) == 1
        assert reading.counts["read"] == 2
        assert len(reading.letters) == 1


def test_event_times_may_be_an_hour_ahead_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_limit, after = order(at='"2022-12-05T13:00:00"'), order(at='"2022-12-05T13:00:00.001"')
    assert len(Reading(tmp_path / "1", monkeypatch).stream().read(at_limit, after)) == 1
    assert (
        len(
            Reading(tmp_path / "2", monkeypatch, max_future_skew="2 hours")
            .stream()
            .read(at_limit, after)
        )
        == 2
    )


def test_event_time_is_the_field_or_the_records_timestamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = (
        Reading(tmp_path / "1", monkeypatch).stream().read(order(at='"2022-12-05T08:55:27.060999"'))
    )
    assert row["_time"] == 1670230527060
    (row,) = Reading(tmp_path / "2", monkeypatch).stream(event_time=None).read(GOOD)
    assert row["_time"] == NOW_MS


class Timed(Struct):
    when: datetime | None


def test_a_null_event_time_is_rejected(reading: Reading) -> None:
    rows = reading.stream(value=Timed, event_time="when").read(
        b'{"when": null}', b'{"when": "2022-12-05T08:00:00"}'
    )
    assert len(rows) == 1
    assert reading.letters[0]["headers"]["sluice.detail"] == "the event time is null"


def test_a_number_beyond_64_bits_is_rejected(reading: Reading) -> None:
    rows = reading.stream("orderId").read(
        GOOD, order(orderId="9223372036854775808"), order(orderId="9223372036854775807")
    )
    assert [row["sk0_orderId"] for row in rows] == ["1", str(2**63 - 1)]
    (letter,) = reading.letters
    assert letter["headers"]["sluice.reason"] == "out_of_range"
    assert letter["headers"]["sluice.detail"].startswith("$.orderId: ")


def test_a_bad_number_does_not_hide_a_bad_time(reading: Reading) -> None:
    future = order(at='"2099-01-01T00:00:00"')
    rows = reading.stream("orderId").read(order(orderId="9" * 30), future, GOOD)
    assert len(rows) == 1
    assert reading.counts == {"read": 3, "dead_letter/out_of_range": 1, "dead_letter/future": 1}


def test_a_key_that_is_not_utf8_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[bytes | None] = [b"k", b"\xff", None, "ключ".encode()]
    reading = Reading(tmp_path / "1", monkeypatch).stream()
    assert [row["_key"] for row in reading.read(GOOD, GOOD, GOOD, GOOD, keys=keys)] == [
        "k",
        None,
        "ключ",
    ]
    assert reading.counts == {"read": 4, "dead_letter/key_not_utf8": 1}
    unread = Reading(tmp_path / "2", monkeypatch).stream("shop")
    assert len(unread.read(GOOD, GOOD, GOOD, GOOD, keys=keys)) == 4


def test_a_table_accepts_texts_and_tombstones_in_offset_order(reading: Reading) -> None:
    accented = order(shop='"é"')
    rows = reading.table().read(GOOD, None, accented, keys=[b"a", b"b", b"c"])
    result = [(row["key"], row["value"]) for row in sorted(rows, key=itemgetter("position"))]
    stored = (
        '[{"orderId":1,"shop":"a","amount":27.00,"kind":"GENERAL","lines":[{"item":"x","amount":2.00}],'
        '"at":"2022-12-05T08:55:27.000000Z"}]'
    )
    assert result == [("a", stored), ("b", None), ("c", stored.replace('"a"', '"é"'))]
    assert reading.counts == {"read": 3, "applied": 3}


def test_a_tables_key_may_be_a_field_of_the_value(reading: Reading) -> None:
    rows = reading.table(key="shop").read(order(shop='"x"'), None, keys=[b"ignored", b"x"])
    assert [row["key"] for row in sorted(rows, key=itemgetter("position"))] == ["x", "x"]


def test_a_tables_changes_in_several_partitions_have_the_order_of_kafkas_timestamps(
    reading: Reading,
) -> None:
    second = timedelta(seconds=1)
    rows = reading.table().read(
        GOOD, GOOD, keys=[b"1", b"3"], times=[NOW, NOW + 2 * second], partition=7
    )
    # The largest time so far counts, so the record after the one of 9 comes last in spite of its
    # time.
    times = [NOW + second, NOW + 9 * second, NOW]
    rows += reading.read(GOOD, GOOD, GOOD, keys=[b"2", b"4", b"5"], times=times, partition=0)
    assert [row["key"] for row in sorted(rows, key=itemgetter("position"))] == [
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


def test_bad_records_of_a_table_are_rejected(reading: Reading) -> None:
    rows = reading.table().read(
        GOOD, b"{", GOOD, None, GOOD, keys=[None, b"a", b"\xff", None, b"k"]
    )
    assert [row["key"] for row in rows] == ["k"]
    assert [letter["headers"]["sluice.reason"] for letter in reading.letters] == [
        "null_key", "malformed", "key_not_utf8", "null_key",
    ]  # fmt: skip


def test_keys_become_texts() -> None:
    *texts, wrong = key_texts([b"a", None, "ü".encode(), b"", b"\xff"])
    assert texts == ["a", None, "ü", ""]
    assert isinstance(wrong, UnicodeDecodeError)


def test_a_single_letter_is_a_value() -> None:
    assert RejectedRecord(1, "digits", "x") == RejectedRecord(1, "digits", "x")


def test_a_key_decoder_must_return_text() -> None:
    pipeline = Pipeline("p")
    pipeline.stream("t", value=Line, key=int)  # type: ignore[arg-type]
    (source,) = pipeline.nodes
    assert isinstance(source, nodes.Source)
    number, none, invalid = ValueDecoder(source_of(source, ())).keys.decode([b"5", None, b"x"])
    assert (str(number), none) == ("the key's decoder returned int, not str", None)
    assert isinstance(invalid, ValueError)


@pytest.mark.parametrize("year", [-5_000, 10_000, 290_000])
def test_a_time_that_python_cannot_represent_is_written_as_a_number(year: int) -> None:
    milliseconds = (year - 1970) * 31_556_952_000
    batch = pa.RecordBatch.from_pydict({
        "topic": ["orders"], "partition": pa.array([3], pa.int32()), "offset": pa.array([100], pa.int64()),
        "timestamp": pa.array([milliseconds * 1_000], pa.timestamp("us", "UTC")),
        "key": pa.array([b"k"]), "value": pa.array([b"v"]), "headers": pa.array([None], pa.string()),
    })  # fmt: skip
    (letter,) = dead_letter_records(batch, [RejectedRecord(0, "future", "too late")]).to_pylist()
    assert letter["headers"][-1] == {
        "key": "sluice.timestamp",
        "value": f"{milliseconds} ms".encode(),
    }


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises(error: Exception) -> Any:
    def decode(_: bytes) -> str:
        raise error

    return decode


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ValueError("kind \udcff"), "kind ?"),
        (ValueError("x" * 3_000_000), "x" * 2_000),
        (Untold(), "(its __str__ fails)"),
    ],
    ids=["surrogates", "a text of 3 MB", "an error without a text"],
)
def test_every_error_of_a_decoder_makes_a_dead_letter(
    reading: Reading, error: Exception, detail: str
) -> None:
    assert reading.stream(value=Serde(str, decode=raises(error)), event_time=None).read(b"v") == []
    assert [letter["headers"]["sluice.detail"] for letter in reading.letters] == [detail]


@pytest.mark.parametrize("key", [None, "orderId"])
def test_a_table_s_value_that_no_column_can_hold_is_a_dead_letter(
    reading: Reading, key: str | None
) -> None:
    rows = reading.table(key).read(GOOD, order(orderId=str(10**30)), GOOD)
    assert len(rows) == 2
    assert [letter["headers"]["sluice.reason"] for letter in reading.letters] == ["out_of_range"]
    assert reading.counts == {"read": 3, "applied": 2, "dead_letter/out_of_range": 1}


def test_a_decoded_key_with_surrogates_is_a_dead_letter(reading: Reading) -> None:
    reading.table(key=lambda key: key.decode(errors="surrogateescape"))
    assert [row["key"] for row in reading.read(GOOD, GOOD, keys=[b"a", b"\xff"])] == ["a"]
    assert [letter["headers"]["sluice.reason"] for letter in reading.letters] == ["key_not_utf8"]


def test_a_global_table_has_exactly_the_records_that_are_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(tmp_path, monkeypatch)
    rates = reading.pipeline.global_table("orders", value=Order, key="shop")
    reading.pipeline.stream("others", value=str).join(rates).to("joined")  # by an operator
    job = plan(reading.pipeline).job
    shops = ["a", "b", "c", "d" * 3_000, "e", "f"]
    values = [order(shop=f'"{shop}"') for shop in shops] + [b"{"]
    keys: list[bytes | None] = [b"k", None, b"\xff", b"k" * 3_000, b"k", b"k", b"k"]
    times = [NOW] * 4 + [NOW + timedelta(days=2), datetime(1960, 1, 1, tzinfo=UTC), NOW]
    reading.reader = StreamReader.of(job, reading.side_outputs)
    assert len(reading.read(*values, keys=keys, times=times)) == 3
    expected = {
        "read": 7, "dead_letter/key_too_long": 1, "dead_letter/future": 1, "dead_letter/event_time": 1,
        "dead_letter/malformed": 1,
    }  # fmt: skip
    assert reading.counts == expected
    assert {letter["headers"]["sluice.reason"] for letter in reading.letters} <= UNREADABLE
    reading.reader = TableReader.of(job, reading.side_outputs, interleaved=False)
    assert [row["key"] for row in reading.read(*values, keys=keys, times=times)] == ["a", "b", "c"]
    assert (reading.counts, len(reading.letters)) == (expected, 4), (
        "the table's records are counted once"
    )


class Visit(Struct):
    at: datetime
    pages: dict[str, int] = {}


LONG_NAME = b'{"at": "2026-01-01T00:00:00Z", "pages": {"%b": 1}}' % (b"k" * 50_001)


@pytest.mark.parametrize(
    ("value", "zone", "detail"),
    [
        (
            b'{"at": "9999-12-31T23:59:59-05:00"}',
            "UTC",
            "$.at: 9999-12-31T23:59:59-05:00 is outside the years 1 to",
        ),
        (
            b'{"at": "0001-01-01T00:00:00"}',
            "Europe/Berlin",
            "$.at: 0001-01-01T00:00:00 is outside the years 1 to 9999",
        ),
        (LONG_NAME, "UTC", "the name of a field has 50,001 characters"),
    ],
)
def test_times_and_names_that_spark_could_not_read_back_violate_the_contract(
    value: bytes, zone: str, detail: str
) -> None:
    good = b'{"at": "9999-12-31T23:59:59Z", "pages": {"a": 1}}'
    rows, values, [letter] = decoder(Visit, fields=("pages",), zone=zone).decode(
        [good, value, good]
    )
    assert (rows, len(values), letter.row, letter.reason) == ([0, 2], 2, 1, "contract")
    assert letter.detail.startswith(detail)
    assert len(letter.detail) < 200


def test_names_and_strings_outside_the_contract_can_be_long() -> None:
    value = b'{"at": "2026-01-01T00:00:00Z", "%b": 1}' % (b"k" * 50_001)
    assert decoder(Visit).decode([value])[0] == [0]


def packed(data: bytes) -> Visit:
    return msgspec.json.decode(LONG_NAME if data == b"long" else data, type=Visit)


def test_values_of_an_authors_decoder_have_the_same_limits() -> None:
    pipeline = Pipeline("p")
    pipeline.stream("t", value=Serde(Visit, decode=packed))
    (source,) = pipeline.nodes
    assert isinstance(source, nodes.Source)
    good, late = b'{"at": "2026-01-01T00:00:00Z"}', b'{"at": "9999-12-31T23:59:59-05:00"}'
    rows, _, letters = ValueDecoder(source_of(source, tuple(source.fields))).decode(
        [good, b"long", good, late]
    )
    assert (rows, [(letter.row, letter.reason) for letter in letters]) == (
        [0, 2],
        [(1, "contract"), (3, "contract")],
    )


class Sensor(Struct):
    level: float | None
    levels: list[float] = []
    by_name: dict[str, float] = {}
    price: Decimal2 = Decimal(0)
    next: Line | None = None


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        (Sensor(NAN), "contract", "$.level: nan cannot be written as JSON"),
        (Sensor(-INFINITY), "contract", "$.level: -inf cannot be written as JSON"),
        (Sensor(1.0, [0.5, INFINITY]), "contract", "$.levels[...]: inf cannot be written as JSON"),
        (
            Sensor(None, by_name={"a": NAN}),
            "contract",
            "$.by_name[...]: nan cannot be written as JSON",
        ),
        (Sensor(1.0, price=Decimal("NaN")), "digits", "$.price: NaN is not a decimal(12,2)"),
        (
            Sensor(1.0, next=Line("x", Decimal("Infinity"))),
            "digits",
            "$.next.amount: Infinity is not a decimal(12,2)",
        ),
        (Sensor("high"), "contract", "Expected `float | null`, got `str` - at `$.level`"),  # type: ignore[arg-type]
        (
            Sensor(1.0, price="1_0"),  # type: ignore[arg-type]
            "contract",
            "'1_0' is not written as a number in JSON - at `$.price`",
        ),
        (
            Sensor(1.0, by_name={"a": "x"}),  # type: ignore[dict-item]
            "contract",
            "Expected `float`, got `str` - at `$.by_name[...]`",
        ),
        (
            Sensor(1.0, levels=[object()]),  # type: ignore[list-item]
            "contract",
            "Encoding objects of type object is unsupported",
        ),
    ],
)
@pytest.mark.parametrize("is_global", [False, True], ids=["stream", "global table"])
def test_numbers_of_an_authors_decoder_that_json_does_not_have_are_rejected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: Sensor,
    reason: str,
    detail: str,
    is_global: bool,
) -> None:
    reading = Reading(tmp_path, monkeypatch)
    serde = Serde(Sensor, decode=lambda data: value if data == b"odd" else Sensor(0.5))
    if is_global:
        reading.pipeline.stream("others", value=str)
        reading.pipeline.global_table("orders", value=serde)
        job = plan(reading.pipeline).job
        reading.reader = TableReader.of(job, reading.side_outputs, interleaved=False)
    else:
        reading.stream(value=serde, event_time=None)
    assert len(reading.read(b"good", b"odd", b"good")) == 2
    (letter,) = reading.letters
    assert (letter["headers"]["sluice.reason"], letter["headers"]["sluice.detail"]) == (
        reason,
        detail,
    )


def test_a_single_double_of_an_authors_decoder_is_checked_too(reading: Reading) -> None:
    reading.stream(reads="CAST(value AS STRING)", value=Serde(float, decode=float), event_time=None)
    assert len(reading.read(b"1.5", b"nan", b"inf", b"-0")) == 2
    assert [letter["headers"]["sluice.detail"] for letter in reading.letters] == [
        "nan cannot be written as JSON",
        "inf cannot be written as JSON",
    ]


class Product(Struct, omit_defaults=True):
    name: str
    rate: float
    price: Decimal2
    at: datetime
    data: bytes
    by_name: dict[str, dict[str, float]] = {}
    more: dict[str, list[Line]] = {}
    codes: dict[str, bytes] = {}
    next: Line | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        self.name = self.name.upper()


def test_a_global_tables_store_has_the_decoded_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(tmp_path, monkeypatch, zone="Europe/Berlin")
    reading.pipeline.stream("others", value=str)
    reading.pipeline.global_table("orders", value=Product)
    job = plan(reading.pipeline).job
    reading.reader = TableReader.of(job, reading.side_outputs, interleaved=False)
    given = b'{"name": "a\\"b", "rate": 5, "price": 1.5, "at": "2024-01-01T08:00:00", "data": "AP8=", "unknown": 1'
    rows = reading.read(
        given + b"}",
        given
        + b', "by_name": {"x": {"y": 1e20, "z": 0.5}, "e": {}}, "more": {"\xc3\xa9": [{"item": "i", "amount": 1}]},'
        b' "codes": {"k": "AA=="}, "next": {"item": "j", "amount": 2}, "fixed": true}',
        None,
    )
    head = (
        '[{"name":"A\\"B","rate":5.0,"price":1.50,"at":"2024-01-01T07:00:00.000000Z","data":"AP8=",'
    )
    assert [row["value"] for row in rows] == [
        head + '"by_name":{},"more":{},"codes":{},"next":null,"fixed":false}]',
        head
        + '"by_name":{"x":{"y":1.0E20,"z":0.5},"e":{}},"more":{"é":[{"item":"i","amount":1.00}]},'
        '"codes":{"k":"AA=="},"next":{"item":"j","amount":2.00},"fixed":true}]',
        None,
    ]


def test_a_decoder_may_use_the_same_object_for_all_records() -> None:
    shared = Sensor(0.0)

    def decode(data: bytes) -> Sensor:
        shared.level = float(data)
        shared.levels.append(shared.level)
        return shared

    decoder = ValueDecoder(source_of_stream(Serde(Sensor, decode=decode)))
    rows, values, letters = decoder.decode([b"1", b"x", b"2"])
    assert (rows, [letter.row for letter in letters]) == ([0, 2], [1])
    assert [(value.level, value.levels) for value in values] == [(1.0, [1.0]), (2.0, [1.0, 2.0])]


def source_of_stream(value: Serde[Any]) -> Source:
    pipeline = Pipeline("p")
    pipeline.stream("t", value=value)
    (source,) = pipeline.nodes
    assert isinstance(source, nodes.Source)
    return source_of(source, ())
