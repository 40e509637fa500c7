"""Opens a kept home in another folder, and reads all of its stores."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sluice.settings import sqlite_url
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.opening import open_shard
from sluice.support import tar_archives

HOMES = Path(__file__).with_name("kept")
"""The homes: for each version, an archive, and the answers of its queries."""


def unpack(version: str, home: Path) -> str:
    """Unpack the home of a version, and return its ledger's URL."""
    tar_archives.unpack(HOMES / f"{version}.tar.xz", home)
    # The ledger names the folders of the shards by their whole paths.
    before = answers(version)["home"]
    with closing(sqlite3.connect(home / "ledger.sqlite")) as ledger:
        for table, column in ledger.execute(_TEXT_COLUMNS).fetchall():
            ledger.execute(
                f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?)', (before, str(home))
            )
        ledger.commit()
    return sqlite_url(home / "ledger.sqlite")


_TEXT_COLUMNS = """
SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
WHERE tables.type = 'table' AND columns.type = 'TEXT'
"""


def answers(version: str) -> dict[str, Any]:
    """What the queries of a version answered before the home was kept."""
    kept: dict[str, Any] = json.loads((HOMES / f"{version}.json").read_text())
    return kept


def contents(ledger_url: str) -> dict[str, dict[str, Any]]:
    """Store → key, with the window's start if it has one → value, in the newest snapshot."""
    found: dict[str, dict[str, Any]] = {}
    with Ledger.open(ledger_url) as ledger:
        snapshot = ledger.snapshots.latest("visits")
        assert snapshot is not None
        workers = ledger.generations.workers("visits")
        for store in ledger.generations.stores("visits"):
            rows = found.setdefault(store.name, {})
            for worker in workers:
                with open_shard(worker.location) as shard:
                    for row in shard.scan(store.group_id, snapshot.batch, limit=10_000):
                        assert row.value is not None
                        key = row.key
                        if store.kind == "window":
                            key = f"{row.key} {row.window_start}"
                        rows[key] = json.loads(row.value)[store.store_column]
    return found
