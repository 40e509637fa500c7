"""Commands that replace a pipeline's state: paused in their middle and resumed later, they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.engine.run.driver_lease import Lease, this_process
from sluice.engine.run.job_run import _lease_of_hidden
from sluice.errors import LeaseError, Refused
from sluice.local.broker import EmbeddedKafka
from sluice.operations import new_installation
from sluice.operations.backups.back_up import back_up
from sluice.operations.backups.restore import restore
from sluice.operations.rebuild import drop_built
from sluice.operations.repartition import repartition
from sluice.operations.state_import import import_state
from sluice.state.ledger.generations import Generations
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import GenerationRef
from sluice.state.shard.shard import Checksums
from tests.support.fences import content, end_lease, paused_before, take_lease
from tests.support.installation import Installation, expected, settings_of
from tests.support.installation import content as values
from tests.unit.operations.test_repartition_command import job_of


@pytest.fixture
def files(tmp_path: Path, kafka: EmbeddedKafka) -> Installation:
    """An installation with two workers and one batch, in SQLite files."""
    return Installation(settings_of(tmp_path, bootstrap=kafka.bootstrap))


def go_on(files: Installation) -> None:
    """After a silence of the paused command, the state is spread over five workers, and a run publishes a batch."""
    take_lease(files.ledger, files.ref)
    end_lease(files.ledger, files.ref)
    repartition(job_of(5), files.settings)
    files.states.generation = files.ledger.generations.current_number("orders") or 0
    files.states.workers = files.workers = 5
    files.publish()


@pytest.mark.fault(
    "F43", "sluice repartition, paused at each change of the ledger while another one goes on"
)
@pytest.mark.parametrize("step", ["new", "register", "inherit", "promote"])
def test_a_paused_repartition_changes_nothing(step: str, files: Installation) -> None:
    seen: list[Any] = []

    def happen() -> None:
        go_on(files)
        seen.append(content(files.ledger))

    with (
        paused_before(Generations, step, happen),
        pytest.raises(LeaseError, match="lost its lease"),
    ):
        repartition(job_of(3), files.settings)
    after, before = content(files.ledger), seen[0]
    for ledger in (after, before):
        ledger.pop("leases")
    assert after == before
    files.publish()
    assert values(files.ledger) == expected(0, 1, 2)


def test_a_repartition_is_refused_if_a_worker_gets_another_place_meanwhile(
    files: Installation,
) -> None:
    with (
        paused_before(
            Generations,
            "promote",
            lambda: files.ledger.placements.begin_move(Placement("orders", 1, "127.0.0.1", 9)),
        ),
        pytest.raises(
            Refused, match="A worker of 'orders' was moved while generation 2 was filled"
        ),
    ):
        repartition(job_of(3), files.settings)
    assert files.ledger.generations.current_number("orders") == 1
    files.publish()
    assert values(files.ledger) == expected(0, 1)


@pytest.mark.fault("F43", "sluice generations drop, paused while the generation is promoted")
def test_a_paused_drop_does_not_remove_a_generation_that_was_promoted(files: Installation) -> None:
    with paused_before(Generations, "promote", killed), pytest.raises(RuntimeError, match="killed"):
        repartition(job_of(3), files.settings)
    built = GenerationRef("orders", 2)

    def promote() -> None:
        take_lease(files.ledger, files.ref)
        held = files.ledger.leases.get(files.ref)
        files.ledger.generations.promote(built, held)
        end_lease(files.ledger, files.ref)

    with paused_before(Generations, "forget", promote), pytest.raises(LeaseError):
        drop_built(job_of(3), files.settings)
    assert files.ledger.generations.current_number("orders") == 2
    assert values(files.ledger) == expected(0)


def killed() -> None:
    raise RuntimeError("killed")


@pytest.mark.fault("F43", "each change of the ledger by a command that has lost its lease")
def test_every_change_of_a_generation_needs_the_lease(files: Installation) -> None:
    with Lease(files.ledger.leases, files.ref, this_process("")) as lease:
        stale = lease.row
    take_lease(files.ledger, files.ref)
    new = GenerationRef("orders", 2)
    generations, info = files.ledger.generations, files.states.info()
    source = SourcePartition(topic="orders", partition=0, topic_id="other", first=7)
    with Lease(files.ledger.leases, new, this_process("")) as own:
        changes: list[Callable[[], object]] = [
            lambda: files.ledger.sources.replace(new, [source], stale),
            lambda: generations.register(info, hidden=True, lease=stale),
            lambda: generations.inherit(new, files.ref, 0, [Checksums("", "")], own.epoch, stale),
            lambda: generations.promote(files.ref, stale),
            lambda: generations.forget(new, stale),
        ]
        before = content(files.ledger)
        for change in changes:
            with pytest.raises(LeaseError):
                change()
            assert content(files.ledger) == before


def test_a_generation_that_was_removed_is_not_built_any_further(files: Installation) -> None:
    lease = Lease(files.ledger.leases, GenerationRef("orders", 2), this_process(""))
    with (
        pytest.raises(LeaseError, match="Generation 2 of orders was removed"),
        _lease_of_hidden(files.ledger, lease),
    ):
        pass


@pytest.mark.fault(
    "F43", "sluice restore and the import of state, paused while another one completes"
)
@pytest.mark.parametrize("command", ["restore", "import"])
def test_a_paused_copy_does_not_replace_a_ledger_that_is_in_use(
    command: str, tmp_path: Path
) -> None:
    old = Installation(settings_of(tmp_path / "old"))
    new = settings_of(tmp_path / "new")
    back_up(old.ledger, tmp_path / "backup")
    seen: list[Any] = []

    def copy() -> object:
        if command == "restore":
            return restore(tmp_path / "backup", new)
        with Ledger.open(new.ledger) as target:
            return import_state(old.ledger, target, new.shards)

    def happen() -> None:
        if command == "import":
            take_lease(old.ledger, old.ref)
            end_lease(old.ledger, old.ref)
        copy()
        with Ledger.open(new.ledger) as target:
            target.notes.add(old.ref, "", "A run has changed the ledger.")
            seen.append(content(target))

    module: Any = new_installation
    with (
        paused_before(module, "copy_ledger", happen),
        pytest.raises(Refused, match="a run or another command added the pipeline 'orders'"),
    ):
        copy()
    with Ledger.open(new.ledger) as target:
        assert content(target) == seen[0]
        assert values(target) == expected(0)
