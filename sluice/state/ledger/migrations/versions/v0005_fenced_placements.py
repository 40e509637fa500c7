"""Epochs of workers' placements, and the time since which a shard is in quarantine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table of epochs, and add the column."""
    op.create_table(
        "places",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "epoch",
            sa.BigInteger(),
            nullable=False,
            comment="increases with every change of the worker's placement",
        ),
        sa.PrimaryKeyConstraint("pipeline", "number"),
        if_not_exists=True,
    )
    since: sa.Column[str] = sa.Column("since", sa.Text(), nullable=False, server_default="", comment="ISO 8601, UTC")
    op.add_column("quarantine", since)
