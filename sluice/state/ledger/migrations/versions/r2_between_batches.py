"""Adds what a run compares between its batches, and batches that were recovered after the ledger was lost.

A run compares the leader epoch of the last record read from each partition.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"


def upgrade() -> None:
    """Add the columns, with an unknown leader epoch for the records that were read before."""
    epoch = sa.Column("leader_epoch", sa.Integer, nullable=False, server_default="-1")
    op.add_column("sources", epoch)
    lost = sa.Column("boundaries_lost", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("history", lost)
