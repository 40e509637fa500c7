"""Ledger and shards, old ones too, are private to their owner and contain no password."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from sluice.errors import DamagedState, StateError
from sluice.settings import Settings, settings
from sluice.state.database import database_url
from sluice.state.ledger.ledger import Ledger
from sluice.state.shard.addresses import drop
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.passwords import with_password, without_password
from tests.support.postgres import postgres_server
from tests.support.states import States

pytestmark = pytest.mark.unit

PASSWORD = "not-for-the-ledger"


@pytest.fixture(autouse=True)
def _careless_umask() -> Iterator[None]:
    """A umask that leaves new files open to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The modes of all files and folders below a folder."""
    return {
        str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):o}"
        for path in folder.rglob("*")
    }


def open_for_all(folder: Path) -> list[str]:
    return [path for path, mode in modes(folder).items() if not mode.endswith("00")]


def test_ledger_and_shards_are_private(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}/home/state", workers=1)
    states.publish({"a": "[1,2]"})
    with states.ledger.engine.connect(), LocalShard.open(states.location(0), to_write=True):
        actual_modes = modes(tmp_path)
        assert "home/state/orders/g1/worker-0.sqlite-wal" in actual_modes
        assert "home/state/ledger.sqlite-wal" in actual_modes
        for path, mode in actual_modes.items():
            assert mode == ("600" if ".sqlite" in path else "700"), path


def test_older_files_become_private_when_opened(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}/home/state", workers=1)
    states.publish({"a": "[1,2]"})
    state = tmp_path / "home" / "state"
    for reader in (False, True):
        with LocalShard.open(states.location(0), to_write=True) as other:
            other.batches()
            for path in state.rglob("*"):
                path.chmod(0o777 if path.is_dir() else 0o666)
            Ledger.open(f"sqlite:///{state}/ledger.sqlite").close()
            LocalShard.open(states.location(0), to_write=not reader).close()
            assert open_for_all(state) == []
            assert {
                mode for path, mode in modes(state).items() if path.endswith("worker-0.sqlite-wal")
            } == {"600"}


def test_shared_folders_keep_their_modes(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o777)
    Ledger.open(f"sqlite:///{shared}/ledger.sqlite").close()
    LocalShard.create(f"sqlite:///{shared}/mine.sqlite").close()
    assert f"{stat.S_IMODE(shared.stat().st_mode):o}" == "777"
    assert open_for_all(shared) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "link to a folder"])
def test_what_is_not_a_database_keeps_its_mode(tmp_path: Path, kind: str) -> None:
    other, path = tmp_path / "other", tmp_path / "p" / "j" / "g1" / "worker-0.sqlite"
    path.parent.mkdir(parents=True)
    target = other if kind.startswith("link") else path
    target.mkdir() if kind.endswith("folder") else target.write_text(
        "root:x:0:0:root:/root:/bin/bash"
    )
    if kind.startswith("link"):
        path.symlink_to(other)
    before = modes(tmp_path)
    for open_it in (
        LocalShard.open,
        partial(LocalShard.open, to_write=True),
        LocalShard.create,
        Ledger.open,
    ):
        with pytest.raises(StateError):
            open_it(f"sqlite:///{path}")
    assert modes(tmp_path) == before


def test_opening_a_missing_shard_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StateError):
        LocalShard.open(f"sqlite:///{tmp_path}/p/j/g1/worker-0.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_printed_settings_show_no_password() -> None:
    settings = Settings.read({
        "SLUICE_LEDGER": f"postgresql://u:{PASSWORD}@db/ledger",
        "SLUICE_SHARDS": f"postgresql://u:{PASSWORD}@db/shards",
        "SLUICE_KAFKA": f'{{"sasl.password": "{PASSWORD}"}}',
        "SLUICE_SPARK_CONF": f'{{"spark.ssl.keyPassword": "{PASSWORD}"}}',
        "SLUICE_PASSWORD": PASSWORD,
    })  # fmt: skip
    assert PASSWORD not in repr(settings)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database that requires its password."""
    with postgres_server(tmp_path_factory.mktemp("guarded"), password=PASSWORD) as url:
        yield url


