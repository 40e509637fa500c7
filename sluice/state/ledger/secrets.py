"""Random keys shared by all processes that use the same ledger."""

from __future__ import annotations

import secrets

from sqlalchemy import select, text

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import SECRETS

_BYTES = 32
_INSERT = text("INSERT INTO secrets (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING")


class Secrets(LedgerPart):
    def get(self, name: str) -> bytes:
        """Return the key with this name. The first call creates it."""
        statement = select(SECRETS.c.value).where(SECRETS.c.name == name)
        rows = self._read(statement)
        if not rows:
            with database_errors("Writing the ledger"), transaction(self._engine) as connection:
                connection.execute(_INSERT, {"name": name, "value": secrets.token_bytes(_BYTES)})
            # Another process may have been first: read its key.
            rows = self._read(statement)
        return bytes(rows[0]["value"])
