"""The ledger's tables.

Everything a job says of itself is kept by generation, so that a new one can be built beside the one being read;
`jobs.generation` alone says which of them readers see.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, Table, Text, and_, select
from sqlalchemy.sql import ColumnElement, Select

METADATA = MetaData()


def _job_columns() -> tuple[Column[str], Column[str]]:
    return Column("pipeline", Text, primary_key=True), Column("job", Text, primary_key=True)


def _generation_columns() -> tuple[Column[str], Column[str], Column[int]]:
    return *_job_columns(), Column("generation", Integer, primary_key=True, autoincrement=False)


JOBS = Table(
    "jobs",
    METADATA,
    *_job_columns(),
    Column("generation", Integer, nullable=False, comment="the one that readers see"),
)

GENERATIONS = Table(
    "generations",
    METADATA,
    *_generation_columns(),
    Column("topics", Text, nullable=False, comment="JSON array"),
    Column("operators", Text, nullable=False, comment="JSON object: the ordered operators' names and what they do"),
    Column("functions", Text, nullable=False, server_default="{}", comment="JSON object: name to hash of the code"),
    Column("description", Text, nullable=False),
    Column("drawing", Text, nullable=False, comment="Mermaid"),
    Column("picture", Text, nullable=False, comment="SVG"),
)

STORES = Table(
    "stores",
    METADATA,
    *_generation_columns(),
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("group_id", Integer, nullable=False),
    Column("store_column", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("window_ms", BigInteger),
    Column("grace_ms", BigInteger),
    Column("retention_ms", BigInteger),
    Column("value", Text, nullable=False),
    Column("made", Text, nullable=False, comment="the steps from its source on"),
)

WORKERS = Table(
    "workers",
    METADATA,
    *_generation_columns(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("location", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
)

CUTS = Table(
    "snapshots",
    METADATA,
    *_generation_columns(),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("published_at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("positions", Text, nullable=False, comment="JSON object"),
    Column("stream_times", Text, nullable=False, comment="JSON object"),
    Column("counts", Text, nullable=False, comment="JSON object"),
    Column("run", Text, nullable=False, server_default="", comment="the run that published it"),
)

TIMES = Table(
    "times",
    METADATA,
    *_generation_columns(),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("times", Text, nullable=False, comment="JSON object: what the batch after this one goes on from"),
)
"""Stream times, how far everything is closed, and when each partition was seen: of the newest two snapshots."""

PLACES = Table(
    "places",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("tls", Boolean, nullable=False),
)
"""The workers that a state server answers for; the others' shards are opened by whoever reads them."""

SECRETS = Table(
    "secrets",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

LEASES = Table(
    "leases",
    METADATA,
    *_generation_columns(),
    Column("epoch", BigInteger, nullable=False, comment="goes up by one with every holder"),
    Column("held", Boolean, nullable=False),
    Column("beat", BigInteger, nullable=False, comment="goes up as long as the holder lives"),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process", Text, nullable=False, comment="which process of which machine, told apart over reboots"),
    Column("since", Text, nullable=False, comment="ISO 8601, UTC; for people"),
    Column("run", Text, nullable=False, comment="of Airflow, or empty"),
)

AUDITS = Table(
    "audits",
    METADATA,
    *_generation_columns(),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("run", Text, nullable=False, comment="of Airflow, or empty"),
    Column("epoch", BigInteger, nullable=False, comment="of the lease under which it was published"),
    Column("sources", Text, nullable=False, comment="JSON array: what became of each partition's records"),
    Column("outputs", Text, nullable=False, comment="JSON object: topic to records written"),
    Column("checksums", Text, nullable=False, comment="JSON object: worker to its state rows' checksum"),
    Column("states", Text, nullable=False, server_default="{}", comment="the same of its operators' states"),
)

HISTORY = Table(
    "history",
    METADATA,
    *_generation_columns(),
    Column("number", BigInteger, primary_key=True, autoincrement=False, comment="of the batch"),
    Column("begun", BigInteger, nullable=False, comment="epoch ms"),
    Column("partitions", Text, nullable=False, comment="JSON object: topic to how many it had"),
    Column("ends", Text, nullable=False, comment="JSON object: the offsets that the batch has changed"),
    Column("by_clock", Boolean, nullable=False, comment="a record was refused or dated by the time of processing"),
)
"""The batches that were published, as they were run. Retention leaves them: a rebuild runs them again."""

SOURCES = Table(
    "sources",
    METADATA,
    *_generation_columns(),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("topic_id", Text, nullable=False, comment="Kafka's: a topic that is made anew has another one"),
    Column("first", BigInteger, nullable=False, comment="the offset at which the job began"),
)

NOTES = Table(
    "notes",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("pipeline", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("noted_at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("run", Text, nullable=False, comment="of Airflow, or empty"),
    Column("text", Text, nullable=False),
)
"""What happened to a job's state beside its batches, in words: kept as long as the job."""

QUARANTINE = Table(
    "quarantine",
    METADATA,
    *_generation_columns(),
    Column("worker", Integer, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False, comment="why its shard must not be read"),
)

FAILURES = Table(
    "failures",
    METADATA,
    *_job_columns(),
    Column("kind", Text, primary_key=True, comment="of a run, or of the pipeline's file"),
    Column("run", Text, nullable=False, comment="of Airflow, or empty"),
    Column("at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("title", Text, nullable=False),
    Column("detail", Text, nullable=False),
)


def is_of(table: Table, pipeline: str, job: str, generation: int | None = None) -> ColumnElement[bool]:
    """Whether a row is of a job, or of one generation of it."""
    same = and_(table.c.pipeline == pipeline, table.c.job == job)
    return same if generation is None else and_(same, table.c.generation == generation)


def current(table: Table) -> Select[Any]:
    """All rows of a table that belong to the generations readers see: one statement, hence one moment."""
    same = and_(*(JOBS.c[name] == table.c[name] for name in ("pipeline", "job", "generation")))
    return select(table).join(JOBS, same)
