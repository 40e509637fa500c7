"""Checks whether a PostgreSQL address can be used for the ledger or for shards.

Sluice's connections keep settings and prepared statements for a whole session. A connection pooler
that gives each transaction another connection, such as PgBouncer with `pool_mode=transaction`,
would mix up the settings and statements of several connections. A statement would then read the
tables of another shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import URL

from sluice.errors import SettingsError, StateError
from sluice.state.database import ANSWER_SECONDS, database_url, first_line
from sluice.state.shard.addresses import is_remote
from sluice.state.time_limits import waits_limited

_ROUNDS = 2
"""How often the connections are compared: a pooler may by chance give a client the same process."""
_CONDITION = """SELECT pg_is_in_recovery(), current_setting('transaction_read_only'),
    current_database()"""


_DURABILITY = """SELECT current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication)"""


def require_usable(url: URL, what: str, variable: str) -> None:
    """Raise SettingsError for a pooler in transaction mode, and StateError for a read-only server.

    `what` names the content of the database, such as "shards", and `variable` the environment
    variable with its address. Do nothing for SQLite.
    """
    if url.get_backend_name() == "sqlite":
        return
    import psycopg

    try:
        with waits_limited(ANSWER_SECONDS):
            _require_usable(url, what, variable)
    except psycopg.Error as error:
        detail = f"The database of the {what} cannot be used: {first_line(error)}"
        raise StateError(detail) from error


def require_usable_shards(addresses: Iterable[str]) -> None:
    """Call `require_usable` for the databases of those shards that this process opens itself."""
    databases: dict[URL, None] = {}
    for address in addresses:
        if not is_remote(address):
            databases[database_url(address).difference_update_query(["schema"])] = None
    for url in databases:
        require_usable(url, "shards", "SLUICE_SHARDS")


def lossy_settings(url: URL, what: str) -> Iterator[str]:
    """Describe the settings with which a server can lose its newest commits.

    Yield nothing for SQLite.

    `what` names the content of the database. Also yield nothing if the server does not answer,
    which `require_usable` reports.
    """
    if url.get_backend_name() == "sqlite":
        return
    import psycopg

    try:
        with waits_limited(ANSWER_SECONDS), _connect(url) as connection:
            row = connection.execute(_DURABILITY).fetchone()
    except psycopg.Error:
        return
    fsync, full_page_writes, synchronous, replicas = row
    if "off" in (fsync, full_page_writes):
        yield (
            f"The PostgreSQL server of the {what} does not write commits safely to its disk: "
            f"fsync is {fsync}, full_page_writes is {full_page_writes}."
        )
    if replicas and not synchronous:
        yield (
            f"The PostgreSQL server of the {what} does not wait for its replicas: after a "
            "fail-over to a replica that lags, the newest commits are lost, and runs stop. Set "
            "synchronous_standby_names."
        )


def _require_usable(url: URL, what: str, variable: str) -> None:
    with _connect(url) as first, _connect(url) as second:
        if _is_mixed_up(first, second):
            raise SettingsError(
                f"The address of the {what} leads to a connection pooler, such as PgBouncer with "
                "pool_mode=transaction, that gives each transaction another connection to "
                "PostgreSQL. Sluice needs a connection for a whole session.",
                next_step=f"Set {variable} to the address of the PostgreSQL server itself, or of a "
                "pool with pool_mode=session.",
            )
        is_standby, read_only, database = first.execute(_CONDITION).fetchone()
    if is_standby:
        raise StateError(
            f"The PostgreSQL server of the {what} is a standby, which answers only reads.",
            next_step=f"Set {variable} to the address of the primary server. An address with "
            "several hosts finds it with target_session_attrs=read-write.",
        )
    if read_only == "on":
        raise StateError(
            f"The database of the {what} is read-only: default_transaction_read_only is on.",
            next_step=f"If that is no longer intended: ALTER DATABASE {database} SET "
            "default_transaction_read_only = off. The setting may also come from the role or the "
            "server.",
        )


def _is_mixed_up(first: Any, second: Any) -> bool:
    """Return whether two connections share a process, or one connection changes its process."""
    processes: tuple[set[int], set[int]] = (set(), set())
    for _ in range(_ROUNDS):
        # If a pooler takes its processes in turn, this order gives different processes to at least
        # one of the two connections, however many processes the pooler has.
        for number in (0, 1, 1, 0):
            connection = (first, second)[number]
            (process,) = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
            processes[number].add(process)
            # Check after each query: most poolers are recognized after two queries, and a further
            # query may find no free process in the pooler.
            if len(processes[number]) > 1 or processes[0] & processes[1]:
                return True
    return False


def _connect(url: URL) -> Any:
    from sluice.state.postgres_connection import connect

    _, parts = url.get_dialect()().create_connect_args(url.difference_update_query(["schema"]))
    return connect(**parts, autocommit=True, session={})
