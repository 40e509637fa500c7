"""Chains of operators have the results of Kafka Streams, in one batch and in several."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, session, tumbling, within
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Reading(Struct):
    n: int
    g: str = "x"


def value(n: int, g: str = "x") -> dict[str, Any]:
    return {"n": n, "g": g}


def chains() -> Pipeline:
    """A chain per group of topics, because stream time belongs to an operator and its topics."""
    pipeline = Pipeline("chains", workers=2)

    per_second = (
        pipeline.stream("ticks", value=Reading).group_by_key().windowed_by(tumbling("10 ms"))
    )
    closed = per_second.aggregate(store="tens", n="count(*)").suppress_until_window_closes()
    per_minute = closed.to_stream().group_by("'all'").windowed_by(tumbling("40 ms"))
    per_minute.aggregate(store="forties", tens="count(*)", n="sum(n)")

    visits = pipeline.stream("visits", value=Reading)
    prices = pipeline.table("prices", value=Reading)
    counted = (
        visits.group_by_key()
        .windowed_by(tumbling("10 ms"))
        .aggregate(store="visited", n="count(*)")
    )
    counted.suppress_until_window_closes().to_stream().select_key("_key").join(prices).to("priced")

    left, right = pipeline.stream("left", value=Reading), pipeline.stream("right", value=Reading)
    unmatched = left.left_join(right, within("2 ms", grace="20 ms")).filter("right IS NULL")
    unmatched.group_by_key().windowed_by(tumbling("10 ms", grace="20 ms")).count(store="unmatched")

    own = pipeline.stream("own", value=Reading)
    own.join(own.group_by_key().aggregate(store="of_own", c="count(*)")).to("with_own")

    one, other = pipeline.stream("one", value=Reading), pipeline.stream("other", value=Reading)
    sums = one.group_by_key().aggregate(store="sums", n="sum(n)").to_stream()
    counts = other.group_by_key().aggregate(store="counts", n="count(*)").to_stream()
    sums.outer_join(counts, within("5 ms", grace="5 ms")).to("both")

    first, second = (
        pipeline.stream("first", value=Reading),
        pipeline.stream("second", value=Reading),
    )
    first.merge(second).group_by_key().windowed_by(tumbling("10 ms")).count(store="merged")

    filtered = pipeline.stream("having", value=Reading).group_by_key().windowed_by(tumbling("5 ms"))
    large = filtered.aggregate(store="having_sums", s="sum(n)").filter("s > 5")
    large.suppress_until_window_closes().to("large")
    return pipeline


RECORDS: list[tuple[str, str, dict[str, Any], int]] = [
    # Windows of windows: each of the four windows of ten closes when a tick of a later window
    # arrives.
    *[("ticks", key, value(1), at) for at, key in ((0, "a"), (5, "b"), (12, "a"), (23, "a"), (31, "b"), (43, "a"))],
    # The first window closes at 11, while the price is 1; the later price does not count.
    ("prices", "a", value(1), 0), ("visits", "a", value(1), 5), ("visits", "b", value(1), 11),
    ("prices", "a", value(2), 12), ("visits", "b", value(1), 25),
    # The unmatched record of 5 is emitted when 36 arrives, and is then in time for its window.
    ("left", "c", value(0), 5), ("left", "b", value(0), 36),
    # A stream is joined with its own count, which includes the record.
    ("own", "a", value(1), 5), ("own", "a", value(2), 6),
    # Both sides of a join are results of operators. The sum of 30 has no match until 41.
    ("one", "k", value(4), 10), ("other", "k", value(0), 12), ("one", "k", value(5), 30), ("other", "k", value(0), 41),
    # Merged topics share a stream time: the record of 3 is late, although its own topic has no
    # later record.
    ("first", "a", value(1), 25), ("second", "a", value(1), 3), ("second", "b", value(1), 21),
    # Records that the filter removed do not advance the stream time of suppress.
    ("having", "c", value(6), 0), ("having", "b", value(2), 5), ("having", "a", value(2), 11),
]  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param(len(RECORDS), id="one batch", marks=pytest.mark.heavy),
        pytest.param(10, id="batches of ten records"),
    ]
)
def driver(request: pytest.FixtureRequest, drive: Drive) -> TopologyTestDriver:
    made = drive(chains())
    for number, (topic, key, read, at) in enumerate(RECORDS, start=1):
        made.pipe(topic, read, key, timestamp=at)
        if number % request.param == 0:
            made.commit()
    return made


@pytest.mark.timeout(600)
def test_chains_have_the_results_of_kafka_streams(driver: TopologyTestDriver) -> None:
    assert driver.store("forties") == {("all", 0, 40): {"tens": 5, "n": 5}}
    assert [
        (record.key, record.value["left"], record.value["right"]["n"])
        for record in driver.output("priced")
    ] == [("a", {"n": 1}, 1)]
    assert driver.store("unmatched") == {("c", 0, 10): 1}
    assert [
        (record.value["left"]["n"], record.value["right"]["c"])
        for record in driver.output("with_own")
    ] == [
        (1, 1),
        (2, 2),
    ]
    both = [
        (record.value["left"], record.value["right"], record.timestamp)
        for record in driver.output("both")
    ]
    assert both == [({"n": 4}, {"n": 1}, 12), ({"n": 9}, None, 30)]
    assert driver.store("merged") == {("a", 20, 30): 1, ("b", 20, 30): 1}
    assert driver.counts()["late/merged"] == 1
    assert driver.output("large") == []


def test_a_side_of_a_join_that_lags_behind_in_one_partition_still_matches_in_later_batches() -> (
    None
):
    pipeline = Pipeline("lagging", workers=1)
    left, right = (pipeline.stream(topic, value=int) for topic in ("left", "right"))
    left.join(right, within("3 seconds")).to("joined")
    left.left_join(right, within("3 seconds")).to("left_joined")
    records = [
        ("left", "a", 0, 10_000), ("right", "c", 0, 100_000), ("left", "b", 1, 100_000), ("right", "b", 1, 100_000),
        ("right", "a", 0, 11_000),
    ]  # fmt: skip
    results = []
    for is_divided in (False, True):
        with TopologyTestDriver(pipeline, partitions={"left": 2, "right": 2}) as driver:
            for number, (topic, key, partition, time) in enumerate(records):
                driver.pipe(topic, number, key=key, partition=partition, timestamp=time)
                if is_divided:
                    driver.commit()
            joined, left_joined = driver.read("joined"), driver.read("left_joined")
            results.append([(record.key, record.value) for record in (*joined, *left_joined)])
    assert results[0] == results[1]
    assert ("a", {"left": 0, "right": 4}) in results[0]
    assert results[0].count(("a", {"left": 0, "right": 4})) == 1, (
        "the left join has sent the record without a match"
    )


@pytest.mark.parametrize("cut", [False, True])
def test_a_table_joined_with_what_was_computed_from_it_reads_its_store(
    drive: Drive, cut: bool
) -> None:
    pipeline = Pipeline("shared", workers=2)
    sizes = (
        pipeline.table("members", value=Reading)
        .group_by("g")
        .aggregate(store="sizes", c="count(*)")
    )
    sized = pipeline.table("groups", value=Reading).left_join(sizes).select(n="left.n + right.c")
    parity = (
        sized.join(sizes)
        .select(n="left.n")
        .group_by("if(n is null, 'unknown', if(n % 2 = 0, 'even', 'odd'))")
    )
    parity.aggregate(store="parity", c="count(*)")
    driver = drive(pipeline)
    # Both changes of the join find the other side's new value. The second one replaces the row of
    # the first one.
    expected = [
        ("groups", "x", value(4), {}),
        ("members", "a", value(0, "x"), {"odd": {"c": 1}}),
        ("members", "b", value(0, "x"), {"odd": {"c": 0}, "even": {"c": 1}}),
    ]
    for topic, key, given, store in expected:
        driver.pipe(topic, given, key=key, timestamp=1)
        if cut:
            driver.commit()
            assert {
                key: row for key, row in driver.store("parity").items() if key != "unknown"
            } == store
    assert {
        key: row for key, row in driver.store("parity").items() if key != "unknown"
    } == expected[-1][-1]


def suppressed_twice() -> Pipeline:
    """The first step sends several results of a window, and the second one only the last."""
    pipeline = Pipeline("twice", workers=1)
    visits = pipeline.stream("visits", value=Reading)
    sessions = visits.group_by_key().windowed_by(session("3 ms", grace="3 ms"))
    limited = sessions.aggregate(store="sums", s="sum(n)").suppress_until_time_limit("4 ms")
    limited.to("limited")
    limited.suppress_until_window_closes().to("closed")
    windows = visits.group_by_key().windowed_by(tumbling("10 ms", grace="10 ms"))
    early = windows.aggregate(store="windows", s="sum(n)").suppress_until_time_limit("2 ms")
    early.suppress_until_window_closes().to("windows_closed")
    return pipeline


@pytest.mark.parametrize("together", [False, True])
def test_only_the_last_of_a_windows_results_is_final(drive: Drive, together: bool) -> None:
    driver = drive(suppressed_twice())
    for key, n, at in (("x", 1, 57), ("x", 2, 61), ("x", 4, 59), ("a", 8, 71), ("b", 16, 150)):
        driver.pipe("visits", value(n), key, timestamp=at)
        if not together:
            driver.commit()
    # The record of 59 merges the sessions of 57 and of 61, so that of 57 is deleted before it closes.
    assert results(driver, "limited") == [
        ("x", (57, 57), 1),
        ("x", (57, 57), None),
        ("x", (57, 61), 7),
        ("x", (61, 61), None),
        ("a", (71, 71), 8),
    ]
    assert results(driver, "closed") == [("x", (57, 61), 7)]
    assert results(driver, "windows_closed") == [("x", (50, 60), 5)]


def results(
    driver: TopologyTestDriver, topic: str
) -> list[tuple[Any, tuple[int, int], int | None]]:
    """Key, window and sum of each result, in order."""
    found: list[tuple[Any, tuple[int, int], int | None]] = []
    for record in driver.output(topic):
        window = int(record.headers["window_start"]), int(record.headers["window_end"])
        found.append((record.key, window, None if record.value is None else record.value["s"]))
    return found


@pytest.mark.parametrize("together", [False, True])
def test_updates_of_the_same_time_are_sent_in_the_order_of_their_windows(
    drive: Drive, together: bool
) -> None:
    pipeline = Pipeline("same_time", workers=1)
    visits = pipeline.stream("visits", value=Reading)
    sessions = visits.group_by_key().windowed_by(session("3 ms", grace="3 ms"))
    sessions.aggregate(store="s", s="sum(n)").suppress_until_time_limit("4 ms").to("limited")
    driver = drive(pipeline)
    for n, at in ((1, 99), (2, 97), (4, 148)):
        driver.pipe("visits", value(n), "x", timestamp=at)
        if not together:
            driver.commit()
    # The session of 99 has been merged into the one from 97 to 99, and both updates have the time 99.
    assert results(driver, "limited") == [("x", (97, 99), 3), ("x", (99, 99), None)]
