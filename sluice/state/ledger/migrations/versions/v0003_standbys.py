"""Standbys of workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table of standbys."""
    op.create_table(
        "standbys",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("tls", sa.Boolean(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False, comment="the job whose shard the copy is of"),
        sa.Column("generation", sa.Integer(), nullable=False, comment="0 without a complete copy"),
        sa.Column("batch", sa.BigInteger(), nullable=False, comment="the newest batch in the copy"),
        sa.Column("copied_at", sa.Text(), nullable=False, comment="ISO 8601, UTC"),
        sa.PrimaryKeyConstraint("pipeline", "number"),
        if_not_exists=True,
    )
