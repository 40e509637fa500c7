"""Several streams that add to one aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, every_records, session, sliding, tumbling
from sluice.errors import TopologyError
from sluice.values.windows import AnyWindow
from tests.pipelines.conftest import Drive


class Sale(Struct):
    customer: str
    amount: int


class Total(Struct):
    clicks: int = 0
    spent: int = 0
    last: str = ""


RECORDS: list[tuple[str, str, Any, int]] = [
    ("clicks", "ann", "home", 1_000),
    ("sales", "till", {"customer": "ann", "amount": 5}, 2_000),
    ("clicks", "ann", "cart", 3_000),
    ("clicks", "bob", "home", 61_000),
    ("sales", "till", {"customer": "ann", "amount": 7}, 4_000),
    ("sales", "till", {"customer": "bob", "amount": 9}, 62_000),
    ("clicks", "ann", "late", 5_000),
]
cuts = pytest.mark.parametrize("cut", [False, True])


def run(drive: Drive, pipeline: Pipeline, cut: bool) -> Any:
    driver = drive(pipeline)
    for topic, key, value, at in RECORDS:
        driver.pipe(topic, value, key=key, timestamp=at)
        if cut:
            driver.commit()
    return driver


@cuts
def test_streams_add_to_one_row_of_each_customer(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("customers", workers=2)
    clicks, sales = pipeline.stream("clicks", value=str), pipeline.stream("sales", value=Sale)
    both = clicks.group_by_key().cogroup(clicks="count(*)", events="count(value)")
    both = both.cogroup(
        sales.group_by("customer"), spent="coalesce(sum(amount), 0)", events="count(amount)"
    )
    both.aggregate(store="customers").to("changes")
    driver = run(drive, pipeline, cut)
    assert driver.store("customers") == {
        "ann": {"clicks": 3, "events": 5, "spent": 12},
        "bob": {"clicks": 1, "events": 2, "spent": 9},
    }
    assert [(record.key, record.value["events"]) for record in driver.output("changes")][:3] == [
        ("ann", 1), ("ann", 2), ("ann", 3),
    ]  # fmt: skip


@cuts
def test_a_record_is_late_by_the_time_of_its_own_stream(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("minutes", workers=2)
    clicks, sales = pipeline.stream("clicks", value=str), pipeline.stream("sales", value=Sale)
    both = (
        clicks.group_by_key()
        .cogroup(clicks="count(*)")
        .cogroup(sales.group_by("customer"), sales="count(*)")
    )
    both.windowed_by(tumbling("1 minute", grace="1 second"), late="late").aggregate(store="minutes")
    driver = run(drive, pipeline, cut)
    first, second = (0, 60_000), (60_000, 120_000)
    assert driver.store("minutes") == {
        ("ann", *first): {"clicks": 2, "sales": 2},
        ("bob", *second): {"clicks": 1, "sales": 1},
    }, "the sale at 4 s is in time, because no sale was later, and the click at 5 s is late"
    assert [record.value for record in driver.output("late")] == ["late"]
    assert driver.counts()["late/minutes"] == 1


@cuts
@pytest.mark.parametrize(
    "window", [tumbling("1 minute"), sliding("1 minute")], ids=["tumbling", "sliding"]
)
def test_a_window_begins_again_if_another_stream_is_far_ahead(
    drive: Drive, cut: bool, window: AnyWindow
) -> None:
    pipeline = Pipeline("minutes", workers=2)
    clicks, sales = pipeline.stream("clicks", value=str), pipeline.stream("sales", value=Sale)
    both = (
        clicks.group_by_key()
        .cogroup(clicks="count(*)")
        .cogroup(sales.group_by("customer"), sales="count(*)")
    )
    both.windowed_by(window).aggregate(store="minutes")
    driver = drive(pipeline)
    sale = {"customer": "ann", "amount": 5}
    for topic, value, at in [
        ("clicks", "home", 60_000),
        ("sales", sale, 60_000),
        # Each of the next two clicks is another customer's.
        ("clicks", "almost", 119_999),
        ("sales", sale, 60_000),
        ("clicks", "far ahead", 240_000),
        ("sales", sale, 60_000),
    ]:
        driver.pipe(topic, value, key="ann" if value == "home" else "bob", timestamp=at)
        if cut:
            driver.commit()
    of_ann = {
        key: row
        for key, row in driver.store("minutes").items()
        if key[0] == "ann" and 60_000 in key
    }
    # Kafka Streams' store has forgotten the window, which then counts the last sale only.
    assert [*of_ann.values()] == [{"clicks": 0, "sales": 1}]
    assert driver.counts()["restarted/minutes"] == 1


def clicked(total: Total, page: str) -> Total:
    return Total(total.clicks + 1, total.spent, page)


def sold(customer: str, total: Total, sale: Sale) -> Total:
    return Total(total.clicks, total.spent + sale.amount, customer)


def joined(earlier: Total, later: Total) -> Total:
    return Total(earlier.clicks + later.clicks, earlier.spent + later.spent, later.last)


@cuts
def test_each_stream_has_a_function_of_its_own(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("sessions", workers=2)
    clicks, sales = pipeline.stream("clicks", value=str), pipeline.stream("sales", value=Sale)
    both = clicks.group_by_key().cogroup(clicked).cogroup(sales.group_by("customer"), sold)
    both.aggregate(Total, store="totals", returns=Total)
    visits = both.windowed_by(session("2 seconds", grace="1 minute"))
    visits.aggregate(Total, store="visits", returns=Total, merger=joined)
    driver = run(drive, pipeline, cut)
    assert driver.store("totals") == {
        "ann": {"clicks": 3, "spent": 12, "last": "late"},
        "bob": {"clicks": 1, "spent": 9, "last": "bob"},
    }
    assert driver.store("visits")["ann", 1_000, 5_000]["spent"] == 12


def test_a_dead_letter_has_the_value_that_the_function_got(drive: Drive) -> None:
    pipeline = Pipeline("sessions", max_failures=1.0)
    clicks, sales = pipeline.stream("clicks", value=str), pipeline.stream("sales", value=Sale)
    both = clicks.group_by_key().cogroup(clicked).cogroup(sales.group_by("customer"), refused)
    both.aggregate(Total, store="totals", returns=Total)
    driver = drive(pipeline)
    driver.pipe("sales", {"customer": "ann", "amount": 5}, key="till")
    driver.pipe("clicks", "home", key="ann")
    (letter,) = driver.dead_letters()
    assert (letter.key, letter.value) == ("ann", {"customer": "ann", "amount": 5})
    assert driver.store("totals") == {"ann": {"clicks": 1, "spent": 0, "last": "home"}}


def refused(total: Total, sale: Sale) -> Total:
    raise ValueError(f"no sale of {sale.amount}")


def grouped(pipeline: Pipeline) -> Any:
    return pipeline.stream("clicks", value=str).group_by_key()


WRONG: dict[str, tuple[Callable[[Pipeline], object], str]] = {
    "nothing to add": (
        lambda p: grouped(p).cogroup(),
        r"cogroup at .* needs at least one column, or a function",
    ),
    "SQL and Python": (
        lambda p: (
            grouped(p)
            .cogroup(n="count(*)")
            .cogroup(p.stream("b", value=str).group_by_key(), clicked)
        ),
        r"some streams have SQL, and others a Python function",
    ),
    "no initializer": (
        lambda p: grouped(p).cogroup(clicked).aggregate(store="s"),
        r"aggregate into 's' at .* needs a function initializer\(\)",
    ),
    "a window before cogroup": (
        lambda p: grouped(p).windowed_by(tumbling("1 s")).cogroup(n="count(*)"),
        r"the stream has a window. Call windowed_by after cogroup",
    ),
    "a number of records": (
        lambda p: grouped(p).cogroup(n="count(*)").windowed_by(every_records(3)),
        r"counts the records of one stream",
    ),
    "two functions in one column": (
        lambda p: run_plan(
            p,
            grouped(p)
            .cogroup(n="count(*)")
            .cogroup(p.stream("b", value=int).group_by_key(), n="sum(value)"),
        ),
        r"the streams compute the column n as count\(\*\) and sum\(value\), which cannot be added up",
    ),
    "two types in one column": (
        lambda p: run_plan(
            p,
            grouped(p)
            .cogroup(n="max(value)")
            .cogroup(p.stream("b", value=int).group_by_key(), n="max(value)"),
        ),
        r"the streams compute the column n as max\(value\) of STRING and max\(value\) of BIGINT, which cannot be added up",
    ),
    "columns that differ only in case": (
        lambda p: (
            grouped(p)
            .cogroup(n="count(*)")
            .cogroup(p.stream("b", value=str).group_by_key(), N="count(*)")
        ),
        r"the columns n and N differ only in case",
    ),
    "a function and SQL for one stream": (
        lambda p: grouped(p).cogroup(clicked, n="count(*)"),
        r"both a Python function and SQL",
    ),
    "a stream that is not grouped": (
        lambda p: grouped(p).cogroup(n="count(*)").cogroup(p.stream("b", value=str), n="count(*)"),
        r"wrong: cogroup at .* expected a grouped stream",
    ),
    "a stream after the window": (
        lambda p: (
            grouped(p)
            .cogroup(n="count(*)")
            .windowed_by(tumbling("1 s"))
            .cogroup(p.stream("b", value=str).group_by_key(), n="count(*)")
        ),
        r"the stream has a window. Call windowed_by after cogroup",
    ),
    "two windows": (
        lambda p: (
            grouped(p)
            .cogroup(n="count(*)")
            .windowed_by(tumbling("1 s"))
            .windowed_by(tumbling("2 s"))
        ),
        r"already has the window tumbling\(1 s",
    ),
    "an unknown field": (
        lambda p: grouped(p).cogroup(n="sum(amount)"),
        r"reads unknown fields: amount",
    ),
}


def run_plan(pipeline: Pipeline, streams: Any) -> None:
    from sluice.plan import plan

    streams.aggregate(store="s")
    plan(pipeline)


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_reported(wrong: str) -> None:
    define, message = WRONG[wrong]
    with pytest.raises(TopologyError, match=message):
        define(Pipeline("wrong"))
