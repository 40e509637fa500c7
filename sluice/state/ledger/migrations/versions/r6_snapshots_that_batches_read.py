"""Adds the snapshots of other pipelines that a planned batch reads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r6"
down_revision = "r5"


def upgrade() -> None:
    """Add the column. Batches that were planned before read no store of another pipeline."""
    op.add_column("plans", sa.Column("snapshots", sa.Text(), nullable=False, server_default="{}"))
