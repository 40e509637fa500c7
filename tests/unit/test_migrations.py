"""A ledger of an older version is migrated when it is opened; that of a newer version is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from sluice.errors import StateError
from sluice.state.database import database_url, open_engine, transaction
from sluice.state.ledger import migrations
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.tables import METADATA
from tests.states import States, ledger_url

NEXT = f'''
from alembic import op
import sqlalchemy as sa

revision = "next"
down_revision = "{migrations.HEAD}"


def upgrade():
    op.add_column("jobs", sa.Column("owner", sa.Text(), nullable=False, server_default="nobody"))
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


def first_version(url: str) -> None:
    """Make a ledger of version 0001."""
    engine = open_engine(database_url(url))
    with transaction(engine) as connection:
        migrations.upgrade(connection, None, "0001")
    engine.dispose()


@pytest.mark.parametrize("made", ["new", "of the first version"])
def test_new_and_migrated_ledgers_have_the_tables_that_sluice_uses(database: str, made: str) -> None:
    if made != "new":
        first_version(ledger_url(database))
    with Ledger.open(ledger_url(database)) as ledger, ledger.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrations.TABLE})
        assert compare_metadata(context, METADATA) == []
        (version,) = connection.execute(text(f"SELECT version_num FROM {migrations.TABLE}")).scalars()
        assert version == migrations.HEAD


def test_the_newest_migration_is_the_version_of_the_tables() -> None:
    assert ScriptDirectory(str(migrations.SCRIPTS)).get_heads() == [migrations.HEAD]


@pytest.mark.usefixtures("newer")
def test_an_older_ledger_is_migrated_and_keeps_its_rows(old: str) -> None:
    with Ledger.open(old) as ledger, ledger.engine.connect() as connection:
        assert connection.execute(text("SELECT pipeline, owner FROM jobs")).all() == [("orders", "nobody")]
        assert connection.execute(text("SELECT batch, published_by FROM snapshots")).all() == [(0, "")]


def test_a_replayed_generation_stays_one_when_its_note_is_the_only_sign(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "HEAD", "0001")
    first_version(ledger_url(database))
    note = "INSERT INTO notes (pipeline, job, generation, noted_at, run, text) VALUES ('{}', 'main', 2, '', '', '{}')"
    with Ledger.open(ledger_url(database)) as ledger, transaction(ledger.engine) as connection:
        connection.execute(text("INSERT INTO jobs VALUES ('orders', 'main', 2), ('pages', 'main', 2)"))
        replaced = "Generation 2, which a replay built, replaced generation 1."
        connection.execute(text(note.format("orders", replaced)))
        connection.execute(text(note.format("pages", "State was damaged, and restored from the topics in 2 s: gone")))
    monkeypatch.undo()
    with Ledger.open(ledger_url(database)) as ledger:
        assert [ledger.generations.is_replayed(name) for name in ("orders", "pages", "words")] == [True, False, False]


def test_a_newer_ledger_is_refused_and_stays_as_it_is(old: str, newer: pytest.MonkeyPatch) -> None:
    Ledger.open(old).close()
    newer.undo()
    with pytest.raises(StateError, match="has version next") as caught:
        Ledger.open(old)
    assert caught.value.next_step.startswith("Install the version of Sluice that last opened the ledger")


def test_a_migration_that_fails_changes_nothing(old: str, newer: pytest.MonkeyPatch) -> None:
    script = migrations.SCRIPTS / "versions" / "next.py"
    script.write_text(script.read_text() + '    op.execute("INSERT INTO nowhere VALUES (1)")\n')
    with pytest.raises(StateError, match="nowhere"):
        Ledger.open(old)
    newer.undo()
    with Ledger.open(old) as ledger:
        assert [snapshot.batch for snapshot in ledger.snapshots.recent("orders")] == [0]
        assert "owner" not in {column["name"] for column in inspect(ledger.engine).get_columns("jobs")}


def test_a_ledger_without_a_version_gets_one(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "HEAD", "0001")
    old = ledger_url(database)
    first_version(old)
    with Ledger.open(old) as ledger, transaction(ledger.engine) as connection:
        connection.execute(text("INSERT INTO jobs VALUES ('orders', 'totals', 1)"))
        connection.execute(text(f"DROP TABLE {migrations.TABLE}"))
    monkeypatch.undo()
    with Ledger.open(old) as ledger:
        assert ledger.generations.current_number("orders") == 1
        assert inspect(ledger.engine).has_table(migrations.TABLE)


@pytest.mark.parametrize("lost", [f"DROP TABLE {migrations.TABLE}", f"DELETE FROM {migrations.TABLE}"])
def test_a_ledger_that_has_lost_its_version_is_refused_and_stays_as_it_is(old: str, lost: str) -> None:
    with Ledger.open(old) as ledger, transaction(ledger.engine) as connection:
        connection.execute(text(lost))
    for _ in range(2):
        with pytest.raises(StateError, match="has lost its version") as refused:
            Ledger.open(old)
    assert "Restore the ledger from a backup" in refused.value.next_step


def test_migrated_generations_know_their_number_of_workers(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "HEAD", "0001")
    first_version(ledger_url(database))
    with Ledger.open(ledger_url(database)) as ledger, transaction(ledger.engine) as connection:
        for name, workers in (("orders", 2), ("pages", 1)):
            texts = "'[]', '{}', '{}', '', '', ''"
            connection.execute(
                text(
                    "INSERT INTO generations (pipeline, job, generation, topics, operators, functions, description, "
                    f"drawing, picture) VALUES ('{name}', 'main', 1, {texts})"
                )
            )
            for number in range(workers):
                connection.execute(text(f"INSERT INTO workers VALUES ('{name}', 'main', 1, {number}, 'x', 'h', 0)"))
    monkeypatch.undo()
    with Ledger.open(ledger_url(database)) as ledger, transaction(ledger.engine) as connection:
        counted = connection.execute(text("SELECT pipeline, workers FROM generations ORDER BY pipeline"))
        assert [tuple(row) for row in counted] == [("orders", 2), ("pages", 1)]


def test_a_new_ledger_and_one_of_this_version_open_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = "import sys; from sluice.state.ledger.ledger import Ledger"
    code = f"{ledger}; Ledger.open({url!r}).close(); print('alembic' in sys.modules)"
    for _ in ("new", "of this version"):
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert process.stdout == "False\n"
