"""Databases for the tests of state: the same tests run on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import connect
from sqlalchemy import make_url

from tests.postgres import postgres_server

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a new database for ledger and shards alike; for shards of SQLite it is a folder."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state"
    server = make_url(request.getfixturevalue("postgres"))
    name = f"state_{next(_NUMBERS)}"
    with connect(server.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.set(database=name).render_as_string(hide_password=False)
