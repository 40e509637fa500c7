"""The windows of keys as values: in expressions and functions, in groups and joins, and in output keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice import (
    Pipeline,
    Windowed,
    session,
    session_windowed_bytes,
    sliding,
    time_windowed_bytes,
    tumbling,
    windowed_json,
)
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
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


def visits(pipeline: Pipeline, topic: str = "visits") -> Table[int]:
    """The visits of each page and minute."""
    pages = pipeline.stream(topic, value=str).group_by_key()
    return pages.windowed_by(tumbling("1 minute")).count(store=f"{topic}_per_minute")


def fill(driver: TopologyTestDriver, cut: bool, topic: str = "visits") -> None:
    for page, at in VISITS:
        driver.pipe(topic, "v", key=page, timestamp=at)
        if cut:
            driver.commit()


cuts = pytest.mark.parametrize("cut", [False, True])


@cuts
def test_the_best_page_of_each_minute(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("best")
    best = visits(pipeline).group_by("date_format(_window_start, 'HH:mm')")
    best.aggregate(store="best", page="max_by(_key, value)", most="max(value)", total="sum(value)")
    driver = drive(pipeline)
    fill(driver, cut)
    assert driver.store("best") == {
        "00:00": {"page": "home", "most": 2, "total": 3},
        "00:01": {"page": "cart", "most": 2, "total": 3},
    }


def label(key: Windowed[str], value: int) -> str:
    return f"{key.key} {key.start:%H:%M:%S} {(key.end - key.start).total_seconds():.0f} {value}"


def is_in_first_minute(key: Windowed[str], value: int) -> bool:
    return key.start.minute == 0


@cuts
def test_functions_get_the_window_with_the_key(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("labels")
    stream = visits(pipeline).to_stream()
    stream.map_values(label, returns=str).to("labels")
    stream.filter(is_in_first_minute).select_key(lambda key, value: f"{key.key}!").to("first")
    driver = drive(pipeline)
    fill(driver, cut)
    assert driver.output("labels")[-1].value == "cart 00:01:00 60 2"
    assert [(record.key, record.value) for record in driver.output("first")] == [
        ("home!", 1), ("cart!", 1), ("home!", 2),
    ]  # fmt: skip


def test_a_window_that_ends_after_the_year_9999_is_a_dead_letter_of_a_function_that_takes_the_key(
    drive: Drive,
) -> None:
    def end_of(key: Windowed[str], count: int) -> str:
        return f"{key.end}"

    pipeline = Pipeline("long")
    pages = pipeline.stream("visits", value=str).group_by_key()
    counts = pages.windowed_by(sliding("100000000 days")).count(store="visits_of_ages")
    counts.to_stream().map_values(end_of, returns=str).to("ends")
    driver = drive(pipeline)
    driver.pipe("visits", "v", key="home", timestamp=1_000)
    (dead_letter,) = driver.dead_letters()
    assert "the key's window ends after the year 9999" in dead_letter.headers["sluice.detail"]


@cuts
def test_a_stream_with_windowed_keys_is_grouped_by_key_and_window(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("grouped")
    stream = visits(pipeline).to_stream()
    stream.group_by_key().count(store="by_window")
    stream.group_by("_key").count(store="by_page")
    stream.to_table(store="latest")
    stream.group_by_key().aggregate(list, labelled, store="labels", returns=list[str])
    driver = drive(pipeline)
    fill(driver, cut)
    first, second = (0, 60_000), (60_000, 120_000)
    assert driver.store("by_window") == {
        ("home", *first): 2, ("cart", *first): 1, ("home", *second): 1, ("cart", *second): 2,
    }  # fmt: skip
    assert driver.store("by_page") == {"home": 3, "cart": 3}
    assert driver.store("latest")["cart", *second] == 2
    assert driver.store("labels")["cart", *second] == ["cart 00:01:00 60 1", "cart 00:01:00 60 2"]


@cuts
def test_a_join_with_a_global_table_keeps_the_windows(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("titles")
    titles = pipeline.global_table("titles", value=str)
    titled = visits(pipeline).to_stream().left_join(titles, on="_key")
    titled.select(title="right", start="date_format(_window_start, 'HH:mm')").to(
        "titled", key=windowed_json
    )
    driver = drive(pipeline)
    driver.pipe("titles", "Your cart", key="cart", timestamp=0)
    driver.commit()
    fill(driver, cut)
    home, cart = (record for record in driver.output("titled")[-3:-1])
    assert (home.key, home.value) == (
        windowed_json(windowed_home(60_000, 120_000)).decode(),
        {"title": None, "start": "00:01"},
    )
    assert (cart.key, cart.value["title"]) == (
        '{"key":"cart","start":60000,"end":120000}',
        "Your cart",
    )


def sessions(pipeline: Pipeline, topic: str = "visits") -> Table[int]:
    """The visits of each page and session."""
    pages = pipeline.stream(topic, value=str).group_by_key()
    return pages.windowed_by(session("10 seconds")).count(store=f"{topic}_per_session")


@cuts
def test_each_session_that_was_sent_is_a_key_with_its_end(drive: Drive, cut: bool) -> None:
    """A session that grows keeps its start, so only its end tells its old key from the new one."""
    pipeline = Pipeline("sessions")
    stream = sessions(pipeline).to_stream()
    results = stream.filter("value IS NOT NULL")
    results.group_by_key().count(store="results")
    results.to_table(store="ever_sent")
    stream.to_table(store="latest")
    grown = results.group_by_key().aggregate(list, labelled, store="labels", returns=list[str])
    grown.to("labels", key=windowed_json)
    driver = drive(pipeline)
    fill(driver, cut)
    home, cart = (1_000, 1_000), (2_000, 2_000)
    assert driver.store("visits_per_session") == driver.store("latest") == {
        ("home", 1_000, 3_000): 2, ("cart", *cart): 1, ("home", 61_000, 61_000): 1, ("cart", 62_000, 63_000): 2,
    }  # fmt: skip
    ever = {("home", *home): 1, ("cart", 62_000, 62_000): 1}
    assert driver.store("ever_sent") == driver.store("latest") | ever
    assert driver.store("results") == dict.fromkeys(driver.store("ever_sent"), 1)
    assert driver.store("labels")["home", *home] == ["home 00:00:01 0 1"]
    assert driver.store("labels")["home", 1_000, 3_000] == ["home 00:00:01 2 2"]
    keys = [
        record.key for record in driver.output("labels") if record.headers["window_start"] == "1000"
    ]
    assert keys == [
        windowed_json(windowed_home(*bounds)).decode() for bounds in (home, (1_000, 3_000))
    ]


@cuts
def test_tables_of_the_same_session_are_joined(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("joined_sessions")
    seen, sold = sessions(pipeline), sessions(pipeline, "sales")
    seen.outer_join(sold).select(pair="array(left, right)").to_stream().to_table(store="pairs")
    seen.join(sold).to_stream().group_by_key().count(store="both")
    driver = drive(pipeline)
    for topic, at in (("visits", 1), ("sales", 1), ("visits", 3), ("visits", 5), ("sales", 5)):
        driver.pipe(topic, "v", key="home", timestamp=at * 1_000)
        if cut:
            driver.commit()
    assert driver.store("pairs") == {("home", 1_000, 5_000): {"pair": [3, 2]}}
    assert driver.store("both") == {("home", 1_000, 1_000): 1, ("home", 1_000, 5_000): 1}


def labelled(key: Windowed[str], labels: list[str], value: int) -> list[str]:
    return [*labels, label(key, value)]


@cuts
def test_tables_of_the_same_window_are_joined(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("joined")
    seen, sold = visits(pipeline), visits(pipeline, "sales")
    rates = seen.left_join(sold).select(
        rate="coalesce(right, 0) / left", minute="minute(_window_start)"
    )
    rates.to("rates")
    seen.to_stream().join(sold).to("seen_after_sales")
    driver = drive(pipeline)
    driver.pipe("sales", "v", key="cart", timestamp=2_500)
    fill(driver, cut)
    rows = {
        (record.key, record.headers["window_start"]): record.value
        for record in driver.output("rates")
    }
    assert rows == {
        ("home", "0"): {"rate": 0.0, "minute": 0},
        ("cart", "0"): {"rate": 1.0, "minute": 0},
        ("home", "60000"): {"rate": 0.0, "minute": 1},
        ("cart", "60000"): {"rate": 0.0, "minute": 1},
    }
    assert [(record.key, record.value) for record in driver.output("seen_after_sales")] == [
        ("cart", {"left": 1, "right": 1})
    ]


def output_key(drive: Drive, window: Any, encode: Any) -> bytes:
    pipeline = Pipeline("keys")
    pages = pipeline.stream("visits", value=str).group_by_key()
    pages.windowed_by(window).count(store="counts").to("out", key=encode)
    driver = drive(pipeline)
    driver.pipe("visits", "v", key="home", timestamp=258)
    (record,) = driver.output("out")
    assert isinstance(record.key, bytes | str)
    return record.key if isinstance(record.key, bytes) else record.key.encode()


def test_output_keys_can_have_the_window(drive: Drive) -> None:
    assert (
        output_key(drive, tumbling("1 minute"), windowed_json)
        == b'{"key":"home","start":0,"end":60000}'
    )
    # What org.apache.kafka.streams.kstream.TimeWindowedSerializer and SessionWindowedSerializer
    # write.
    start, end = bytes(6) + b"\x00\x02", bytes(6) + b"\x00\x05"
    assert time_windowed_bytes(windowed_home(2, 5)) == b"home" + start
    assert session_windowed_bytes(windowed_home(2, 5)) == b"home" + end + start


def windowed_home(start: int, end: int) -> Windowed[str]:
    from sluice.values.windowed_keys import windowed

    return windowed("home", (start, end))


def minutes(pipeline: Pipeline) -> Any:
    return visits(pipeline, "a").to_stream()


WRONG: dict[str, tuple[Callable[[Pipeline], object], str]] = {
    "windows of windows": (
        lambda p: minutes(p).group_by_key().windowed_by(tumbling("1 hour")),
        r"windowed_by at .*: the keys of a_per_minute have windows.*select_key",
    ),
    "a table without windows": (
        lambda p: minutes(p).join(p.table("b", value=str)),
        r"the keys of a_per_minute have windows, and the other keys do not",
    ),
    "windows of another kind": (
        lambda p: visits(p, "a").join(
            p.stream("b", value=str).group_by_key().windowed_by(sliding("1 minute")).count(store="s")
        ),
        r"the windows tumbling\(1 min, grace 0 s\) and sliding\(.*so they are never equal",
    ),
    "a join of two streams": (
        lambda p: minutes(p).merge(p.stream("b", value=int).map_values("value")),
        r"merge at .*: the keys of a_per_minute have windows, and the other keys do not",
    ),
    "bytes of another window": (
        lambda p: visits(p, "a").to("out", key=session_windowed_bytes),
        r"session_windowed_bytes does not fit the window tumbling.*Use time_windowed_bytes",
    ),
    "bytes of no window": (
        lambda p: p.stream("b", value=str).to("out", key=time_windowed_bytes),
        r"the keys of b have no windows. Leave key= out",
    ),
    "a window behind select_key": (
        lambda p: minutes(p).select_key("_key").filter("_window_start IS NULL"),
        r"reads unknown fields: _window_start",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_reported(wrong: str) -> None:
    define, message = WRONG[wrong]
    with pytest.raises(TopologyError, match=message):
        define(Pipeline("wrong"))
