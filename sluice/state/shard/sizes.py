"""The size of shards on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

_BESIDE = ("", "-wal")
"""The files of a SQLite database."""


def size_of(location: str) -> int | None:
    """The size of a SQLite shard's files in bytes; None for any other shard, or if there is no file."""
    with suppress(OSError, ArgumentError):
        url = make_url(location)
        if url.get_backend_name() == "sqlite" and url.database:
            files = [Path(url.database + end) for end in _BESIDE]
            return sum(file.stat().st_size for file in files if file == files[0] or file.exists())
    return None
