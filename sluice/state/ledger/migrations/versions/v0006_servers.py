"""The identities of state servers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "servers",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("server", sa.Text(), nullable=False, comment="the identity in the folder of its shards"),
        sa.PrimaryKeyConstraint("host", "port"),
        if_not_exists=True,
    )
