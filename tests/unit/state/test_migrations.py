"""A ledger of an older release is migrated when it is opened; one from before, or of a newer version, is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from sluice.errors import StateError
from sluice.state.database import database_url, open_engine, transaction
from sluice.state.ledger import migrations
from sluice.state.ledger.ledger import Ledger
from tests.support.states import States, ledger_url

NEXT = f'''
from alembic import op
import sqlalchemy as sa

revision = "next"
down_revision = "{migrations.HEAD}"


def upgrade():
    op.add_column("pipelines", sa.Column("owner", sa.Text(), nullable=False, server_default="nobody"))
    with op.batch_alter_table("snapshots") as table:
        table.alter_column("run", new_column_name="published_by")
'''


@pytest.fixture
def old(database: str) -> str:
    """The address of a ledger of this version, with a snapshot."""
    States(database).publish({"key": "[1,null]"})
    return ledger_url(database)


@pytest.fixture
def newer(old: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Sluice is a newer version than that of the ledger `old`; undo the patch to go back to this version."""
    shutil.copytree(migrations.SCRIPTS, tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "next.py").write_text(NEXT)
    monkeypatch.setattr(migrations, "SCRIPTS", tmp_path / "migrations")
    monkeypatch.setattr(migrations, "HEAD", "next")
    return monkeypatch


def test_a_new_ledger_has_the_version_of_its_tables(empty_database: str) -> None:
    with Ledger.open(ledger_url(empty_database)) as ledger, ledger.engine.connect() as connection:
        (version,) = connection.execute(
            text(f"SELECT version_num FROM {migrations.TABLE}")
        ).scalars()
        assert version == migrations.HEAD


def test_the_newest_migration_is_the_version_of_the_tables() -> None:
    assert ScriptDirectory(str(migrations.SCRIPTS)).get_heads() == [migrations.HEAD]


def test_a_ledger_of_the_first_release_gets_the_columns_of_this_version(old: str) -> None:
    later = [("generations", "contracts"), ("generations", "outputs"), ("sources", "leader_epoch")]
    later += [("history", "boundaries_lost"), ("generations", "file"), ("pipelines", "retired")]
    later += [("plans", "snapshots"), ("audits", "step_rows"), ("generations", "reads")]
    engine = open_engine(database_url(old))
    added = ("finished_runs", "costs", "renames", "pauses", "activities")
    wanted = {table: columns_of(engine, table) for table in {*dict(later), *added}}
    with transaction(engine) as connection:
        for table in added:
            connection.execute(text(f"DROP TABLE {table}"))
        for table, name in later:
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {name}"))
        connection.execute(text(f"UPDATE {migrations.TABLE} SET version_num = 'r1'"))
    engine.dispose()
    with Ledger.open(old) as ledger:
        assert {table: columns_of(ledger.engine, table) for table in wanted} == wanted
        (info,) = ledger.generations.all_current()
        assert (info.contracts, info.outputs) == ({}, {})
        assert ledger.generations.retired() == frozenset()
        assert ledger.generations.files() == {}, "unknown until the next run"


def columns_of(engine: Engine, table: str) -> set[str]:
    return {column["name"] for column in inspect(engine).get_columns(table)}


@pytest.mark.usefixtures("newer")
def test_an_older_ledger_is_migrated_and_keeps_its_rows(old: str) -> None:
    with Ledger.open(old) as ledger, ledger.engine.connect() as connection:
        assert connection.execute(text("SELECT pipeline, owner FROM pipelines")).all() == [
            ("orders", "nobody")
        ]
        assert connection.execute(text("SELECT batch, published_by FROM snapshots")).all() == [
            (0, "")
        ]


def test_a_newer_ledger_is_refused_and_stays_as_it_is(old: str, newer: pytest.MonkeyPatch) -> None:
    Ledger.open(old).close()
    newer.undo()
    with pytest.raises(StateError, match="has version next") as caught:
        Ledger.open(old)
    assert caught.value.next_step.startswith(
        "Install the version of Sluice that last opened the ledger"
    )


def test_a_migration_that_fails_changes_nothing(old: str, newer: pytest.MonkeyPatch) -> None:
    script = migrations.SCRIPTS / "versions" / "next.py"
    script.write_text(script.read_text() + '    op.execute("INSERT INTO nowhere VALUES (1)")\n')
    with pytest.raises(StateError, match="nowhere"):
        Ledger.open(old)
    newer.undo()
    with Ledger.open(old) as ledger:
        assert [snapshot.batch for snapshot in ledger.snapshots.recent("orders")] == [0]
        assert "owner" not in {
            column["name"] for column in inspect(ledger.engine).get_columns("pipelines")
        }


@pytest.mark.parametrize("version", ["0007", "1", "2", None])
def test_a_ledger_from_before_the_first_release_is_refused_and_stays_as_it_is(
    empty_database: str, version: str | None
) -> None:
    """Its tables had a level between pipeline and generation."""
    old, key = ledger_url(empty_database), "pipeline TEXT, job TEXT, generation INTEGER"
    engine = open_engine(database_url(old))
    with transaction(engine) as connection:
        for table in ("jobs", "generations", "snapshots"):
            connection.execute(text(f"CREATE TABLE {table} ({key})"))
        connection.execute(text("INSERT INTO jobs VALUES ('orders', 'main', 1)"))
        if version is not None:
            connection.execute(text(f"CREATE TABLE {migrations.TABLE} (version_num VARCHAR(32))"))
            connection.execute(text(f"INSERT INTO {migrations.TABLE} VALUES ('{version}')"))
    before = inspect(engine).get_table_names()
    for _ in range(2):
        with pytest.raises(StateError, match="from before the first release") as refused:
            Ledger.open(old)
    assert refused.value.next_step.startswith(
        "Begin with an empty ledger, and an empty place for shards"
    )
    assert inspect(engine).get_table_names() == before
    engine.dispose()


@pytest.mark.parametrize(
    "lost", [f"DROP TABLE {migrations.TABLE}", f"DELETE FROM {migrations.TABLE}"]
)
def test_a_ledger_that_has_lost_its_version_is_refused_and_stays_as_it_is(
    old: str, lost: str
) -> None:
    with Ledger.open(old) as ledger, transaction(ledger.engine) as connection:
        connection.execute(text(lost))
    for _ in range(2):
        with pytest.raises(StateError, match="has lost its version") as refused:
            Ledger.open(old)
    assert "Restore the ledger from a backup" in refused.value.next_step


def test_a_new_ledger_and_one_of_this_version_open_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = "import sys; from sluice.state.ledger.ledger import Ledger"
    code = f"{ledger}; Ledger.open({url!r}).close(); print('alembic' in sys.modules)"
    for _ in ("new", "of this version"):
        process = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert process.stdout == "False\n"
