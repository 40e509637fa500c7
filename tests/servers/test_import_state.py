"""State is moved from SQLite files to PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import LeaseError, Refused
from sluice.operations import new_installation
from sluice.operations.state_import import import_state
from sluice.state.ledger.copy_ledger import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.opening import open_shard
from tests.api.states import orders_states
from tests.servers.conftest import LOCATIONS, publish
from tests.support.postgres import new_database
from tests.support.states import States


@pytest.fixture
def old(tmp_path: Path) -> States:
    """The orders pipeline's state with one snapshot, in SQLite files."""
    return publish(orders_states(f"sqlite:///{tmp_path}", workers=2))


def state_rows(ledger: Ledger) -> set[tuple[int, str, int, str | None]]:
    """All state rows of the newest snapshot."""
    snapshot = ledger.snapshots.latest("orders")
    assert snapshot is not None
    rows = set()
    for worker in ledger.generations.workers("orders"):
        with open_shard(worker.location) as shard:
            for group in {store.group_id for store in ledger.generations.stores("orders")}:
                for row in shard.scan(group, snapshot.batch, limit=1_000):
                    rows.add((group, row.key, row.window_start, row.value))
    return rows


def test_answers_are_the_same_after_the_import(old: States, postgres: str) -> None:
    before = state_rows(old.ledger)
    assert len(before) > len(LOCATIONS)
    database = new_database(postgres)
    with Ledger.open(database) as new:
        assert import_state(old.ledger, new, database) >= len(before)
        assert state_rows(new) == before
        assert new.snapshots.latest("orders") == old.ledger.snapshots.latest("orders")
        lease = new.leases.get(old.ref)
        assert lease is not None
        assert not lease.held, "the next run need not wait"
        assert all(
            worker.location.startswith("postgresql") for worker in new.generations.workers("orders")
        )


def test_a_run_with_the_old_settings_stops(old: States, postgres: str) -> None:
    database = new_database(postgres)
    with Ledger.open(database) as new:
        import_state(old.ledger, new, database)
    with (
        open_shard(old.location(0), to_write=True) as shard,
        pytest.raises(Refused, match="has been moved away"),
    ):
        shard.begin_run(99, 0)


def test_an_interrupted_import_is_repeated(
    old: States, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, database = state_rows(old.ledger), new_database(postgres)
    with Ledger.open(database) as new:
        with monkeypatch.context() as patch:
            patch.setattr(new_installation, "copy_ledger", interrupted)
            with pytest.raises(KeyboardInterrupt):
                import_state(old.ledger, new, database)
        import_state(old.ledger, new, database)
        assert state_rows(new) == before


def test_an_import_that_was_killed_before_it_unsealed_the_shards_is_repeated(
    old: States, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, database = state_rows(old.ledger), new_database(postgres)

    def copied(*arguments: Any) -> None:
        copy_ledger(*arguments)
        raise KeyboardInterrupt

    with Ledger.open(database) as new:
        with monkeypatch.context() as patch:
            patch.setattr(new_installation, "copy_ledger", copied)
            with pytest.raises(KeyboardInterrupt):
                import_state(old.ledger, new, database)
        import_state(old.ledger, new, database)
        assert state_rows(new) == before
        for worker in new.generations.workers("orders"):
            with open_shard(worker.location, to_write=True) as shard:
                shard.begin_run(99, 0)
        with pytest.raises(Refused, match="has pipelines already: orders"):
            import_state(old.ledger, new, database)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_shards_of_another_ledger_are_not_replaced(old: States, postgres: str) -> None:
    database, another = new_database(postgres), new_database(postgres)
    with Ledger.open(another) as first:
        import_state(old.ledger, first, database)
    with Ledger.open(database) as new, pytest.raises(Refused, match="already has a shard here"):
        import_state(old.ledger, new, database)


def test_only_an_empty_ledger_is_filled(old: States, postgres: str) -> None:
    database = new_database(postgres)
    with Ledger.open(database) as new:
        import_state(old.ledger, new, database)
        with pytest.raises(Refused, match="has pipelines already: orders"):
            import_state(old.ledger, new, database)


def test_nothing_is_copied_while_a_run_is_in_progress(old: States, postgres: str) -> None:
    database = new_database(postgres)
    with Lease(old.ledger.leases, old.ref, this_process("a run")), Ledger.open(database) as new:
        with pytest.raises(LeaseError):
            import_state(old.ledger, new, database)
        assert new.generations.pipelines() == []
