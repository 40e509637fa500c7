"""Adds the stores of other pipelines that a generation reads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r8"
down_revision = "r7"


def upgrade() -> None:
    """Add the column. The next run of each pipeline fills the column."""
    op.add_column("generations", sa.Column("reads", sa.Text(), nullable=False, server_default="{}"))
