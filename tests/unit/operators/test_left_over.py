"""Operators that take columns: what they release, what they leave over, and what they hold back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice import tumbling, within
from sluice.operators.aggregation import last_results
from sluice.operators.aggregation.aggregate import WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Functions
from sluice.operators.base import LEFT
from sluice.operators.columns import KeyedRows, KeyStates, Results
from sluice.operators.joins import stream_join
from sluice.operators.joins.stream_join import StreamJoin
from sluice.operators.suppress import Suppress, Waiting
from sluice.operators.suppressed_windows import ClosingWindows
from sluice.support.arrays import Times


class Passed:
    """A stream time that advances once, after all rows."""

    def __init__(self, before: int, after: int) -> None:
        self.closed_before, self.closed_after = before, after

    def advances_until(self, due: Times) -> Times:
        return np.where(due <= self.closed_after, 1_000, 1 << 62)


def rows_of(
    keys: Sequence[str],
    values: Sequence[str | None],
    times: Sequence[int],
    *,
    windows: Sequence[tuple[int, int]] = (),
    headers: Sequence[str | None] = (),
    **stream_times: Sequence[int],
) -> KeyedRows:
    """Rows that are sorted by key, on the left side."""
    count = len(keys)
    starts, ends = np.array(windows or [(-1, -1)] * count, np.int64).T
    columns = {
        "key": pa.array(keys, pa.string()),
        "value": pa.array(values, pa.string()),
        "headers": pa.array(headers or [None] * count, pa.string()),
        "time": pa.array(times, pa.int64()),
        "side": pa.array([LEFT] * count, pa.int32()),
        "window_start": pa.array(starts),
        "window_end": pa.array(ends),
    }
    different = sorted(set(keys))
    starts_of_keys = np.searchsorted(np.array(keys), [*different, "~"])
    arrays = {name: np.array(values) for name, values in stream_times.items()}
    return KeyedRows(different, starts_of_keys, columns, arrays)


def released(results: Results | None) -> list[tuple[str, int, int, str | None]]:
    """The key, the due time, the time and the value of each released result."""
    assert results is not None
    of_time = results.released
    assert of_time is not None
    keys = of_time.texts_of_keys().to_pylist()
    columns = of_time.due.tolist(), of_time.times.tolist(), of_time.values.to_pylist()
    return list(zip(keys, *columns, strict=True))


def test_rows_of_some_keys_have_the_columns_and_times_of_these_keys() -> None:
    rows = rows_of(["a", "a", "b", "c"], ["1", "2", "3", "4"], [1, 2, 3, 4], after=[5, 6, 7, 8])
    some, indices = rows.of_keys(np.array([True, False, True]))
    assert (some.keys, some.starts.tolist(), indices.tolist()) == (["a", "c"], [0, 2, 3], [0, 1, 3])
    assert some.columns["value"].to_pylist() == ["1", "2", "4"]
    assert some.stream_times["after"].tolist() == [5, 6, 8]
    results = Results(np.array([0, 2]), pa.array(["x", "y"]), np.array([0, 0]),
                      dropped={"late": np.array([1])}, late=np.array([1]))  # fmt: skip
    placed = results.of_rows(indices)
    assert placed.rows.tolist() == [0, 3]
    assert placed.dropped["late"].tolist() == placed.late.tolist() == [1]


def test_suppress_sends_closed_windows_and_holds_open_windows_back() -> None:
    suppress = Suppress("window_close", 5)
    rows = rows_of(["a", "a", "b"], ["1", "2", "3"], [3, 13, 4],
                   windows=[(0, 10), (10, 20), (0, 10)], headers=["h1", "h2", None])  # fmt: skip
    states: dict[str, Any] = {"b": {(0, 10): Waiting(10, "earlier", 1)}}
    results = suppress.process_columns(
        KeyStates(rows.keys, states, suppress.new_state), rows, Passed(0, 15)
    )
    assert released(results) == [("a", 15, 3, "1"), ("b", 15, 4, "3")]
    assert states["a"] == {(10, 20): Waiting(20, "2", 13, None, "h2")}
    assert states["b"] == {}, "the result that was sent replaces the earlier result"


def test_a_tombstone_takes_the_place_of_a_result_that_was_held_back() -> None:
    suppress = Suppress("window_close", 5)
    rows = rows_of(["a"], [None], [3], windows=[(0, 10)])
    states: dict[str, Any] = {"a": {(0, 10): Waiting(10, "earlier", 1)}}
    results = suppress.process_columns(
        KeyStates(rows.keys, states, suppress.new_state), rows, Passed(0, 9)
    )
    assert released(results) == []
    assert states == {"a": {}}


def test_a_step_that_reads_windows_keeps_only_headers() -> None:
    closing = ClosingWindows("window_close", 5)
    rows = rows_of(["a", "b"], ["1", "2"], [13, 14],
                   windows=[(10, 20), (10, 20)], headers=["h", None])  # fmt: skip
    states: dict[str, Any] = {"b": {(10, 20): "earlier"}}
    results = closing.process_columns(
        KeyStates(rows.keys, states, closing.new_state), rows, Passed(0, 15)
    )
    assert released(results) == []
    assert states == {"a": {(10, 20): "h"}, "b": {}}


def test_an_aggregate_leaves_the_neighbours_of_closed_windows_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(last_results, "FEWEST_ROWS", 1)
    aggregate = WindowedAggregate(
        Functions(Function("count")), tumbling("10 ms", grace="0 ms"), only_last=True
    )
    rows = rows_of(["late", "open", "open"], ["[1]"] * 3, [5, 25, 26], before=[20, 20, 25],
                   after=[20, 25, 26])  # fmt: skip
    states: dict[str, Any] = {}
    results = aggregate.process_columns(
        KeyStates(rows.keys, states, aggregate.new_state), rows, None
    )
    assert results is not None
    assert results.left_over is not None
    assert results.left_over.tolist() == [True, False, False]
    assert (results.rows.tolist(), results.values.to_pylist()) == ([2], ["[2]"])
    assert states == {"open": {20: (26, (2,))}}


def test_an_outer_join_leaves_keys_over_and_releases_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_join, "FEWEST_ROWS", 1)
    join = StreamJoin("left", within("5 ms"))
    # The second row of "spread" comes from a partition that has reached less.
    rows = rows_of(["own", "spread", "spread"], ["1", "2", "3"], [10, 50, 20], before=[0, 0, 0],
                   after=[10, 50, 20], left=[10, 50, 20], right=[-1] * 3,
                   advances=[1, 2, 3])  # fmt: skip
    states: dict[str, Any] = {}
    results = join.process_columns(
        KeyStates(rows.keys, states, join.new_state), rows, Passed(0, 100)
    )
    assert results is not None
    assert results.left_over is not None
    assert results.left_over.tolist() == [False, True, True]
    assert released(results) == [("own", 16, 10, '{"left":1,"right":null}')]
    assert "spread" not in states
