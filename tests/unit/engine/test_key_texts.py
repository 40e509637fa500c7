"""The text of a key in Python: of each type, and of a row that a record without a value deletes."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from msgspec import Struct, field, structs

from sluice import Client, Digits, EpochMillis, Pipeline, QueryError, key_text
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.record_keys import UnusableKeyError
from sluice.plan.node_steps import source_of
from sluice.topology import nodes


class Kind(str, Enum):  # noqa: UP042  (whose str() is "Kind.HOME")
    HOME = "home"


class Size(IntEnum):
    LARGE = 3


class Answer(Enum):
    NONE = None
    PAIR = ("a", Decimal("1.50"))


class Place(Struct, tag_field="type", tag="place", omit_defaults=True):
    zip: str | None = None
    town: str = field(default="Oslo", name="city")


@dataclasses.dataclass
class Point:
    y: float
    x: int


BERLIN_SUMMER = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("Oslo", "Oslo"),
        (7, "7"),
        (2**70, "1180591620717411303424"),
        (True, "true"),
        (Kind.HOME, "home"),
        (Size.LARGE, "3"),
        (Answer.NONE, None),
        (Answer.PAIR, '["a",1.5]'),
        (868100000.0, "868100000.0"),
        (1e16, "1e+16"),
        (-0.0, "0.0"),
        (Decimal("12.50"), "12.5"),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.00"), "0"),
        (Decimal("1E-7"), "0.0000001"),
        (date(2026, 3, 29), "2026-03-29"),
        (datetime(26, 3, 29, 8), "0026-03-29 08:00:00"),
        (datetime(2026, 3, 29, 10, 0, 0, 120_000, BERLIN_SUMMER), "2026-03-29 08:00:00.12"),
        (time(8, 0, 0, 500_000), "08:00:00.5"),
        (timedelta(seconds=1), "PT1S"),
        (UUID("7D444840-9DC0-11D1-B245-5FFDCE74FAD2"), "7d444840-9dc0-11d1-b245-5ffdce74fad2"),
        ("ü".encode(), "ü"),
        ((), "[]"),
        (("a", None, "null", 1, 1.0, True), '["a",null,"null",1,1.0,true]'),
        ([Decimal("1.50"), date(2026, 3, 29), b"a", Kind.HOME], '[1.5,"2026-03-29","YQ==","home"]'),
        ({"b": 1, "a": {"d": [], "c": 'say "x"\n'}}, r'{"a":{"c":"say \"x\"\n","d":[]},"b":1}'),
        ({date(2026, 3, 29): 1}, '{"2026-03-29":1}'),
        ({"b", "a", "c"}, '["a","b","c"]'),
        ({9, 10}, "[10,9]"),
        (Place(), '{"city":"Oslo","type":"place","zip":null}'),
        (Point(2, 1), '{"x":1,"y":2}'),
    ],
)
def test_each_type_has_a_text(value: Any, text: str | None) -> None:
    assert key_text(value) == text


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (math.nan, "nan cannot be a key"),
        ([math.inf], "inf cannot be a key"),
        (Decimal("NaN"), "NaN cannot be a key"),
        (Decimal("1E+999999999"), "too many digits"),
        (object(), "a value of type object cannot be a key"),
        ([object()], "a value of type object cannot be a key"),
        (Point, "a value of type type cannot be a key"),
        ({Answer.NONE: "a"}, "has no name"),
        ({1: "a", "1": "b"}, "two values named '1'"),
        ({None: "a"}, "has no name"),
        (b"\xff", "invalid start byte"),
    ],
)
def test_some_values_cannot_be_keys(value: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        key_text(value)


def test_a_client_refuses_to_look_up_what_cannot_be_a_key() -> None:
    with (
        Client("http://127.0.0.1:1") as client,
        pytest.raises(QueryError, match="nan cannot be a key"),
    ):
        client.get("sales", math.nan)


class Visit(Struct, omit_defaults=True):
    at: datetime | None = None
    times: int = 0


class Row(Struct):
    id: int
    name: str
    kind: Literal["home", "shop"]
    price: Annotated[Decimal, Digits(10, 2)]
    day: date
    at: datetime
    weight: float
    paid: bool
    raw: bytes
    place: Place
    tags: list[str]
    note: str | None
    parent: int | None
    due: EpochMillis
    visit: Visit
    sizes: set[int]


def deleted(name: str, kafka_key: bytes | None, kind: str = "table") -> str | None:
    """The key of the row that a record without a value deletes."""
    pipeline = Pipeline("p", zone="Europe/Berlin")
    if kind == "stream":
        pipeline.stream("rows", value=Row, key=name, nulls="keep")
    else:
        (pipeline.table if kind == "table" else pipeline.global_table)("rows", value=Row, key=name)
    source = pipeline.nodes[0]
    assert isinstance(source, nodes.Source)
    keys = ValueDecoder(source_of(source)).keys.of_records(
        [None], pa.array([kafka_key], pa.binary())
    )
    (text,) = keys.to_pylist()
    assert text is None or isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("name", "kafka_key", "text"),
    [
        ("id", b"1", "1"),
        ("id", b'{"id":1}', "1"),
        ("id", b'{ "shop": "x", "id": 1 }', "1"),
        ("name", b"Oslo", "Oslo"),
        ("name", b'"Oslo"', "Oslo"),
        ("name", b'{"name":"Oslo"}', "Oslo"),
        ("name", b'"Oslo', '"Oslo'),
        ("name", b"[x]", "[x]"),
        ("name", b"{x}", "{x}"),
        ("name", b"null", "null"),
        ("note", b"null", "null"),
        ("kind", b"home", "home"),
        ("price", b"1.50", "1.5"),
        ("price", b'{"price": 1.50}', "1.5"),
        ("day", b"2026-03-29", "2026-03-29"),
        ("at", b'"2026-03-29T10:00:00"', "2026-03-29 08:00:00"),
        ("at", b"2026-03-29 08:00:00.5Z", "2026-03-29 08:00:00.5"),
        ("weight", b"8.681E8", "868100000.0"),
        ("paid", b"true", "true"),
        ("raw", b"abc", "abc"),
        (
            "place",
            b'{"type":"place","zip":"1","city":"Bergen"}',
            '{"city":"Bergen","type":"place","zip":"1"}',
        ),
        ("tags", b'[ "a", "b" ]', '["a","b"]'),
        ("name", b' {"name":"Oslo"}\n', "Oslo"),
        ("due", b"1774771200000", "2026-03-29 08:00:00"),
        ("due", b'{"due":1774771200500}', "2026-03-29 08:00:00.5"),
        ("visit", b'{"visit":{}}', '{"at":null,"times":0}'),
        (
            "visit",
            b'{"at":"2026-03-29T10:00:00","by":"ann"}',
            '{"at":"2026-03-29 08:00:00","times":0}',
        ),
        ("sizes", b"[9,10]", "[10,9]"),
    ],
)
@pytest.mark.parametrize("kind", ["table", "global_table", "stream"])
def test_a_record_without_a_value_deletes_the_row_that_kafkas_key_names(
    name: str, kafka_key: bytes, text: str, kind: str
) -> None:
    assert deleted(name, kafka_key, kind) == text


@pytest.mark.parametrize(
    ("name", "kafka_key", "reason"),
    [
        ("id", None, "null_key"),
        ("id", (1).to_bytes(8), "deleted_key"),
        ("id", b"one", "deleted_key"),
        ("id", b'{"customer":1}', "deleted_key"),
        ("id", b'{"id":"1x"}', "deleted_key"),
        ("id", b'{"id":1,"id":2}', "deleted_key"),
        ("name", b'{"id":1}', "deleted_key"),
        ("name", b"\xff", "key_not_utf8"),
        ("kind", b"other", "deleted_key"),
        ("weight", b"nan", "deleted_key"),
        ("price", b"1_000", "deleted_key"),
        ("price", b'{"price":"1_000"}', "deleted_key"),
        ("price", b"1.555", "deleted_key"),
        ("at", b"1774771200", "deleted_key"),
        ("visit", b'{"customer":4}', "deleted_key"),
        ("parent", b'{"parent":null}', "null_key"),
        ("name", b"x" * 1025, "key_too_long"),
    ],
)
@pytest.mark.parametrize("kind", ["table", "global_table"])
def test_a_record_that_does_not_say_which_row_to_delete_is_rejected(
    name: str, kafka_key: bytes | None, reason: str, kind: str
) -> None:
    with pytest.raises(UnusableKeyError) as error:
        deleted(name, kafka_key, kind)
    assert error.value.reason == reason


def test_a_stream_s_record_may_have_no_key() -> None:
    assert deleted("id", None, "stream") is None


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("name", [each.name for each in structs.fields(Row)])
def test_a_fields_key_is_the_text_of_its_value(name: str) -> None:
    """Times without a zone are in the pipeline's, and a decoder's int in a field of floats is a float."""
    rows = [
        Row(
            id=-(2**63), name="x", kind="home", price=Decimal("-0.50"), day=date(1, 1, 1),
            at=datetime(1, 1, 2, tzinfo=UTC), weight=-0.0, paid=True, raw=b"b", place=Place(), tags=[], note=None,
            parent=None, due=datetime(1, 1, 2, tzinfo=UTC), visit=Visit(), sizes=set(),
        ),
        Row(
            id=2**63 - 1, name="", kind="shop", price=Decimal(7), day=date(9999, 1, 1),
            at=datetime(9999, 12, 30, 23, 59, 59, 999_000, UTC), weight=1e22, paid=False, raw=b"", place=Place("1"),
            tags=["a"], note="n", parent=0, due=datetime(9999, 12, 30, tzinfo=UTC),
            visit=Visit(datetime(2026, 3, 29, 10), 1), sizes={9, 10},
        ),
    ]  # fmt: skip
    zoned = structs.replace(rows[1], visit=Visit(datetime(2026, 3, 29, 10, tzinfo=BERLIN), 1))
    pipeline = Pipeline("p", zone="Europe/Berlin")
    pipeline.stream("rows", value=Row)
    source = pipeline.nodes[0]
    assert isinstance(source, nodes.Source)
    keys = ValueDecoder(source_of(source)).keys.of_field(
        [*rows, structs.replace(rows[1], weight=7)], name
    )
    assert keys.to_pylist() == [
        key_text(getattr(row, name)) for row in (rows[0], zoned, structs.replace(zoned, weight=7.0))
    ]
