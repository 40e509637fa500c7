"""Interruptions of a run: the product's calls before or after which something happens to the driver, or around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.publisher import Publisher
from sluice.engine.run.streaming_query import JobQuery
from sluice.sinks.postgres_sink import PostgresTables
from sluice.state.ledger.plans import Plans
from sluice.state.ledger.snapshots import Snapshots


class Crash(Exception):
    """Stands for the death of the driver."""


@dataclass(frozen=True)
class Point:
    """A call of the product before or after which a run is interrupted."""

    where: type
    method: str
    after: bool = False


POINTS = {
    "before the shards": Point(Publisher, "_write_shards"),
    "after the shards": Point(Publisher, "_write_shards", after=True),
    "after the tables": Point(PostgresTables, "write", after=True),
    "before the output": Point(TransactionalOutput, "send"),
    "after the output": Point(TransactionalOutput, "send", after=True),
    "before the ledger": Point(Snapshots, "publish"),
    "after the ledger": Point(Snapshots, "publish", after=True),
    "before Spark's commit": Point(Publisher, "publish", after=True),
    "before the query": Point(JobQuery, "start_batch"),
    "before the plan": Point(Plans, "add"),
    "after the plan": Point(Plans, "add", after=True),
}


@contextmanager
def interrupted(point: Point, interruption: Callable[[], None], nth: int = 1) -> Iterator[None]:
    """Call `interruption` at the nth time that the product passes a point."""
    passed = 0
    original = getattr(point.where, point.method)

    def reached() -> None:
        nonlocal passed
        passed += 1
        if passed == nth:
            interruption()

    def call(*arguments: Any, **named: Any) -> Any:
        if not point.after:
            reached()
        result = original(*arguments, **named)
        if point.after:
            reached()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point.where, point.method, call)
        yield


def crash() -> None:
    raise Crash("the driver dies here")
