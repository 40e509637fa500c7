"""The generations of pipelines: their stores and workers.

Readers see a pipeline's current generation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, bindparam, delete, insert, select, true, update

from sluice.errors import NotFound, Refused, StateError
from sluice.state.database import as_json, database_errors, transaction
from sluice.state.ledger.audits import Audit, audit_row, split_checksums
from sluice.state.ledger.history import Batch, history_row
from sluice.state.ledger.leases import LeaseRow, require_epoch
from sluice.state.ledger.ledger_part import LedgerPart, decode_columns, json_texts
from sluice.state.ledger.ledger_tables import (
    AUDITS,
    GENERATIONS,
    HISTORY,
    LEASES,
    METADATA,
    PIPELINES,
    PLACEMENTS,
    PLACES,
    PLANS,
    QUARANTINE,
    SNAPSHOTS,
    SOURCES,
    STORES,
    TIMES,
    WORKERS,
    current,
    of_given_ref,
    of_ref,
    of_refs,
)
from sluice.state.ledger.notes import add_note
from sluice.state.ledger.placement import epochs_of, place_workers
from sluice.state.ledger.quarantine import Quarantine
from sluice.state.ledger.snapshots import snapshot_row
from sluice.state.ledger.sources import SourcePartition
from sluice.state.ledger.standbys import Standbys
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot, StoreInfo, WorkerInfo
from sluice.state.shard.passwords import without_password
from sluice.state.shard.shard import Checksums

# Every run and every test driver registers a generation, so these statements are built only once.
_REMOVE = {
    table: delete(table).where(of_given_ref(table)) for table in (GENERATIONS, STORES, WORKERS)
}
_JSON_COLUMNS = ("topics", "operators", "functions", "contracts", "outputs", "reads")
"""The columns of `GENERATIONS` with JSON."""
_RUNS_AGAIN = (
    update(PIPELINES)
    .where(
        PIPELINES.c.pipeline == bindparam("running"),
        PIPELINES.c.retired,
    )
    .values(retired=False)
)
_CURRENT_NUMBER = select(PIPELINES.c.generation).where(
    PIPELINES.c.pipeline == bindparam("pipeline")
)
_BY_GENERATION = (
    GENERATIONS,
    STORES,
    SNAPSHOTS,
    TIMES,
    AUDITS,
    HISTORY,
    PLANS,
    SOURCES,
    QUARANTINE,
)


class Generations(LedgerPart):
    """The generations of all pipelines."""

    def register(
        self,
        info: GenerationInfo,
        *,
        hidden: bool = False,
        epoch: int | None = None,
        lease: LeaseRow | None = None,
    ) -> None:
        """Insert or replace a generation's description.

        A pipeline's first generation becomes its current generation. A `hidden` generation only
        becomes current through `promote`, even if it is the first. The caller may pass the `epoch`
        of this generation's lease, or the `lease` of another generation. If the lease is no longer
        held, raises LeaseError and changes nothing.
        """
        with database_errors("Registering the generation"), transaction(self._engine) as connection:
            if epoch is not None:
                require_epoch(connection, info.ref, epoch)
            if lease is not None:
                require_epoch(connection, lease.ref, lease.epoch)
            if not hidden and _current_number(connection, info.pipeline) is None:
                connection.execute(insert(PIPELINES), msgspec.structs.asdict(info.ref))
            connection.execute(_RUNS_AGAIN, {"running": info.pipeline})
            _write_info(connection, info)

    def recover(
        self,
        info: GenerationInfo,
        snapshot: Snapshot,
        audit: Audit,
        times: Mapping[str, int],
        batch: Batch,
        sources: Iterable[SourcePartition],
        note: str,
    ) -> None:
        """Publish a snapshot that the ledger has lost, and make its generation current.

        Earlier snapshots of the generation that the ledger still has are kept. Raise LeaseError and
        change nothing unless the generation's lease is held in the audit's epoch.
        """
        ref = info.ref
        columns = msgspec.structs.asdict(ref)
        with database_errors("Recovering the generation"), transaction(self._engine) as connection:
            require_epoch(connection, ref, audit.epoch)
            _write_info(connection, info)
            for table in (PLANS, SOURCES, TIMES):
                connection.execute(delete(table).where(of_ref(table, ref)))
            connection.execute(insert(SNAPSHOTS), snapshot_row(snapshot))
            connection.execute(insert(AUDITS), audit_row(audit))
            connection.execute(insert(HISTORY), history_row(ref, batch))
            connection.execute(
                insert(TIMES), columns | {"batch": snapshot.batch, "times": as_json(dict(times))}
            )
            of_partitions = [columns | msgspec.structs.asdict(source) for source in sources]
            if of_partitions:
                connection.execute(insert(SOURCES), of_partitions)
            connection.execute(delete(PIPELINES).where(PIPELINES.c.pipeline == ref.pipeline))
            connection.execute(insert(PIPELINES), columns)
            add_note(connection, ref, audit.run, note)

    def promote(
        self, ref: GenerationRef, lease: LeaseRow | None = None, run: str = "", note: str = "", *,
        replayed: bool = False, places: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Make a generation the current generation. Raise NotFound if it was never registered.

        `lease` is the lease of the generation to be replaced, and `places` are the epochs of the
        workers' placements when the new generation's shards were filled. Change nothing and raise
        LeaseError if the lease is no longer held, or Refused if a placement has changed. A `note`
        is kept with the name of the run. `replayed` says whether a replay has built the generation.
        """
        registered = select(GENERATIONS).where(of_ref(GENERATIONS, ref))
        with database_errors("Promoting the generation"), transaction(self._engine) as connection:
            if lease is not None:
                require_epoch(connection, lease.ref, lease.epoch)
            if connection.execute(registered).first() is None:
                raise NotFound(
                    f"Pipeline {ref.pipeline!r} has no generation {ref.generation}.",
                    next_step=f"List its generations: sluice generations list {ref.pipeline}.",
                )
            # If a worker was moved after the shards were filled, its shard of the new generation is
            # still at the old server.
            if places is not None and epochs_of(connection, ref.pipeline) != places:
                raise Refused(
                    f"A worker of {ref.pipeline!r} was moved while generation {ref.generation} "
                    "was filled. The current generation is unchanged.",
                    next_step="Repeat the command.",
                )
            connection.execute(delete(PIPELINES).where(PIPELINES.c.pipeline == ref.pipeline))
            connection.execute(
                insert(PIPELINES), msgspec.structs.asdict(ref) | {"replayed": replayed}
            )
            if note:
                add_note(connection, ref, run, note)

    def inherit(
        self,
        new: GenerationRef,
        old: GenerationRef,
        batch: int,
        checksums: Sequence[Checksums],
        epoch: int,
        lease: LeaseRow,
        times: Mapping[str, int] | None = None,
        stream_times: Mapping[str, int] | None = None,
    ) -> None:
        """Give the registered generation `new` the newest snapshot and history of `old`.

        `batch` is the number of this snapshot.

        `checksums` are the checksums of the new generation's shards. `epoch` is the epoch of the
        new generation's lease, and `lease` is the lease of the old generation. `stream_times`
        replaces the snapshot's stream times, and `times` replaces the stream times from which the
        next batch continues. By default, both are inherited.
        """
        newest = {SNAPSHOTS: SNAPSHOTS.c.batch == batch, AUDITS: AUDITS.c.batch == batch}
        by_worker = {str(number): of_shard for number, of_shard in enumerate(checksums)}
        state_rows, states = split_checksums(by_worker)
        texts = {"checksums": as_json(state_rows), "states": as_json(states)}
        with database_errors("Continuing the generation"), transaction(self._engine) as connection:
            require_epoch(connection, new, epoch)
            require_epoch(connection, lease.ref, lease.epoch)
            for table in (SNAPSHOTS, AUDITS, TIMES, HISTORY, SOURCES):
                rows = select(table).where(of_ref(table, old), newest.get(table, true()))
                values: list[dict[str, Any]] = []
                for row in connection.execute(rows).mappings():
                    values.append(dict(row) | {"generation": new.generation})
                connection.execute(delete(table).where(of_ref(table, new)))
                if values:
                    connection.execute(insert(table), values)
            # The new generation has not run the batch, so its audit gets no durations of phases.
            audits = update(AUDITS).where(of_ref(AUDITS, new))
            connection.execute(audits.values(epoch=epoch, phases=as_json({}), **texts))
            if times is not None:
                newest_times = of_ref(TIMES, new), TIMES.c.batch == batch
                connection.execute(
                    update(TIMES).where(*newest_times).values(times=as_json(dict(times)))
                )
            if stream_times is not None:
                shown = update(SNAPSHOTS).where(of_ref(SNAPSHOTS, new))
                connection.execute(shown.values(stream_times=as_json(dict(stream_times))))

    def current_number(self, pipeline: str) -> int | None:
        """Return the number of a pipeline's current generation; None if it has never run."""
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return _current_number(connection, pipeline)

    def is_replayed(self, pipeline: str) -> bool:
        """Return whether a replay has built the current generation of a pipeline."""
        rows = self._read(select(PIPELINES.c.replayed).where(PIPELINES.c.pipeline == pipeline))
        return bool(rows and rows[0]["replayed"])

    def retire(self, pipeline: str) -> None:
        """Mark a pipeline as no longer run. Its next run removes the mark.

        Raise NotFound if it has never run.
        """
        retired = update(PIPELINES).where(PIPELINES.c.pipeline == pipeline).values(retired=True)
        with database_errors("Retiring the pipeline"), transaction(self._engine) as connection:
            if connection.execute(retired).rowcount == 0:
                raise unknown_pipeline(pipeline)

    def retired(self) -> frozenset[str]:
        """Return the pipelines that are no longer run."""
        rows = self._read(select(PIPELINES.c.pipeline).where(PIPELINES.c.retired))
        return frozenset(row["pipeline"] for row in rows)

    def files(self) -> dict[str, str]:
        """Return the path of each pipeline's file in its newest run.

        Leave out retired pipelines, and pipelines whose file is unknown.
        """
        columns = GENERATIONS.c.pipeline, GENERATIONS.c.file
        statement = current(GENERATIONS).with_only_columns(*columns).where(~PIPELINES.c.retired)
        files: dict[str, str] = {}
        for row in self._read(statement):
            if row["file"]:
                files[row["pipeline"]] = row["file"]
        return files

    def numbers(self, pipeline: str) -> list[int]:
        """Return the numbers of a pipeline's registered generations, sorted."""
        statement = select(GENERATIONS.c.generation).where(GENERATIONS.c.pipeline == pipeline)
        return sorted(row["generation"] for row in self._read(statement))

    def new(self, pipeline: str, above: int = 0) -> GenerationRef:
        """Return a new generation, with a number above `above` that has never been used.

        A driver that has lost its lease may still write to a removed generation, so the number of a
        removed generation is not used again.
        """
        newest = above
        # The table of leases also has the generations that were removed.
        for table in (GENERATIONS, LEASES, SOURCES):
            for row in self._read(select(table.c.generation).where(table.c.pipeline == pipeline)):
                newest = max(newest, row["generation"])
        return GenerationRef(pipeline, newest + 1)

    def forget(self, ref: GenerationRef, lease: LeaseRow) -> None:
        """Remove a generation from the ledger, and end its lease.

        The generation's workers stay in the ledger, because their shards still exist.

        `lease` is the current generation's lease. Raise LeaseError if it is no longer held, and
        StateError if `ref` is the current generation.
        """
        with (
            database_errors("Removing the generation", seconds=None),
            transaction(self._engine) as connection,
        ):
            require_epoch(connection, lease.ref, lease.epoch)
            if _current_number(connection, ref.pipeline) == ref.generation:
                raise StateError(
                    f"Generation {ref.generation} of {ref.pipeline!r} is the current one, so it "
                    "cannot be removed.",
                    next_step="Name another generation. To list them: "
                    f"sluice generations list {ref.pipeline}.",
                )
            for table in _BY_GENERATION:
                connection.execute(delete(table).where(of_ref(table, ref)))
            # The lease's row stays, so that no other generation gets this number.
            connection.execute(update(LEASES).where(of_ref(LEASES, ref)).values(held=False))

    def forget_pipeline(self, lease: LeaseRow) -> None:
        """Remove a pipeline from the ledger, except its workers, placements and leases.

        The workers stay until `forget_workers`, because their shards still exist. Their placements
        stay, too, because a state server deletes only the shards that the ledger places there. The
        leases stay, so that a driver that has lost one of them cannot write for a later pipeline of
        this name.

        `lease` is the current generation's lease. Raise LeaseError, and change nothing, if it is no
        longer held.
        """
        pipeline = lease.ref.pipeline
        with (
            database_errors("Removing the pipeline", seconds=None),
            transaction(self._engine) as connection,
        ):
            require_epoch(connection, lease.ref, lease.epoch)
            for table in METADATA.sorted_tables:
                if "pipeline" in table.c and table not in (WORKERS, LEASES, PLACEMENTS, PLACES):
                    connection.execute(delete(table).where(table.c.pipeline == pipeline))
            _forget_places(connection, pipeline)

    def forgotten(self, pipeline: str) -> dict[GenerationRef, list[WorkerInfo]]:
        """Return forgotten generation → its workers, whose shards have not been removed yet."""
        registered = select(GENERATIONS.c.generation).where(GENERATIONS.c.pipeline == pipeline)
        generation = WORKERS.c.generation
        of_pipeline = WORKERS.c.pipeline == pipeline
        rows = self._read(
            select(generation).distinct().where(of_pipeline, generation.not_in(registered))
        )
        numbers = sorted(row["generation"] for row in rows)
        return self._workers([GenerationRef(pipeline, number) for number in numbers])

    def forget_workers(self, ref: GenerationRef) -> None:
        """Remove the workers of a forgotten generation, after their shards have been removed."""
        with (
            database_errors("Removing the generation", seconds=None),
            transaction(self._engine) as connection,
        ):
            connection.execute(delete(WORKERS).where(of_ref(WORKERS, ref)))
            _forget_places(connection, ref.pipeline)

    def pipelines(self) -> list[str]:
        """Return the names of all pipelines with a current generation, sorted."""
        statement = select(PIPELINES.c.pipeline).order_by(PIPELINES.c.pipeline)
        return [row["pipeline"] for row in self._read(statement)]

    def current(self, pipeline: str) -> GenerationInfo | None:
        """Return the current generation of a pipeline, or None if the pipeline never ran."""
        rows = self._read(current(GENERATIONS).where(GENERATIONS.c.pipeline == pipeline))
        return next(iter(self._infos(rows)), None)

    def all_current(self) -> list[GenerationInfo]:
        """Return the current generations of all pipelines, sorted by pipeline.

        The number of SQL statements does not grow with the number of pipelines.
        """
        return self._infos(self._read(current(GENERATIONS).order_by(GENERATIONS.c.pipeline)))

    def of_all_pipelines(self) -> list[GenerationInfo]:
        """Return the generations of all pipelines with a current generation, sorted."""
        has_current = GENERATIONS.c.pipeline.in_(select(PIPELINES.c.pipeline))
        statement = (
            select(GENERATIONS)
            .where(has_current)
            .order_by(GENERATIONS.c.pipeline, GENERATIONS.c.generation)
        )
        return self._infos(self._read(statement))

    def all(self, pipeline: str) -> list[GenerationInfo]:
        """Return all generations of a pipeline, sorted by number."""
        statement = select(GENERATIONS).where(GENERATIONS.c.pipeline == pipeline)
        return self._infos(self._read(statement.order_by(GENERATIONS.c.generation)))

    def get(self, ref: GenerationRef) -> GenerationInfo | None:
        rows = self._read(select(GENERATIONS).where(of_ref(GENERATIONS, ref)))
        return next(iter(self._infos(rows)), None)

    def stores(self, pipeline: str | None = None) -> list[StoreInfo]:
        """Return the stores of current generations, sorted by pipeline and name."""
        statement = current(STORES).order_by(STORES.c.pipeline, STORES.c.name)
        if pipeline is not None:
            statement = statement.where(STORES.c.pipeline == pipeline)
        return [StoreInfo(**_without_generation(row)) for row in self._read(statement)]

    def workers(self, pipeline: str) -> tuple[WorkerInfo, ...]:
        """Return the workers of a pipeline's current generation, sorted by number."""
        current = self.current(pipeline)
        return () if current is None else current.workers

    def _infos(self, rows: Sequence[RowMapping]) -> list[GenerationInfo]:
        """Return the generations of these rows of `GENERATIONS`."""
        refs = [GenerationRef(row["pipeline"], row["generation"]) for row in rows]
        if not refs:
            return []
        workers = self._workers(refs)
        stores: dict[GenerationRef, list[StoreInfo]] = defaultdict(list)
        for store in self._read(
            select(STORES).where(of_refs(STORES, refs)).order_by(STORES.c.name)
        ):
            ref = GenerationRef(store["pipeline"], store["generation"])
            stores[ref].append(StoreInfo(**_without_generation(store)))
        infos = []
        for ref, row in zip(refs, rows, strict=True):
            decoded = decode_columns(row, _JSON_COLUMNS)
            values: dict[str, Any] = {
                **row,
                **decoded,
                "topics": tuple(decoded["topics"]),
                "stores": tuple(stores[ref]),
                "workers": tuple(_with_lost_workers(ref, workers[ref], row["workers"])),
            }
            infos.append(GenerationInfo(**values))
        return infos

    def _workers(self, refs: Sequence[GenerationRef]) -> dict[GenerationRef, list[WorkerInfo]]:
        """Return the workers of each generation, sorted by number."""
        statement = select(WORKERS).where(of_refs(WORKERS, refs)).order_by(WORKERS.c.number)
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            placed = place_workers(connection, connection.execute(statement).mappings().all())
        pipelines = sorted({ref.pipeline for ref in refs})
        reasons = Quarantine(self._engine).reasons(refs)
        standbys = Standbys(self._engine).of_pipelines(pipelines)
        workers: dict[GenerationRef, list[WorkerInfo]] = {ref: [] for ref in refs}
        for worker in placed:
            ref = worker.ref
            reason = reasons.get((ref, worker.number), "")
            standby = standbys.get((worker.pipeline, worker.number))
            info = None if standby is None else standby.info(ref)
            workers[ref].append(msgspec.structs.replace(worker, unavailable=reason, standby=info))
        return workers


