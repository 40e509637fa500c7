"""The ledger of the first release.

A ledger from before has the same tables but no version, so the tables may exist.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "audits",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("run", sa.Text(), nullable=False, comment="the Airflow run, or empty"),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="epoch of the lease that published the batch"),
        sa.Column("sources", sa.Text(), nullable=False, comment="JSON array: the record counts of each partition"),
        sa.Column("outputs", sa.Text(), nullable=False, comment="JSON object: topic to records written"),
        sa.Column(
            "checksums", sa.Text(), nullable=False, comment="JSON object: worker to the checksum of its state rows"
        ),
        sa.Column(
            "states",
            sa.Text(),
            server_default="{}",
            nullable=False,
            comment="JSON object: worker to the checksum of its operator states",
        ),
        sa.Column(
            "phases", sa.Text(), server_default="{}", nullable=False, comment="JSON object: phase to its duration in ms"
        ),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "batch"),
        if_not_exists=True,
    )
    op.create_table(
        "failures",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="run or file"),
        sa.Column("run", sa.Text(), nullable=False, comment="the Airflow run, or empty"),
        sa.Column("at", sa.Text(), nullable=False, comment="ISO 8601, UTC"),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "job", "kind"),
        if_not_exists=True,
    )
    op.create_table(
        "generations",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topics", sa.Text(), nullable=False, comment="JSON array"),
        sa.Column(
            "operators",
            sa.Text(),
            nullable=False,
            comment="JSON object: name of an ordered operator to its description",
        ),
        sa.Column(
            "functions", sa.Text(), server_default="{}", nullable=False, comment="JSON object: name to hash of the code"
        ),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("drawing", sa.Text(), nullable=False, comment="Mermaid"),
        sa.Column("picture", sa.Text(), nullable=False, comment="SVG"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation"),
        if_not_exists=True,
    )
    op.create_table(
        "history",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False, comment="the batch number"),
        sa.Column("begun", sa.BigInteger(), nullable=False, comment="epoch ms"),
        sa.Column("partitions", sa.Text(), nullable=False, comment="JSON object: topic to number of partitions"),
        sa.Column("ends", sa.Text(), nullable=False, comment="JSON object: the end offsets that this batch advanced"),
        sa.Column("by_clock", sa.Boolean(), nullable=False, comment="whether processing time affected a record"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "number"),
        if_not_exists=True,
    )
    op.create_table(
        "jobs",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False, comment="the current generation, which readers see"),
        sa.PrimaryKeyConstraint("pipeline", "job"),
        if_not_exists=True,
    )
    op.create_table(
        "leases",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="increases with every new holder"),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False, comment="increases with every heartbeat of the holder"),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False, comment="identifies the process across reboots"),
        sa.Column("since", sa.Text(), nullable=False, comment="ISO 8601, UTC; for display"),
        sa.Column("run", sa.Text(), nullable=False, comment="the Airflow run, or empty"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation"),
        if_not_exists=True,
    )
    op.create_table(
        "notes",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("noted_at", sa.Text(), nullable=False, comment="ISO 8601, UTC"),
        sa.Column("run", sa.Text(), nullable=False, comment="the Airflow run, or empty"),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        if_not_exists=True,
    )
    op.create_table(
        "placements",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("tls", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "number"),
        if_not_exists=True,
    )
    op.create_table(
        "quarantine",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, comment="why the worker's shard must not be read"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "worker"),
        if_not_exists=True,
    )
    op.create_table(
        "secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        if_not_exists=True,
    )
    op.create_table(
        "snapshots",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("published_at", sa.Text(), nullable=False, comment="ISO 8601, UTC"),
        sa.Column("positions", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("stream_times", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("counts", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("run", sa.Text(), server_default="", nullable=False, comment="the run that published the snapshot"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "batch"),
        if_not_exists=True,
    )
    op.create_table(
        "sources",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic_id", sa.Text(), nullable=False, comment="Kafka's id; a recreated topic has a new one"),
        sa.Column("first", sa.BigInteger(), nullable=False, comment="the offset at which the job began to read"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "topic", "partition"),
        if_not_exists=True,
    )
    op.create_table(
        "stores",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("store_column", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("window_ms", sa.BigInteger(), nullable=True),
        sa.Column("grace_ms", sa.BigInteger(), nullable=True),
        sa.Column("retention_ms", sa.BigInteger(), nullable=True),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("made", sa.Text(), nullable=False, comment="the steps that compute the store, from its source on"),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "name"),
        if_not_exists=True,
    )
    op.create_table(
        "times",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "times",
            sa.Text(),
            nullable=False,
            comment="JSON object: the stream times from which the next batch continues",
        ),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "batch"),
        if_not_exists=True,
    )
    op.create_table(
        "workers",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "job", "generation", "number"),
        if_not_exists=True,
    )
