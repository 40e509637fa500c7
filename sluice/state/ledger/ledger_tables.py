"""The ledger's tables.

Almost every row belongs to one generation of a pipeline's state, so that a rebuild can fill a new
generation while readers use the old generation. `pipelines.generation` is the current generation,
which readers see.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    false,
    select,
    tuple_,
)
from sqlalchemy.sql import ColumnElement, Select

from sluice.state.model import GenerationRef

METADATA = MetaData()


def _generation_columns() -> tuple[Column[str], Column[int]]:
    return (
        Column("pipeline", Text, primary_key=True),
        Column("generation", Integer, primary_key=True, autoincrement=False),
    )


PIPELINES = Table(
    "pipelines",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column(
        "generation", Integer, nullable=False, comment="the current generation, which readers see"
    ),
    Column(
        "replayed",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="whether a replay has built it",
    ),
    Column(
        "retired",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="whether the pipeline is no longer run, on purpose",
    ),
)

GENERATIONS = Table(
    "generations",
    METADATA,
    *_generation_columns(),
    Column("topics", Text, nullable=False, comment="JSON array"),
    Column(
        "operators",
        Text,
        nullable=False,
        comment="JSON object: name of an operator to its description",
    ),
    Column(
        "functions",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: name to hash of the code",
    ),
    Column(
        "contracts",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: topic to the fields of its values",
    ),
    Column(
        "outputs",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: topic or table to the fields of the values written to it",
    ),
    Column(
        "reads",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: other pipeline to its stores that are read, with their types",
    ),
    Column("description", Text, nullable=False),
    Column("picture", Text, nullable=False, comment="SVG"),
    Column("workers", Integer, nullable=False, server_default="0", comment="the number of workers"),
    Column(
        "file",
        Text,
        nullable=False,
        server_default="",
        comment="path of the pipeline's file in the newest run; empty if unknown",
    ),
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
    Column("windows", Text, comment="the definition of the windows, for display"),
    Column("window_ms", BigInteger),
    Column("grace_ms", BigInteger),
    Column("retention_ms", BigInteger),
    Column("value", Text, nullable=False),
    Column(
        "made", Text, nullable=False, comment="the steps that compute the store, from its source on"
    ),
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

SNAPSHOTS = Table(
    "snapshots",
    METADATA,
    *_generation_columns(),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("published_at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("positions", Text, nullable=False, comment="JSON object"),
    Column("stream_times", Text, nullable=False, comment="JSON object"),
    Column("counts", Text, nullable=False, comment="JSON object"),
    Column(
        "run",
        Text,
        nullable=False,
        server_default="",
        comment="the run that published the snapshot",
    ),
    Column("due", BigInteger, comment="epoch ms at which the earliest wall-clock timer is due"),
)

TIMES = Table(
    "times",
    METADATA,
    *_generation_columns(),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column(
        "times",
        Text,
        nullable=False,
        comment="JSON object: the stream times from which the next batch continues",
    ),
)
"""Stream times, the times up to which all windows are closed, and when each partition last had a
record, for the newest two snapshots."""

PLACEMENTS = Table(
    "placements",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("tls", Boolean, nullable=False),
)
"""The state servers of workers. If a worker has no state server, every process opens the worker's
shard itself."""

PLACES = Table(
    "places",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column(
        "epoch",
        BigInteger,
        nullable=False,
        comment="increases with every change of the worker's placement",
    ),
)
"""Fences changes of a worker's placement: a change with an older epoch is refused."""

SERVERS = Table(
    "servers",
    METADATA,
    Column("host", Text, primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    Column("server", Text, nullable=False, comment="the identity in the folder of its shards"),
)
"""Address of a state server → the identity of the server, which tells it apart from other servers
with the same address."""

STANDBYS = Table(
    "standbys",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("tls", Boolean, nullable=False),
    Column(
        "generation",
        Integer,
        nullable=False,
        comment="the generation of the copied shard; 0 without a complete copy",
    ),
    Column("batch", BigInteger, nullable=False, comment="the newest batch in the copy"),
    Column("copied_at", Text, nullable=False, comment="ISO 8601, UTC"),
)
"""The state servers with copies of workers' shards, and the snapshot that each copy holds."""

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
    Column("epoch", BigInteger, nullable=False, comment="increases with every new holder"),
    Column("held", Boolean, nullable=False),
    Column(
        "beat", BigInteger, nullable=False, comment="increases with every heartbeat of the holder"
    ),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process", Text, nullable=False, comment="identifies the process across reboots"),
    Column("since", Text, nullable=False, comment="ISO 8601, UTC; for display"),
    Column("run", Text, nullable=False, comment="the Airflow run, or empty"),
)