def _forget_places(connection: Connection, pipeline: str) -> None:
    """Remove the placements of a pipeline that has neither workers nor a generation."""
    for table in (WORKERS, GENERATIONS):
        if connection.execute(select(table).where(table.c.pipeline == pipeline)).first():
            return
    for table in (PLACEMENTS, PLACES):
        connection.execute(delete(table).where(table.c.pipeline == pipeline))


def _write_info(connection: Connection, info: GenerationInfo) -> None:
    """Insert or replace a generation's description, within a transaction."""
    ref = msgspec.structs.asdict(info.ref)
    row: dict[str, Any] = {
        "description": info.description,
        "picture": info.picture,
        "file": info.file,
        "workers": len(info.workers),
        **json_texts(info, _JSON_COLUMNS),
    }
    rows: dict[Any, Iterable[dict[str, Any]]] = {
        GENERATIONS: [row],
        STORES: map(msgspec.structs.asdict, info.stores),
        WORKERS: map(_worker_row, info.workers),
    }
    for table, table_rows in rows.items():
        # Every run registers its generation, so the rows may already exist.
        connection.execute(_REMOVE[table], ref)
        values = [row | ref for row in table_rows]
        if values:
            connection.execute(insert(table), values)


def _with_lost_workers(
    ref: GenerationRef,
    workers: Sequence[WorkerInfo],
    number: int,
) -> list[WorkerInfo]:
    """Return the workers of a generation.

    A worker that is missing in the ledger is unavailable, and has no address.
    """
    lost = (
        "The ledger has lost the worker's address. The next run of the pipeline registers it again."
    )
    missing = {*range(number)} - {worker.number for worker in workers}
    known_and_lost = [*workers]
    for number_lost in missing:
        known_and_lost.append(
            WorkerInfo(
                **msgspec.structs.asdict(ref), number=number_lost, location="", unavailable=lost
            )
        )
    return sorted(known_and_lost, key=lambda worker: worker.number)


def _worker_row(worker: WorkerInfo) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(worker).items():
        if name in WORKERS.c:
            row[name] = value
    row["location"] = without_password(worker.location)
    return row


def _current_number(connection: Connection, pipeline: str) -> int | None:
    return connection.execute(_CURRENT_NUMBER, {"pipeline": pipeline}).scalar()


def _without_generation(row: RowMapping) -> dict[str, Any]:
    values = dict(row)
    del values["generation"]
    return values


def unknown_pipeline(name: str) -> NotFound:
    """Return the error for a pipeline that has never run with this ledger."""
    return NotFound(
        f"The ledger has no pipeline {name!r}.",
        next_step="Look for its name in: sluice status. If it has never run, run it first. "
        "SLUICE_LEDGER names the ledger.",
    )
