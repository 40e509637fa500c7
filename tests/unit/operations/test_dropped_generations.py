"""A generation that is being dropped leaves no files behind, even if the drop is interrupted and repeated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sluice import Pipeline
from sluice.engine.batch.storage import Storage
from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import EngineError, StateError, Unreachable
from sluice.operations import rebuild
from sluice.operations.rebuild import drop_built
from sluice.plan import Job, plan
from sluice.state.ledger.generations import Generations
from sluice.state.model import GenerationRef, WorkerInfo
from sluice.state.remote.opening import create_shard
from sluice.state.shard.addresses import exists
from tests.support.installation import Installation, content, expected, settings_of
from tests.support.lost_commits import losing
from tests.support.postgres import database_with_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def current(request: pytest.FixtureRequest, tmp_path: Path) -> Installation:
    database = (
        ""
        if request.param == "sqlite"
        else database_with_ledger(request.getfixturevalue("postgres"))
    )
    return Installation(settings_of(tmp_path, database))


@pytest.fixture
def job() -> Job:
    pipeline = Pipeline("orders", workers=2)
    pipeline.stream("orders", value=str).group_by_key().count(store="totals")
    return plan(pipeline).job


@pytest.fixture
def built(current: Installation, job: Job) -> Storage:
    """The second generation, beside the current one."""
    storage = Storage.of(job, 2, current.settings)
    workers = tuple(
        WorkerInfo(pipeline="orders", generation=2, number=number, location=address)
        for number, address in enumerate(storage.locations)
    )
    current.ledger.generations.register(
        msgspec.structs.replace(current.states.info(), generation=2, workers=workers), hidden=True
    )
    with Lease(current.ledger.leases, GenerationRef("orders", 2), this_process("replay")):
        for address in storage.locations:
            create_shard(address).close()
    return storage


def is_gone(storage: Storage) -> bool:
    return not any(map(exists, storage.locations))


@pytest.mark.parametrize("step", ["forget", "forget_workers"])
def test_a_drop_is_repeated_after_the_connection_was_lost_at_its_commit(
    step: str, current: Installation, built: Storage, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Generations, step, losing(getattr(Generations, step)))
        with pytest.raises(StateError, match="Removing the generation failed"):
            drop_built(job, current.settings)
    assert current.ledger.generations.numbers("orders") == [1]
    assert drop_built(job, current.settings) == 2
    assert is_gone(built)
    assert drop_built(job, current.settings) == 2, "repeating it changes nothing"
    assert content(current.ledger) == expected(0)


def test_shards_that_could_not_be_removed_are_removed_when_the_drop_is_repeated(
    current: Installation,
    built: Storage,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def unreachable(_: str) -> None:
        raise Unreachable("The state server does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "drop_shard", unreachable)
        assert drop_built(job, current.settings) == 2
    assert not is_gone(built)
    assert "shards not removed" in capfd.readouterr().out
    assert drop_built(job, current.settings) == 2
    assert is_gone(built)


def test_only_a_generation_that_was_built_can_be_dropped(current: Installation, job: Job) -> None:
    with pytest.raises(EngineError, match="no generation beside the current one, 1"):
        drop_built(job, current.settings)
