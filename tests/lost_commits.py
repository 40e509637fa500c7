"""A database whose answer to COMMIT does not arrive, although it has committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event

from sluice.state.ledger.part import LedgerPart


def losing(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the ledger that loses its connection after the database has committed the method's transaction."""

    def call(self: LedgerPart, *args: Any, **named: Any) -> Any:
        event.listen(self._engine, "commit", _commit_and_disconnect, once=True)
        return method(self, *args, **named)

    return call


def _commit_and_disconnect(connection: Connection) -> None:
    database: Any = connection.connection.dbapi_connection
    database.commit()
    database.close()