AUDITS = Table(
    "audits",
    METADATA,
    *_generation_columns(),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("run", Text, nullable=False, comment="the Airflow run, or empty"),
    Column(
        "epoch", BigInteger, nullable=False, comment="epoch of the lease that published the batch"
    ),
    Column(
        "sources", Text, nullable=False, comment="JSON array: the record counts of each partition"
    ),
    Column("outputs", Text, nullable=False, comment="JSON object: topic to records written"),
    Column(
        "checksums",
        Text,
        nullable=False,
        comment="JSON object: worker to the checksum of its state rows",
    ),
    Column(
        "states",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: worker to the checksum of its operator states",
    ),
    Column(
        "phases",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: phase to its duration in ms",
    ),
    Column(
        "step_rows",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: steps' inputs and results to the number of their rows",
    ),
)

HISTORY = Table(
    "history",
    METADATA,
    *_generation_columns(),
    Column("number", BigInteger, primary_key=True, autoincrement=False, comment="the batch number"),
    Column("begun", BigInteger, nullable=False, comment="epoch ms"),
    Column(
        "partitions", Text, nullable=False, comment="JSON object: topic to number of partitions"
    ),
    Column(
        "ends",
        Text,
        nullable=False,
        comment="JSON object: the end offsets that this batch advanced",
    ),
    Column(
        "by_clock", Boolean, nullable=False, comment="whether processing time affected a record"
    ),
    Column(
        "boundaries_lost",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="whether the row also stands for earlier batches, which a lost ledger had",
    ),
)
"""The history of published batches. A rebuild repeats them, so retention does not remove them."""

PLANS = Table(
    "plans",
    METADATA,
    *_generation_columns(),
    Column("number", BigInteger, nullable=False, comment="the batch number"),
    Column("begun", BigInteger, nullable=False, comment="epoch ms"),
    Column(
        "partitions", Text, nullable=False, comment="JSON object: topic to number of partitions"
    ),
    Column("ends", Text, nullable=False, comment="JSON object: the end offsets of all partitions"),
    Column(
        "snapshots",
        Text,
        nullable=False,
        server_default="{}",
        comment="JSON object: pipeline whose stores are read to snapshot",
    ),
)
"""The plan of each generation's newest batch, written before the batch begins."""

SOURCES = Table(
    "sources",
    METADATA,
    *_generation_columns(),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("topic_id", Text, nullable=False, comment="Kafka's id; a recreated topic has a new one"),
    Column(
        "first",
        BigInteger,
        nullable=False,
        comment="the offset at which the pipeline began to read",
    ),
    Column(
        "last",
        BigInteger,
        nullable=False,
        server_default="-1",
        comment="the offset of the last record read",
    ),
    Column(
        "fingerprint",
        Text,
        nullable=False,
        server_default="",
        comment="a hash of the last record read",
    ),
    Column(
        "leader_epoch",
        Integer,
        nullable=False,
        server_default="-1",
        comment="Kafka's leader epoch of the last record read, or -1",
    ),
)

