"""The snapshots of other pipelines at which a batch reads their stores.

The plan of a batch names the snapshots, and retention keeps them until the batch is published. So
all records of a batch read the same snapshot, even if the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import structlog

from sluice.errors import EngineError, NotFound
from sluice.plan import Job
from sluice.query.former_names import renamed_pipeline, renamed_store
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot, StoreInfo, WorkerInfo
from sluice.state.shard.passwords import without_password
from sluice.values.call_parameters import SharedSnapshot, SharedStore
from sluice.values.read_types import differences

log = structlog.get_logger()


class Published(NamedTuple):
    """A snapshot of another pipeline, and the generation that has published it."""

    snapshot: Snapshot
    generation: GenerationInfo


def newest_snapshots(ledger: Ledger, job: Job) -> dict[str, str]:
    """Return other pipeline → its newest snapshot, for the plan of a batch.

    Raise EngineError if a pipeline has no snapshot, or if a store's type is not readable as the
    type that the job declares.
    """
    newest: dict[str, Published] = {}
    for store, kind in job.shared_stores:
        if store.pipeline not in newest:
            newest[store.pipeline] = _newest(ledger, store)
        published = newest[store.pipeline]
        _require_readable(_store_info(ledger, store, published), store, kind, job.pipeline.name)
    return {pipeline: published.snapshot.id for pipeline, published in newest.items()}


def shared_snapshots(
    ledger: Ledger, job: Job, planned: Mapping[str, str]
) -> dict[str, SharedSnapshot]:
    """Return where tasks read each store, at the snapshots of the batch's plan.

    If a snapshot is gone, the newest one replaces it. This is safe: the values that an earlier
    attempt has read are recorded, and the batch writes nothing before all of them are recorded.
    """
    read: dict[str, Published] = {}
    shared: dict[str, SharedSnapshot] = {}
    for store, kind in job.shared_stores:
        if store.pipeline not in read:
            read[store.pipeline] = _planned(ledger, store, planned.get(store.pipeline, ""))
        snapshot, info = read[store.pipeline]
        described = _store_info(ledger, store, read[store.pipeline])
        _require_readable(described, store, kind, job.pipeline.name)
        shared[str(store)] = SharedSnapshot(
            id=snapshot.id,
            group_id=described.group_id,
            store_column=described.store_column,
            batch=snapshot.batch,
            with_headers=described.keeps_headers,
            is_global=described.kind == "global",
            workers=tuple(_addresses(worker, snapshot.batch) for worker in info.workers),
        )
    return shared


def _addresses(worker: WorkerInfo, batch: int) -> tuple[str, ...]:
    addresses: list[str] = []
    if not worker.unavailable:
        addresses.append(worker.server or without_password(worker.location))
    standby = worker.at_standby(batch)
    if standby is not None:
        addresses.append(standby.server)
    return tuple(addresses)


def _planned(ledger: Ledger, store: SharedStore, snapshot_id: str) -> Published:
    generation, _, batch = snapshot_id.partition(".")
    if batch:
        ref = GenerationRef(store.pipeline, int(generation))
        snapshot, info = ledger.snapshots.get(ref, int(batch)), ledger.generations.get(ref)
        if snapshot is not None and info is not None:
            return Published(snapshot, info)
        log.warning(
            "the planned snapshot is gone; the newest is read",
            pipeline=store.pipeline,
            snapshot=snapshot_id,
        )
    return _newest(ledger, store)


def _newest(ledger: Ledger, store: SharedStore) -> Published:
    snapshot = ledger.snapshots.latest(store.pipeline)
    if snapshot is not None:
        info = ledger.generations.get(snapshot.ref)
        if info is None:
            raise EngineError(
                f"The pipeline {store.pipeline!r} has just switched to another generation.",
                next_step="Run again.",
            )
        return Published(snapshot, info)
    moved = renamed_pipeline(ledger.renames, store.pipeline)
    if moved is not None:
        raise EngineError(moved.detail, next_step=_other_name(store))
    raise EngineError(
        f"The pipeline {store.pipeline!r}, whose store {store.store!r} is read, has published no "
        "snapshot.",
        next_step=f"Run it first: sluice run {store.pipeline}. Or correct store_of.",
    )


def _store_info(ledger: Ledger, store: SharedStore, published: Published) -> StoreInfo:
    snapshot, info = published
    for described in info.stores:
        if described.name == store.store:
            return described
    moved: NotFound | None = renamed_store(ledger.renames, store.store, store.pipeline)
    if moved is not None:
        raise EngineError(moved.detail, next_step=_other_name(store))
    raise EngineError(
        f"The pipeline {store.pipeline!r} has no store {store.store!r} in snapshot {snapshot.id}.",
        next_step=f"Its stores: {', '.join(_names(info))}.",
    )


def _other_name(store: SharedStore) -> str:
    # If `lookup_in` has no `answers=`, the name under which values are recorded depends on the
    # names in `store_of`.
    return (
        f"Change store_of({store.pipeline!r}, {store.store!r}, ...) to this name. If lookup_in has "
        f"no answers=, also add answers={store.answers!r}: the values are recorded under this "
        "name."
    )


def _names(info: GenerationInfo) -> list[str]:
    return sorted(described.name for described in info.stores)


def _require_readable(described: StoreInfo, store: SharedStore, kind: str, reader: str) -> None:
    """Raise EngineError if a store lacks something that a pipeline reads from it."""
    if described.windows is not None:
        raise EngineError(
            f"The store {store} has windows, but lookup_in reads a single value per key.",
            next_step="Let the pipeline of the store keep the newest window in a table, or write "
            "the store to a topic.",
        )
    lacking = [*differences(described.value, kind)] if described.value else []
    if lacking:
        raise EngineError(
            f"Fields of the store {store} that {reader} reads have changed: {', '.join(lacking)}.",
            next_step=f"Set value= in store_of to the published type, {described.value}, or undo "
            f"the change in {store.pipeline}.",
        )