@pytest.fixture
def _knows_the_password(guarded: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_SHARDS", guarded)
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("_knows_the_password")
def test_the_ledger_stores_no_password_of_shards(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = States(guarded, workers=2, pipeline="guarded")
    states.publish({"a": "[1,2]", "b": "[3,4]"})
    with psycopg.connect(guarded) as connection:
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall():
            rows = connection.execute(
                f'SELECT * FROM "{table}"'.encode()
            ).fetchall()  # a table of the ledger
            assert PASSWORD not in str(rows), table
    workers = states.ledger.generations.workers("guarded")
    assert [make_url(one.location).password for one in workers] == [None, None]

    # Every process opens the shards with its own settings.
    for worker in workers:
        with LocalShard.open(worker.location, to_write=True) as shard:
            assert shard.batches().keys() == {0}
    drop(workers[1].location)
    with pytest.raises(StateError) as gone:
        LocalShard.open(workers[1].location)
    monkeypatch.setenv("SLUICE_SHARDS", guarded.replace(PASSWORD, "another-password"))
    settings.cache_clear()
    with pytest.raises(StateError) as refused:
        LocalShard.open(workers[0].location)
    assert "password" in refused.value.detail
    assert "another-password" not in str(refused.value) + str(gone.value)


@pytest.mark.usefixtures("_knows_the_password")
def test_a_role_without_rights_does_not_take_a_shard_for_damaged(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = States(guarded, pipeline="granted")
    states.publish({"a": "[1,2]"})
    address = states.ledger.generations.workers("granted")[0].location
    schema = str(make_url(address).query["schema"])
    reader = make_url(guarded).set(username="reader", password="r-word")
    monkeypatch.setenv("SLUICE_SHARDS", reader.render_as_string(hide_password=False))
    settings.cache_clear()
    with psycopg.connect(guarded, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'r-word'")
        with pytest.raises(
            StateError, match=f"role 'reader' may not use the schema '{schema}'"
        ) as denied:
            LocalShard.open(address)
        assert not isinstance(denied.value, DamagedState)

        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader".encode())
        with pytest.raises(StateError, match="permission denied for table shard") as denied:
            LocalShard.open(address)
        assert not isinstance(denied.value, DamagedState)

        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader".encode())
        with LocalShard.open(address) as shard:
            assert shard.batches().keys() == {0}
            connection.execute(f"REVOKE USAGE ON SCHEMA {schema} FROM reader".encode())
            with pytest.raises(StateError, match="may not use the schema") as denied:
                shard.batches()
            assert not isinstance(denied.value, DamagedState)


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        (
            "postgresql://u:p@db:5433/shards?schema=s",
            "postgresql+psycopg://u@db:5433/shards?schema=s",
        ),
        (
            "postgresql://db/shards?user=u&password=p&schema=s",
            "postgresql+psycopg://db/shards?schema=s&user=u",
        ),
        (
            "postgresql://u@db/s?sslkey=k&sslpassword=p&schema=s",
            "postgresql+psycopg://u@db/s?schema=s",
        ),
        (
            "postgresql://u:p@/shards?host=/run/pg&schema=s",
            "postgresql+psycopg://u@/shards?host=%2Frun%2Fpg&schema=s",
        ),
        ("sqlite:////data/p/j/g1/worker-0.sqlite", "sqlite:////data/p/j/g1/worker-0.sqlite"),
        ("http://host:7070/local/p/j/1/0", "http://host:7070/local/p/j/1/0"),
    ],
)
def test_an_address_without_password(address: str, kept: str) -> None:
    assert without_password(address) == kept


@pytest.mark.parametrize(
    ("ledger", "shards", "opened"),
    [
        (
            "sqlite:///l",
            "postgresql://u:p@db/shards?sslmode=require",
            "postgresql+psycopg://u:p@db/shards?schema=s&sslmode=require",
        ),
        (
            "sqlite:///l",
            "postgresql://u:p@db:5432/shards",
            "postgresql+psycopg://u:p@db:5432/shards?schema=s",
        ),
        ("sqlite:///l", "postgresql://u:p@db:5433/shards", None),
        (
            "sqlite:///l",
            "postgresql://u:p@db/shards",
            "postgresql+psycopg://u:p@db/shards?schema=s",
        ),
        (
            "postgresql://u:p@db/shards",
            "sqlite:///shards",
            "postgresql+psycopg://u:p@db/shards?schema=s",
        ),
        ("sqlite:///l", "postgresql://u:p@other/shards", None),
        (
            "sqlite:///l",
            "postgresql://reader:q@db/shards",
            "postgresql+psycopg://reader:q@db/shards?schema=s",
        ),
    ],
)
def test_each_process_opens_the_shards_of_its_database_with_its_own_role(
    ledger: str, shards: str, opened: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER", ledger)
    monkeypatch.setenv("SLUICE_SHARDS", shards)
    settings.cache_clear()
    kept = "postgresql+psycopg://u@db/shards?schema=s"
    result = with_password(database_url(kept)).render_as_string(hide_password=False)
    settings.cache_clear()
    assert result == (opened or kept)
