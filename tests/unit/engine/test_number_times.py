"""Times as numbers: as a record's event time, and as fields of contracts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import (
    EpochMicros,
    EpochMillis,
    EpochSeconds,
    EpochTime,
    Pipeline,
    TopologyError,
    epoch_ms,
    epoch_s,
    epoch_us,
)
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.event_times import invalid_times
from sluice.plan.node_steps import source_of
from sluice.topology import nodes
from sluice.values import contract_parts, contracts, epochs
from sluice.values.contract_values import as_produced

AT, AT_MS = datetime(2023, 11, 14, 22, 14, 2, 123_456, tzinfo=UTC), 1_700_000_042_123
CLOCK = AT_MS + 1_000


class View(Struct):
    at: int | None
    page: str = ""


class Visit(Struct, tag="visit", rename={"ended": "ended-at"}):
    at: EpochMillis
    ended: EpochSeconds | None = None
    steps: list[EpochMicros] = []
    days: dict[str, EpochSeconds] = {}


class Session(Struct):
    visits: list[Visit]
    first: Visit


def decoder(
    contract: Any, event_time: str | EpochTime | None = None, nulls: Any = "dead_letter"
) -> ValueDecoder:
    pipeline = Pipeline("p")
    pipeline.stream("t", value=contract, event_time=event_time, nulls=nulls)
    (source,) = pipeline.nodes
    assert isinstance(source, nodes.Source)
    return ValueDecoder(source_of(source, tuple(source.fields)))


def event_time(declared: str | EpochTime, number: int | None) -> int | str:
    """The event time in ms, or the reason why it is invalid."""
    source = decoder(View, declared)
    times = source.columns.event_times(
        [View(number)], pa.array([AT], pa.timestamp("us", "UTC")), CLOCK
    )
    problems = invalid_times(source, times, CLOCK)
    return problems[0][1] if any(problems) and problems[0] else times[0].as_py()


@pytest.mark.parametrize(
    ("declared", "number", "expected"),
    [
        ("at", AT_MS, AT_MS),
        (epoch_ms("at"), AT_MS, AT_MS),
        (epoch_s("at"), 1_700_000_042, 1_700_000_042_000),
        (epoch_us("at"), 1_700_000_042_123_999, AT_MS),
        (epoch_ms("at"), 0, 0),
        (epoch_s("at"), 5, 5_000),
        (epoch_us("at"), 5, 0),
        (epoch_ms("at"), None, "the event time is null"),
        (epoch_ms("at"), -1, "the event time, -1 ms, is before 1970"),
        (epoch_us("at"), -1, "the event time, -1 ms, is before 1970"),
        (epoch_s("at"), -1, "the event time, -1000 ms, is before 1970"),
        (epoch_s("at"), AT_MS, f"the event time, {AT_MS}000 ms, is after"),
        (epoch_s("at"), 2**62, "the event time, 9223372036854775000 ms, is after"),
        (epoch_s("at"), -(2**62), "the event time, -9223372036854775000 ms, is before 1970"),
        (epoch_ms("at"), 2**63 - 1, "the event time, 9223372036854775807 ms, is after"),
        ("at", 1_700_000_042, 'declare its unit with event_time=epoch_s("at")'),
        ("at", 1_700_000_042_000_000, "is after"),
    ],
)
def test_a_number_is_the_event_time_in_the_declared_unit(
    declared: str | EpochTime, number: int | None, expected: int | str
) -> None:
    time = event_time(declared, number)
    assert (
        expected in time
        if isinstance(expected, str) and isinstance(time, str)
        else time == expected
    )


def test_a_record_without_a_value_keeps_the_time_of_kafka() -> None:
    source = decoder(View, epoch_s("at"), nulls="keep")
    values: list[Any] = [None, View(7)]
    times = source.columns.event_times(values, pa.array([AT, AT], pa.timestamp("us", "UTC")), CLOCK)
    assert times.to_pylist() == [AT_MS, 7_000]


class Wrong(Struct):
    text: str
    price: float
    at: EpochMillis


@pytest.mark.parametrize(
    ("declared", "mistake"),
    [
        ("text", r"event_time='text' is STRING, not a datetime or an int\. .*epoch_ms\(\"text\"\)"),
        (
            epoch_ms("price"),
            r"event_time=epoch_ms\('price'\) is DOUBLE, not an int\. .* declare it as int",
        ),
        (
            epoch_ms("at"),
            r"event_time=epoch_ms\('at'\) is TIMESTAMP, not an int\. Write event_time='at'",
        ),
        (epoch_ms("no"), r"has no field 'no'"),
    ],
)
def test_a_field_that_cannot_be_the_event_time_is_refused(
    declared: str | EpochTime, mistake: str
) -> None:
    with pytest.raises(TopologyError, match=mistake):
        decoder(Wrong, declared)


def test_fields_of_a_contract_are_times_although_json_has_numbers() -> None:
    micros = 1_700_000_042_123_456
    visit = f'{{"type":"visit","at":{AT_MS},"ended-at":-5,"steps":[{micros}],"days":{{"x":0}}}}'
    rows, values, letters = decoder(Session).decode(
        [f'{{"visits":[{visit}],"first":{visit}}}'.encode()]
    )
    assert (rows, letters) == ([0], [])
    expected = Visit(
        AT.replace(microsecond=123_000), datetime(1969, 12, 31, 23, 59, 55, tzinfo=UTC), [AT],
        {"x": datetime(1970, 1, 1, tzinfo=UTC)},
    )  # fmt: skip
    assert values == [Session([expected], expected)]
    source = decoder(Visit, "at")
    assert source.columns.column(values[0].visits, "steps").to_pylist() == [[AT]]
    assert source.columns.event_times(values[0].visits, pa.array([AT]), CLOCK).to_pylist() == [
        AT_MS
    ]
    assert contracts.fields(Visit)["at"] == "TIMESTAMP"


@pytest.mark.parametrize(
    ("json", "detail"),
    [
        ('"at": 1.5', "Expected `int`, got `float` - at `$.at`"),
        ('"at": "1700000042123"', "Expected `int`, got `str` - at `$.at`"),
        ('"at": "2023-11-14T22:14:02Z"', "Expected `int`, got `str` - at `$.at`"),
        ('"at": null', "Expected `int`, got `NoneType` - at `$.at`"),
        ('"at": true', "Expected `int`, got `bool` - at `$.at`"),
        (
            '"at": 1, "ended-at": 99999999999999',
            "99999999999999 seconds are outside the years 1 to 9999 - at `$.ended-at`",
        ),
        ('"at": 1, "steps": [1e3]', "Expected `int`, got `float` - at `$.steps[0]`"),
        ('"ended-at": 1', "Object missing required field `at`"),
    ],
)
def test_what_is_no_number_of_the_unit_is_a_dead_letter(json: str, detail: str) -> None:
    good = b'{"type": "visit", "at": 1}'
    rows, _, letters = decoder(Visit).decode([good, f'{{"type": "visit", {json}}}'.encode(), good])
    assert rows == [0, 2]
    assert [(letter.row, letter.reason, letter.detail) for letter in letters] == [
        (1, "contract", detail)
    ]


def test_fields_twice_are_found_although_a_number_has_no_quotes() -> None:
    class_of = contract_parts.quote_counter(Plain)
    assert class_of is not None
    assert class_of([Plain(AT, "x")]) == 2 * 3
    rows, _, letters = decoder(Plain).decode(
        [b'{"at": 1, "page": "x"}', b'{"at": 1, "page": "x", "at": 2}']
    )
    assert (rows, [letter.reason for letter in letters]) == ([0], ["duplicate_field"])


class Plain(Struct):
    at: EpochMillis
    page: str


class Opened(Struct, tag="opened"):
    at: EpochMillis


class Reading(TypedDict):
    at: EpochMillis
    due: NotRequired[EpochSeconds | None]


class Measured(Struct, tag="measured"):
    readings: list[Reading]
    then: list[Opened | Visit] = []


OF_A_UNION = (
    b'{"type":"measured","readings":[{"at":1700000042123,"due":1704067200},{"at":1}],'
    b'"then":[{"type":"opened","at":2}]}'
)


def test_unions_and_typed_dicts_contain_numbers_of_times() -> None:
    """The tag of a union's member is no field of the member."""
    measured = epochs.decoder(Opened | Measured)(OF_A_UNION)
    first, second = measured.readings
    assert first == {"at": AT.replace(microsecond=123_000), "due": datetime(2024, 1, 1, tzinfo=UTC)}
    assert second == {"at": datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)}
    assert measured.then == [Opened(datetime(1970, 1, 1, 0, 0, 0, 2_000, tzinfo=UTC))]
    assert msgspec.json.encode(as_produced(measured, Measured)) == OF_A_UNION


