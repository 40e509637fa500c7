"""Creates the tables of a new ledger, and migrates an older ledger when it is opened.

Each change of `ledger_tables.py` has a module in `versions/`, which names the revision before it.
`HEAD` is the newest revision.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    text,
)

from sluice.errors import StateError
from sluice.state.database import ANSWER_SECONDS, transaction
from sluice.state.ledger.ledger_tables import GENERATIONS, METADATA, PIPELINES
from sluice.state.time_limits import waits_limited

TABLE = "sluice_version"
"""The table with the ledger's version. It must not have Alembic's default name `alembic_version`,
because Airflow has a table of this name, perhaps in the same database."""
HEAD = "r8"
"""The version of the tables in `ledger_tables.py`."""
SCRIPTS = Path(__file__).parent

_LOCK = 0x51_01_CE
_VERSION = Table(
    TABLE, MetaData(), Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{TABLE}_pkc"),
)  # fmt: skip
"""The table of versions, with the names that Alembic gives it."""


def migrate(engine: Engine) -> None:
    """Create a ledger's tables, or migrate them to `HEAD`, in one transaction.

    Several processes may call this at once. Raise StateError, and change nothing, in three cases:
    the ledger is from before the first release, a newer version of Sluice has migrated it, or it
    has lost its version.
    """
    # Almost every ledger has the version `HEAD` already. Reading the version takes no lock, so it
    # does not wait for writers.
    with waits_limited(ANSWER_SECONDS), engine.connect() as connection:
        if _version(connection) == HEAD:
            return
    with transaction(engine) as connection:
        if engine.dialect.name == "postgresql":
            # Concurrent `CREATE TABLE` statements collide in PostgreSQL's catalogue.
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        version = _version(connection)
        if version is None:
            _require_new(connection)
            _create(connection)
        elif version != HEAD:
            upgrade(connection, version, HEAD)


def _version(connection: Connection) -> str | None:
    """Return the ledger's version; None for a new ledger."""
    if not inspect(connection).has_table(TABLE):
        return None
    version: str | None = connection.execute(text(f"SELECT version_num FROM {TABLE}")).scalar()
    return version


def _require_new(connection: Connection) -> None:
    """Raise StateError if a ledger without a version has tables."""
    if inspect(connection).has_table(PIPELINES.name):
        raise StateError(
            f"The ledger has lost its version: the table {TABLE} is missing or empty.",
            next_step="Restore the ledger from a backup: sluice restore.",
        )
    if inspect(connection).has_table(GENERATIONS.name):
        raise _from_before_release()


def _from_before_release() -> StateError:
    return StateError(
        "The ledger is from before the first release of Sluice, whose ledgers have other tables.",
        next_step="Begin with an empty ledger, and an empty place for shards: the next runs "
        "compute the state from the topics, and write its output again. By default, the ledger "
        "and the shards are in the folder SLUICE_HOME.",
    )


def _create(connection: Connection) -> None:
    """Create the newest tables directly.

    Alembic would repeat their history, which takes ten times as long.
    """
    METADATA.create_all(connection, checkfirst=False)
    _VERSION.create(connection)
    connection.execute(_VERSION.insert().values(version_num=HEAD))


def upgrade(connection: Connection, version: str, to: str) -> None:
    """Migrate a ledger from one version to another.

    Raise StateError if this version of Sluice does not know `version`.
    """
    # Versions from before the first release are numbers.
    if version.isdigit():
        raise _from_before_release()
    # Alembic takes a while to import, and is needed only for a ledger of an earlier version.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    # At the level INFO, Alembic would write its steps into the log of a run.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    versions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version not in versions:
        raise StateError(
            f"The ledger has version {version}, but this version of Sluice knows ledgers up to "
            f"version {HEAD}.",
            next_step="Install the version of Sluice that last opened the ledger, or a newer one.",
        )
    command.upgrade(config, to)
