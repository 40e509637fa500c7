"""The batches of a backlog, each of which the tasks may read while the output of the previous batch is written.

Writing the output takes the driver's time, and the tasks would wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

from sluice.engine.run.batch_query import BatchQuery
from sluice.state.ledger.plans import PlannedBatch


class Upcoming(NamedTuple):
    """The next batch of a backlog."""

    plan: PlannedBatch
    query: BatchQuery | None = None
    """The batch's query, if its tasks read already."""


StartQuery: TypeAlias = Callable[[PlannedBatch, PlannedBatch, Mapping[str, int]], BatchQuery | None]
"""Takes the current batch, the next batch and the stream times between them. Starts the next batch's query, or returns
None if it must not start yet."""


class ReadAhead:
    """The batches of a backlog, in order. It must be closed."""

    def __init__(self, plans: Iterator[PlannedBatch], start_query: StartQuery) -> None:
        self._plans = plans
        self._start_query = start_query
        self._executor = ThreadPoolExecutor(1, "read-ahead")
        self._current: PlannedBatch | None = None
        self._begun: Future[Upcoming | None] | None = None

    def begin_next(self, times: Mapping[str, int]) -> None:
        """Begin to read the next batch in another thread.

        `times` are the stream times after the current batch.
        """
        self._begun = self._executor.submit(self._begin_next, times)

    def next_batch(self) -> Upcoming | None:
        """Return the next batch, which becomes the current batch; None after the last batch."""
        if self._begun is not None:
            upcoming = self._begun.result()
            self._begun = None
        else:
            plan = next(self._plans, None)
            upcoming = None if plan is None else Upcoming(plan)
        self._current = None if upcoming is None else upcoming.plan
        return upcoming

    def _begin_next(self, times: Mapping[str, int]) -> Upcoming | None:
        plan = next(self._plans, None)
        if plan is None:
            return None
        assert self._current is not None
        return Upcoming(plan, self._start_query(self._current, plan, times))

    def close(self) -> None:
        """Stop the query of a batch whose turn has not come, because the current batch has failed."""
        self._executor.shutdown()
        if self._begun is not None and self._begun.exception() is None:
            upcoming = self._begun.result()
            if upcoming is not None and upcoming.query is not None:
                upcoming.query.close()
