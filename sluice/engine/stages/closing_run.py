"""Runs a suppress step that reads results of closed windows from the state of its aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import override

from sluice.engine.batch.row_schemas import BEGIN, END, Position
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.stages.batch_states import BatchStates
from sluice.engine.stages.operator_run import OperatorRun
from sluice.engine.stages.releases import Releases
from sluice.engine.stages.stage_output import StageOperator, StageOutput
from sluice.engine.stages.timeline import Timeline
from sluice.operators.aggregation.aggregate import WindowAggregation
from sluice.operators.suppressed_windows import ClosingWindows

_LATEST = 2**63 - 1


class ClosingRun(OperatorRun):
    """A suppress step in one batch.

    The aggregate's state has the windows whose results are held back. If the aggregate processes
    rows of a key one by one, the results of the key's windows are sent between these rows, as
    stream time advances. The results of all other keys are sent at once, as columns, because none
    of their windows changes after it has closed.
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
        """The keys with windows that close in this batch. Keys whose rows are processed one by one
        are left out."""
        self._sent_until: dict[str, int] = {}
        """Key → the stream time up to which the results of its windows have been sent in this
        batch."""
        self._with_headers: frozenset[str] | None = None
        super().__init__(spec, stored, timeline)
        assert isinstance(aggregate.operator, WindowAggregation)
        self.operator.aggregate = aggregate.operator

    @property
    @override
    def _number_of_states(self) -> int:
        return self.aggregate.spec.number

    @override
    def _schedule_due(self, releases: Releases) -> None:
        self._closing.update(self._due_until(releases.timeline.closed_after))

    @override
    def expect_rows(self, keys: Iterable[str]) -> None:
        assert self.releases is not None
        with_rows = sorted(self._closing.intersection(keys))
        self._closing.difference_update(with_rows)
        for key in with_rows:
            self.releases.schedule(key, self._release_due(key), BEGIN)

    @override
    def _stored_states(self, keys: Sequence[str]) -> dict[str, Any]:
        # Few records have headers, so most keys have no state. One look-up finds the keys that have
        # a state.
        if self._with_headers is None:
            self._with_headers = frozenset(self._stored.due(self.spec.number, _LATEST))
        if not self._with_headers:
            return {}
        return super()._stored_states([key for key in keys if key in self._with_headers])

    @override
    def _release_due(self, key: str) -> int | None:
        windows = self.aggregate.states.get(key, {})
        return self.operator.next_due(windows, self._sent_until.get(key, BEFORE_ALL))

    @override
    def _send_due(self, key: str, due: int, position: Position, output: StageOutput) -> None:
        windows = self.aggregate.states.get(key, {})
        after = self._sent_until.get(key, BEFORE_ALL)
        self._sent_until[key] = due
        self.operator.send_closed(windows, self.state(key), key, after, due, output)

    @override
    def send_before_close(self, output: StageOutput) -> None:
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
        until = timeline.closed_after
        self.add_released(
            self.operator.closed_windows(at_once, self.aggregate.states, self.states, until), output
        )
