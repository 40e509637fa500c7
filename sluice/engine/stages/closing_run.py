"""Runs a suppress step that reads the results of closed windows from the state of the aggregate before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.engine.batch.row_schemas import BEGIN, END
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.stages.batch_states import BatchStates
from sluice.engine.stages.operator_run import OperatorRun
from sluice.engine.stages.releases import Releases
from sluice.engine.stages.stage_output import StageOperator, StageOutput
from sluice.engine.stages.timeline import Timeline
from sluice.engine.stages.window_results import WindowResults, closed_rows
from sluice.operators.aggregation.aggregate import WindowAggregation
from sluice.operators.suppress import ClosingWindows
from sluice.support.arrays import Times
from sluice.values.windows import Bounds

_LATEST = 2**63 - 1


class ClosingRun(OperatorRun):
    """A suppress step in one batch. The aggregate's state has the windows whose results wait.

    If the aggregate processes rows of a key one by one, the results of the key's windows are sent
    between these rows, as stream time advances. The results of all other keys are sent at once, as
    columns, because none of their windows changes after it has closed.
    """

    operator: ClosingWindows

    def __init__(
        self,
        spec: StageOperator,
        stored: BatchStates,
        timeline: Timeline,
        aggregate: OperatorRun,
    ) -> None:
        self.aggregate = aggregate
        self._closing: set[str] = set()
        """The keys with windows that close in this batch, without the keys whose rows are processed one by one."""
        self._sent_until: dict[str, int] = {}
        """Key → the stream time up to which the results of its windows have been sent in this batch."""
        self._with_headers: frozenset[str] | None = None
        super().__init__(spec, stored, timeline)

    @property
    def _windows(self) -> WindowAggregation:
        assert isinstance(self.aggregate.operator, WindowAggregation)
        return self.aggregate.operator

    @property
    def _number_of_states(self) -> int:
        return self.aggregate.spec.number

    def _schedule_due(self, releases: Releases) -> None:
        self._closing.update(self._due_until(releases.timeline.closed_after))

    def expect_rows(self, keys: Iterable[str]) -> None:
        """Send the results of these keys between the keys' rows, which are processed one by one from now on."""
        assert self.releases is not None
        with_rows = sorted(self._closing.intersection(keys))
        self._closing.difference_update(with_rows)
        for key in with_rows:
            self.releases.schedule(key, self._release_due(key), BEGIN)

    def _stored_states(self, keys: Sequence[str]) -> dict[str, Any]:
        # Few records have headers, so that most keys have no state. One look-up finds the keys that
        # do.
        if self._with_headers is None:
            self._with_headers = frozenset(self._stored.due(self.spec.number, _LATEST))
        keys = [key for key in keys if key in self._with_headers] if self._with_headers else []
        return super()._stored_states(keys)

    def _release_due(self, key: str) -> int | None:
        windows, sent = self._windows, self._sent_until.get(key, BEFORE_ALL)
        waiting: list[int] = []
        for start, (time, _) in self.aggregate.states.get(key, {}).items():
            due = windows.expires_at(start, time)
            if due > sent:
                waiting.append(due)
        return min(waiting, default=None)

    def _close_key(self, key: str, due: int, output: StageOutput) -> None:
        closed: list[tuple[Bounds, int, Any]] = []
        for start, (time, aggregate) in self.aggregate.states.get(key, {}).items():
            if self._sent_until.get(key, BEFORE_ALL) < self._windows.expires_at(start, time) <= due:
                closed.append((self._windows.bounds_of(start, time), time, aggregate))
        self._sent_until[key] = due
        headers = self.state(key)
        for bounds, time, aggregate in sorted(closed, key=lambda window: window[0][1]):
            if not self.operator.is_final:
                output.headers = headers.get(bounds)
            # As in Kafka Streams, the final result of a window is never a tombstone.
            result = self._windows.calculation.result(aggregate)
            if result is not None:
                output.emit(key, result, time, window=bounds)

    def send_closed(self, output: StageOutput) -> None:
        """Send all results that are due by the end of the batch. The aggregate still has its states."""
        timeline = self.timeline
        assert self.releases is not None
        assert timeline is not None
        closing = sorted(self._closing)
        self._closing.clear()
        self.aggregate.load(closing)
        self.load(closing)
        at_once: list[str] = []
        for key in closing:
            due = self._release_due(key)
            # No record closes a window that was already due before the batch's first record.
            if due is not None and due <= timeline.closed_before:
                self.releases.schedule(key, due, BEGIN)
            else:
                at_once.append(key)
        self.release(output, END, with_row=True)
        closed, due_times = self._closed_windows(at_once, timeline.closed_after)
        if len(closed):
            output.add_rows(closed_rows(self.spec, self.operator, timeline, closed, due_times))

    def _closed_windows(self, keys: Sequence[str], closed: int) -> tuple[WindowResults, Times]:
        """The results of the keys' windows that the stream time `closed` closes.

        Also returns when each of them closes.
        """
        windows = self._windows
        found: list[tuple[int, int, int, int, int]] = []
        aggregates: list[Any] = []
        headers: list[str | None] = []
        for number, key in enumerate(keys):
            headers_of_key = self.states.get(key, {})
            for start, (time, aggregate) in self.aggregate.states.get(key, {}).items():
                due = windows.expires_at(start, time)
                if due <= closed:
                    bounds = windows.bounds_of(start, time)
                    found.append((number, *bounds, time, due))
                    aggregates.append(aggregate)
                    headers.append(headers_of_key.get(bounds))
        numbers, starts, ends, times, due_times = np.array(found, np.int64).reshape(-1, 5).T
        values = pa.array(windows.calculation.results(aggregates), pa.string())
        results = WindowResults(
            pa.array(keys, pa.string()),
            numbers,
            starts,
            ends,
            times,
            values,
            pa.array(headers, pa.string()),
        )
        # As in Kafka Streams, the final result of a window is never a tombstone.
        has_value = np.asarray(values.is_valid())
        return results.where(has_value), due_times[has_value]
