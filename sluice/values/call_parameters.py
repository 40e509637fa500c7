"""The parameters with which a step calls an author's function or queries a database."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class FunctionBatch:
    """The number and the form of the values that one call of a function takes."""

    size: int
    """The largest number of values."""
    table: str | None = None
    """The Spark SQL type of the values if the function takes them as a `pyarrow.RecordBatch`; None
    for a list."""


@dataclass(frozen=True)
class CallPolicy:
    """How a step calls an author's function or queries a database."""

    concurrency: int
    """The largest number of calls at the same time, per worker."""
    timeout_ms: int
    """How long to wait for one call."""
    retries: int
    """How often a failed call is repeated."""
    backoff_ms: int
    """How long to wait before the first repetition. Each later wait is twice as long, up to a
    minute."""
    keep_ms: int | None
    """How long an answer stays recorded after its batch; None if answers are not recorded."""


@dataclass(frozen=True)
class LookedUpTable:
    """A database table in which records are looked up."""

    table: str
    connection: str
    column: str
    """The column that is compared with the records' keys."""
    columns: tuple[str, ...]
    """The columns that are read."""
    staleness_ms: int
    """How old a cached row may be."""
    cached_rows: int
    """The largest number of cached rows, per process."""


@dataclass(frozen=True)
class SharedStore:
    """A store of another pipeline in which records are looked up."""

    pipeline: str
    store: str

    def __str__(self) -> str:
        return f"{self.store} of {self.pipeline}"

    @property
    def answers(self) -> str:
        """The name under which the values are recorded, unless the author sets another one."""
        return f"{self.pipeline}_{self.store}"


class SharedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A published snapshot of another pipeline's store, and where tasks read it."""

    id: str
    """The snapshot's id, such as `1.42`."""
    group_id: int = 0
    store_column: int = 0
    batch: int = 0
    with_headers: bool = False
    """Whether the store keeps the headers of records."""
    is_global: bool = False
    """Whether every worker has all rows."""
    workers: tuple[tuple[str, ...], ...] = ()
    """For each worker, the addresses of its shard and of the shard's standby, without passwords."""
    rows: dict[str, str] | None = None
    """Used in a test instead of the shards: key → value as JSON."""
