"""What happened to a job's state beside its batches, for people: it was restored, or goes on with other code."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, Engine, insert, select

from sluice.state.database import speaking_to, writing
from sluice.state.ledger.tables import NOTES, is_of


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence about a job's state."""

    pipeline: str
    job: str
    generation: int
    noted_at: str
    """ISO 8601, UTC."""
    run: str
    """The run of Airflow; empty without one."""
    text: str


class Notes:
    """The ledger's notes. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, pipeline: str, job: str, generation: int, run: str, text: str) -> None:
        """Note something now."""
        with speaking_to("Writing a note"), writing(self._engine) as connection:
            add_note(connection, pipeline, job, generation, run, text)

    def all(self, pipeline: str, job: str) -> list[Note]:
        """The notes of a job, oldest first."""
        columns = [NOTES.c[name] for name in Note.__struct_fields__]
        statement = select(*columns).where(is_of(NOTES, pipeline, job)).order_by(NOTES.c.number)
        with speaking_to("Reading the notes"), self._engine.connect() as connection:
            return [Note(**dict(row)) for row in connection.execute(statement).mappings()]


def add_note(connection: Connection, pipeline: str, job: str, generation: int, run: str, text: str) -> None:
    """Note something now, as part of a transaction."""
    note = Note(
        pipeline=pipeline, job=job, generation=generation, run=run, text=text,
        noted_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    connection.execute(insert(NOTES), msgspec.structs.asdict(note))
