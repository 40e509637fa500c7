"""Aggregations over windows that an author's function returns."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from sluice.operators.aggregation.aggregate import WindowAggregation
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.aggregation.last_results import Windows
from sluice.operators.base import Output, Row
from sluice.values.windows import Bounds, CustomWindow


class CustomWindowAggregate(WindowAggregation):
    """One aggregate per key and window.

    Records with a null value are aggregated, as in Kafka Streams' tumbling and hopping windows.

    The state maps each window's bounds to its aggregate, because a window's end does not follow
    from its start. A record is counted as `late` once for each window for which it is late.
    """

    window: CustomWindow

    def __init__(
        self,
        calculation: Calculation,
        window: CustomWindow,
        *,
        sends_old_values: bool = False,
    ) -> None:
        super().__init__(calculation, window, sends_old_values=sends_old_values)
        self.state_type: Any = dict[Bounds, tuple[int, calculation.kind]]  # type: ignore[name-defined]

    @override
    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        if row.key is None:
            out.count("null_key")
            return
        last_closed_end = self.lateness.last_closed_end(row.after)
        windows = self.window.bounds_of(row.time)
        late = 0
        for window in windows:
            if window[1] > last_closed_end:
                self._add_to_window(state, window, window, row, out)
            else:
                late += 1
        if not windows:
            out.count("no_window")
        if late:
            out.count("late", late)
            if late == len(windows):
                out.send_late()

    @override
    def expires_at(self, start: Any, time: Any) -> Any:
        _, end = start
        return self.lateness.closes_at(end)
