"""Notes for operators about a job's state, such as that it was restored or continues with changed code."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.part import LedgerPart
from sluice.state.ledger.tables import NOTES, of_job
from sluice.state.model import JobRef, OfJob


class Note(OfJob, frozen=True, kw_only=True):
    """One sentence about a job's state."""

    noted_at: str
    """ISO 8601, UTC."""
    run: str
    """The Airflow run; empty for a run without Airflow."""
    text: str


class Notes(LedgerPart):
    """The notes of all jobs."""

    def add(self, ref: JobRef, run: str, text: str) -> None:
        """Add a note with the current time."""
        with database_errors("Writing a note"), transaction(self._engine) as connection:
            add_note(connection, ref, run, text)

    def all(self, pipeline: str, job: str) -> list[Note]:
        """The notes of a job, oldest first."""
        columns = [NOTES.c[name] for name in Note.__struct_fields__]
        rows = self._read(select(*columns).where(of_job(NOTES, pipeline, job)).order_by(NOTES.c.number))
        return [Note(**dict(row)) for row in rows]


def add_note(connection: Connection, ref: JobRef, run: str, text: str) -> None:
    """Add a note with the current time, within a transaction."""
    note = {"noted_at": datetime.now(UTC).isoformat(timespec="seconds"), "run": run, "text": text}
    connection.execute(insert(NOTES), msgspec.structs.asdict(ref) | note)
