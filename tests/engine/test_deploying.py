"""`sluice deploy`: a changed pipeline is built beside the running one, compared, promoted, rolled back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice import Pipeline
from sluice.errors import EngineError, Refused
from sluice.operations.deployment import Deployment, compare_generations
from sluice.operations.rebuild import Rebuild
from sluice.operations.rollback import roll_back
from sluice.plan import plan
from sluice.state.ledger.generations import Generations
from sluice.state.ledger.leases import Leases
from sluice.state.ledger.sources import Sources
from sluice.state.remote.copying import ShardCopy
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names
from tests.engine.test_between_batches import numbered, totals
from tests.support.interruptions import Crash, Point, crash, interrupted


def pipeline(names: Names, total: str = "sum(n)", *, more: bool = False) -> Pipeline:
    made = Pipeline(names.prefix, workers=2)
    numbers = made.stream(names("in"), value=Amount)
    numbers.group_by_key().aggregate(store="totals", count="count(*)", total=total)
    newest = numbers.group_by_key().aggregate(store="newest", number="last(n)")
    newest.to_stream().to(names("out"))
    if more:
        numbers.group_by_key().aggregate(store="largest", largest="max(n)")
    return made


@pytest.fixture
def started(start: Start) -> Running:
    running = start(pipeline)
    running.send("in", *numbered(0, 20))
    assert running.run(max_records=7) == 20
    return running


def changed(running: Running, total: str = "sum(n) * 2", **how: Any) -> Running:
    return replace(running, pipeline=pipeline(running.names, total, **how))


def rebuild_of(running: Running) -> Rebuild:
    return Rebuild(running.spark, plan(running.pipeline).job, running.settings)


def compared(running: Running) -> Deployment:
    with running.ledger() as ledger:
        return compare_generations(ledger, running.pipeline.name)


def by_name(deployment: Deployment) -> dict[str, Any]:
    return {store.name: store for store in deployment.stores}


def numbers_out(running: Running) -> list[int]:
    return sorted(value["number"] for _, value in running.output("out"))


def test_an_unchanged_pipeline_has_the_same_answers(started: Running) -> None:
    rebuild_of(started).replay()
    deployment = compared(started)
    assert not deployment.differs
    assert deployment.is_at_same_records
    assert "newest: all 7 entries have the same answer." in [*deployment.lines()]


def test_differences_are_reported_by_key_and_in_totals(started: Running) -> None:
    rebuild_of(changed(started, more=True)).replay()
    deployment = compared(started)
    assert deployment.differs
    stores = by_name(deployment)
    assert stores["newest"].state == "same"
    assert (stores["largest"].state, stores["largest"].entries) == ("new", (0, 7))
    assert stores["totals"].differences.changed == 7
    assert stores["totals"].totals == {"count": (20, 20), "total": (190, 380)}
    lines = [*deployment.lines()]
    assert "  total of total: 190 became 380" in lines
    assert any(
        line.startswith("  k0 has another answer:")
        and '"total":21' in line
        and '"total":42' in line
        for line in lines
    )


def test_records_that_runs_read_meanwhile_do_not_count_as_differences(started: Running) -> None:
    rebuild_of(started).replay()
    started.send("in", *numbered(20, 30))
    started.run()
    deployment = compared(started)
    assert (deployment.differs, deployment.is_at_same_records) == (False, True)


def test_outputs_are_written_once_through_a_deployment_and_a_rollback(started: Running) -> None:
    after = changed(started)
    rebuild_of(after).replay()
    started.send("in", *numbered(20, 24))
    assert started.run() == 4, "runs of the current pipeline go on"
    assert rebuild_of(after).promote() == 2
    assert numbers_out(started) == [*range(24)], "neither has written anything"
    after.send("in", *numbered(24, 28))
    assert after.run() == 4
    assert after.store("totals") == {
        key: value | {"total": 2 * value["total"]} for key, value in totals(28).items()
    }
    with capture_logs() as logged:
        assert roll_back(rebuild_of(started)) == 3
    assert "generation rolled back" in [each["event"] for each in logged]
    assert {each["log_level"] for each in logged} == {"info"}
    assert started.store("totals") == totals(28)
    assert numbers_out(started) == [*range(28)]
    started.send("in", *numbered(28, 30))
    assert started.run() == 2
    assert started.store("totals") == totals(30)
    assert numbers_out(started) == [*range(30)]
    with started.ledger() as ledger:
        notes = [note.text for note in ledger.notes.all(started.pipeline.name)]
    assert any(note.startswith("Rolled back: generation 3") for note in notes)


def deployed(started: Running) -> Running:
    after = changed(started)
    rebuild_of(after).replay()
    rebuild_of(after).promote()
    after.send("in", *numbered(20, 24))
    assert after.run() == 4
    return after


@pytest.mark.parametrize(
    "point",
    [
        Point(Generations, "register", after=True),
        Point(ShardCopy, "fill"),
        Point(Generations, "inherit"),
        Point(Generations, "inherit", after=True),
        Point(Rebuild, "build", after=True),
        Point(Generations, "promote"),
        Point(Generations, "promote", after=True),
    ],
    ids=lambda point: f"{'after' if point.after else 'before'} {point.method}",
)
def test_a_killed_rollback_is_repeated(started: Running, point: Point) -> None:
    after = deployed(started)
    with interrupted(point, crash), pytest.raises(Crash):
        roll_back(rebuild_of(started))
    if point == Point(Generations, "promote", after=True):
        assert started.store("totals") == totals(24)
    else:
        assert after.store("totals") != totals(24), "queries read the current generation"
        roll_back(rebuild_of(started))
    assert started.store("totals") == totals(24)
    assert started.run() == 0
    assert numbers_out(started) == [*range(24)]


@pytest.mark.parametrize("method", ["replace", "register", "take"])
def test_a_killed_deployment_is_repeated(started: Running, method: str) -> None:
    where: dict[str, type] = {"replace": Sources, "register": Generations, "take": Leases}
    after = changed(started)
    with interrupted(Point(where[method], method, after=True), crash), pytest.raises(Crash):
        rebuild_of(after).replay()
    assert started.store("totals") == totals(20)
    rebuild_of(after).replay()
    assert by_name(compared(started))["totals"].differences.changed == 7


def test_a_rollback_needs_the_earlier_file(started: Running) -> None:
    after = deployed(started)
    with pytest.raises(Refused, match="does not compute the state of generation 1"):
        roll_back(rebuild_of(after))
    assert after.run() == 0


def test_without_an_earlier_generation_there_is_nothing_to_roll_back(started: Running) -> None:
    with pytest.raises(EngineError, match="no longer has a generation before 1"):
        roll_back(rebuild_of(started))
