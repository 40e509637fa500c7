"""Empty ledgers and shards in SQLite, which a driver copies because their tables take longer to create."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sluice.state.database import database_url
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.opening import create_shard


def copy_empty_files(ledger: str, shards: Sequence[str]) -> None:
    """Create a ledger and shards at these addresses, except those in a server's database."""
    for address, empty in ((ledger, _empty_ledger), *((shard, _empty_shard) for shard in shards)):
        url = database_url(address)
        if url.get_backend_name() == "sqlite" and url.database:
            path = Path(url.database)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(empty())


@cache
def _empty_ledger() -> bytes:
    with tempfile.TemporaryDirectory(prefix="sluice-empty-") as folder:
        path = Path(folder, "ledger.db")
        Ledger.open(f"sqlite:///{path}").close()
        return path.read_bytes()


@cache
def _empty_shard() -> bytes:
    with tempfile.TemporaryDirectory(prefix="sluice-empty-") as folder:
        path = Path(folder, "shard.db")
        create_shard(f"sqlite:///{path}").close()
        return path.read_bytes()
