"""Databases for tests of state, which run on SQLite and PostgreSQL, and the API over a published state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import database_with_ledger, new_database

if TYPE_CHECKING:
    from tests.support.api_client import Api
    from tests.support.states import States


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without rows for ledger and shards; for SQLite shards, a folder."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state"
    return database_with_ledger(request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without tables; for SQLite shards, a folder."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state"
    return new_database(request.getfixturevalue("postgres"))


@pytest.fixture
def states(tmp_path: Path) -> States:
    """A pipeline that has published nothing yet; some files of tests have others."""
    from tests.support.states import States

    return States(f"sqlite:///{tmp_path}")


@pytest.fixture
def api(states: States) -> Api:
    """The API over `states`. Imported here because most unit tests do not need it."""
    from tests.support.api_client import Api

    return Api(states.ledger)
