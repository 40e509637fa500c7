"""Values that Arrow reads as columns are those that the decoder accepts one by one, and are equal to them."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Decimal2, Digits, EpochMicros, EpochMillis, Pipeline
from sluice.engine.read import json_columns
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.json_columns import JsonColumns
from sluice.plan import Source
from sluice.plan.node_steps import source_of
from sluice.topology import nodes


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(Struct):
    item: str
    amount: Decimal2
    ok: bool


class Order(Struct, rename="camel"):
    order_id: int
    shop: str
    amount: Annotated[Decimal, Digits(6, 2)]
    kind: Literal["a", "b"]
    colour: Colour
    level: Literal[1, 2]
    weight: float
    lines: list[Line]
    tags: list[str]
    at: datetime


ORDER = {
    "orderId": 1,
    "shop": "north",
    "amount": 27.5,
    "kind": "a",
    "colour": "red",
    "level": 1,
    "weight": 1.5,
    "lines": [{"item": "x", "amount": 2, "ok": True}],
    "tags": [],
    "at": "2022-12-05T08:55:27",
}


@dataclasses.dataclass
class Point:
    x: int
    label: str


class Row(TypedDict):
    x: int
    label: str


class Small(Struct):
    value: int


def source(contract: Any, zone: str = "UTC") -> Source:
    pipeline = Pipeline("p", zone=zone)
    pipeline.stream("t", value=contract)
    (node,) = pipeline.nodes
    assert isinstance(node, nodes.Source)
    return source_of(node, tuple(node.fields))


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "_FEWEST", 1)
    monkeypatch.setattr(json_columns, "_SAMPLE_EVERY", 1)
    monkeypatch.setattr(json_columns, "_MOST_MISSES", 1_000_000)


def columns_of(
    texts: Sequence[bytes | None], contract: Any = Order, zone: str = "UTC"
) -> dict[str, list[Any]] | None:
    """The columns that Arrow has read; None if it has left the texts to the decoder.

    If Arrow has read them, the decoder must accept all texts, and have the same columns.
    """
    decoder = ValueDecoder(source(contract, zone))
    (run,) = decoder.runs(pa.array(texts, pa.binary()))
    if run.values is None:
        return None
    rows, values, dead_letters = decoder.decode([*texts])
    assert (rows, dead_letters) == ([*range(len(texts))], []), texts
    columns: dict[str, list[Any]] = {}
    for name in decoder.source.types:
        column, expected = run.values.column(name), decoder.columns.column(values, name)
        # The text tells -0.0 from 0.0.
        assert (column.type, repr(column.to_pylist())) == (
            expected.type,
            repr(expected.to_pylist()),
        ), texts
        columns[name] = column.to_pylist()
    return columns


def text(**changes: Any) -> bytes:
    return json.dumps(ORDER | changes).encode()


def test_arrow_reads_the_usual_json_of_a_contract() -> None:
    columns = columns_of(
        [text(), text(orderId=2, tags=["p", "q"], at="2022-12-05T08:55:28.25"), text(shop="Zürich")]
    )
    assert columns is not None
    assert columns["orderId"] == [1, 2, 1]
    assert columns["amount"] == [Decimal("27.50")] * 3
    assert columns["shop"] == ["north", "north", "Zürich"]
    assert columns["lines"][0] == [{"item": "x", "amount": Decimal("2.00"), "ok": True}]
    assert columns["at"][1].isoformat() == "2022-12-05T08:55:28.250000+00:00"


@pytest.mark.parametrize("contract", [Point, Row])
def test_arrow_reads_dataclasses_and_typed_dicts(contract: Any) -> None:
    assert columns_of([b'{"x": 1, "label": "a"}'], contract) == {"x": [1], "label": ["a"]}


def test_times_may_all_have_the_zone_z_but_only_these_have_a_meaning_outside_utc() -> None:
    with_zone, without = text(at="2022-12-05T08:55:27Z"), text(at="2022-12-05T08:55:27")
    assert columns_of([with_zone], zone="Europe/Berlin") is not None
    assert columns_of([without], zone="Europe/Berlin") is None
    assert columns_of([with_zone, without]) is None


class Positive(Struct):
    value: Annotated[int, msgspec.Meta(gt=0)]


class Checked(Struct):
    value: int

    def __post_init__(self) -> None:
        if self.value == 13:
            raise ValueError("13")


class Mapped(Struct):
    value: dict[str, int]


class Untyped(Struct):
    value: Any


class Timed(Struct):
    value: list[datetime]


class Nested(Struct):
    value: list[Checked]


class Tagged(Struct, tag="t"):
    value: int


@pytest.mark.parametrize(
    "contract", [Positive, Checked, Mapped, Untyped, Timed, Nested, Tagged, str, list[int]]
)
def test_contracts_whose_rules_arrow_does_not_know_are_left_to_the_decoder(contract: Any) -> None:
    assert JsonColumns.of(source(contract)) is None


class Strict(Struct, forbid_unknown_fields=True):
    x: int


class Wide(Struct):
    """A contract with fields that may be null or missing."""

    required: int | None
    on: date
    ms: EpochMillis
    us: EpochMicros
    note: str | None = None
    count: int = 7
    amount: Decimal2 | None = None
    place: Point | None = None
    levels: list[int | None] | None = None
    seen: datetime | None = None
    strict: Strict | None = None


WIDE = {
    "required": 1,
    "on": "2022-12-05",
    "ms": 1_670_230_527_000,
    "us": 1_670_230_527_000_001,
    "note": "n",
    "count": 2,
    "amount": 1.5,
    "place": {"x": 1, "label": "l"},
    "levels": [1, None],
    "seen": "2022-12-05T08:55:27",
    "strict": {"x": 1},
}


def wide(**changes: Any) -> bytes:
    """The JSON of a wide value; `...` leaves a field out."""
    return json.dumps(
        {name: value for name, value in (WIDE | changes).items() if value is not ...}
    ).encode()


def test_fields_that_may_be_missing_are_null_however_that_is_written() -> None:
    nulls = ["note", "amount", "place", "levels", "seen", "strict"]
    columns = columns_of(
        [wide(), wide(**dict.fromkeys(nulls)), wide(**dict.fromkeys(nulls, ...))], Wide
    )
    assert columns is not None
    assert columns["note"] == ["n", None, None]
    assert columns["levels"] == [[1, None], None, None]
    assert columns["place"] == [{"x": 1, "label": "l"}, None, None]
    assert columns["ms"][0].isoformat() == "2022-12-05T08:55:27+00:00"


def test_only_the_decoder_knows_the_defaults_of_missing_fields_and_refuses_missing_ones() -> None:
    for name in ("required", "count", "on", "ms"):
        assert columns_of([wide(), wide(**{name: ...})], Wide) is None
        assert columns_of([wide(), wide(**{name: None})], Wide) is None


UNKNOWN = [
    '"more":1',
    '"more":"text"',
    '"more":{"a":1,"b":[{"a":null}]}',
    '"more":{"a":1,"a":2}',
    '"more":[{"a":1,"a":2}]',
    '"more":1,"more":1',
    '"more":null,"more":null',
    '"more":{"a":1,"\\u0061":2}',
    '"more":[1,"a"]',
    '"more":1e999',
    '"more":-0',
    '"more":12345678901234567890123',
    '"more":"\\ud800"',
    '"more":{"amount":"1_0"}',
    '"amounts_":["1_0"]',
    '"":{}',
    '"\\u0000":1',
    f'"more":{"[" * 98}{"]" * 98}',
    f'"more":{"[" * 101}{"]" * 101}',
    f'"more":{"[" * 20_000}{"]" * 20_000}',
]


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("contract", [Order, Small, Strict])
def test_unknown_fields_are_read_like_the_decoder_reads_them(unknown: str, contract: Any) -> None:
    value = {Order: text(), Small: b'{"value": 7}', Strict: b'{"x": 1}'}[contract]
    changed = value[:-1] + b"," + unknown.encode() + b"}"
    for texts in ([changed], [value, changed], [changed, changed]):
        columns_of(texts, contract)


def test_arrow_reads_values_of_a_contract_that_declares_only_some_of_their_fields() -> None:
    texts = [b'{"value": 7, "more": {"a": 1}}', b'{"more": null, "value": 8}']
    assert columns_of(texts, Small) == {"value": [7, 8]}


def test_unknown_fields_may_be_within_objects_and_lists() -> None:
    line = {"item": "x", "amount": 2, "ok": True, "more": [1], "place": {"x": 1.5}}
    columns = columns_of([text(), text(lines=[line, line | {"more": None}], day="2022-12-05")])
    assert columns is not None
    assert columns["lines"][1] == [{"item": "x", "amount": Decimal("2.00"), "ok": True}] * 2


def test_new_unknown_fields_are_looked_for_again_and_those_of_few_texts_are_left_to_the_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_columns, "PIECE", 3)
    monkeypatch.setattr(json_columns, "_SAMPLE_EVERY", 2)
    plain, more, other = b'{"value": 1}', b'{"value": 1, "more": 1}', b'{"value": 1, "other": "a"}'
    number, text = b'{"value": 1, "more": 1.5}', b'{"value": 1, "more": "b"}'
    assert runs_of([plain] * 3 + [more] * 3 + [more, number, plain] + [other] * 3) == [
        (0, 12, True)
    ]
    assert runs_of([plain, more, plain]) == [(0, 3, False)]
    assert runs_of([more, text, more]) == [(0, 3, False)]


def test_arrow_reads_no_texts_with_very_many_unknown_fields() -> None:
    texts = [
        json.dumps({"value": 1, f"more_{number}": {f"part_{number}": 1}}).encode()
        for number in range(300)
    ]
    assert columns_of(texts[:100], Small) is not None
    assert columns_of(texts, Small) is None


BAD = [
    None,
    b"",
    b"   ",
    b"{}",
    b"null",
    b"[]",
    b'{"value": 1}{"value": 2}',
    b'{"value": 1}\n{"value": 2}',
    b'{"value": 1',
    b'"value": 2}',
    b'{"value": "1"}',
    b'{"value": 1.5}',
    b'{"value": true}',
    b'{"value": null}',
    b'{"value": 01}',
    b'{"value": +1}',
    b'{"value": 9223372036854775808}',
    b'{"value": 1, "value": 2}',
    b'{"value": 1, "other": {"a": 1, "a": 2}}',
    b'{"value": 1, "other": 1, "other": 2}',
    b'{"value": 1, /* c */ "x": 1}',
    b'{"value": 1,}',
    b"{'value': 1}",
    b'\xef\xbb\xbf{"value": 1}',
    b'{"other": 1}',
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_json_among_good_is_left_to_the_decoder(bad: bytes | None) -> None:
    good = b'{"value": 7}'
    for texts in ([bad], [good, bad], [bad, good], [bad, bad], [good, bad, bad, good]):
        assert columns_of(texts, Small) is None


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(
        st.sampled_from(
            [text for text in BAD if text is not None] + [b'{"value": 7}', b"{", b"}", b"\n"]
        ),
        min_size=1,
        max_size=5,
    )
)
def test_texts_never_stand_in_for_one_another(texts: list[bytes]) -> None:
    columns_of(texts, Small)


_NUMBERS = [
    "0", "-0", "-0.0", "0.0", "1", "-1", "5.0", "5.10", "5.100", "5.125", "1e2", "1E+2", "1e-2", "1e4", "1e5",
    "12345", "9999.99", "10000", "99999.9", "1e400", "-1e400", "1e-400", "4.9e-324", "9007199254740993",
    "9223372036854775807", "9223372036854775808", "0.1", "123456789012345678901234567890",
    "0.30000000000000004", "1.", ".5", "01", "+1", "NaN", "Infinity", "-", "0x1", "true", "null", '"1"',
    '"1.5"', '""', "[]", "{}", "1e", "1.5e3", "0e5", "-1e-7",
]  # fmt: skip
_TEXTS = [
    '"a"', '"b"', '"red"', '"blue"', '"x"', '""', '"\\u0061"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"',
    '"\\udc00"', '"\\ud800\\u0041"', '"\\uD83D"', '"é"', '"😀"', '"\\""', '"\\\\"', '"\\/"', '"\\x"', '"a\tb"',
    '"a\nb"', "null", "1", "true", "[]", '"\x7f"', '"\\n"', '"}\\n{"', '"}{"', '"\\u00e9"',
]  # fmt: skip
_TIMES = [
    "2022-12-05T08:55:27", "2022-12-05 08:55:27", "2022-12-05t08:55:27", "2022-12-05T08:55:27Z",
    "2022-12-05T08:55:27z", "2022-12-05T08:55:27.1", "2022-12-05T08:55:27.123456",
    "2022-12-05T08:55:27.1234567", "2022-12-05T08:55:27.123456789", "2022-12-05T08:55:27.5Z",
    "2022-12-05T08:55:27+01:00", "2022-12-05T08:55:27+0100", "2022-12-05T08:55:27+01", "2022-12-05T08:55+01",
    "2022-12-05T08:55", "2022-12-05T08", "2022-12-05", "20221205T085527", "2022-12-05T08:55:27.",
    "2022-12-05T08:55:60", "2022-12-05T24:00:00", "2022-02-30T00:00:00", "2024-02-29T00:00:00",
    "2023-02-29T00:00:00", "0000-01-01T00:00:00", "0001-01-01T00:00:00", "0002-01-01T00:00:00",
    "9999-12-31T23:59:59", "9998-12-31T00:00:00", "1969-12-31T23:59:59", " 2022-12-05T08:55:27",
    "2022-12-05T08:55:27 ", "2022-12-05T08:55:27 Z", "", "Z", "now", "2022-12-05T8:55:27",
    "2022-12-05T08:55:27,5", "2022-12-05T08:55:27-00:00", "-2022-12-05T08:55:27",
]  # fmt: skip


@st.composite
def _order_texts(draw: st.DrawFn) -> bytes:
    """The JSON of an order in which some parts are odd, and perhaps some characters."""
    number, string = st.sampled_from(_NUMBERS), st.sampled_from(_TEXTS)
    space = draw(st.sampled_from(["", " ", "\n", "\t \r\n"]))
    line = st.tuples(string, number, st.sampled_from(["true", "false", "null", "1", '"true"'])).map(
        lambda parts: f'{{"item":{parts[0]},"amount":{parts[1]},"ok":{parts[2]}}}'
    )
    odd = {
        "orderId": number,
        "shop": string,
        "amount": number,
        "kind": string,
        "colour": string,
        "level": number,
        "weight": number,
        "lines": st.lists(line, max_size=2).map(lambda items: f"[{','.join(items)}]"),
        "tags": st.lists(string, max_size=2).map(lambda items: f"[{','.join(items)}]"),
        "at": st.sampled_from(_TIMES).map(json.dumps),
    }
    parts = {name: json.dumps(value) for name, value in ORDER.items()}
    for name in draw(st.lists(st.sampled_from([*odd]), max_size=2)):
        parts[name] = draw(odd[name])
    members = [f'"{name}"{space}:{space}{value}' for name, value in parts.items()]
    for change in draw(
        st.lists(st.sampled_from(["drop", "repeat", "add", "shuffle", "rename"]), max_size=1)
    ):
        _change(members, change, draw(st.randoms(use_true_random=False)))
    written = ("{" + f",{space}".join(members) + "}").encode()
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(written)))
        inserted = draw(
            st.sampled_from(
                [b"", b"\n", b"{", b"}", b'"', b",", b"\\", b"\x00", b"\xff", b"\xc3", b" ", b"0"]
            )
        )
        written = written[:at] + inserted + written[at + draw(st.integers(0, 1)) :]
    return written


def _change(members: list[str], change: str, random: random.Random) -> None:
    at = random.randrange(len(members))
    match change:
        case "drop":
            del members[at]
        case "repeat":
            members.append(members[at])
        case "add":
            members.insert(
                at, random.choice(['"more":1', '"more":{"a":1,"a":2}', '"more":[[[]]]', '"":null'])
            )
        case "shuffle":
            random.shuffle(members)
        case "rename":
            members[at] = members[at].replace("o", "\\u006f", 1)


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(_order_texts(), min_size=1, max_size=3),
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
)
@example(texts=[text(amount=12345)], zone="UTC")
def test_whatever_arrow_reads_the_decoder_reads_alike(texts: list[bytes], zone: str) -> None:
    columns_of(texts, zone=zone)


@pytest.mark.parametrize("number", _NUMBERS)
@pytest.mark.parametrize("name", ["orderId", "amount", "level", "weight"])
def test_each_way_to_write_a_number_is_read_alike(name: str, number: str) -> None:
    columns_of(
        [
            text().replace(
                json.dumps({name: ORDER[name]})[1:-1].encode(), f'"{name}": {number}'.encode()
            )
        ]
    )


@pytest.mark.parametrize("time", _TIMES)
def test_each_way_to_write_a_time_is_read_alike(time: str) -> None:
    columns_of([text(at=time)])
    columns_of([text(at=time)], zone="Europe/Berlin")


@pytest.mark.parametrize("string", _TEXTS)
@pytest.mark.parametrize("name", ["shop", "kind"])
def test_each_way_to_write_a_string_is_read_alike(name: str, string: str) -> None:
    columns_of(
        [
            text().replace(
                json.dumps({name: ORDER[name]})[1:-1].encode(), f'"{name}": {string}'.encode()
            )
        ]
    )


class Amounts(Struct):
    amount: Decimal2 | None = None
    amounts: list[Decimal2] = []


@pytest.mark.parametrize("amount", ['"1.5"', '"1_0"', '" 5 "', '"٣"', '""', "1.5", "null"])
@pytest.mark.parametrize(
    "value",
    [
        '{"amount":%s,"amounts":[1]}',
        '{"amount" : %s,"amounts":[1]}',
        '{"\\u0061mount":%s,"amounts":[1]}',
        '{"amount":1,"amounts":[%s]}',
        '{"amounts":[%s]}',
        '{"amount":%s}',
    ],
)
@pytest.mark.parametrize("more", ["", ',"other":1', ',"other":"a\\"b"'])
@pytest.mark.parametrize("contract", [Amounts, Wide])
def test_amounts_as_text_are_read_alike_or_left_to_the_decoder(
    amount: str, value: str, more: str, contract: Any
) -> None:
    changed = (value % amount)[:-1] + more
    if contract is Wide:
        changed += (
            ","
            + json.dumps({name: WIDE[name] for name in ("required", "on", "ms", "us", "count")})[
                1:-1
            ]
        )
    columns_of([changed.encode() + b"}"], contract)


@st.composite
def _wide_texts(draw: st.DrawFn) -> bytes:
    """The JSON of a wide value, some fields of which are null, missing or odd."""
    parts = {name: json.dumps(value) for name, value in WIDE.items()}
    for name in draw(st.lists(st.sampled_from([*parts]), max_size=4)):
        match draw(st.integers(0, 3)):
            case 0:
                parts.pop(name, None)
            case 1:
                parts[name] = "null"
            case 2:
                parts[name] = draw(
                    st.sampled_from([*_NUMBERS, *_DAYS, *_TEXTS, *map(json.dumps, _TIMES)])
                )
            case _:
                odd = draw(
                    st.sampled_from(
                        [
                            '{"x":1,"label":null}',
                            '{"x":1}',
                            '{"x":1,"y":2}',
                            "[null]",
                            '["1"]',
                            "{}",
                        ]
                    )
                )
                parts[name] = odd
    members = [f'"{name}":{value}' for name, value in parts.items()]
    if draw(st.integers(0, 3)) == 0:
        members.insert(draw(st.integers(0, len(members))), draw(st.sampled_from(UNKNOWN)))
    return ("{" + ",".join(members) + "}").encode()


_DAYS = [
    '"2022-12-05"', '"2022-12-5"', '"20221205"', '"2022-02-30"', '"0000-01-01"', '"0001-01-01"', '"9999-12-31"',
    '"12022-12-05"', '"2022-12-05T00:00:00"', '" 2022-12-05"', '"-022-12-05"',
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(_wide_texts(), min_size=1, max_size=3),
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
)
def test_whatever_arrow_reads_of_optional_fields_the_decoder_reads_alike(
    texts: list[bytes], zone: str
) -> None:
    columns_of(texts, Wide, zone)


@pytest.mark.parametrize("number", _NUMBERS)
@pytest.mark.parametrize("name", ["ms", "us", "count"])
def test_each_way_to_write_a_whole_number_is_read_alike(name: str, number: str) -> None:
    columns_of(
        [
            wide().replace(
                json.dumps({name: WIDE[name]})[1:-1].encode(), f'"{name}": {number}'.encode()
            )
        ],
        Wide,
    )


@pytest.mark.parametrize("day", _DAYS)
def test_each_way_to_write_a_day_is_read_alike(day: str) -> None:
    columns_of([wide(on=json.loads(day))], Wide)


def runs_of(texts: Iterable[bytes]) -> list[tuple[int, int, bool]]:
    decoder = ValueDecoder(source(Small))
    return [
        (run.begin, run.end, run.values is not None)
        for run in decoder.runs(pa.array(texts, pa.binary()))
    ]


def test_a_bad_text_makes_only_its_piece_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "PIECE", 2)
    good, bad = b'{"value": 1}', b"{"
    assert runs_of([good] * 5) == [(0, 5, True)]
    assert runs_of([good, good, good, bad, bad, good, good]) == [
        (0, 2, True),
        (2, 6, False),
        (6, 7, True),
    ]
    assert runs_of([bad] * 3) == [(0, 3, False)]
    assert runs_of([]) == []


def test_arrow_is_not_asked_again_after_some_pieces_in_a_row_were_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_columns, "PIECE", 1)
    monkeypatch.setattr(json_columns, "_MOST_MISSES", 2)
    good, bad = b'{"value": 1}', b"{"
    assert runs_of([bad, good, bad, good]) == [
        (0, 1, False),
        (1, 2, True),
        (2, 3, False),
        (3, 4, True),
    ]
    assert runs_of([bad, bad, good, good]) == [(0, 4, False)]
