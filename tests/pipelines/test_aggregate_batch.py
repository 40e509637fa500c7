"""Aggregates by a function of many values: `aggregate_batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, tumbling
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver


class Reading(Struct):
    degrees: int


class Range(Struct):
    least: int
    most: int
    count: int = 0


def widen(key: str, known: Range, readings: list[Reading]) -> Range:
    """The range of the known and the new degrees; fails for a broken sensor, after it has changed the range."""
    assert readings
    known.count += len(readings)
    for reading in readings:
        known.least, known.most = (
            min(known.least, reading.degrees),
            max(known.most, reading.degrees),
        )
    if known.most > 90:
        raise ValueError("broken sensor")
    return known


def widen_by_one(key: str, known: Range, reading: Reading) -> Range:
    return widen(key, known, [reading])


def lowest() -> Range:
    return Range(99, -99)


def sensors() -> Pipeline:
    """The same ranges three times: by value, by many values, and by many values with a result for each record."""
    pipeline = Pipeline("sensors", workers=2)
    readings = pipeline.stream("readings", value=Reading, nulls="keep").group_by_key()
    readings.aggregate(lowest, widen_by_one, store="by_value", returns=Range)
    readings.aggregate_batch(lowest, widen, store="by_batch", returns=Range)
    readings.aggregate_batch(lowest, widen, store="each", returns=Range).to_stream().to(
        "each_range"
    )
    return pipeline


@given(
    piped=st.lists(
        st.tuples(
            st.sampled_from(["a", "a", "b", None]),
            st.sampled_from([None, -5, 0, 7, 20, 91]),
            st.integers(0, 50),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_many_values_give_the_aggregate_of_single_values_for_any_cut(
    piped: list[tuple[str | None, int | None, int, bool]],
) -> None:
    with TopologyTestDriver(sensors()) as driver:
        for key, degrees, time, commits in piped:
            value = None if degrees is None else Reading(degrees)
            driver.pipe("readings", value, key=key, timestamp=time)
            if commits:
                driver.commit()
        by_value = driver.store("by_value")
        assert driver.store("by_batch") == driver.store("each") == by_value
        # The third store sends a result for each record that it adds.
        added = [key for key, degrees, *_ in piped if key and degrees not in (None, 91)]
        assert sorted(record.key for record in driver.output("each_range")) == sorted(added)
        counts = driver.counts()
        broken = sum(1 for key, degrees, *_ in piped if key and degrees == 91)
        assert [counts.get(f"failed/{store}", 0) for store in ("by_value", "by_batch", "each")] == [
            broken
        ] * 3


def test_a_batch_calls_the_function_once_for_each_key() -> None:
    calls: list[list[int]] = []

    def add(total: int, readings: list[Reading]) -> int:
        calls.append([reading.degrees for reading in readings])
        return total + sum(calls[-1])

    pipeline = Pipeline("totals", workers=1)
    pipeline.stream("readings", value=Reading).group_by_key().aggregate_batch(
        int, add, store="total", returns=int
    )
    with TopologyTestDriver(pipeline) as driver:
        for batch in ([1, 2, 3], [4, 5]):
            for degrees in batch:
                driver.pipe("readings", Reading(degrees), key="a", timestamp=degrees)
            driver.commit()
        assert driver.store("total") == {"a": 15}
    assert calls == [[1, 2, 3], [4, 5]]


def of_one(total: int) -> int:
    return total


@pytest.mark.parametrize(
    ("window", "adder", "why"),
    [
        (tumbling("1 minute"), widen, "a function of many values cannot aggregate windows"),
        (None, of_one, r"must take \(aggregate, values\) or \(key, aggregate, values\)"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    window: Any, adder: Callable[..., Any], why: str
) -> None:
    readings = Pipeline("sensors").stream("readings", value=Reading).group_by_key()
    group = readings.windowed_by(window) if window else readings
    with pytest.raises(TopologyError, match=why):
        group.aggregate_batch(lowest, adder, store="ranges", returns=Range)
