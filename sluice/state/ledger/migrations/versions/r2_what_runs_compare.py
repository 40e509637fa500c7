"""Adds the values that a run compares, and which pipelines were recovered or retired.

Between its batches, a run compares the leader epoch of the last record read from each partition. A
changed pipeline is compared with the contracts, the outputs and the file of its generation. A batch
that was recovered after the ledger was lost stands for earlier batches, too. A retired pipeline is
no longer run.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"


def upgrade() -> None:
    """Add the columns. The leader epoch of records that were read before is unknown.

    The next run of a pipeline fills its contracts, outputs and file.
    """
    epoch = sa.Column("leader_epoch", sa.Integer, nullable=False, server_default="-1")
    op.add_column("sources", epoch)
    lost = sa.Column("boundaries_lost", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("history", lost)
    for name, default in (("contracts", "{}"), ("outputs", "{}"), ("file", "")):
        column = sa.Column(name, sa.Text(), nullable=False, server_default=default)
        op.add_column("generations", column)
    is_not = sa.false()
    retired: sa.Column[bool] = sa.Column(
        "retired", sa.Boolean(), nullable=False, server_default=is_not
    )
    op.add_column("pipelines", retired)
