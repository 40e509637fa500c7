"""While a batch of a divided backlog runs, another thread finds where the next one ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from threading import Event, get_ident

import pytest

from sluice.engine.read.ordered_backlog import Offsets
from sluice.engine.run.batch_loop import prefetch


def test_the_next_end_is_found_while_a_batch_runs() -> None:
    found, threads = Event(), set[int]()

    def ends() -> Iterator[Offsets]:
        yield {("clicks", 0): 10}
        threads.add(get_ident())
        found.set()
        yield {("clicks", 0): 20}

    with closing(prefetch(ends())) as batches:
        assert next(batches) == {("clicks", 0): 10}
        assert found.wait(10)
        assert get_ident() not in threads
        assert list(batches) == [{("clicks", 0): 20}]


def test_an_error_ends_the_run_after_the_batches_before_it() -> None:
    def ends() -> Iterator[Offsets]:
        yield {("clicks", 0): 10}
        raise ConnectionError("the broker is gone")

    batches = prefetch(ends())
    assert next(batches) == {("clicks", 0): 10}
    with pytest.raises(ConnectionError, match="gone"):
        next(batches)


def test_nothing_is_still_being_found_after_a_batch_has_failed() -> None:
    begun, may_go_on, done = Event(), Event(), Event()

    def ends() -> Iterator[Offsets]:
        yield {("clicks", 0): 10}
        begun.set()
        may_go_on.wait(0.2)
        done.set()
        yield {("clicks", 0): 20}

    batches = prefetch(ends())
    next(batches)
    assert begun.wait(10)
    batches.close()
    assert done.is_set()
