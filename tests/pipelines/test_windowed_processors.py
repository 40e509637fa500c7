"""Processors of streams with windowed keys: their records, stores and timers have the windows."""

from __future__ import annotations

from typing import Any

import pytest

from sluice import (
    Context,
    Pipeline,
    Record,
    Timer,
    ValueContext,
    Windowed,
    session,
    sliding,
    tumbling,
    windowed_json,
)
from sluice.topology import Table
from tests.pipelines.conftest import Drive

VISITS = [
    ("home", 1_000),
    ("cart", 2_000),
    ("home", 3_000),
    ("home", 61_000),
    ("cart", 62_000),
    ("cart", 63_000),
]
FIRST, SECOND = (0, 60_000), (60_000, 120_000)
cuts = pytest.mark.parametrize("cut", [False, True])


def visits(pipeline: Pipeline) -> Table[int]:
    """The visits of each page and minute."""
    pages = pipeline.stream("visits", value=str).group_by_key()
    return pages.windowed_by(tumbling("1 minute")).count(store="visits_per_minute")


def visit(
    drive: Drive, pipeline: Pipeline, cut: bool, times: list[tuple[str, int]] = VISITS
) -> Any:
    driver = drive(pipeline)
    for page, at in times:
        driver.pipe("visits", "v", key=page, timestamp=at)
        if cut:
            driver.commit()
    driver.commit()
    return driver


class Growth:
    """Sends by how much the count of a page and minute has grown, and remembers the count."""

    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record[int, Windowed[str]]) -> None:
        counts = self.context.store("growth")
        assert self.context.key == record.key
        self.context.forward(
            record.value - counts.get("count", 0), headers={"start": str(record.key.start_ms)}
        )
        counts.put("count", record.value)


@cuts
def test_results_keep_the_window_of_their_record(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("growth", workers=3)
    stream = visits(pipeline).to_stream()
    grown = stream.process_values(Growth, stores={"growth": int}, returns=int).output
    grown.to("growths", key=windowed_json)
    grown.group_by_key().aggregate(store="sum_of_growths", sum="sum(value)")
    grown.filter(is_in_first_minute).select(start="unix_millis(_window_start)", page="_key").to(
        "first"
    )
    grown.group_by("date_format(_window_end, 'HH:mm')").count(store="records_of_minute")
    driver = visit(drive, pipeline, cut)
    per_window = {
        ("home", *FIRST): 2,
        ("cart", *FIRST): 1,
        ("home", *SECOND): 1,
        ("cart", *SECOND): 2,
    }
    assert driver.store("sum_of_growths") == {
        key: {"sum": count} for key, count in per_window.items()
    }
    assert driver.store("growth") == {key: {"count": count} for key, count in per_window.items()}
    assert {record.value for record in driver.output("growths")} == {1}
    assert driver.output("growths")[-1].key == '{"key":"cart","start":60000,"end":120000}'
    assert driver.output("growths")[-1].headers["start"] == "60000"
    assert [record.value for record in driver.output("first")] == [
        {"start": 0, "page": "home"}, {"start": 0, "page": "cart"}, {"start": 0, "page": "home"},
    ]  # fmt: skip
    assert driver.store("records_of_minute") == {"00:01": 3, "00:02": 3}


def is_in_first_minute(key: Windowed[str], value: int) -> bool:
    return key.start_ms == 0


class Quiet:
    """Sends a page and minute that has had no visit for ten seconds, or that fails if the page is `bad`."""

    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record[int, Windowed[str]]) -> None:
        self.context.schedule("quiet", record.time + 10_000)

    def on_timer(self, timer: Timer[Windowed[str]]) -> None:
        if timer.key.key == "bad":
            raise ValueError("bad page")
        assert timer.key == self.context.key
        self.context.forward(f"{timer.key.key} since {timer.key.start_ms}")


@cuts
def test_each_window_has_its_own_timers(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("quiet", workers=2)
    quiet = visits(pipeline).to_stream().process_values(Quiet, returns=str).output
    quiet.to_table(store="quiet_windows")
    driver = visit(drive, pipeline, cut, [*VISITS, ("bad", 64_000), ("end", 75_000)])
    assert driver.store("quiet_windows") == {
        ("home", *FIRST): "home since 0",
        ("cart", *FIRST): "cart since 0",
        ("home", *SECOND): "home since 60000",
        ("cart", *SECOND): "cart since 60000",
    }
    (dead_letter,) = driver.dead_letters()
    assert (dead_letter.key, dead_letter.headers["sluice.window_start"]) == ("bad", "60000")


class Pages:
    """Counts the records of each minute, and sends the page with the count."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[int, Windowed[str]]) -> None:
        counts = self.context.store("counts")
        counts.put("records", counts.get("records", 0) + 1)
        self.context.forward(f"{self.context.key}: {record.key.key}", counts.get("records", 0))


class SamePages(Pages):
    def init(self, context: ValueContext) -> None:  # type: ignore[override]
        self.context = context  # type: ignore[assignment]

    def process(self, record: Record[int, Windowed[str]]) -> None:
        self.context.forward(f"{self.context.key}: {record.key.key}")  # type: ignore[call-arg]


@cuts
def test_an_expression_groups_the_windows_of_several_keys(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("minutes", workers=2)
    stream = visits(pipeline).to_stream()
    by = "date_format(_window_start, 'HH:mm')"
    counted = stream.process(Pages, stores={"counts": int}, by=by, returns=int)
    counted.output.to_table(store="records_so_far")
    stream.process_values(SamePages, by=by, returns=str).output.to_table(store="pages")
    driver = visit(drive, pipeline, cut)
    assert driver.store("counts") == {"00:00": {"records": 3}, "00:01": {"records": 3}}
    assert driver.store("records_so_far") == {
        "00:00: home": 3, "00:00: cart": 2, "00:01: home": 1, "00:01: cart": 3,
    }  # fmt: skip
    assert driver.store("pages")["cart", *SECOND] == "00:01: cart"


@cuts
def test_a_grown_session_is_another_key_of_the_stores(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("sessions")
    pages = pipeline.stream("visits", value=str).group_by_key().windowed_by(session("10 seconds"))
    stream = pages.count(store="visits_of_session").to_stream().filter("value IS NOT NULL")
    stream.process_values(Growth, stores={"growth": int}, returns=int)
    driver = visit(drive, pipeline, cut, VISITS[:3])
    assert driver.store("growth") == {
        ("home", 1_000, 1_000): {"count": 1},
        ("cart", 2_000, 2_000): {"count": 1},
        ("home", 1_000, 3_000): {"count": 2},
    }


@cuts
def test_a_window_after_the_year_9999_is_a_dead_letter_of_its_record(
    drive: Drive, cut: bool
) -> None:
    pipeline = Pipeline("long")
    pages = pipeline.stream("visits", value=str).group_by_key()
    counts = pages.windowed_by(sliding("100000000 days")).count(store="visits_of_ages")
    counts.to_stream().process_values(Growth, stores={"growth": int}, returns=int)
    driver = visit(drive, pipeline, cut, VISITS[:1])
    (dead_letter,) = driver.dead_letters()
    assert "the key's window ends after the year 9999" in dead_letter.headers["sluice.detail"]
    assert dead_letter.key == "home"
