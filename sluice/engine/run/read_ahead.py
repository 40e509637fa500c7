"""Starts the query of each batch. Tasks read the next batch of a backlog while a batch is written.

While a few tasks write the shards, and the driver the output, the other tasks would be idle. So the
query of the next batch starts as soon as the tasks of a batch have read its records:

1. Spark computes the query of a batch up to its last shuffle, and then calls a function that waits
   for the batch's turn (`BatchQuery`).
2. When the turn has come, this function calls `BatchQueries._begin_next` with the stream times that
   the tasks have reported (`ReadTimes`), and then publishes its batch.
3. `_begin_next` starts the query of the next batch in another thread, with the start that follows
   from these times.
4. When the batch is published, the driver computes the next batch's start from the ledger. If the
   tasks have read with another start, `query` closes their query, and starts another one.

Nothing of a batch is written before its turn. If the current batch fails, the query of the next
batch is stopped, and the ledger knows nothing of this batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.read.source_identity import Positions
from sluice.engine.run.batch_query import BatchQuery, WhenRead
from sluice.engine.run.replay import offsets_between
from sluice.plan import Job
from sluice.state.ledger.plans import PlannedBatch

StartOf: TypeAlias = Callable[[PlannedBatch, Positions, Mapping[str, int]], BatchStart]
"""Computes the start of a batch from its plan, the offsets at which it begins, and the stream times
before it."""
StartQuery: TypeAlias = Callable[[BatchStart, WhenRead], BatchQuery]


def may_read_ahead(job: Job) -> bool:
    """Return whether the tasks may read a batch before the previous batch is published.

    If there are several shuffles, the tasks before the last shuffle also write states, which must
    not be written before the previous batch is published. If the tasks that read need a stream time
    that only the stages know, they must wait for the previous batch's stages.
    """
    return job.has_one_shuffle and job.reads_without_stages


class BatchQueries:
    """The queries of a run's batches."""

    def __init__(self, start_query: StartQuery, start_of: StartOf, *, reads_ahead: bool) -> None:
        self._start_query = start_query
        self._start_of = start_of
        self._reads_ahead = reads_ahead
        self._backlog: Iterator[PlannedBatch] | None = None
        """The plans of the following batches; None if the current batch is not one of a backlog."""
        self._current: PlannedBatch | None = None
        self._begun: BatchQuery | None = None
        """The query of the current batch, if its tasks have begun to read ahead."""
        self._next: Future[_Upcoming | None] | None = None
        self._executor: ThreadPoolExecutor | None = None

    def take_each(self, plans: Iterator[PlannedBatch]) -> Generator[PlannedBatch, None, None]:
        """Yield the plans of a backlog. The caller must run each batch, and close the generator."""
        self._backlog = plans
        with ThreadPoolExecutor(1, "read-ahead") as self._executor:
            try:
                while (plan := self._take_next()) is not None:
                    yield plan
            finally:
                self._backlog = None
                self._stop_next()

    def query(self, start: BatchStart) -> BatchQuery:
        """Return the query of the current batch, whose turn has come. The caller must close it.

        If its tasks have begun to read with another start, their results are discarded.
        """
        query, self._begun = self._begun, None
        if query is not None:
            if query.has_read(start):
                return query
            query.close()
        return self._start_query(start, self._begin_next)

    def _begin_next(self, times: Mapping[str, int]) -> None:
        """Begin to read the next batch in another thread.

        `times` are the stream times after the current batch.
        """
        if self._backlog is not None and self._executor is not None and self._reads_ahead:
            self._next = self._executor.submit(self._start_next, self._backlog, times)

    def _start_next(
        self, backlog: Iterator[PlannedBatch], times: Mapping[str, int]
    ) -> _Upcoming | None:
        plan = next(backlog, None)
        if plan is None:
            return None
        assert self._current is not None
        ends = self._current.ends
        if offsets_between(ends, plan.ends) <= 0:
            # A batch without records has nothing to read ahead.
            return plan, None
        start = self._start_of(plan, ends, times)
        return plan, self._start_query(start, self._begin_next)

    def _take_next(self) -> PlannedBatch | None:
        """Return the next plan, which becomes the current one; None after the last."""
        assert self._backlog is not None
        if self._next is None:
            self._current, self._begun = next(self._backlog, None), None
            return self._current
        upcoming = self._next.result()
        self._next = None
        self._current, self._begun = upcoming or (None, None)
        return self._current

    def _stop_next(self) -> None:
        """Stop the queries of batches whose turn will not come."""
        waiting, self._begun = [self._begun], None
        if self._next is not None and self._next.exception() is None:
            _, query = self._next.result() or (None, None)
            waiting.append(query)
        self._next = None
        for query in waiting:
            if query is not None:
                query.close()


_Upcoming: TypeAlias = tuple[PlannedBatch, BatchQuery | None]
"""The next batch of a backlog, and its query if its tasks are already reading."""
