"""Backups of state in SQLite files and PostgreSQL."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice import Pipeline
from sluice.errors import DamagedState, Refused, SettingsError, SluiceError, StateError
from sluice.operations import new_installation
from sluice.operations.backups.back_up import back_up
from sluice.operations.backups.restore import restore
from sluice.operations.rebuild import drop_built
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.copy_ledger import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef, WorkerInfo
from sluice.state.remote.opening import create_shard, open_shard
from sluice.state.shard.addresses import exists, location
from sluice.state.shard.operator_states import State
from tests.support.installation import OPERATOR, Installation, content, expected, settings_of
from tests.support.leases import NEWEST_EPOCH
from tests.support.postgres import database_with_ledger, new_database
from tests.support.state_rows import write_rows


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """The address of a database without rows, or nothing for SQLite files."""
    return (
        ""
        if request.param == "sqlite"
        else database_with_ledger(request.getfixturevalue("postgres"))
    )


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of two batches."""
    old = Installation(settings_of(tmp_path / "old"))
    old.publish()
    back_up(old.ledger, tmp_path / "backup")
    return tmp_path / "backup"


def test_a_backup_is_restored_with_all_snapshots(database: str, tmp_path: Path) -> None:
    old = Installation(settings_of(tmp_path / "old", database))
    old.publish()
    made = back_up(old.ledger, tmp_path / "backup")
    assert [one.batch for one in made.generations] == [1]
    new = settings_of(tmp_path / "new")
    assert restore(tmp_path / "backup", new) == made
    with Ledger.open(new.ledger) as ledger:
        assert content(ledger) == expected(0, 1)
        assert ledger.snapshots.recent("orders") == old.ledger.snapshots.recent("orders")


def test_a_backup_of_files_is_restored_to_postgresql(
    backup: Path, tmp_path: Path, postgres: str
) -> None:
    new = settings_of(tmp_path / "new", new_database(postgres))
    restore(backup, new)
    with Ledger.open(new.ledger) as ledger:
        assert content(ledger) == expected(0, 1)
        assert all(
            "postgresql" in worker.location for worker in ledger.generations.workers("orders")
        )


def test_a_lost_ledger_is_not_backed_up(tmp_path: Path) -> None:
    old = Installation(settings_of(tmp_path / "old"))
    old.publish()
    old.ledger.close()
    Path(old.settings.ledger.removeprefix("sqlite:///")).unlink()
    with (
        Ledger.open(old.settings.ledger) as ledger,
        pytest.raises(StateError, match="nothing to back up") as refused,
    ):
        back_up(ledger, tmp_path / "backup")
    assert "SLUICE_LEDGER" in refused.value.next_step
    assert not (tmp_path / "backup").exists()


def test_backups_are_consistent_while_batches_are_published(database: str, tmp_path: Path) -> None:
    old = Installation(settings_of(tmp_path / "old", database))
    done = threading.Event()

    def go_on() -> None:
        while not done.is_set():
            old.publish()

    writer = threading.Thread(target=go_on)
    writer.start()
    newest: list[int] = []
    try:
        for number in range(3):
            while newest and old.ledger.snapshots.last_batch(old.ref) == newest[-1]:
                time.sleep(0.01)
            made = back_up(old.ledger, tmp_path / f"backup{number}")
            newest.append(made.generations[0].batch)
    finally:
        done.set()
        writer.join()
    for number, batch in enumerate(newest):
        new = settings_of(tmp_path / f"new{number}")
        restore(tmp_path / f"backup{number}", new)
        with Ledger.open(new.ledger) as ledger:
            assert content(ledger) == expected(*range(batch + 1))


