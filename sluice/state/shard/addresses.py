"""Addresses of shards: a SQLite file, a schema in PostgreSQL, or a state server's URL."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from sqlalchemy import URL

from sluice.errors import SettingsError, StateError
from sluice.state.database import database_url, is_durable
from sluice.state.model import GenerationRef
from sluice.state.shard.database_driver import Driver, Mode
from sluice.state.shard.passwords import with_password
from sluice.state.shard.postgres_driver import PostgresDriver, drop_schema, has_schema, schemas_like
from sluice.state.shard.sqlite_driver import SqliteDriver
from sluice.support.masking import shown_url

_POSTGRES_NAME_BYTES = 63


def drop(url: str) -> None:
    """Delete a shard that this process can open. Do nothing if it does not exist."""
    parsed = with_password(_parse(url))
    if parsed.get_backend_name() == "sqlite":
        # If the log remained, SQLite would apply it to a new database of the same name.
        for ending in ("", "-wal", "-shm"):
            Path(f"{parsed.database}{ending}").unlink(missing_ok=True)
    else:
        drop_schema(parsed)


def exists(url: str) -> bool:
    """Return whether there is a shard, or a part of a shard, that this process can open."""
    parsed = with_password(_parse(url))
    if parsed.get_backend_name() == "sqlite":
        return Path(parsed.database or "").exists()
    return has_schema(parsed)


def location(base_url: str, ref: GenerationRef, worker: int) -> str:
    """Return the address of a worker's shard below `base_url`.

    It is a file in a folder, or a schema of a PostgreSQL database.
    """
    base, pipeline, generation = database_url(base_url), _name(ref.pipeline), f"g{ref.generation}"
    if base.get_backend_name() == "sqlite":
        path = Path(base.database or "") / pipeline / generation / f"worker-{worker}.sqlite"
        return base.set(database=str(path)).render_as_string(hide_password=False)
    schema = f"sluice_{pipeline}_{generation}_w{worker}"
    # PostgreSQL cuts off longer names, so two shards could get the same schema.
    if len(schema) > _POSTGRES_NAME_BYTES:
        schema = f"sluice_{_short(pipeline)}_{generation}_w{worker}"
    return base.update_query_dict({"schema": schema}).render_as_string(hide_password=False)


def shards_of(base_url: str, pipeline: str) -> dict[int, list[str]]:
    """Return the addresses of a pipeline's shards below `base_url`, by generation.

    Finds all shards that exist, also those that the ledger does not know.
    """
    base, name = database_url(base_url), _name(pipeline)
    if base.get_backend_name() == "sqlite":
        folder = Path(base.database or "") / name
        names = [str(path.relative_to(folder)) for path in folder.glob("*/*")]
        pattern = r"g(\d+)/worker-(\d+)\.sqlite"
    else:
        pattern = rf"sluice_(?:{name}|{_short(name)})_g(\d+)_w(\d+)"
        names = schemas_like(with_password(base), f"^{pattern}$")
    places: list[tuple[int, int]] = []
    for found in names:
        if match := re.fullmatch(pattern, found):
            places.append((int(match[1]), int(match[2])))
    shards: dict[int, list[str]] = {}
    for generation, worker in sorted(places):
        address = location(base_url, GenerationRef(pipeline, generation), worker)
        shards.setdefault(generation, []).append(address)
    return shards


def is_remote(url: str) -> bool:
    """Return whether an address is a state server's URL."""
    return url.startswith(("http://", "https://"))


def is_file(url: str) -> bool:
    """Return whether an address names a SQLite file."""
    return not is_remote(url) and _parse(url).get_backend_name() == "sqlite"


def file_of(url: str) -> Path | None:
    """Return the SQLite file, or the folder of shards, that an address names.

    Return None for any other address.
    """
    if not is_file(url):
        return None
    return Path(_parse(url).database or "")


def shown(url: str) -> str:
    """Return the address with its secrets masked, for errors and logs."""
    if is_remote(url):
        return url
    return shown_url(_parse(url).render_as_string(hide_password=False))


def open_driver(url: str, mode: Mode) -> Driver:
    """Connect to the shard at an address."""
    parsed = with_password(_parse(url))
    if parsed.get_backend_name() == "sqlite":
        return SqliteDriver(Path(parsed.database or ""), mode, durable=is_durable(parsed))
    return PostgresDriver(parsed, mode)


def _parse(url: str) -> URL:
    if not url:
        raise StateError(
            "The ledger has lost the shard's address.",
            next_step="Run the pipeline: the run registers the addresses of its shards again.",
        )
    return database_url(url)


def _short(pipeline: str) -> str:
    return hashlib.sha256(pipeline.encode()).hexdigest()[:16]


def _name(text: str) -> str:
    # The name becomes part of a path or a schema name.
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise SettingsError(
            f"{text!r} cannot be part of a shard's address.",
            next_step="Use only letters, digits, _ and -.",
        )
    return text
