"""Publishes state of a small pipeline without the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import structs
from sqlalchemy import insert

from sluice.state.ledger.audits import Audit, SourceAudit, audit_row
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import AUDITS
from sluice.state.model import (
    NO_WINDOW,
    GenerationInfo,
    GenerationRef,
    Snapshot,
    StoreInfo,
    WorkerInfo,
)
from sluice.state.remote.opening import create_shard
from sluice.state.shard.addresses import location
from sluice.state.shard.row_tuples import Row
from sluice.values.key_owners import owner
from tests.support.state_rows import write_rows

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def ledger_url(database: str) -> str:
    return f"{database}/ledger.sqlite" if database.startswith("sqlite") else database


def make_snapshot(batch: int, **changed: Any) -> Snapshot:
    values: dict[str, Any] = {
        "pipeline": "orders",
        "generation": 1,
        "batch": batch,
        "published_at": NOON,
        "positions": {"orders": {"0": 10 * (batch + 1), "1": 5}},
        "stream_times": {"count/orders/0": 1_670_230_527_000},
        "counts": {"read": 10, "applied": 10},
    }
    return Snapshot(**(values | changed))


def make_audit(batch: int, epoch: int, *sources: SourceAudit) -> Audit:
    return Audit(
        pipeline="orders", generation=1, batch=batch, run="r", epoch=epoch, sources=sources,
        outputs={"out": 3}, checksums={"0": "00ff"},
    )  # fmt: skip


_OPENED: list[Ledger] = []
"""The ledgers of all `States` since `close_ledgers` was last called."""


def close_ledgers() -> None:
    """Close the connections that `States` have opened; a ledger that is used again opens new ones."""
    while _OPENED:
        _OPENED.pop().close()


@dataclass
class States:
    """A pipeline with a store `totals` (group 0, column 0), `revenue` (group 0, column 1) and `windows` (group 1)."""

    database: str
    workers: int = 2
    pipeline: str = "orders"
    generation: int = 1
    stores: tuple[StoreInfo, ...] = ()
    ledger_at: str = ""
    """The ledger's address; by default in the same database or folder."""
    batch: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger.open(self.ledger_at or ledger_url(self.database))
        _OPENED.append(self.ledger)
        self.stores = self.stores or (
            self.store("revenue", store_column=1),
            self.store("totals"),
            self.store("windows", "window", group_id=1, window_ms=15_000, grace_ms=15_000),
        )
        self.ledger.generations.register(self.info())
        for place in self.written_at:
            create_shard(place).close()

    def store(self, name: str, kind: str = "key-value", **changed: Any) -> StoreInfo:
        values: dict[str, Any] = {
            "group_id": 0,
            "store_column": 0,
            "key": "locationId",
            "value": "BIGINT",
        } | changed
        return StoreInfo(pipeline=self.pipeline, name=name, kind=kind, **values)  # type: ignore[arg-type]

    def info(self, **changed: Any) -> GenerationInfo:
        workers = tuple(
            WorkerInfo(**structs.asdict(self.ref), number=number, location=self.location(number))
            for number in range(self.workers)
        )
        values: dict[str, Any] = {"topics": ("orders",), "description": "orders → totals"}
        return GenerationInfo(
            pipeline=self.pipeline,
            generation=self.generation,
            workers=workers,
            stores=self.stores,
            **(values | changed),
        )

    @property
    def ref(self) -> GenerationRef:
        return GenerationRef(self.pipeline, self.generation)

    def location(self, worker: int) -> str:
        return location(self.database, self.ref, worker)

    @property
    def written_at(self) -> tuple[str, ...]:
        """The addresses to which a run writes the shards: their locations, or state servers."""
        locations = [self.location(number) for number in range(self.workers)]
        return self.ledger.placements.written_at(self.ref, locations)

    def publish(
        self, values: Mapping[str, str | None] | Iterable[Row] = (), **snapshot: Any
    ) -> Snapshot:
        """Publish a batch of rows, or of values of group 0 by key.

        Rows go to their key's owner, global ones to all.
        """
        self.batch += 1
        if isinstance(values, Mapping):
            values = [(0, key, NO_WINDOW, NO_WINDOW, value) for key, value in values.items()]
        rows = list(values)
        everywhere = {store.group_id for store in self.stores if store.kind == "global"}
        checksums = {}
        for number, place in enumerate(self.written_at):
            own = [
                row for row in rows if row[0] in everywhere or owner(row[1], self.workers) == number
            ]
            with create_shard(place) as shard:
                write_rows(shard, self.batch, own)
                checksums[str(number)] = shard.checksums(self.batch)
        published = make_snapshot(
            self.batch, pipeline=self.pipeline, generation=self.generation, **snapshot
        )
        assert self.ledger.snapshots.publish(published)
        audit = Audit(
            **structs.asdict(self.ref), batch=self.batch, run="", epoch=0, sources=(), outputs={},
            checksums={worker: sums.state_rows for worker, sums in checksums.items()},
            states={worker: sums.states for worker, sums in checksums.items()},
        )  # fmt: skip
        with self.ledger.engine.begin() as connection:
            connection.execute(insert(AUDITS), audit_row(audit))
        return published
