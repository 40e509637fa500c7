"""A database whose answer to COMMIT does not arrive, although it has committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event

from sluice.state.ledger.ledger_part import LedgerPart


def losing(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the ledger that loses its connection after the database has committed the method's transaction."""

    def call(self: LedgerPart, *args: Any, **named: Any) -> Any:
        caller = threading.get_ident()

        def commit_and_disconnect(connection: Connection) -> None:
            # Meanwhile, the lease's thread commits its renewals on other connections of the engine.
            if threading.get_ident() == caller:
                database: Any = connection.connection.dbapi_connection
                database.commit()
                database.close()

        event.listen(self._engine, "commit", commit_and_disconnect)
        try:
            return method(self, *args, **named)
        finally:
            event.remove(self._engine, "commit", commit_and_disconnect)

    return call
