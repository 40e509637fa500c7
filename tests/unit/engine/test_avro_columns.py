"""Avro that is decoded to columns is what the decoder of single values gives, or is left to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from sluice import Avro, Decimal2, EpochMicros, EpochMillis, Pipeline
from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.decode import ValueDecoder
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.values.avro_schemas import schema_of_contract

pytestmark = pytest.mark.unit


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Part(Struct):
    name: str
    price: Decimal2
    tags: list[str]
    seen: datetime | None


class Everything(Struct):
    number: int
    real: float
    flag: bool
    text: str
    data: bytes
    amount: Decimal2
    kind: Literal["A", "B"]
    colour: Colour
    day: date
    at: datetime
    millis: EpochMillis
    parts: list[Part]
    part: Part
    maybe: int | None
    maybe_text: str | None = None
    later: str = "later"
    counts: dict[str, int | None] = {}
    by_name: dict[str, Part] = {}
    positive: Annotated[int, Meta(gt=0, le=2**62)] = 1
    share: Annotated[float, Meta(ge=0, lt=1)] = 0
    short: Annotated[str, Meta(min_length=1, max_length=3)] = "a"


LONGS = st.integers(-(2**63), 2**63 - 1)
AMOUNTS = st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2)
DAYS = st.dates(date(2, 1, 2), date(9998, 12, 30))
TIMES = st.datetimes(datetime(2, 1, 2), datetime(9998, 12, 30), timezones=st.just(UTC))
MILLIS = TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))
PARTS = st.fixed_dictionaries(
    {
        "name": st.text(max_size=20),
        "price": AMOUNTS,
        "tags": st.lists(st.text(max_size=5), max_size=3),
        "seen": st.none() | TIMES,
    }
)
VALUES = st.fixed_dictionaries(
    {
        "number": LONGS,
        "real": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "text": st.text(max_size=40),
        "data": st.binary(max_size=40),
        "amount": AMOUNTS,
        "kind": st.sampled_from(["A", "B"]),
        "colour": st.sampled_from(["red", "blue"]),
        "day": DAYS,
        "at": TIMES,
        "millis": MILLIS,
        "parts": st.lists(PARTS, max_size=4),
        "part": PARTS,
        "maybe": st.none() | LONGS,
        "maybe_text": st.none() | st.text(max_size=5),
        "later": st.text(max_size=5),
        "counts": st.dictionaries(st.text(max_size=3), st.none() | LONGS, max_size=3),
        "by_name": st.dictionaries(st.text(max_size=3), PARTS, max_size=2),
        "positive": st.integers(1, 2**62),
        "share": st.floats(0, 1, exclude_max=True),
        "short": st.text(min_size=1, max_size=3),
    }
)


class Reading:
    """A decoder of a contract's values, and the encoder of one writer."""

    def __init__(
        self,
        contract: type[Struct],
        change: Callable[[Any], None] = lambda _: None,
        **pipeline: Any,
    ) -> None:
        made = Pipeline("p", **pipeline)
        made.stream("t", value=Avro(contract))
        (source,) = plan(made).job.streams
        registry = MemoryRegistry()
        schema = json.loads(schema_of_contract(contract))
        change(schema)
        registered = registry.register("t-value", json.dumps(schema))
        self.encode = RegisteredEncoder(registered, in_header=False)
        self.decoder = ValueDecoder(source, registry)

    def columns(self, data: list[bytes]) -> dict[str, list[Any]] | None:
        """Return the columns of values; None if they are left to the decoder of single values."""
        texts = pa.array(data, pa.binary())
        assert self.decoder._registered_columns is not None
        self.decoder._registered_columns._misses = 0
        (run,) = self.decoder.runs(texts)
        return None if run.values is None else run.values.to_pydict()

    def each(self, data: list[bytes]) -> tuple[dict[str, list[Any]], list[str]]:
        """Return the columns that come from single values, and the reasons of the other values."""
        _, values, dead_letters = self.decoder.decode([*data])
        columns: dict[str, list[Any]] = {}
        for name in self.decoder.source.types:
            columns[name] = self.decoder.columns.column(values, name).to_pylist()
        return columns, [letter.reason for letter in dead_letters]


