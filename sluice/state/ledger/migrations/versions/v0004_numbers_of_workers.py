"""The number of workers of each generation. Before, the loss of a worker's row went unnoticed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column, with the number of workers that the ledger knows."""
    column: sa.Column[int] = sa.Column(
        "workers", sa.Integer(), nullable=False, server_default="0", comment="the number of workers"
    )
    op.add_column("generations", column)
    of_generation = ("pipeline", "job", "generation")
    generations = sa.table("generations", *map(sa.column, (*of_generation, "workers")))
    workers = sa.table("workers", *map(sa.column, of_generation))
    same = [generations.c[name] == workers.c[name] for name in of_generation]
    number = sa.select(sa.func.count()).select_from(workers).where(*same).correlate(generations).scalar_subquery()
    op.execute(sa.update(generations).values(workers=number))
