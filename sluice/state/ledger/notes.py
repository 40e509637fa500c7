"""Notes about a pipeline's state, such as that it was restored, for the people who run it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import NOTES
from sluice.state.model import GenerationRef, OfGeneration


class Note(OfGeneration, frozen=True, kw_only=True):
    """One sentence about a pipeline's state."""

    noted_at: str
    """ISO 8601, UTC."""
    run: str
    """The Airflow run; empty for a run without Airflow."""
    text: str


class Notes(LedgerPart):
    """The notes of all pipelines."""

    def add(self, ref: GenerationRef, run: str, text: str) -> None:
        """Add a note with the current time."""
        with database_errors("Writing a note"), transaction(self._engine) as connection:
            add_note(connection, ref, run, text)

    def all(self, pipeline: str) -> list[Note]:
        """The notes of a pipeline, oldest first."""
        # The column `number` is left out, because it only sorts the notes.
        columns = [NOTES.c[name] for name in Note.__struct_fields__]
        rows = self._read(
            select(*columns).where(NOTES.c.pipeline == pipeline).order_by(NOTES.c.number)
        )
        return [Note(**dict(row)) for row in rows]


def add_note(connection: Connection, ref: GenerationRef, run: str, text: str) -> None:
    """Add a note with the current time, within a transaction."""
    note = {"noted_at": datetime.now(UTC).isoformat(timespec="seconds"), "run": run, "text": text}
    connection.execute(insert(NOTES), msgspec.structs.asdict(ref) | note)
