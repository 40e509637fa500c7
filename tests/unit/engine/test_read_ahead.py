"""What becomes of a batch that is begun while the output of the previous batch is written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

import pytest

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.read.source_identity import Positions
from sluice.engine.run.batch_query import BatchQuery, WhenRead
from sluice.engine.run.read_ahead import BatchQueries, StartQuery
from sluice.state.ledger.plans import PlannedBatch


class Query:
    """A query that notes whether it was closed."""

    def __init__(self, start: BatchStart, when_read: WhenRead) -> None:
        self.start = start
        self.when_read = when_read
        self.is_closed = False

    def has_read(self, start: BatchStart) -> bool:
        return self.start == start

    def close(self) -> None:
        self.is_closed = True


class Queries:
    """Starts a query for each batch."""

    def __init__(self) -> None:
        self.started: list[Query] = []

    def __call__(self, start: BatchStart, when_read: WhenRead) -> BatchQuery:
        self.started.append(Query(start, when_read))
        return cast(BatchQuery, self.started[-1])


def batches(count: int, records: int = 1) -> list[PlannedBatch]:
    plans: list[PlannedBatch] = []
    for number in range(count):
        ends = {"sales": {"0": number * records}}
        plans.append(PlannedBatch(number=number, begun=0, ends=ends))
    return plans


def start_of(plan: PlannedBatch, begins: Positions, times: Mapping[str, int]) -> BatchStart:
    return BatchStart(plan.number, begins["sales"]["0"], times)


def queries_of(start_query: StartQuery, *, reads_ahead: bool = True) -> BatchQueries:
    return BatchQueries(start_query, start_of, reads_ahead=reads_ahead)


def fail_after_beginning(queries: BatchQueries, *, in_its_turn: bool = False) -> None:
    """Let a batch fail after the next batch was begun."""
    with closing(queries.take_each(iter(batches(2)))) as backlog:
        next(backlog)
        queries._begin_next({})
        if in_its_turn:
            next(backlog)
        raise ConnectionError


def test_a_batch_is_begun_from_the_stream_times_after_the_previous_batch() -> None:
    plans, started = batches(2), Queries()
    queries = queries_of(started)
    with closing(queries.take_each(iter(plans))) as backlog:
        assert next(backlog) is plans[0]
        queries._begin_next({"sales": 7})
        assert next(backlog) is plans[1]
        (begun,) = started.started
        assert begun.start == BatchStart(1, 0, {"sales": 7})
        assert cast(Any, queries.query(BatchStart(1, 0, {"sales": 7}))) is begun
        queries._begin_next({"sales": 9})
        assert next(backlog, None) is None
    assert started.started == [begun]
    assert not begun.is_closed


def test_tasks_that_have_read_in_vain_read_again() -> None:
    started = Queries()
    queries = queries_of(started)
    with closing(queries.take_each(iter(batches(2)))) as backlog:
        next(backlog)
        queries._begin_next({"sales": 7})
        next(backlog)
        queries.query(BatchStart(1, 0, {"sales": 8}))
    in_vain, again = started.started
    assert in_vain.is_closed
    assert again.start.read_times == {"sales": 8}
    assert not again.is_closed


def test_a_batch_that_was_not_begun_still_follows() -> None:
    """A batch that has nothing to write does not let the next batch begin."""
    plans, started = batches(3), Queries()
    queries = queries_of(started)
    with closing(queries.take_each(iter(plans))) as backlog:
        next(backlog)
        queries._begin_next({})
        next(backlog)
        assert [next(backlog, None), next(backlog, None)] == [plans[2], None]
    assert len(started.started) == 1


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_a_batch_without_records_or_of_a_job_that_must_wait_is_not_begun(reads_ahead: bool) -> None:
    plans, started = batches(2, records=0 if reads_ahead else 1), Queries()
    queries = queries_of(started, reads_ahead=reads_ahead)
    with closing(queries.take_each(iter(plans))) as backlog:
        next(backlog)
        queries._begin_next({})
        assert next(backlog) is plans[1]
    assert not started.started


def test_a_batch_that_is_not_one_of_a_backlog_begins_no_other() -> None:
    started = Queries()
    queries = queries_of(started)
    queries.query(BatchStart(0, 0))
    started.started[0].when_read({})
    assert len(started.started) == 1


def test_a_query_is_closed_if_the_previous_batch_fails() -> None:
    started = Queries()
    with pytest.raises(ConnectionError):
        fail_after_beginning(queries_of(started))
    assert started.started[0].is_closed


def test_a_query_is_closed_if_its_batch_fails_before_it_is_its_turn() -> None:
    started = Queries()
    with pytest.raises(ConnectionError):
        fail_after_beginning(queries_of(started), in_its_turn=True)
    assert started.started[0].is_closed


def test_an_error_of_the_next_batch_is_raised_in_its_turn() -> None:
    def fails(*_: object) -> Any:
        raise OSError("no space is left")

    queries = queries_of(fails)
    with closing(queries.take_each(iter(batches(2)))) as backlog:
        next(backlog)
        queries._begin_next({})
        with pytest.raises(OSError, match="no space"):
            next(backlog)
    # If the previous batch fails, too, its error is the one that counts.
    with pytest.raises(ConnectionError):
        fail_after_beginning(queries_of(fails))
