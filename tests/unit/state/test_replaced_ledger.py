"""A process that has the ledger open notices that the ledger's file was replaced or removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.engine.run.driver_lease import this_process
from sluice.errors import LeaseError, StateError
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationRef
from tests.support.sqlite_copies import copy_database
from tests.support.states import make_snapshot

pytestmark = pytest.mark.unit

REF = GenerationRef("orders", 1)


def remove(file: Path) -> None:
    """Remove a database, with its write-ahead log."""
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def backup(file: Path, tmp_path: Path) -> Path:
    """An older copy of the ledger, without the snapshots of the tests."""
    Ledger.open(f"sqlite:///{file}").close()
    older = tmp_path / "backup"
    copy_database(file, older)
    return older


@pytest.mark.fault("F50", "the ledger's file is replaced by an older copy")
def test_a_process_reads_the_ledger_that_has_replaced_the_one_before(
    file: Path, backup: Path
) -> None:
    with Ledger.open(f"sqlite:///{file}") as ledger:
        ledger.snapshots.publish(make_snapshot(0))
        remove(file)
        shutil.move(backup, file)
        assert ledger.snapshots.newest(REF) is None
        ledger.snapshots.publish(make_snapshot(5))
        with Ledger.open(f"sqlite:///{file}") as of_another_process:
            assert of_another_process.snapshots.newest(REF) == make_snapshot(5)


@pytest.mark.fault("F50", "the ledger's file is replaced by an older copy")
def test_a_driver_whose_ledger_was_replaced_has_no_lease_any_more(file: Path, backup: Path) -> None:
    with Ledger.open(f"sqlite:///{file}") as ledger:
        lease = ledger.leases.take(REF, this_process("run"), None)
        assert lease is not None
        ledger.plans.add(REF, PlannedBatch(number=0, begun=1), lease.epoch)
        remove(file)
        shutil.move(backup, file)
        with pytest.raises(LeaseError, match="was emptied, restored or replaced"):
            ledger.plans.add(REF, PlannedBatch(number=0, begun=1), lease.epoch)
        assert not ledger.leases.renew(lease)


@pytest.mark.fault("F53", "the ledger's file is removed")
@pytest.mark.parametrize("has_connection", [True, False])
def test_a_ledger_that_was_removed_is_not_made_again_without_a_word(
    file: Path, backup: Path, has_connection: bool
) -> None:
    with Ledger.open(f"sqlite:///{file}") as ledger:
        if not has_connection:
            ledger.engine.dispose()
        remove(file)
        with pytest.raises(StateError, match=f"The ledger's file is gone: {file}") as gone:
            ledger.snapshots.newest(REF)
        assert "sluice recover PIPELINE --dry-run" in gone.value.next_step
        assert not file.exists()
        shutil.move(backup, file)
        assert ledger.snapshots.newest(REF) is None
