"""Windows of time zones, of functions and of counts, early results and changes are the same for every cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, custom_windows, every_records, hopping, last_records, session, tumbling
from sluice.testing import TopologyTestDriver

HOUR = 3_600_000
BEGIN = 1_774_738_800_000
"""29 March 2026 in Berlin, a day of 23 hours, begins."""


class Reading(Struct):
    sensor: str
    celsius: int


def thirds(time: int) -> list[tuple[int, int]]:
    """Two of three parts of each six hours."""
    start = time // (2 * HOUR) * (2 * HOUR)
    return [] if start // (2 * HOUR) % 3 == 2 else [(start, start + 2 * HOUR)]


TOPICS = (
    "closed_days",
    "early_days",
    "early_sessions",
    "day_changes",
    "moving",
    "fours",
    "thirds_closed",
)
STORES = (
    "days",
    "last_days",
    "early",
    "sessions",
    "thirds",
    "moving_means",
    "every_four",
    "warmth_of_days",
)


def sensors() -> Pipeline:
    pipeline = Pipeline("sensors", workers=2)
    readings = pipeline.stream("readings", value=Reading).group_by("sensor")
    day = tumbling("1 day", grace="3 hours", zone="Europe/Berlin")
    readings.windowed_by(day).count(store="days")
    readings.windowed_by(
        hopping("2 days", advance="1 day", zone="Europe/Berlin"), emit="window_close"
    ).reduce(lambda _, last: last, store="last_days").to("closed_days")
    early = readings.windowed_by(day, emit="window_close", early="5 hours").aggregate(
        store="early", hottest="max(celsius)", mean="avg(celsius)"
    )
    early.to("early_days")
    early.changes().to("day_changes")
    early.group_by("hottest div 10").count(store="warmth_of_days")
    visits = session("4 hours", grace="1 hour")
    readings.windowed_by(visits, emit="window_close", early="2 hours").count(store="sessions").to(
        "early_sessions"
    )
    readings.windowed_by(custom_windows(thirds, grace="1 hour"), emit="window_close").count(
        store="thirds"
    ).to("thirds_closed")
    readings.windowed_by(last_records(3)).aggregate(store="moving_means", mean="avg(celsius)").to(
        "moving"
    )
    readings.windowed_by(every_records(4), emit="window_close").count(store="every_four").to(
        "fours"
    )
    return pipeline


records = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 60), st.integers(0, 1)),
    max_size=25,
)


def results(written: list[tuple[str, int, int, int]], cuts: set[int]) -> dict[str, Any]:
    """The outputs, stores and counts after these records: sensor, temperature, hour and partition."""
    with TopologyTestDriver(sensors(), partitions={"readings": 2}) as driver:
        for number, (sensor, celsius, hour, partition) in enumerate(written):
            value = {"sensor": sensor, "celsius": celsius}
            time = BEGIN + hour * HOUR
            driver.pipe("readings", value, timestamp=time, partition=partition)
            if number in cuts:
                driver.commit()
        outputs = {topic: [*map(repr, driver.output(topic))] for topic in TOPICS}
        return outputs | {store: driver.store(store) for store in STORES}


@settings(max_examples=6)
@given(records, st.sets(st.integers(0, 25), min_size=1))
def test_any_cut_gives_the_same_results(
    written: list[tuple[str, int, int, int]], cuts: set[int]
) -> None:
    whole, in_pieces = results(written, set()), results(written, cuts)
    for name, result in whole.items():
        assert in_pieces[name] == result, name
