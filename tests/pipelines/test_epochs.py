"""Times that JSON has as numbers, from the topic to windows, functions, tables and outputs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from sluice import EpochMillis, EpochSeconds, Pipeline, Stream, epoch_s, tumbling
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

AT = datetime(2023, 11, 14, 22, 14, 2, 123_000, tzinfo=UTC)
AT_MS, AT_S, MINUTE_MS = 1_700_000_042_123, 1_700_000_042, 1_700_000_040_000
AT_TEXT = "2023-11-14T22:14:02.123000Z"


class View(Struct):
    created: int
    page: str


class Visit(Struct):
    page: str
    at: EpochMillis
    left: list[EpochSeconds] = []


class Page(Struct):
    since: EpochSeconds


class Call(Struct):
    number: EpochMillis
    text: datetime


def a_minute_later(visit: Visit) -> Visit:
    assert visit.at == AT
    return Visit(visit.page, visit.at.replace(minute=15))


def test_numbers_are_times_everywhere(drive: Drive) -> None:
    pipeline = Pipeline("numbers")
    views = pipeline.stream(
        "views", value=View, key="page", event_time=epoch_s("created"), invalid_time="skip"
    )
    visits = pipeline.stream("visits", value=Visit, key="page", event_time="at")
    assumed = pipeline.stream("assumed", value=View, key="page", event_time="created")
    pages = pipeline.global_table("pages", value=Page)
    streams: dict[str, Stream[Any]] = {"views": views, "visits": visits, "assumed": assumed}
    for name, stream in streams.items():
        stream.group_by_key().windowed_by(tumbling("1 minute")).count(store=f"{name}_per_minute")
    visits.to("times")
    visits.select(ms="unix_millis(at)", day="date(at)", left="left[0]").to("numbers")
    visits.map_values(a_minute_later, returns=Visit).filter("minute(at) = 15").select("at").to(
        "later"
    )
    visits.join(pages).select(days="datediff(left.at, right.since)", since="right.since").to(
        "joined"
    )
    visits.to_table(store="latest").filter("at IS NOT NULL").select("at").to("rows")

    driver = drive(pipeline)
    driver.pipe("pages", {"since": 0}, key="p", timestamp=AT_MS)
    driver.pipe("visits", {"page": "p", "at": AT_MS, "left": [AT_S]}, key="x", timestamp=AT_MS)
    driver.pipe("visits", {"page": "p", "at": AT_MS + 0.5}, key="fraction", timestamp=AT_MS)
    for created in (AT_S, -1, AT_MS):
        driver.pipe("views", {"page": "p", "created": created}, key="x", timestamp=AT_MS)
    for created in (AT_MS, AT_S):
        driver.pipe("assumed", {"page": "p", "created": created}, key="x", timestamp=AT_MS)

    for name in streams:
        assert driver.store(f"{name}_per_minute") == {("p", MINUTE_MS, MINUTE_MS + 60_000): 1}, name
    assert [record.value for record in driver.output("times")] == [
        {"page": "p", "at": AT_TEXT, "left": ["2023-11-14T22:14:02.000000Z"]}
    ]
    (numbers,) = driver.output("numbers")
    assert numbers.value == {
        "ms": AT_MS,
        "day": "2023-11-14",
        "left": "2023-11-14T22:14:02.000000Z",
    }
    assert [record.value for record in driver.output("later")] == [
        {"at": "2023-11-14T22:15:02.123000Z"}
    ]
    assert [record.value for record in driver.output("joined")] == [
        {"days": 19_675, "since": "1970-01-01T00:00:00.000000Z"}
    ]
    assert [record.value for record in driver.output("rows")] == [{"at": AT_TEXT}]
    assert driver.store("latest") == {
        "p": {"page": "p", "at": AT_TEXT, "left": ["2023-11-14T22:14:02.000000Z"]}
    }
    assert driver.counts()["dropped/event_time"] == 1
    details = {
        letter.headers["sluice.reason"]: letter.headers["sluice.detail"]
        for letter in driver.dead_letters()
    }
    assert details["contract"] == "Expected `int`, got `float` - at `$.at`"
    assert "is after" in details["future"]
    assert details["event_time"].endswith(
        'declare its unit with event_time=epoch_s("created"), epoch_ms or epoch_us'
    )


def test_a_piped_time_without_a_zone_is_in_the_pipelines_zone() -> None:
    pipeline = Pipeline("calls", zone="Europe/Berlin")
    pipeline.stream("calls", value=Call).to("times")
    with TopologyTestDriver(pipeline) as driver:
        noon = datetime(2024, 5, 1, 12)
        driver.pipe("calls", {"number": noon, "text": noon})
        (record,) = driver.read("times")
    assert record.value == {
        "number": "2024-05-01T10:00:00.000000Z",
        "text": "2024-05-01T10:00:00.000000Z",
    }
