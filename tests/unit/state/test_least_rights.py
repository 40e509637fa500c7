"""The roles of docs/security.md are enough for Sluice, and may do no more than the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text

from sluice.errors import EngineError, StateError
from sluice.settings import settings
from sluice.state.database import database_errors, database_url, open_engine, transaction
from sluice.state.ledger import activities, migrations
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import drop_shard, open_shard
from tests.support.postgres import new_database
from tests.support.states import States

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ROLES = ("owner", "runs", "reader")


def statements() -> list[str]:
    """The two blocks of SQL of the page."""
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def as_role(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The URL of a new database for each of the roles, after what the page says was done."""
    url = new_database(postgres)
    name = make_url(url).database

    def of(role: str) -> str:
        own = make_url(url).set(username=f"sluice_{role}", password=f"{role.upper()}-PASSWORD")
        return own.render_as_string(hide_password=False)

    before, after = statements()
    before = before.replace("DATABASE sluice", f"DATABASE {name}")
    with psycopg.connect(url, autocommit=True) as admin:
        for statement in filter(str.strip, before.split(";")):
            # The roles are those of the whole server, and an earlier test has made them.
            try:
                admin.execute(statement.encode())
            except psycopg.errors.DuplicateObject:
                assert "CREATE ROLE" in statement
        Ledger.open(of("owner")).close()
        for statement in filter(str.strip, after.split(";")):
            admin.execute(statement.encode())
    for variable in ("SLUICE_LEDGER", "SLUICE_SHARDS"):
        monkeypatch.setenv(variable, of("runs"))
    settings.cache_clear()
    return of


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for variable in ("SLUICE_LEDGER", "SLUICE_SHARDS"):
        monkeypatch.setenv(variable, url)
    settings.cache_clear()


def test_runs_publish_and_rebuild_and_readers_read(
    as_role: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = States(as_role("runs"))
    states.publish({"key": "[1,null]"})
    ledger = states.ledger
    ledger.notes.add(states.ref, "", "A note, whose number comes from a sequence.")
    lease = ledger.leases.take(states.ref, Holder(host="here", pid=1, process=""), None)
    assert lease is not None
    use(monkeypatch, as_role("reader"))
    with Ledger.open(as_role("reader")) as reader:
        assert reader.snapshots.latest("orders") is not None
        for worker in reader.generations.workers("orders"):
            with open_shard(worker.location) as shard:
                assert shard.journal().newest == 0
        reader.failures.keep(Failure.of(EngineError("no"), "orders"))
        reader.failures.clear("orders", "run")
        reader.pauses.pause("orders", "new prices", "ann")
        assert reader.pauses.resume("orders")
        for _ in range(activities.MOST + 1):
            reader.activities.add("orders", "pause", "ann", "new prices")
        assert len(reader.activities.of("orders", activities.MOST + 1)) == activities.MOST
        assert reader.secrets.get("cursors") == reader.secrets.get("cursors")
    use(monkeypatch, as_role("runs"))
    drop_shard(states.location(0))
    ledger.close()


def test_a_reader_changes_no_state(
    as_role: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = States(as_role("runs"))
    states.publish({"key": "[1,null]"})
    states.ledger.close()
    use(monkeypatch, as_role("reader"))
    with Ledger.open(as_role("reader")) as reader:
        with pytest.raises(StateError, match="permission denied") as raised:
            reader.generations.retire("orders")
        assert "need sluice_runs" in raised.value.next_step
        with pytest.raises(StateError, match="permission denied"):
            reader.leases.take(
                GenerationRef("orders", 1), Holder(host="here", pid=1, process=""), None
            )
        for worker in reader.generations.workers("orders"):
            with pytest.raises(StateError), open_shard(worker.location, to_write=True) as shard:
                shard.begin_run(1, -1)
            with pytest.raises((StateError, psycopg.Error)):
                drop_shard(worker.location)


def test_only_the_owner_migrates_the_ledger(as_role: Callable[[str], str]) -> None:
    owner = as_role("owner")
    engine = open_engine(database_url(owner))
    with transaction(engine) as connection:
        for table in ("renames", "pauses", "finished_runs", "costs", "activities"):
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE plans DROP COLUMN snapshots"))
        connection.execute(text("ALTER TABLE audits DROP COLUMN step_rows"))
        connection.execute(text("ALTER TABLE generations DROP COLUMN reads"))
        connection.execute(text(f"UPDATE {migrations.TABLE} SET version_num = 'r2'"))
    engine.dispose()
    for role in ("runs", "reader"):
        with pytest.raises(StateError, match=r"permission denied|must be owner") as raised:
            Ledger.open(as_role(role))
        assert "with the owner's address in SLUICE_LEDGER" in raised.value.next_step
    Ledger.open(owner).close()
    with Ledger.open(as_role("runs")) as ledger:
        ledger.pauses.pause("orders", "the table was made later", "ann")
    engine = open_engine(database_url(as_role("runs")))
    with (
        pytest.raises(StateError, match="must be owner"),
        _errors(),
        transaction(engine) as connection,
    ):
        connection.execute(text("DROP TABLE snapshots"))
    engine.dispose()


def _errors() -> AbstractContextManager[None]:

    return database_errors("Dropping a table")
