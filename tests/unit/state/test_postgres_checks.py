"""Settings of PostgreSQL do not matter if Sluice can set its own. Other servers are refused."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text

from sluice.errors import SettingsError, StateError
from sluice.state.database import database_url, open_engine, transaction
from sluice.state.ledger.ledger import Ledger
from sluice.state.postgres_checks import lossy_settings, require_usable, require_usable_shards
from sluice.state.remote.opening import create_shard
from sluice.state.shard.postgres_driver import PostgresDriver
from tests.faults.world import wait_until
from tests.support.pooler import pooled
from tests.support.postgres import new_database, postgres_binaries

Change = Callable[..., None]
SETTINGS = {
    "default_transaction_isolation": "serializable",
    "statement_timeout": "150ms",
    "idle_session_timeout": "150ms",
    "idle_in_transaction_session_timeout": "150ms",
    "transaction_timeout": "150ms",
    "lock_timeout": "1ms",
}


@pytest.fixture
def url(postgres: str) -> str:
    return new_database(postgres)


@pytest.fixture
def change(postgres: str, url: str) -> Change:
    """Change settings of the database, as far as its version has them."""

    def alter(**settings: str) -> None:
        name = make_url(url).database
        with psycopg.connect(postgres, autocommit=True) as database:
            select = "SELECT name FROM pg_settings WHERE name = ANY(%s)"
            for (setting,) in database.execute(select, [[*settings]]).fetchall():
                value = settings[setting]
                database.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())

    return alter


def test_a_ledger_needs_no_settings_of_the_server(url: str, change: Change) -> None:
    change(**SETTINGS)
    engine = open_engine(database_url(url))
    with transaction(engine) as database:
        assert database.execute(text("SHOW transaction_isolation")).scalar() == "read committed"
        database.execute(text("SELECT pg_sleep(0.4)"))
    threading.Event().wait(0.4)
    with transaction(engine) as database:
        threading.Event().wait(0.4)
        assert database.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()


def test_a_shard_needs_no_settings_of_the_server(url: str, change: Change) -> None:
    change(**SETTINGS)
    address = f"{url}?schema=shard"
    create_shard(address).close()
    driver = PostgresDriver(database_url(address), "write")
    with driver.transaction():
        assert driver.fetch("SHOW transaction_isolation", ()) == [("read committed",)]
        driver.execute("SELECT pg_sleep(0.4)")
    threading.Event().wait(0.4)
    with driver.transaction():
        assert driver.fetch("SELECT count(*) FROM state_rows", ()) == [(0,)]
    driver.close()


@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_pooler_of_transactions_is_refused(url: str, size: int, takes_turns: bool) -> None:
    with pooled(url, size, takes_turns=takes_turns) as address:
        with (
            Ledger.open(address) as ledger,
            pytest.raises(
                SettingsError,
                match=r"address of the ledger leads to a connection pooler.*Set SLUICE_LEDGER to",
            ),
        ):
            ledger.require_usable()
        with pytest.raises(SettingsError, match=r"of the shards leads to.*Set SLUICE_SHARDS to"):
            require_usable_shards([f"{address}?schema=w0", f"{address}?schema=w1"])


def test_a_server_is_usable(url: str, change: Change) -> None:
    change(**SETTINGS)
    with Ledger.open(url) as ledger:
        ledger.require_usable()
    others = ["http://10.0.0.5:7070/0", "sqlite:////data/w1.sqlite"]
    require_usable_shards([f"{url}?schema=w0", *others])


def test_a_read_only_database_is_refused(url: str, change: Change) -> None:
    with Ledger.open(url) as ledger:
        ledger.require_usable()
    change(default_transaction_read_only="on")
    with Ledger.open(url) as ledger:
        assert ledger.generations.pipelines() == [], "it can be read"
        with pytest.raises(StateError, match=r"ledger is read-only.*ALTER DATABASE state_\d+ SET"):
            ledger.require_usable()


def test_a_server_that_is_away_is_named(url: str) -> None:
    away = database_url(url).set(port=1)
    with pytest.raises(StateError, match=r"^The database of the ledger cannot be used: .*refused"):
        require_usable(away, "ledger", "SLUICE_LEDGER")


@pytest.fixture
def replica(postgres: str, tmp_path: Path) -> Iterator[None]:
    """A program that receives the server's log, as a replica does, and is not synchronous."""
    receiver = postgres_binaries() / "pg_receivewal"
    command = [str(receiver), "-D", str(tmp_path), "-d", postgres, "--no-loop"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with psycopg.connect(postgres, autocommit=True) as database:
                count = "SELECT count(*) FROM pg_stat_replication"
                assert wait_until(lambda: database.execute(count).fetchall() == [(1,)], 20)
            yield
        finally:
            process.terminate()


@pytest.mark.usefixtures("replica")
def test_a_server_that_does_not_wait_for_its_replicas_is_named(url: str) -> None:
    (warning,) = lossy_settings(database_url(url), "ledger")
    assert "the ledger does not wait for its replicas" in warning
    assert "synchronous_standby_names" in warning


def test_a_server_without_replicas_is_safe(url: str, tmp_path: Path) -> None:
    assert [*lossy_settings(database_url(url), "ledger")] == []
    assert [*lossy_settings(database_url(f"sqlite:///{tmp_path}/ledger.sqlite"), "ledger")] == []


def test_commits_are_flushed_whatever_the_server_s_setting(url: str, change: Change) -> None:
    change(synchronous_commit="off")
    with transaction(open_engine(database_url(url))) as database:
        assert database.execute(text("SHOW synchronous_commit")).scalar() == "on"