NOTES = Table(
    "notes",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("pipeline", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("noted_at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("run", Text, nullable=False, comment="the Airflow run, or empty"),
    Column("text", Text, nullable=False),
)
"""Notes about a pipeline's state, such as that it was restored. Retention does not remove them."""

QUARANTINE = Table(
    "quarantine",
    METADATA,
    *_generation_columns(),
    Column("worker", Integer, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False, comment="why the worker's shard must not be read"),
    Column("since", Text, nullable=False, server_default="", comment="ISO 8601, UTC"),
)

FAILURES = Table(
    "failures",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("kind", Text, primary_key=True, comment="as in `failures.Kind`"),
    Column("host", Text, primary_key=True, comment="the host that it is about, or empty"),
    Column("run", Text, nullable=False, comment="the Airflow run, or empty"),
    Column("at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("seen_at", Text, nullable=False, comment="when it was last seen; ISO 8601, UTC"),
    Column("title", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("next_step", Text, nullable=False),
    Column("is_lasting", Boolean, nullable=False, comment="the same run would fail again"),
    Column("attempts_left", Integer, comment="attempts that Airflow has left; null if unknown"),
    Column(
        "marked", Text, nullable=False, comment="who has set the run's state in Airflow, or empty"
    ),
    Column("repeats_at", Text, comment="when the next attempt or run starts; ISO 8601, UTC"),
)

MEASUREMENTS = Table(
    "measurements",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("labels", Text, primary_key=True, comment="JSON object"),
    Column("value", Double, nullable=False),
)
"""Measurements of pipelines, such as the number of batches published since the ledger was created.
Retention does not remove them."""

SIZES = Table(
    "sizes",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("day", Text, primary_key=True, comment="ISO 8601"),
    Column("bytes", BigInteger, nullable=False),
)

FINISHED_RUNS = Table(
    "finished_runs",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("began_at", Text, primary_key=True, comment="ISO 8601, UTC"),
    Column("ended_at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("run", Text, nullable=False, comment="the Airflow run, or empty"),
    Column("outcome", Text, nullable=False, comment="succeeded or failed"),
    Column("host", Text, nullable=False),
    Column("version", Text, nullable=False, comment="the version of Sluice"),
    Column("topology", Text, nullable=False, comment="a hash of what computes the state"),
    Column("cpu_seconds", Double, comment="null if the driver was killed"),
    Column("memory_bytes", BigInteger, comment="the most; null if the driver was killed"),
    Column("state_bytes", BigInteger, comment="size of all shards; null if it is unknown"),
)
"""The newest runs that have ended, and their costs."""

COSTS = Table(
    "costs",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("day", Text, primary_key=True, comment="ISO 8601, UTC"),
    Column("runs", Integer, nullable=False),
    Column("failed_runs", Integer, nullable=False),
    Column("cpu_seconds", Double, nullable=False),
    Column("gigabyte_seconds", Double, nullable=False, comment="most memory times duration"),
)
"""The cost of a pipeline's runs that ended on a day."""

RENAMES = Table(
    "renames",
    METADATA,
    Column("pipeline", Text, primary_key=True, comment="the name of the pipeline now"),
    Column("kind", Text, primary_key=True, comment="`pipeline`, `store` or `step`"),
    Column("former", Text, primary_key=True, comment="the former name"),
    Column("name", Text, nullable=False, comment="the name now"),
    Column("renamed_at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("phase", Text, nullable=False, comment="as in `renames.Phase`"),
)
"""The former names of pipelines, stores and steps."""

PAUSES = Table(
    "pauses",
    METADATA,
    Column("pipeline", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("paused_by", Text, nullable=False, comment="the user who has paused the pipeline"),
    Column("paused_at", Text, nullable=False, comment="ISO 8601, UTC"),
)
"""The pipelines that do not run until they are resumed."""

ACTIVITIES = Table(
    "activities",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("pipeline", Text, nullable=False),
    Column("at", Text, nullable=False, comment="ISO 8601, UTC"),
    Column("by", Text, nullable=False, comment="the user, or empty"),
    Column("action", Text, nullable=False, comment="such as `pause` or `replay`"),
    Column("detail", Text, nullable=False),
    Column("run", Text, nullable=False, comment="the Airflow run that it has started, or empty"),
)
"""The newest actions of people on each pipeline."""


@lru_cache(maxsize=256)
def of_ref(table: Table, ref: GenerationRef) -> ColumnElement[bool]:
    """Condition that selects the rows of one generation."""
    return and_(table.c.pipeline == ref.pipeline, table.c.generation == ref.generation)


def of_given_ref(table: Table) -> ColumnElement[bool]:
    """Return the condition of `of_ref` for a statement that is built once.

    Its parameters are `pipeline` and `generation`.
    """
    return and_(
        table.c.pipeline == bindparam("pipeline"), table.c.generation == bindparam("generation")
    )


def of_refs(table: Table, refs: Sequence[GenerationRef]) -> ColumnElement[bool]:
    """Condition that selects the rows of several generations."""
    pairs = [(ref.pipeline, ref.generation) for ref in refs]
    return tuple_(table.c.pipeline, table.c.generation).in_(pairs)


def current(table: Table) -> Select[Any]:
    """Select a table's rows of the current generations.

    One statement finds the current generations and reads their rows. Between two statements,
    another generation could become current.
    """
    same = and_(
        PIPELINES.c.pipeline == table.c.pipeline, PIPELINES.c.generation == table.c.generation
    )
    return select(table).join(PIPELINES, same)
