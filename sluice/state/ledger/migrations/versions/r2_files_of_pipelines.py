"""The ledger knows each pipeline's file, and which pipelines are retired."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"


def upgrade() -> None:
    """Add both columns. The next run of a pipeline registers its file."""
    op.add_column("generations", sa.Column("file", sa.Text(), nullable=False, server_default=""))
    is_not = sa.false()
    op.add_column(
        "pipelines",
        sa.Column("retired", sa.Boolean(), nullable=False, server_default=is_not),
    )
