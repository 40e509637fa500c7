"""Connects to PostgreSQL so that no wait lasts forever, whatever happens to the server.

A network that loses packets sends no reset, and the kernel of a frozen server still acknowledges
packets. In both cases, a connection stays open although no answer will come. So a wait ends at the
thread's time limit (`state.time_limits`). A statement without a time limit may take as long as it
needs, provided that the server still accepts other connections.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from typing_extensions import override

from sluice.state.time_limits import wait_limit

T = TypeVar("T")

CONNECT_SECONDS = 5
"""How long it may take to connect, unless the database's address sets another limit."""
_SHORTEST_CONNECT = 2
"""The shortest time limit for connecting. Psycopg takes this limit in place of a shorter one."""
SILENT_SECONDS = 30.0
"""If a server has been silent for this time, this process tries to open another connection, to find
out whether the server still answers."""
_TCP = {
    "tcp_user_timeout": 30_000,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
}
"""With these options, the kernel gives up a connection if the server has acknowledged nothing for
30 s."""


SESSION: Mapping[str, str] = {
    # Sluice's transactions are written for this level. In a stricter level, they would fail if
    # another transaction changes the same row meanwhile, as the heartbeat of a lease does.
    "default_transaction_isolation": "read committed",
    # A commit counts once the server and its synchronous replicas have written it to their disks.
    "synchronous_commit": "on",
    # Sluice sets its own limits where it needs them.
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""Settings that override the settings of the server, of the database and of the role."""
_SINCE = {"idle_session_timeout": 140_000, "transaction_timeout": 170_000}
"""Setting → the first version of PostgreSQL that has it."""


class BoundedConnection(psycopg.Connection[TupleRow]):
    """A connection that is closed, with an OperationalError, when the server no longer answers."""

    address: dict[str, Any]

    @override
    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(self._watch(gen), *args, **options)

    def _watch(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on the steps of a request until it ends or the time limit is over.

        psycopg resumes the request each tenth of a second while it waits for the server.

        If the server no longer answers, the request ends with an error.
        """
        until = wait_limit()
        heard_at = time.monotonic()
        try:
            waits_for = next(steps)
            while True:
                is_ready = yield waits_for
                now = time.monotonic()
                if until is not None and now >= until:
                    raise self._given_up("the server has not answered in time")
                if is_ready:
                    heard_at = now
                elif until is None and now - heard_at >= SILENT_SECONDS:
                    # A server is also silent during a long statement. Treat it as gone only if it
                    # does not accept another connection either.
                    if not _accepts_connections(self.address):
                        silence = f"{now - heard_at:.0f} s"
                        raise self._given_up(
                            f"the server has been silent for {silence} and is not reachable"
                        )
                    heard_at = now
                waits_for = steps.send(is_ready)
        except StopIteration as end:
            result: T = end.value
            return result

    def _given_up(self, why: str) -> psycopg.OperationalError:
        """Close the connection, whose state is unknown now, and return the error to raise."""
        self.pgconn.finish()
        return psycopg.OperationalError(why)


def connect(
    conninfo: str = "",
    *,
    autocommit: bool = False,
    session: Mapping[str, str] | None = None,
    **parameters: Any,
) -> BoundedConnection:
    """Connect to an address: libpq's text, or parameters, which take precedence.

    Both take precedence over this module's defaults, such as `CONNECT_SECONDS`. If `session` is
    given, the session gets its settings and those in `SESSION`. Otherwise, each transaction must
    call `set_settings` if it needs settings.
    """
    address = {
        "connect_timeout": CONNECT_SECONDS,
        **_TCP,
        **conninfo_to_dict(conninfo),
        **parameters,
    }
    until = wait_limit()
    if until is not None:
        left = max(_SHORTEST_CONNECT, int(until - time.monotonic()))
        address["connect_timeout"] = min(int(address["connect_timeout"]), left)
    # With autocommit, setting the session's parameters takes only one round trip.
    connection = BoundedConnection.connect(autocommit=True, **address)
    connection.address = address
    try:
        if session is not None:
            set_settings(connection, {**SESSION, **session})
        if not autocommit:
            connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection


def set_settings(
    connection: psycopg.Connection[TupleRow],
    settings: Mapping[str, str],
    *,
    of_transaction: bool = False,
) -> None:
    """Set settings of the session, or only of the present transaction.

    Omit those that the server does not know.
    """
    version = connection.info.server_version
    calls: list[str] = []
    arguments: list[str | bool] = []
    for name, value in settings.items():
        if version >= _SINCE.get(name, 0):
            calls.append("set_config(%s, %s, %s)")
            arguments += [name, value, of_transaction]
    connection.execute(f"SELECT {', '.join(calls)}".encode(), arguments, prepare=False)


def _accepts_connections(address: dict[str, Any]) -> bool:
    try:
        psycopg.connect(**address | {"connect_timeout": CONNECT_SECONDS}).close()
    except errors.ConnectionTimeout:
        return False
    except psycopg.Error:
        # Any other error is an answer of the server or of its host, such as that too many clients
        # are connected. The host can be reached, so the wait goes on.
        pass
    return True