def repeated(values: list[bytes]) -> list[bytes]:
    """Return as many values as are read to columns."""
    return values * (1 + 60 // len(values))


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_columns_are_those_of_single_values(values: list[Any]) -> None:
    reading = Reading(Everything)
    data = repeated([reading.encode(value) for value in values])
    columns = reading.columns(data)
    assert columns is not None
    assert (columns, []) == reading.each(data)
    assert columns["number"][: len(values)] == [value["number"] for value in values]
    assert columns["amount"][: len(values)] == [value["amount"] for value in values]
    assert columns["at"][: len(values)] == [value["at"] for value in values]


def drop_later(schema: Any) -> None:
    schema["fields"] = [each for each in schema["fields"] if each["name"] != "later"]


def add_fields(schema: Any) -> None:
    added: list[Any] = [
        "string", "bytes", "long", "double", "float", "boolean", "null", ["null", "string", "long"],
        {"type": "array", "items": "string"}, {"type": "map", "values": "long"},
        {"type": "enum", "name": "E", "symbols": ["X", "Y"]},
        {"type": "fixed", "name": "F", "size": 3},
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "int"]}]}, "int",
    ]  # fmt: skip
    for number, kind in enumerate(added):
        schema["fields"].insert(number * 2, {"name": f"added{number}", "type": kind})


ADDED = st.tuples(
    st.text(max_size=9), st.just("AAEC"), LONGS, st.just(0.5), st.just(1.5), st.booleans(),
    st.none(), st.none() | st.text(max_size=3) | LONGS, st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), LONGS, max_size=3), st.sampled_from(["X", "Y"]),
    st.just("AAEC"), st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}), st.just(7),
)  # fmt: skip


def with_added(value: dict[str, Any], added: Any) -> dict[str, Any]:
    return value | {f"added{number}": each for number, each in enumerate(added)}


@given(
    st.lists(st.tuples(VALUES, ADDED), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.integers(0, 255)), min_size=1),
    st.booleans(),
)
def test_damaged_values_never_become_columns_that_single_values_are_not(
    values: list[tuple[Any, Any]], damages: list[tuple[int, int, int]], is_cut: bool
) -> None:
    reading = Reading(Everything, add_fields)
    data: list[bytearray] = []
    for value, added in values:
        data.append(bytearray(reading.encode(with_added(value, added))))
    for number, place, byte in damages:
        damaged = data[number % len(data)]
        at = 5 + place % max(len(damaged) - 5, 1)
        if is_cut:
            del damaged[at:]
        elif at < len(damaged):
            damaged[at] = byte
    texts = repeated([bytes(each) for each in data])
    columns = reading.columns(texts)
    if columns is not None:
        assert (columns, []) == reading.each(texts)


@given(st.lists(st.tuples(VALUES, ADDED), min_size=1, max_size=6))
def test_writers_with_more_and_fewer_fields_are_resolved(values: list[tuple[Any, Any]]) -> None:
    def change(schema: Any) -> None:
        add_fields(schema)
        drop_later(schema)

    reading = Reading(Everything, change)
    data: list[bytes] = []
    for value, added in values:
        fields = {name: each for name, each in value.items() if name != "later"}
        data.append(reading.encode(with_added(fields, added)))
    texts = repeated(data)
    columns = reading.columns(texts)
    assert columns is not None
    assert (columns, []) == reading.each(texts)
    assert set(columns["later"]) == {"later"}


class Numbers(Struct):
    wide: float
    time: EpochMicros
    whole: int
    identity: str
    raw: bytes


