"""Values that the ledger stores and readers see.

An aggregation group is all stores with the same filter, key and window. A *state row* holds the
group's values for one key and window. A worker's *shard* holds versioned state rows; a *snapshot*
is a pipeline's published batch.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from sluice.values.kept_headers import KEEPS_HEADERS

StoreKind = Literal["key-value", "window", "global"]

NO_WINDOW = -1
"""`window_start` and `window_end` of a state row without a window. No window starts at this time:
windows of a time zone, which can start before 0, start at whole seconds."""

EntryId: TypeAlias = tuple[str, int, int]
"""The fields that identify a row of a store: key, window start, window end.

The window's end is needed, too: a session whose result has been sent can still be extended, and a
store may keep a row for each of the session's results. These rows have the same key and start, but
different ends.
"""


class GenerationRef(msgspec.Struct, frozen=True):
    """Identifies one generation of a pipeline's state."""

    pipeline: str
    generation: int


class OfGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of values that belong to one generation of a pipeline's state."""

    pipeline: str
    generation: int

    @property
    def ref(self) -> GenerationRef:
        return GenerationRef(self.pipeline, self.generation)


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A store as readers see it: its pipeline, and where its values are in the state rows."""

    pipeline: str
    name: str
    kind: StoreKind
    group_id: int
    """Number of the aggregation group, within the pipeline."""
    store_column: int
    """Index of this store's value in the state row's JSON array of values."""
    key: str
    """The key's expression, for display."""
    windows: str | None = None
    """The definition of the windows, for display; None for a store without windows."""
    window_ms: int | None = None
    """The size of the windows; None if windows differ in size, as sessions and days of a time zone
    do."""
    grace_ms: int | None = None
    retention_ms: int | None = None
    """How long a window is kept after its end; None means forever."""
    value: str = ""
    """The value's type as Spark SQL DDL, for display."""
    made: str = ""
    """The steps that compute the store, from its source on. If they change, the store cannot keep
    its state."""

    @property
    def keeps_headers(self) -> bool:
        """Whether the rows of the store keep the headers of records."""
        return self.made.endswith(KEEPS_HEADERS)


class StandbyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a worker's shard at a second state server, complete up to a batch."""

    host: str
    port: int
    server: str
    """Address of the copy at its state server."""
    batch: int = -1
    """The newest batch in the copy; -1 without a complete copy of this generation."""


class WorkerInfo(OfGeneration, frozen=True, kw_only=True):
    """A worker, which owns a share of a pipeline's keys, and the address of its shard."""

    number: int
    location: str
    """SQLAlchemy URL of the shard. The ledger stores it without a password, and no API response
    contains it."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port of the worker's state server; 0 if readers open the shard themselves."""
    server: str = ""
    """Address of the worker's shard at its state server; empty without a state server."""
    unavailable: str = ""
    """Why the shard must not be read until it is rebuilt; empty if it may be read."""
    standby: StandbyInfo | None = None
    """The worker's standby; None if the worker has no standby."""

    def at_standby(self, as_of: int) -> WorkerInfo | None:
        """Return the worker with the address of its standby's copy.

        Return None if the copy lacks batch `as_of`.
        """
        standby = self.standby
        if standby is None or standby.batch < as_of:
            return None
        return msgspec.structs.replace(
            self,
            location=standby.server,
            host=standby.host,
            port=standby.port,
            server=standby.server,
            # A quarantine applies to the worker's own shard, not to the copy.
            unavailable="",
            standby=None,
        )


class GenerationInfo(OfGeneration, frozen=True, kw_only=True):
    """The description of a generation, registered before the generation's first batch."""

    workers: tuple[WorkerInfo, ...]
    stores: tuple[StoreInfo, ...]
    topics: tuple[str, ...]
    """The patterns of topics, then the topics that the pipeline reads. The topics that match a
    pattern are in the order in which runs have found them."""
    operators: dict[str, str] = {}
    """The operators that keep a state per key: name → description of the state."""
    functions: dict[str, str] = {}
    """The author's functions on which state depends: name → hash of the code."""
    contracts: dict[str, dict[str, str]] = {}
    """Topic or pattern → the fields of the contract of its values, with their types."""
    outputs: dict[str, dict[str, str]] = {}
    """Topic or table that the pipeline writes → the fields of the values, with their types, and
    `(key)` and `(format)` of the records of a topic."""
    reads: dict[str, dict[str, list[str]]] = {}
    """Another pipeline → the stores that this pipeline reads from it, each with the types in which
    the store is read."""
    description: str = ""
    """The topology as text."""
    picture: str = ""
    """The topology as an SVG drawing."""
    file: str = ""
    """The path of the pipeline's file in the newest run; empty if it is unknown."""

    @property
    def stores_by_name(self) -> dict[str, StoreInfo]:
        return {store.name: store for store in self.stores}


class Snapshot(OfGeneration, frozen=True, kw_only=True):
    """A published batch: the state of all workers of a pipeline up to and including this batch."""

    batch: int
    published_at: datetime
    positions: dict[str, dict[str, int]]
    """Topic → partition as text → next offset to read."""
    stream_times: dict[str, int]
    """`OPERATOR/TOPIC/PARTITION` → the largest event time in ms."""
    counts: dict[str, int]
    """Name of a count → number of the batch's records, such as `read`, `applied` or
    `late/STORE`; also `rows`, the versions written to shards. docs/counts.md lists all
    names."""
    run: str = ""
    """Airflow's name of the run that published the snapshot; empty for a run without a name."""
    due: int | None = None
    """Epoch ms from which a batch has work to do even without records; None if there is no such
    time.

    Such a batch fires wall-clock timers, deletes rows that expire by the clock, or sends results
    because stream time advances with the clock.
    """

    @property
    def outputs(self) -> frozenset[str]:
        """The topics and tables to which the batch writes, even if it wrote no record to them."""
        outputs: set[str] = set()
        for name in self.counts:
            if name.startswith("output/"):
                outputs.add(name.removeprefix("output/"))
        return frozenset(outputs)

    @property
    def id(self) -> str:
        """`generation.batch`: the id by which readers request this snapshot."""
        return f"{self.generation}.{self.batch}"


class StateRow(msgspec.Struct, frozen=True, array_like=True):
    """One version of a state row."""

    group_id: int
    key: str
    window_start: int
    """Epoch ms; NO_WINDOW for a state row without a window."""
    window_end: int
    value: str | None
    """JSON array with one value per store of the aggregation group; None is a tombstone."""

    @property
    def entry_id(self) -> EntryId:
        return self.key, self.window_start, self.window_end
