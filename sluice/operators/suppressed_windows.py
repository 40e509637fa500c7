"""Suppresses without copies: sends windows' last results from the state of their aggregate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from sluice.operators.aggregation.aggregate import WindowAggregation
from sluice.operators.aggregation.last_results import Windows
from sluice.operators.base import Output, Row
from sluice.operators.columns import KeyedRows, ReleasedResults, validity
from sluice.operators.lateness import closes_at
from sluice.operators.suppress import Suppress, Waiting, released_windows
from sluice.support.arrays import Mask
from sluice.values.windows import Bounds


class ClosingWindows(Suppress):
    """Sends the last result of each window when the window closes.

    The engine reads this result from the aggregate's state.

    The aggregate before this step keeps each window exactly until it closes, so its state has the
    results that are held back. This step's state adds only the headers of each window's last
    update. This step's state is empty if results get the headers of the records that close the
    windows.
    """

    state_type: Any = dict[Bounds, str]

    aggregate: WindowAggregation
    """The aggregate before this step."""

    def process(self, state: dict[Bounds, str], row: Row, out: Output) -> None:  # type: ignore[override]
        assert row.window is not None
        self._keep_headers(state, row.window, row.headers)

    @override
    def _must_keep(self, rows: KeyedRows) -> Mask:
        if self.is_final:
            return np.zeros(len(rows), np.bool_)
        return rows.has_value & validity(rows.columns["headers"])

    @override
    def _keep(self, state: dict[Bounds, str], window: Bounds, waiting: Waiting | None) -> None:
        headers = None if waiting is None else waiting.headers
        self._keep_headers(state, window, headers)

    def _keep_headers(self, state: dict[Bounds, str], window: Bounds, headers: str | None) -> None:
        """Keep the headers of a window's last update."""
        if headers is None or self.is_final:
            state.pop(window, None)
        else:
            state[window] = headers

    def next_due(self, windows: Windows, sent_until: int) -> int | None:
        """Return the first time after `sent_until` at which one of a key's windows closes."""
        waiting: list[int] = []
        for start, (time, _) in windows.items():
            due = self.aggregate.expires_at(start, time)
            if due > sent_until:
                waiting.append(due)
        return min(waiting, default=None)

    def send_closed(
        self,
        windows: Windows,
        headers: Mapping[Bounds, str],
        key: str,
        after: int,
        until: int,
        out: Output,
    ) -> None:
        """Send the results of a key's windows that close after `after`, but not after `until`."""
        closed: list[tuple[Bounds, int, Any]] = []
        for start, (time, aggregate) in windows.items():
            if after < self.aggregate.expires_at(start, time) <= until:
                closed.append((self.aggregate.bounds_of(start, time), time, aggregate))
        for bounds, time, aggregate in sorted(closed, key=lambda window: window[0][1]):
            if not self.is_final:
                out.headers = headers.get(bounds)
            # As in Kafka Streams, the final result of a window is never a tombstone.
            result = self.aggregate.calculation.result(aggregate)
            if result is not None:
                out.emit(key, result, time, window=bounds)

    def closed_windows(
        self,
        keys: Sequence[str],
        windows: Mapping[str, Windows],
        headers: Mapping[str, Mapping[Bounds, str]],
        until: int,
    ) -> ReleasedResults:
        """Return the results of all windows of these keys that close by the stream time `until`.

        `windows` are the aggregate's states, and `headers` the states of this step.
        """
        closed: list[tuple[int, int, int, int, int]] = []
        aggregates: list[Any] = []
        headers_of_results: list[str | None] = []
        for number, key in enumerate(keys):
            headers_of_key = headers.get(key, {})
            for start, (time, aggregate) in windows.get(key, {}).items():
                due = self.aggregate.expires_at(start, time)
                if due <= until:
                    bounds = self.aggregate.bounds_of(start, time)
                    closed.append((number, *bounds, time, due))
                    aggregates.append(aggregate)
                    headers_of_results.append(headers_of_key.get(bounds))
        values = pa.array(self.aggregate.calculation.results(aggregates), pa.string())
        # As in Kafka Streams, the final result of a window is never a tombstone.
        sent = np.flatnonzero(validity(values))
        taken = pa.array(sent)
        numbers, starts, ends, times, due_times = np.array(closed, np.int64).reshape(-1, 5)[sent].T
        all_headers = None
        if not self.is_final:
            all_headers = pa.array(headers_of_results, pa.string()).take(taken)
        return released_windows(
            pa.array(keys, pa.string()),
            numbers,
            due_times,
            (starts, ends),
            times,
            values.take(taken),
            all_headers,
        )

    def due(self, state: dict[Bounds, str]) -> int | None:  # type: ignore[override]
        """Return when the first window with headers closes."""
        if state:
            return closes_at(min(end for _, end in state), self.wait_ms)
        return None

    def close(
        self,
        state: dict[Bounds, str],  # type: ignore[override]
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Forget the headers of closed windows."""
        for window in list(state):
            if closes_at(window[1], self.wait_ms) <= closed:
                del state[window]
