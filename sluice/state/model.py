"""The values the ledger keeps and the readers of state see.

A *state row* is what one aggregation keeps for one key (and one window): the values of all stores that share the
aggregation's filter, key and window. A worker's *shard* holds versioned state rows; a *snapshot* is one published
batch of a job.
"""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Literal

import msgspec

StoreKind = Literal["key-value", "window", "global"]

NO_WINDOW = -1
"""`window_start` and `window_end` of a state row without a window; a window never starts before 0."""


class JobRef(msgspec.Struct, frozen=True):
    """Identifies one generation of a job."""

    pipeline: str
    job: str
    generation: int


class OfJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the values that belong to one generation of a job."""

    pipeline: str
    job: str
    generation: int

    @property
    def ref(self) -> JobRef:
        return JobRef(self.pipeline, self.job, self.generation)


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One store as a reader sees it: which job publishes it, and where in the job's state rows its values stand."""

    pipeline: str
    job: str
    name: str
    kind: StoreKind
    group_id: int
    """Number of the aggregation group, within the job."""
    store_column: int
    """Index of this store's value in the state row's JSON array of values."""
    key: str
    """The key's expression, for people."""
    window_ms: int | None = None
    grace_ms: int | None = None
    retention_ms: int | None = None
    """How long after its end a window is kept; None: for ever."""
    value: str = ""
    """The value's type as Spark SQL DDL, for people."""
    made: str = ""
    """The steps that make it, from its source on: a store whose steps change cannot go on with its state."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of a share of a pipeline's keys, and where its shard is."""

    pipeline: str
    job: str
    number: int
    location: str
    """SQLAlchemy URL of the shard. The ledger keeps it without its password; it never leaves the server."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port of the state server that answers for the worker; 0 if its shard is opened by whoever reads it."""
    server: str = ""
    """Address of the worker's shard at that server; empty without one."""
    unavailable: str = ""
    """Why its shard must not be read: found damaged, and not rebuilt yet. Empty if it may be."""


class JobInfo(OfJob, frozen=True, kw_only=True):
    """Describes a job: registered in the ledger before the job's first batch."""

    workers: tuple[WorkerInfo, ...]
    stores: tuple[StoreInfo, ...]
    topics: tuple[str, ...]
    """Topics the job reads."""
    operators: dict[str, str] = {}
    """The operators that keep a state for each key: name → what it is a state of."""
    functions: dict[str, str] = {}
    """The author's functions that state depends on: name → hash of the code."""
    description: str = ""
    """The topology as text."""
    drawing: str = ""
    """The topology as a Mermaid flowchart."""
    picture: str = ""
    """The topology as an SVG drawing."""


class Snapshot(OfJob, frozen=True, kw_only=True):
    """One published batch: the state of all workers of a job up to and including this batch."""

    batch: int
    published_at: datetime
    positions: dict[str, dict[str, int]]
    """topic → partition (as text) → next offset to read."""
    stream_times: dict[str, int]
    """`operator/topic/partition` → largest event time seen there, in ms."""
    counts: dict[str, int]
    """The batch's records: `read`, `applied`, `dead_letter/REASON`, `late/STORE`, `output/TOPIC`, `rows`."""
    run: str = ""
    """Name of the run that published it, as Airflow has it; empty for a run without a name."""

    @property
    def id(self) -> str:
        """`generation.batch`: the name under which a reader may ask for this snapshot."""
        return f"{self.generation}.{self.batch}"


class StateRow(msgspec.Struct, frozen=True, array_like=True):
    """One version of one state row, as it is written to and read from a shard."""

    group_id: int
    key: str
    window_start: int
    """Epoch ms; NO_WINDOW for a state row without a window."""
    window_end: int
    value: str | None
    """JSON array with one value for each store of the state row; None is a tombstone."""


def owner(key: str, workers: int) -> int:
    """The worker that owns `key`: the same as Spark SQL's `pmod(crc32(key), workers)`."""
    return zlib.crc32(key.encode()) % workers
