"""Whether a replay has built a job's current generation. Before, only the text of a note told it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column, with the values that the notes tell, and name the third kind of failures."""
    column: sa.Column[bool] = sa.Column(
        "replayed", sa.Boolean(), nullable=False, server_default=sa.false(), comment="whether a replay has built it"
    )
    op.add_column("jobs", column)
    jobs = sa.table("jobs", *map(sa.column, ("pipeline", "job", "generation", "replayed")))
    notes = sa.table("notes", *map(sa.column, ("pipeline", "job", "text")))
    text = "Generation " + sa.cast(jobs.c.generation, sa.Text()) + ", which a replay built, replaced"
    of_job = notes.c.pipeline == jobs.c.pipeline, notes.c.job == jobs.c.job
    has_note = sa.exists().where(*of_job, notes.c.text.startswith(text)).correlate(jobs)
    op.execute(sa.update(jobs).where(has_note).values(replayed=sa.true()))
    with op.batch_alter_table("failures") as failures:
        failures.alter_column("kind", existing_type=sa.Text(), comment="run, file or overdue")
