"""Keeps the contracts and the outputs of generations, with which later ones are compared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"


def upgrade() -> None:
    """Add the columns. The next run of a pipeline fills them."""
    for name in ("contracts", "outputs"):
        column = sa.Column(name, sa.Text(), nullable=False, server_default="{}")
        op.add_column("generations", column)
