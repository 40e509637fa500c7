"""Keeps the contracts and the outputs of generations, so that a changed pipeline can be compared with them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"


def upgrade() -> None:
    """Add the columns. The next run of a pipeline fills them."""
    for name in ("contracts", "outputs"):
        op.add_column("generations", sa.Column(name, sa.Text(), nullable=False, server_default="{}"))
