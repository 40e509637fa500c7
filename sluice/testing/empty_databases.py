"""Creates the empty ledger and shards of a test driver.

SQLite files are copied, because creating their tables anew would take longer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sluice.settings import sqlite_url
from sluice.state.database import database_url, open_engine
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.opening import create_shard

_TEMPORARY = "?synchronous=off"
"""The end of the addresses of SQLite files that need not survive a crash."""


def temporary_databases(folder: Path) -> tuple[str, str]:
    """Return the addresses of a ledger and of shards in a folder that the test driver deletes at its end."""
    ledger, shards = sqlite_url(folder / "ledger.sqlite"), sqlite_url(folder / "shards")
    return ledger + _TEMPORARY, shards + _TEMPORARY


def open_empty_ledger(address: str) -> Ledger:
    """Create and open a ledger at this address."""
    if (path := _sqlite_file(address)) is None:
        return Ledger.open(address)
    path.write_bytes(_empty_ledger())
    return Ledger(open_engine(database_url(address)))  # the copy has the newest tables


def create_empty_shards(addresses: Sequence[str]) -> None:
    """Create shards at these addresses."""
    for address in addresses:
        if (path := _sqlite_file(address)) is not None:
            path.write_bytes(_empty_shard())
        else:
            create_shard(address).close()


def _sqlite_file(address: str) -> Path | None:
    """Return the path of a SQLite database, whose folder is created.

    Return None for a database in a server.
    """
    url = database_url(address)
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    path = Path(url.database)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@cache
def _empty_ledger() -> bytes:
    with tempfile.TemporaryDirectory(prefix="sluice-empty-") as folder:
        path = Path(folder, "ledger.db")
        Ledger.open(sqlite_url(path) + _TEMPORARY).close()
        return path.read_bytes()


@cache
def _empty_shard() -> bytes:
    with tempfile.TemporaryDirectory(prefix="sluice-empty-") as folder:
        path = Path(folder, "shard.db")
        create_shard(sqlite_url(path) + _TEMPORARY).close()
        return path.read_bytes()
