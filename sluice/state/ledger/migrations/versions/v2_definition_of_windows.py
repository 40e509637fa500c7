"""Adds the definition of a store's windows: a size alone does not describe the days and months of a time zone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Add the column; it stays empty until the next generation is registered."""
    op.add_column("stores", sa.Column("windows", sa.Text()))
