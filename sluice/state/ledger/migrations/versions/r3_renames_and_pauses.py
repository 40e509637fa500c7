"""Adds the former names of pipelines, stores and steps, and the pipelines that are paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r3"
down_revision = "r2"


def upgrade() -> None:
    """Add the two tables, without rows."""
    op.create_table(
        "renames",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("former", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("renamed_at", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "kind", "former"),
    )
    op.create_table(
        "pauses",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("paused_by", sa.Text(), nullable=False),
        sa.Column("paused_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline"),
    )
