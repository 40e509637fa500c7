"""Adds the runs that have ended, and the cost of each day's runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r4"
down_revision = "r3"


def upgrade() -> None:
    """Create the tables. They lack the runs that ended before the migration."""
    op.create_table(
        "finished_runs",
        sa.Column("pipeline", sa.Text(), primary_key=True),
        sa.Column("began_at", sa.Text(), primary_key=True),
        sa.Column("ended_at", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("topology", sa.Text(), nullable=False),
        sa.Column("cpu_seconds", sa.Double()),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("state_bytes", sa.BigInteger()),
    )
    op.create_table(
        "costs",
        sa.Column("pipeline", sa.Text(), primary_key=True),
        sa.Column("day", sa.Text(), primary_key=True),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("failed_runs", sa.Integer(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.Column("gigabyte_seconds", sa.Double(), nullable=False),
    )