def test_a_test_writes_the_numbers_of_a_value() -> None:
    visit = Visit(AT, datetime(2024, 1, 1), [AT], {"x": AT})
    assert msgspec.json.decode(msgspec.json.encode(as_produced(visit, Visit))) == {
        "type": "visit", "at": AT_MS, "ended-at": 1_704_067_200, "steps": [1_700_000_042_123_456],
        "days": {"x": 1_700_000_042},
    }  # fmt: skip
    unfinished = {
        "first": {"type": "visit", "at": AT},
        "visits": [{"type": "view", "at": AT}],
        "by": AT,
    }
    written = as_produced(unfinished, Session)
    assert written == {
        "first": {"type": "visit", "at": AT_MS},
        "visits": [{"type": "view", "at": AT}],
        "by": AT,
    }
    view = View(1)
    assert as_produced(view, View) is view


@given(st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)) | st.none()))
def test_the_times_of_records_are_rounded_down_to_milliseconds(
    times: list[datetime | None],
) -> None:
    record_times = pa.array(times, pa.timestamp("us", "UTC"))
    microseconds = record_times.cast(pa.int64()).to_pylist()
    expected = [None if number is None else number // 1_000 for number in microseconds]
    assert (
        decoder(View).columns.event_times([None] * len(times), record_times, CLOCK).to_pylist()
        == expected
    )
