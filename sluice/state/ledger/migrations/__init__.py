"""Migrates a ledger from an older version of Sluice to this version's tables, when it is opened.

Each change of `tables.py` has a module in `versions/`, with the revision that it follows. `HEAD` is the newest one.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from sluice.errors import StateError
from sluice.state.database import transaction

TABLE = "sluice_version"
"""The table with the ledger's version. Airflow's own is in `alembic_version`, maybe in the same database."""
HEAD = "0003"
"""The version of the tables in `tables.py`."""
SCRIPTS = Path(__file__).parent

_LOCK = 0x51_01_CE


def migrate(engine: Engine) -> None:
    """Create a ledger's tables, or migrate them to `HEAD`, in one transaction. Several processes may do so at once.

    Raises StateError, and changes nothing, if a newer version of Sluice has migrated the ledger.
    """
    with engine.connect() as connection:
        if _version(connection) == HEAD:
            return
    with transaction(engine) as connection:
        if engine.dialect.name == "postgresql":
            # Concurrent `CREATE TABLE` statements collide in PostgreSQL's catalogue.
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        if (version := _version(connection)) != HEAD:
            _upgrade(connection, version)


def _version(connection: Connection) -> str | None:
    """The ledger's version; None for a new ledger."""
    if not inspect(connection).has_table(TABLE):
        return None
    version: str | None = connection.execute(text(f"SELECT version_num FROM {TABLE}")).scalar()
    return version


def _upgrade(connection: Connection, version: str | None) -> None:
    # Alembic takes a while to import, and is not needed for a ledger of this version.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    logging.getLogger("alembic").setLevel(logging.WARNING)  # otherwise, each new ledger's first run logs its steps
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise StateError(
            f"The ledger has version {version}, but this version of Sluice knows ledgers up to version {HEAD}.",
            next_step="Install the version of Sluice that last opened the ledger, or a newer one.",
        )
    command.upgrade(config, HEAD)
