"""The last record that was read of each partition."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns. Until the next batch, nothing is known about the last records."""
    last: sa.Column[int] = sa.Column(
        "last", sa.BigInteger(), nullable=False, server_default="-1", comment="the offset of the last record read"
    )
    fingerprint: sa.Column[str] = sa.Column(
        "fingerprint", sa.Text(), nullable=False, server_default="", comment="a hash of the last record read"
    )
    op.add_column("sources", last)
    op.add_column("sources", fingerprint)
