"""What becomes of a batch that is begun while the output of the previous batch is written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

import pytest

from sluice.engine.run.batch_query import BatchQuery
from sluice.engine.run.read_ahead import ReadAhead, StartQuery, Upcoming
from sluice.state.ledger.plans import PlannedBatch


class Query:
    """A query that notes whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Queries:
    """Starts a query for each batch."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int, Mapping[str, int]]] = []
        self.queries: list[Query] = []

    def start(
        self, previous: PlannedBatch, batch: PlannedBatch, times: Mapping[str, int]
    ) -> BatchQuery:
        self.started.append((previous.number, batch.number, times))
        self.queries.append(Query())
        return cast(BatchQuery, self.queries[-1])


def batches(count: int) -> list[PlannedBatch]:
    return [PlannedBatch(number=number, begun=0) for number in range(count)]


def fail_after_beginning(start_query: StartQuery) -> None:
    """Let a batch fail after the next batch was begun."""
    with closing(ReadAhead(iter(batches(2)), start_query)) as backlog:
        backlog.next_batch()
        backlog.begin_next({})
        raise ConnectionError


def test_a_batch_is_begun_from_the_stream_times_after_the_previous_batch() -> None:
    plans, queries = batches(2), Queries()
    with closing(ReadAhead(iter(plans), queries.start)) as backlog:
        assert backlog.next_batch() == Upcoming(plans[0])
        backlog.begin_next({"sales": 7})
        upcoming = backlog.next_batch()
        assert upcoming == Upcoming(plans[1], cast(BatchQuery, queries.queries[0]))
        backlog.begin_next({"sales": 9})
        assert backlog.next_batch() is None
    assert queries.started == [(0, 1, {"sales": 7})]
    assert not queries.queries[0].is_closed


def test_a_batch_that_was_not_begun_still_follows() -> None:
    """A batch that has nothing to write does not let the next batch begin."""
    plans, queries = batches(3), Queries()
    with closing(ReadAhead(iter(plans), queries.start)) as backlog:
        backlog.next_batch()
        backlog.begin_next({})
        backlog.next_batch()
        assert [backlog.next_batch(), backlog.next_batch()] == [Upcoming(plans[2]), None]
    assert len(queries.started) == 1


def test_a_query_is_closed_if_the_previous_batch_fails() -> None:
    queries = Queries()
    with pytest.raises(ConnectionError):
        fail_after_beginning(queries.start)
    assert queries.queries[0].is_closed


def test_an_error_of_the_next_batch_is_raised_in_its_turn() -> None:
    def fails(*_: object) -> Any:
        raise OSError("no space is left")

    with closing(ReadAhead(iter(batches(2)), fails)) as backlog:
        backlog.next_batch()
        backlog.begin_next({})
        with pytest.raises(OSError, match="no space"):
            backlog.next_batch()
    # If the previous batch fails, too, its error is the one that counts.
    with pytest.raises(ConnectionError):
        fail_after_beginning(fails)
