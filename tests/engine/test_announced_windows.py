"""The time up to which the windows of an announced store are closed, in the ledger."""

from __future__ import annotations

from functools import partial

import pytest

from sluice import Pipeline, tumbling
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, millis, sale, sales_of


def hourly(names: Names, total: str) -> Pipeline:
    pipeline = names.pipeline(announce_windows=["per_hour"])
    sales = sales_of(pipeline, names).group_by("shop")
    sales.windowed_by(tumbling("1 hour")).aggregate(store="per_hour", total=total)
    return pipeline


def closed(running: Running) -> int:
    snapshot = running.snapshot()
    with running.ledger() as ledger:
        times = ledger.snapshots.times_before(snapshot.ref, snapshot.batch + 1)
    assert times[":announced_from/per_hour"] == -1
    return times[":announced/per_hour"]


# Sums are combinable; the last value is computed by an operator, in the order of the records.
@pytest.mark.parametrize("total", ["sum(quantity)", "last(quantity)"])
def test_windows_are_closed_once_every_partition_has_passed_them(start: Start, total: str) -> None:
    running = start(partial(hourly, total=total), sales=2)
    running.send("sales", sale("Oslo", at="08:10:00"))
    running.run()
    assert closed(running) == -1, "the other partition has had no record"
    running.send("sales", sale("Oslo", at="08:20:00"), partition=1)
    running.run()
    assert closed(running) == millis("08:10:00")

    # A batch that is repeated after a crash computes the same time.
    running.send("sales", sale("Oslo", at="09:30:00"))
    running.send("sales", sale("Oslo", at="10:01:00"), partition=1)
    running.crash_before_publishing()
    assert closed(running) == millis("08:10:00")
    running.run()
    assert closed(running) == millis("09:30:00")

    # The hour is complete: in every partition, records of this hour are late.
    before = running.store("per_hour")
    for partition in range(2):
        running.send("sales", sale("Oslo", at="08:59:59"), partition=partition)
    running.run()
    assert running.store("per_hour") == before
    assert running.counts("late/per_hour") == 2

    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert closed(running) == millis("09:30:00")
