"""A home of an earlier version is opened by this version; this version refuses the home of a newer one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sluice.errors import StateError
from sluice.observe.audit_report import report
from sluice.state.ledger import migrations
from sluice.state.ledger.ledger import Ledger
from sluice.version import __version__
from tests.upgrades.homes import HOMES, answers, contents, unpack

VERSIONS = sorted(file.name.removesuffix(".tar.xz") for file in HOMES.glob("*.tar.xz"))


def test_the_home_of_each_version_is_kept() -> None:
    assert __version__ in VERSIONS, "before a release, run python -m tests.upgrades.make_home"


@pytest.mark.parametrize("version", VERSIONS)
def test_queries_answer_as_before(version: str, tmp_path: Path) -> None:
    assert contents(unpack(version, tmp_path)) == answers(version)["stores"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_record_is_accounted_for(version: str, tmp_path: Path) -> None:
    ledger = unpack(version, tmp_path)
    assert report(ledger, "visits", "", Console(file=StringIO()), verify=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_version_refuses_the_home_of_a_newer_one(version: str, tmp_path: Path) -> None:
    ledger = unpack(version, tmp_path)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as tables:
        tables.execute(f"UPDATE {migrations.TABLE} SET version_num = 'r99'")
        tables.commit()
    before = (tmp_path / "ledger.sqlite").read_bytes()
    with pytest.raises(StateError, match="Install the version of Sluice") as refused:
        Ledger.open(ledger)
    assert "r99" in str(refused.value) or "newer" in str(refused.value)
    assert (tmp_path / "ledger.sqlite").read_bytes() == before
