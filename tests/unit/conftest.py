"""Databases for tests of state, which run on SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import new_database


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a new database for ledger and shards; for SQLite shards, a folder."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state"
    return new_database(request.getfixturevalue("postgres"))
