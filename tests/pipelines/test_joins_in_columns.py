"""Left and outer joins of streams are computed in columns, with the results of the operator."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, within
from sluice.operators.columns import KeyedRows, Results
from sluice.operators.joins import stream_join
from sluice.operators.joins.stream_join import StreamJoin
from sluice.testing import TopologyTestDriver
from sluice.values.windows import JoinWindow

ALWAYS, NEVER = 1, 1_000_000


class Event(Struct):
    number: int


class Piped(NamedTuple):
    topic: str
    key: str | None
    number: int | None
    time: int
    partition: int
    run: str | None = None
    """A header."""
    commits: bool = False
    """Whether the batch ends after this record."""


WINDOWS = {
    "both sides": within(before="5 ms", after="2 ms", grace="4 ms"),
    "without grace": within("5 ms"),
    "only later records": within(before="0 s", after="3 ms", grace="2 ms"),
    "a long grace": within("4 ms", grace="10 ms"),
}


@st.composite
def records(draw: st.DrawFn) -> list[Piped]:
    """Records in and out of order. Most keys have a partition of their own."""
    now, piped = 0, []
    for number in range(draw(st.integers(10, 40))):
        now += draw(st.sampled_from([0, 1, 1, 2, 3, 20]))
        key = draw(st.sampled_from(["a", "b", "c", "anywhere", None]))
        partition = {"a": 0, "b": 1, "c": 0}.get(key or "", draw(st.integers(0, 1)))
        record = Piped(
            draw(st.sampled_from(["left", "right"])),
            key,
            draw(st.sampled_from([None, number, number, number])),
            max(0, now - draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9, 15]))),
            partition,
            draw(st.sampled_from([None, None, "one", "two"])),
            draw(st.sampled_from([False, False, False, False, True])),
        )
        piped.append(record)
    return piped


def pipeline_of(how: str, window: JoinWindow) -> Pipeline:
    pipeline = Pipeline("joins", workers=2)
    left, right = pipeline.stream("left", value=Event), pipeline.stream("right", value=Event)
    join = left.left_join if how == "left" else left.outer_join
    join(right, window).to("joined")
    return pipeline


def results_of(
    pipeline: Pipeline, piped: list[Piped], fewest_rows: int
) -> tuple[list[Any], dict[str, int]]:
    """The results and counts of a pipeline that joins batches of this many records in columns."""
    with (
        patch.object(stream_join, "FEWEST_ROWS", fewest_rows),
        TopologyTestDriver(pipeline, partitions={"left": 2, "right": 2}) as driver,
    ):
        for record in piped:
            driver.pipe(
                record.topic,
                None if record.number is None else Event(record.number),
                key=record.key,
                timestamp=record.time,
                partition=record.partition,
                headers={} if record.run is None else {"run": record.run},
            )
            if record.commits:
                driver.commit()
        return driver.output("joined"), driver.counts()


@pytest.mark.parametrize("how", ["left", "outer"])
@given(piped=records(), window=st.sampled_from([*WINDOWS]))
def test_columns_have_the_results_of_the_operator(
    how: str, piped: list[Piped], window: str
) -> None:
    pipeline = pipeline_of(how, WINDOWS[window])
    assert results_of(pipeline, piped, ALWAYS) == results_of(pipeline, piped, NEVER)


def test_only_the_keys_whose_records_come_from_one_partition_are_joined_in_columns() -> None:
    joined: list[str] = []
    join = StreamJoin._join_outer

    def note_keys(self: StreamJoin, states: Any, rows: KeyedRows, timeline: Any) -> Results | None:
        joined.extend(rows.columns["key"].to_pylist())
        return join(self, states, rows, timeline)

    piped = [
        Piped("left", "own", 1, 50, 0),
        Piped("right", "own", 2, 51, 0),
        Piped("left", "spread", 3, 52, 0),
        Piped("left", "spread", 4, 20, 1),
    ]
    with patch.object(StreamJoin, "_join_outer", note_keys):
        results, _ = results_of(pipeline_of("left", WINDOWS["a long grace"]), piped, ALWAYS)
    assert joined == ["own", "own"]
    assert [result.value for result in results] == [{"left": {"number": 1}, "right": {"number": 2}}]
