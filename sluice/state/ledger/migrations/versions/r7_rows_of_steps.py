"""Adds the numbers of rows that steps have received and passed on in a batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r7"
down_revision = "r6"


def upgrade() -> None:
    """Add the column. The rows of earlier batches have not been counted."""
    op.add_column("audits", sa.Column("step_rows", sa.Text(), nullable=False, server_default="{}"))
