"""The base of the ledger's parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Engine, RowMapping
from sqlalchemy.sql import Select

from sluice.state.database import as_json, database_errors


class LedgerPart:
    """One part of the ledger. Every method raises StateError if the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _read(
        self, statement: Select[Any], parameters: Mapping[str, Any] | None = None
    ) -> list[RowMapping]:
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return list(connection.execute(statement, parameters).mappings())


def json_texts(value: object, names: Iterable[str]) -> dict[str, str]:
    """Return a value's attributes `names` as JSON texts, for the columns of a row."""
    return {name: as_json(getattr(value, name)) for name in names}


def decode_columns(row: RowMapping, names: Iterable[str]) -> dict[str, Any]:
    """Decode the columns of a row that `json_texts` has written."""
    return {name: msgspec.json.decode(row[name]) for name in names}
