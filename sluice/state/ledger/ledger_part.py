"""The base of the ledger's parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, RowMapping
from sqlalchemy.sql import Select

from sluice.state.database import database_errors


class LedgerPart:
    """One part of the ledger. Every method raises StateError if the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _read(
        self, statement: Select[Any], parameters: Mapping[str, Any] | None = None
    ) -> list[RowMapping]:
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return list(connection.execute(statement, parameters).mappings())
