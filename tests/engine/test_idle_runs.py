"""Runs that find no records, and commands after them."""

from __future__ import annotations

import pytest

from sluice import Pipeline
from sluice.errors import EngineError
from sluice.operations.changed_stores import ChangedStores
from sluice.operations.rebuild import Rebuild
from sluice.operations.repartition import repartition
from sluice.plan import plan
from tests.engine.conftest import Start
from tests.engine.shop import Amount, Names


def later(_: Amount, amount: Amount) -> Amount:
    return amount


def newest(names: Names, workers: int = 2, *, counted: bool = False) -> Pipeline:
    """A pipeline whose backlog Sluice divides into batches itself, because the order of records matters."""
    pipeline = names.pipeline(workers=workers)
    amounts = pipeline.stream(names("amounts"), value=Amount, key="n")
    amounts.group_by_key().reduce(later, store="newest")
    if counted:
        amounts.group_by_key().count(store="counted")
    return pipeline


def test_records_arrive_after_runs_on_empty_topics(start: Start) -> None:
    running = start(newest, amounts=2)
    assert [running.run(), running.run()] == [0, 0]
    for partition in range(2):
        running.send("amounts", b'{"n":%d}' % partition, partition=partition)
    assert [running.run(), running.run()] == [2, 0]
    assert running.store("newest") == {str(n): {"n": n} for n in range(2)}


def test_commands_work_after_a_run_without_records(start: Start) -> None:
    running = start(newest, amounts=2)
    for number in range(60):
        running.send("amounts", b'{"n":%d}' % (number % 7), partition=number % 2)
    running.run(max_records=20)
    begun = running.planned()
    assert begun.number >= 2
    assert running.run(max_records=20) == 0
    assert running.planned() == begun  # no batch without records
    expected = running.store("newest")

    def current(pipeline: Pipeline) -> dict[str, object]:
        """The values of the store after a run with a record, and one without."""
        running.pipeline = pipeline
        running.send("amounts", b'{"n":1}')
        assert running.run() >= 1
        assert running.run() == 0
        return running.store("newest")

    running.send("amounts", b'{"n":1}')
    running.crash_before_publishing()
    with pytest.raises(EngineError, match="was interrupted") as refused:
        repartition(plan(newest(running.names, 3)).job, running.settings)
    assert (
        f"Run it once more with 2 workers: sluice run {running.pipeline.name}"
        in refused.value.next_step
    )
    assert current(running.pipeline) == expected
    assert repartition(plan(newest(running.names, 3)).job, running.settings).workers == 3
    assert current(newest(running.names, 3)) == expected

    changed = newest(running.names, 3, counted=True)
    job = plan(changed).job
    ChangedStores(running.spark, job, lambda only: plan(changed, only).job, running.settings).run()
    assert current(changed) == expected
    assert running.store("counted") == {str(key): 8 + (key < 4) for key in range(7)} | {"1": 9 + 4}
    Rebuild(running.spark, job, running.settings).run()
    assert current(changed) == expected
