"""What jobs say of themselves: their stores and workers, by generation, and which generation readers see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, Table, delete, insert, select

from sluice.errors import NotFound, StateError
from sluice.state.database import Kept, as_json, speaking_to, writing
from sluice.state.ledger.leases import LeaseRow, require_epoch
from sluice.state.ledger.notes import add_note
from sluice.state.ledger.placement import place_workers
from sluice.state.ledger.quarantine import Quarantine
from sluice.state.ledger.tables import (
    AUDITS,
    CUTS,
    FAILURES,
    GENERATIONS,
    HISTORY,
    JOBS,
    LEASES,
    NOTES,
    QUARANTINE,
    SOURCES,
    STORES,
    TIMES,
    WORKERS,
    current,
    is_of,
)
from sluice.state.model import JobInfo, StoreInfo, WorkerInfo
from sluice.state.shard.passwords import without_password

_BY_GENERATION = (GENERATIONS, STORES, WORKERS, CUTS, TIMES, AUDITS, HISTORY, SOURCES, QUARANTINE, LEASES)


class Jobs(Kept):
    """The jobs of a ledger."""

    def register(self, job: JobInfo, *, hidden: bool = False) -> None:
        """Write or renew what a job says of itself. Its first generation is the one readers see, until `promote`.

        A `hidden` one nobody sees before `promote`, even if it is the first.
        """
        where = {"pipeline": job.pipeline, "job": job.job, "generation": job.generation}
        texts = {name: getattr(job, name) for name in ("description", "drawing", "picture")}
        texts |= {name: as_json(getattr(job, name)) for name in ("topics", "operators", "functions")}
        with speaking_to("Registering the job"), writing(self._engine) as connection:
            if not hidden and _seen_generation(connection, job.pipeline, job.job) is None:
                connection.execute(insert(JOBS), where)
            _replace(connection, GENERATIONS, where, [texts])
            _replace(connection, STORES, where, map(msgspec.structs.asdict, job.stores))
            _replace(connection, WORKERS, where, map(_worker_row, job.workers))

    def promote(
        self, pipeline: str, job: str, generation: int, lease: LeaseRow | None = None, run: str = "", note: str = ""
    ) -> None:
        """Let readers see another generation of a job from now on; NotFound if it was never registered.

        LeaseError, and nothing is changed, if `lease`, of the generation that is replaced, is not held any more. A
        `note` about it is kept with the run's name.
        """
        known = select(GENERATIONS).where(is_of(GENERATIONS, pipeline, job, generation))
        with speaking_to("Promoting the generation"), writing(self._engine) as connection:
            if lease is not None:
                require_epoch(connection, pipeline, job, lease.generation, lease.epoch)
            if connection.execute(known).first() is None:
                raise NotFound(f"Job {job!r} of pipeline {pipeline!r} has no generation {generation}.")
            _replace(connection, JOBS, {"pipeline": pipeline, "job": job}, [{"generation": generation}])
            if note:
                add_note(connection, pipeline, job, generation, run, note)

    def generation(self, pipeline: str, job: str) -> int | None:
        """The generation of a job that readers see; None if it never ran."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return _seen_generation(connection, pipeline, job)

    def generations(self, pipeline: str, job: str) -> list[int]:
        """The generations of a job that have been registered, whether readers see them or not."""
        statement = select(GENERATIONS.c.generation).where(is_of(GENERATIONS, pipeline, job))
        return sorted(row["generation"] for row in self._read(statement))

    def forget_generation(self, pipeline: str, job: str, generation: int) -> None:
        """Remove all that is known of a generation that readers do not see; StateError if they do."""
        with speaking_to("Removing the generation"), writing(self._engine) as connection:
            if _seen_generation(connection, pipeline, job) == generation:
                raise StateError(f"Readers see generation {generation} of job {job!r}.")
            for table in _BY_GENERATION:
                connection.execute(delete(table).where(is_of(table, pipeline, job, generation)))

    def forget_job(self, pipeline: str, job: str) -> None:
        """Remove all that is known of a job, in all its generations."""
        with speaking_to("Removing the job"), writing(self._engine) as connection:
            for table in (JOBS, FAILURES, NOTES, *_BY_GENERATION):
                connection.execute(delete(table).where(is_of(table, pipeline, job)))

    def pipelines(self) -> list[str]:
        """Names of all pipelines with a registered job, sorted."""
        return [row["pipeline"] for row in self._read(select(JOBS.c.pipeline).distinct().order_by(JOBS.c.pipeline))]

    def jobs(self, pipeline: str) -> list[JobInfo]:
        """The pipeline's jobs, sorted by name, in the generations readers see."""
        rows = self._read(current(GENERATIONS).where(GENERATIONS.c.pipeline == pipeline).order_by(GENERATIONS.c.job))
        return [self._job(row) for row in rows]

    def all_jobs(self, pipeline: str) -> list[JobInfo]:
        """The pipeline's jobs in all their generations, sorted by name and generation."""
        mine = select(GENERATIONS).where(GENERATIONS.c.pipeline == pipeline)
        return [self._job(row) for row in self._read(mine.order_by(GENERATIONS.c.job, GENERATIONS.c.generation))]

    def job(self, pipeline: str, job: str, generation: int) -> JobInfo | None:
        """What one generation of a job said of itself."""
        rows = self._read(select(GENERATIONS).where(is_of(GENERATIONS, pipeline, job, generation)))
        return self._job(rows[0]) if rows else None

    def stores(self, pipeline: str | None = None) -> list[StoreInfo]:
        """The stores of one pipeline, or of all, in the generations readers see, sorted by pipeline and name."""
        statement = current(STORES).order_by(STORES.c.pipeline, STORES.c.name)
        if pipeline is not None:
            statement = statement.where(STORES.c.pipeline == pipeline)
        return [StoreInfo(**_without_generation(row)) for row in self._read(statement)]

    def workers(self, pipeline: str, job: str) -> list[WorkerInfo]:
        """The workers of the generation readers see, sorted by number."""
        generation = self.generation(pipeline, job)
        return [] if generation is None else self._workers(pipeline, job, generation)

    def _job(self, row: RowMapping) -> JobInfo:
        of = (row["pipeline"], row["job"], row["generation"])
        stores = self._read(select(STORES).where(is_of(STORES, *of)).order_by(STORES.c.name))
        known: dict[str, Any] = dict(row) | {
            "topics": tuple(msgspec.json.decode(row["topics"])),
            "operators": msgspec.json.decode(row["operators"]),
            "functions": msgspec.json.decode(row["functions"]),
            "stores": tuple(StoreInfo(**_without_generation(store)) for store in stores),
            "workers": tuple(self._workers(*of)),
        }
        return JobInfo(**known)

    def _workers(self, pipeline: str, job: str, generation: int) -> list[WorkerInfo]:
        of = (pipeline, job, generation)
        statement = select(WORKERS).where(is_of(WORKERS, *of)).order_by(WORKERS.c.number)
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            found = place_workers(connection, connection.execute(statement).mappings().all())
        quarantine = Quarantine(self._engine).get(*of)
        return [msgspec.structs.replace(one, unavailable=quarantine.get(one.number, "")) for one in found]


def _worker_row(worker: WorkerInfo) -> dict[str, Any]:
    row = {name: value for name, value in msgspec.structs.asdict(worker).items() if name in WORKERS.c}
    return row | {"location": without_password(worker.location)}


def _seen_generation(connection: Connection, pipeline: str, job: str) -> int | None:
    return connection.execute(select(JOBS.c.generation).where(is_of(JOBS, pipeline, job))).scalar()


def _replace(connection: Connection, table: Table, where: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    connection.execute(delete(table).where(is_of(table, **where)))
    if values := [row | where for row in rows]:
        connection.execute(insert(table), values)


def _without_generation(row: RowMapping) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "generation"}
