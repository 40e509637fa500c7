"""The sizes of shards that this process can open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from sluice.errors import StateError
from sluice.state.shard.passwords import with_password
from sluice.state.shard.postgres_driver import schema_sizes


def size_of(location: str) -> int | None:
    """Return the size of a shard in bytes.

    Return None if there is no shard, or if its database does not answer.
    """
    return sizes_of([location]).get(location)


def sizes_of(locations: Iterable[str]) -> dict[str, int]:
    """Return the address of each shard → its size in bytes.

    All shards of a PostgreSQL database take one query.

    Omit shards that do not exist, and shards of a database that does not answer.
    """
    sizes: dict[str, int] = {}
    schemas: dict[URL, dict[str, str]] = {}
    for location in locations:
        with suppress(ArgumentError):
            url = make_url(location)
            if url.get_backend_name() == "sqlite":
                size = _size_of_files(url)
                if size is not None:
                    sizes[location] = size
            elif url.get_backend_name() == "postgresql" and "schema" in url.query:
                database = with_password(url).difference_update_query(["schema"])
                schemas.setdefault(database, {})[str(url.query["schema"])] = location
    for database, of_database in schemas.items():
        sizes |= _sizes_in_postgres(database, of_database)
    return sizes


def _size_of_files(url: URL) -> int | None:
    with suppress(OSError):
        if url.database:
            size = Path(url.database).stat().st_size
            # The log exists only while a connection is open. The last connection removes it at its
            # end.
            log = Path(f"{url.database}-wal")
            if log.exists():
                size += log.stat().st_size
            return size
    return None


def _sizes_in_postgres(database: URL, locations: Mapping[str, str]) -> dict[str, int]:
    """Return the address of each shard → its size. `locations`: schema → the address."""
    sizes: dict[str, int] = {}
    with suppress(StateError):
        for schema, size in schema_sizes(database, [*locations]).items():
            sizes[locations[schema]] = size
    return sizes