TYPES: list[tuple[str, Any, Any, Any]] = [
    ("wide", "int", 5, 5.0),
    ("wide", "float", 0.5, 0.5),
    ("time", {"type": "long", "logicalType": "timestamp-millis"}, 1_500, 1.5),
    ("time", {"type": "long", "logicalType": "timestamp-nanos"}, 1_500_000_000, 1.5),
    ("time", {"type": "long", "logicalType": "local-timestamp-micros"}, 1_500_000, 1.5),
    ("time", "long", 1_500_000, 1.5),
    ("whole", {"type": "int", "logicalType": "time-millis"}, 77, 77),
    ("whole", {"type": "long", "logicalType": "timestamp-nanos"}, 123_456_789, 123_456_789),
    ("identity", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "Y", "Y"),
    (
        "identity",
        {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
        "12345678-1234-5678-1234-567812345678",
        "12345678-1234-5678-1234-567812345678",
    ),
    ("raw", {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, b"123456789012",
     b"123456789012"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "value", "expected"), TYPES)
def test_types_of_writers_are_widened_exactly(
    name: str, kind: Any, value: Any, expected: Any
) -> None:
    def change(schema: Any) -> None:
        for each in schema["fields"]:
            if each["name"] == name:
                each["type"] = kind

    reading = Reading(Numbers, change)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x", name: value}
    texts = repeated([reading.encode(fields)])
    by_value, reasons = reading.each(texts)
    found = by_value[name][0]
    assert (found.timestamp() if isinstance(found, datetime) else found, reasons) == (expected, [])
    columns = reading.columns(texts)
    if columns is not None:
        assert columns == by_value


def test_nanoseconds_that_a_time_cannot_hold_are_not_rounded() -> None:
    def change(schema: Any) -> None:
        schema["fields"][1]["type"] = {"type": "long", "logicalType": "timestamp-nanos"}

    reading = Reading(Numbers, change)
    fields = {"wide": 1.0, "time": 1_001, "whole": 1, "identity": "x", "raw": b"x"}
    texts = repeated([reading.encode(fields)])
    assert reading.columns(texts) is None
    assert set(reading.each(texts)[1]) == {"contract"}


def test_values_in_doubt_are_left_to_the_decoder_of_single_values() -> None:
    reading = Reading(Numbers)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x"}
    good = reading.encode(fields)
    infinite = good[:5] + b"\0\0\0\0\0\0\xf0\x7f" + good[13:]
    assert reading.columns([good] * 60) is not None
    for bad in (infinite, good + b"\0", good[:-1], b"\1" + good[1:], good[:4], b""):
        assert reading.columns([*[good] * 59, bad]) is None
        assert len(reading.each([good, bad])[1]) == 1


def test_fewer_values_than_pay_are_read_one_by_one() -> None:
    reading = Reading(Numbers)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x"}
    assert reading.columns([reading.encode(fields)] * 3) is None


@pytest.mark.parametrize("bad", [b"", b"{}", b'{"wide":1.0}', b"\1\0\0\0\1abc", None])
def test_values_without_a_schema_do_not_keep_others_from_columns(bad: bytes | None) -> None:
    reading = Reading(Numbers)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x"}
    good = reading.encode(fields)
    data = [good, bad, *[good] * 60, bad]
    nothing = pa.nulls(len(data), pa.string())
    texts = pa.array(data, pa.binary())
    decoded = reading.decoder.mostly_columns(texts, texts, nothing)
    assert decoded is not None
    rows, values, dead_letters = decoded
    kept, single, rejected = reading.decoder.decode(data, texts, nothing)
    assert rows.to_pylist() == kept
    assert dead_letters == rejected
    for name in values.schema.names:
        assert values.column(name).equals(reading.decoder.columns.column(single, name))


def test_other_doubts_leave_all_values_to_the_decoder_of_single_values() -> None:
    reading = Reading(Numbers)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x"}
    good = reading.encode(fields)
    nothing = pa.nulls(62, pa.string())
    for data in ([good] * 62, [b"{}", good + b"\0", *[good] * 60]):
        texts = pa.array(data, pa.binary())
        assert reading.decoder.mostly_columns(texts, texts, nothing) is None


def test_an_invalid_value_makes_few_others_slow() -> None:
    reading = Reading(Numbers)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x"}
    good = reading.encode(fields)
    data = [good] * 20_000
    for place in (1, 8_000, 12_000, 16_000):
        data[place] = good + b"\0"
    runs = [*reading.decoder.runs(pa.array(data, pa.binary()))]
    assert [run.begin for run in runs] == [0, *[run.end for run in runs[:-1]]]
    assert runs[-1].end == 20_000
    slow = sum(run.end - run.begin for run in runs if run.values is None)
    assert slow <= 4_000 + 3 * 400
    for run in runs:
        if run.values is not None:
            assert run.values.num_rows == run.end - run.begin


def test_columns_are_tried_again_after_many_invalid_values() -> None:
    reading = Reading(Numbers)
    fields = {"wide": 1.0, "time": 0, "whole": 1, "identity": "x", "raw": b"x"}
    good = reading.encode(fields)
    damaged = pa.array([good + b"\0"] * 400, pa.binary())
    for _ in range(20):
        assert [run.values for run in reading.decoder.runs(damaged)] == [None]
    valid = pa.array([good] * 400, pa.binary())
    for _ in range(3):
        *_, last = reading.decoder.runs(valid)
    assert last.values is not None
