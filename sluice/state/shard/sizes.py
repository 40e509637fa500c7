"""The size of shards on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError


def size_of(location: str) -> int | None:
    """The size of a SQLite shard's files in bytes; None for any other shard, or if there is no file."""
    with suppress(OSError, ArgumentError):
        url = make_url(location)
        if url.get_backend_name() == "sqlite" and url.database:
            size = Path(url.database).stat().st_size
            log = Path(f"{url.database}-wal")
            # The last connection that closes the database removes the log.
            return size + (log.stat().st_size if log.exists() else 0)
    return None
