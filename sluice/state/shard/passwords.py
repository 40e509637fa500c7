"""The role and password for shards. Each process takes them from its own settings.

The ledger stores the addresses of shards without passwords, because many people can read the
ledger.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import URL

from sluice.errors import SettingsError
from sluice.settings import settings
from sluice.state.database import database_url, secret_parameters

_PORT = 5432
"""PostgreSQL's default port."""


def without_password(address: str) -> str:
    """Return a shard's address without secrets, as the ledger stores it."""
    if "://" not in address or address.startswith("http"):
        return address
    return _without_secrets(database_url(address)).render_as_string(hide_password=False)


def with_password(url: URL, known: Iterable[str] = ()) -> URL:
    """Return the shard's address with this process's own role, password and parameters.

    They come from `SLUICE_SHARDS`, from `SLUICE_LEDGER` for shards in the ledger's database, or
    from `SLUICE_CONNECTION_NAME` for shards of single pipelines. For shards in other databases,
    libpq looks up the password as usual. `known` are further addresses with passwords.
    """
    if url.get_backend_name() != "postgresql" or url.password is not None:
        return url
    own_addresses = (settings().shards, settings().ledger, *settings().connections.values())
    for address in (*own_addresses, *known):
        try:
            own = database_url(address)
        except SettingsError:  # a database that SQLAlchemy does not know has no shards
            continue
        if own.get_backend_name() == "postgresql" and _database(own) == _database(url):
            return own.update_query_dict({"schema": url.query["schema"]})
    return url


def _without_secrets(url: URL) -> URL:
    if url.get_backend_name() != "postgresql":
        return url
    parts = url.difference_update_query(secret_parameters(url))._asdict()
    return URL.create(**parts | {"password": None})


def _database(url: URL) -> tuple[object, ...]:
    """Return host, port and name of a database.

    libpq also accepts each of them in the query part of an address.
    """
    return (
        url.query.get("host", url.host),
        str(url.query.get("port", url.port or _PORT)),
        url.query.get("dbname", url.database),
    )
