"""Windows whose last results alone matter are aggregated in columns, with the results of the operators."""

from __future__ import annotations

from contextlib import nullcontext
from decimal import Decimal
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sluice import CalendarWindow, Digits, Pipeline, hopping, session, sliding, tumbling
from sluice.operators.aggregation import last_results
from sluice.plan import PlannedOperator, plan
from sluice.testing import TopologyTestDriver
from sluice.values.calendar_windows import Period
from sluice.values.windows import AnyWindow, SessionWindow

ALWAYS, NEVER = 1, 1_000_000


class Visit(Struct):
    seconds: int | None
    cost: Annotated[Decimal, Digits(6, 2)] | None = None
    weight: float | None = None


class Piped(NamedTuple):
    key: str | None
    value: Visit | None
    time: int
    partition: int = 0
    run: str | None = None
    """A header."""
    commits: bool = False
    """Whether the batch ends after this record."""


class Results(NamedTuple):
    final: list[Any]
    late: list[Any]
    store: dict[Any, Any]
    counts: dict[str, int]


WINDOWS = {
    "tumbling": tumbling("5 ms", grace="3 ms"),
    "hopping": hopping("9 ms", advance="3 ms", grace="4 ms"),
    "periods of a calendar": CalendarWindow(Period(5), "Europe/Berlin", grace_ms=3),
    "overlapping periods of a calendar": CalendarWindow(
        Period(3), "Europe/Berlin", grace_ms=4, periods=3
    ),
    "sliding": sliding("5 ms", grace="6 ms"),
    "session": session("4 ms", grace="3 ms"),
    "sessions without grace": session("4 ms"),
}
STEPS = ["every update", "suppress", "suppress and every update", "on close", "early"]
COSTS = [Decimal("0"), Decimal("1.5"), Decimal("-0.25")]
WEIGHTS = [0.1, -1e30, 3.0]
VISITS = st.builds(
    Visit,
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from(COSTS),
    st.none() | st.sampled_from(WEIGHTS),
)
OUT_OF_ORDER = st.lists(
    st.builds(
        Piped,
        st.sampled_from(["a", "a", "b", None]),
        st.none() | VISITS,
        st.integers(0, 20),
        st.integers(0, 1),
        st.sampled_from([None, "one", "two"]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=10,
    max_size=40,
)


def pipeline_of(window: AnyWindow, step: str) -> Pipeline:
    pipeline = Pipeline("windows", workers=2)
    emits: dict[str, Any] = {
        "on close": {"emit": "window_close"},
        "early": {"emit": "window_close", "early": "2 ms"},
    }
    visits = pipeline.stream("visits", value=Visit).group_by_key()
    windows = visits.windowed_by(window, late="late", **emits.get(step, {}))
    columns = {
        "n": "count(*)",
        "known": "count(seconds)",
        "total": "sum(seconds)",
        "least": "min(seconds)",
    }
    columns |= {"most": "max(seconds)", "costs": "sum(cost)", "cheapest": "min(cost)"}
    columns |= {
        "mean": "avg(seconds)",
        "mean_cost": "avg(cost)",
        "weight": "sum(weight)",
        "mean_weight": "avg(weight)",
    }
    # Columns cannot pick values from sessions.
    if not isinstance(window, SessionWindow):
        columns |= {
            "first": "first(seconds)",
            "last": "last(cost)",
            "heaviest": "max_by(struct(seconds, cost), weight)",
        }
    table: Any = windows.aggregate(columns, store="visits_by_window")
    if step == "suppress and every update":
        table.to("changes")
    if step.startswith("suppress"):
        table = table.suppress_until_window_closes()
    if step != "every update":
        table.to("final")
    return pipeline


def results_of(
    pipeline: Pipeline, piped: list[Piped], fewest_rows: int, *, copies_results: bool = False
) -> Results:
    """The results of a pipeline that aggregates batches of this many records in columns.

    `copies_results`: suppress steps hold back copies of results, instead of reading them from the
    aggregate's state.
    """
    with (
        patch.object(last_results, "FEWEST_ROWS", fewest_rows),
        patch.object(PlannedOperator, "keeps_waiting_windows", return_value=False)
        if copies_results
        else nullcontext(),
        TopologyTestDriver(pipeline, partitions={"visits": 2}) as driver,
    ):
        for record in piped:
            headers = {} if record.run is None else {"run": record.run}
            driver.pipe(
                "visits",
                record.value,
                key=record.key,
                timestamp=record.time,
                partition=record.partition,
                headers=headers,
            )
            if record.commits:
                driver.commit()
        final = driver.output("final") if "final" in pipeline.sinks else []
        return Results(
            final, driver.output("late"), driver.store("visits_by_window"), driver.counts()
        )


@settings(max_examples=settings().max_examples // 2)
@given(steps=OUT_OF_ORDER, window=st.sampled_from([*WINDOWS]), step=st.sampled_from(STEPS))
def test_columns_have_the_results_of_the_operators(
    steps: list[Piped], window: str, step: str
) -> None:
    # Time goes on by a millisecond with each record, and a record may be up to 20 milliseconds
    # older.
    piped = [
        record._replace(time=max(0, 9 + number - record.time))
        for number, record in enumerate(steps)
    ]
    pipeline = pipeline_of(WINDOWS[window], step)
    by_row = results_of(pipeline, piped, NEVER)
    assert results_of(pipeline, piped, ALWAYS) == by_row
    if step not in ("every update", "early"):
        assert results_of(pipeline, piped, NEVER, copies_results=True) == by_row


def test_a_session_that_has_closed_for_one_partition_stays_apart_from_the_session_after_it() -> (
    None
):
    # When partition 1 has reached 28, its record of 26 comes too late for the session that ends at
    # 23. Partition 0 keeps that session open until it reaches 28, too.
    times = [(21, 1), (23, 1), (22, 0), (28, 1), (26, 1), (29, 1), (60, 0), (60, 1)]
    keys = ["b", "b", "a", "c", "b", "b", "a", "a"]
    piped: list[Piped] = []
    for key, (time, partition) in zip(keys, times, strict=True):
        piped.append(Piped(key, Visit(1), time, partition, commits=time in (22, 26, 29)))
    for fewest_rows in (ALWAYS, NEVER):
        final = results_of(
            pipeline_of(WINDOWS["sessions without grace"], "suppress"), piped, fewest_rows
        ).final
        counts = {
            each.headers["window_start"]: each.value["n"] for each in final if each.key == "b"
        }
        assert counts == {"21": 2, "26": 2}


@pytest.mark.parametrize("window", WINDOWS)
def test_a_suppress_step_reads_the_windows_that_the_aggregate_keeps_until_they_close(
    window: str,
) -> None:
    job = plan(pipeline_of(WINDOWS[window], "suppress")).job
    # An aggregate keeps sliding windows for longer than the suppress step needs them.
    assert [operator.reads_windows for operator in job.operators] == [False, window != "sliding"]