def test_a_backup_begins_although_a_batch_is_published_during_every_copy_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying a long history takes longer than a batch."""
    old = Installation(settings_of(tmp_path / "old"))

    def copied(source: Ledger, target: Ledger) -> None:
        copy_ledger(source, target)
        old.publish()

    monkeypatch.setattr("sluice.operations.backups.back_up.copy_ledger", copied)
    back_up(old.ledger, tmp_path / "backup")
    new = settings_of(tmp_path / "new")
    restore(tmp_path / "backup", new)
    with Ledger.open(new.ledger) as ledger:
        assert content(ledger) == expected(0)


def test_a_batch_that_is_not_published_is_not_backed_up(tmp_path: Path) -> None:
    old = Installation(settings_of(tmp_path / "old"))
    with open_shard(old.states.location(0), to_write=True) as shard:
        write_rows(shard, 1, [(0, "unpublished", -1, -1, "[1,null]")], NEWEST_EPOCH)
        shard.write_states(1, [OPERATOR], [State(OPERATOR, "unpublished", b"1")], NEWEST_EPOCH)
    back_up(old.ledger, tmp_path / "backup")
    new = settings_of(tmp_path / "new")
    restore(tmp_path / "backup", new)
    with (
        Ledger.open(new.ledger) as ledger,
        open_shard(ledger.generations.workers("orders")[0].location) as shard,
    ):
        assert shard.journal().newest == 0
        assert {version.batch for version in shard.row_versions(0, None, 1_000)} == {0}
        assert {version.batch for version in shard.state_versions(0, None, 1_000)} == {0}


@pytest.mark.parametrize("part", ["ledger.sqlite", "shards", "backup.json"])
@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_backup_is_refused(part: str, damage: str, backup: Path, tmp_path: Path) -> None:
    file = next(path for path in [backup / part, *(backup / part).rglob("*")] if path.is_file())
    if damage == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    refused(DamagedState, "Restore another backup.", backup, settings_of(tmp_path / "new"))


def test_a_file_that_does_not_belong_to_a_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    (backup / "shards" / "another.sqlite").write_text("")
    refused(DamagedState, "Restore another backup.", backup, settings_of(tmp_path / "new"))


def test_a_backup_of_a_later_version_is_refused(backup: Path, tmp_path: Path) -> None:
    manifest = backup / "backup.json"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"format": 2, "new": "field"})
    )
    refused(
        StateError,
        "Install the version of Sluice that made the backup",
        backup,
        settings_of(tmp_path / "new"),
    )


def refused(kind: type[SluiceError], next_step: str, backup: Path, settings: Settings) -> None:
    """Restoring fails with this error and next step, and writes nothing."""
    with pytest.raises(kind) as caught:
        restore(backup, settings)
    assert caught.value.next_step.startswith(next_step)
    assert not settings.home.exists()


def test_an_existing_installation_is_not_replaced(backup: Path, tmp_path: Path) -> None:
    existing = Installation(settings_of(tmp_path / "existing"))
    with pytest.raises(Refused, match="has pipelines already: orders") as caught:
        restore(backup, existing.settings)
    assert "empty places" in caught.value.next_step
    assert content(existing.ledger) == expected(0)


def test_an_installation_without_its_shards_is_not_replaced(backup: Path, tmp_path: Path) -> None:
    new = settings_of(tmp_path / "new")
    restore(backup, new)
    shutil.rmtree(new.home / "shards")
    with pytest.raises(Refused, match="has pipelines already: orders"):
        restore(backup, new)


def test_shards_that_an_installation_has_left_are_not_replaced(
    backup: Path, tmp_path: Path
) -> None:
    settings = Installation(settings_of(tmp_path / "existing")).settings
    for file in settings.home.glob("ledger.sqlite*"):
        file.unlink()
    with pytest.raises(Refused, match="already has a shard here"):
        restore(backup, settings)
    with Ledger.open(settings.ledger) as ledger:
        assert ledger.generations.pipelines() == []


@pytest.mark.parametrize("point", ["before the ledger", "after the ledger"])
def test_an_interrupted_restore_is_repeated(
    point: str, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = settings_of(tmp_path / "new")

    def copied(*arguments: Any) -> None:
        copy_ledger(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            new_installation, "copy_ledger", copied if point == "after the ledger" else interrupted
        )
        with pytest.raises(KeyboardInterrupt):
            restore(backup, new)
    restore(backup, new)
    with Ledger.open(new.ledger) as ledger:
        assert content(ledger) == expected(0, 1)
        for worker in ledger.generations.workers("orders"):
            with open_shard(worker.location, to_write=True) as shard:
                shard.begin_run(NEWEST_EPOCH, 1)
    with pytest.raises(Refused, match="has pipelines already"):
        restore(backup, new)


def test_a_restored_installation_removes_no_shards_of_the_old_one(
    database: str, tmp_path: Path
) -> None:
    old = Installation(settings_of(tmp_path / "old", database))
    # A replay is being built, which has not published a batch yet.
    unfinished = location(old.settings.shards, GenerationRef("orders", 2), 0)
    worker = WorkerInfo(pipeline="orders", generation=2, number=0, location=unfinished)
    info = msgspec.structs.replace(old.states.info(), generation=2, workers=(worker,))
    old.ledger.generations.register(info, hidden=True)
    create_shard(unfinished).close()
    back_up(old.ledger, tmp_path / "backup")
    new = settings_of(tmp_path / "new")
    restore(tmp_path / "backup", new)
    pipeline = Pipeline("orders", workers=2)
    pipeline.stream("orders", value=str).group_by_key().count(store="totals")
    assert drop_built(plan(pipeline).job, new) == 2
    assert exists(unfinished)
    with Ledger.open(new.ledger) as ledger:
        assert content(ledger) == expected(0)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_damaged_state_is_not_backed_up(tmp_path: Path) -> None:
    old = Installation(settings_of(tmp_path / "old"))
    Path(old.states.location(1).removeprefix("sqlite:///")).unlink()
    with pytest.raises(DamagedState):
        back_up(old.ledger, tmp_path / "backup")
    with pytest.raises(DamagedState, match="not a complete backup"):
        restore(tmp_path / "backup", settings_of(tmp_path / "new"))


def test_an_existing_backup_is_not_overwritten(backup: Path, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "old")
    with Ledger.open(settings.ledger) as ledger, pytest.raises(SettingsError, match="is not empty"):
        back_up(ledger, backup)
