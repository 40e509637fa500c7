"""Adds the actions of people on pipelines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r5"
down_revision = "r4"


def upgrade() -> None:
    """Add the table, without rows."""
    op.create_table(
        "activities",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
    )
