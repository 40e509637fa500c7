"""The ledger: which jobs there are, where their workers' shards are, and which cuts have been published."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
from sqlalchemy import Connection, Engine, RowMapping, Table, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.sql import ColumnElement, Select

from sluice.errors import NotFound, StateError
from sluice.state.audits import Audit, Audits, audit_row
from sluice.state.damages import Damages
from sluice.state.database import create_tables, database_url, open_engine, speaking_to, writing
from sluice.state.leases import Leases, require_epoch
from sluice.state.model import Cut, JobInfo, StoreInfo, WorkerInfo
from sluice.state.places import place_workers
from sluice.state.sources import Sources
from sluice.state.tables import (
    AUDITS,
    CUTS,
    DAMAGES,
    GENERATIONS,
    JOBS,
    LEASES,
    METADATA,
    SOURCES,
    STORES,
    WORKERS,
)

_BY_GENERATION = (GENERATIONS, STORES, WORKERS, CUTS, AUDITS, SOURCES, DAMAGES, LEASES)


class Ledger:
    """The small database that decides what readers see. Safe to share between threads and processes.

    Every method raises StateError when the database cannot be reached.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leases = Leases(engine)
        self.audits = Audits(engine)
        self.sources = Sources(engine)
        self.damages = Damages(engine)

    @property
    def engine(self) -> Engine:
        """For what else is kept in the ledger's database."""
        return self._engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the ledger at a SQLAlchemy URL, creating the tables that are missing."""
        with speaking_to("Opening the ledger"):
            engine = open_engine(database_url(url))
            create_tables(engine, METADATA)
        return cls(engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, job: JobInfo) -> None:
        """Write or renew what a job says of itself. Its first generation is the one readers see, until `promote`."""
        where = {"pipeline": job.pipeline, "job": job.job, "generation": job.generation}
        texts = {name: getattr(job, name) for name in ("description", "drawing", "picture")}
        with speaking_to("Registering the job"), writing(self._engine) as connection:
            if _generation(connection, job.pipeline, job.job) is None:
                connection.execute(insert(JOBS), where)
            _replace(
                connection,
                GENERATIONS,
                where,
                [texts | {"topics": _json(job.topics), "operators": _json(job.operators)}],
            )
            _replace(connection, STORES, where, map(msgspec.structs.asdict, job.stores))
            _replace(connection, WORKERS, where, map(_worker_row, job.workers))

    def promote(self, pipeline: str, job: str, generation: int) -> None:
        """Let readers see another generation of a job from now on; NotFound if it was never registered."""
        known = select(GENERATIONS).where(_is(GENERATIONS, pipeline, job, generation))
        change = update(JOBS).where(_is(JOBS, pipeline, job)).values(generation=generation)
        with speaking_to("Promoting the generation"), writing(self._engine) as connection:
            if connection.execute(known).first() is None:
                raise NotFound(f"Job {job!r} of pipeline {pipeline!r} has no generation {generation}.")
            connection.execute(change)

    def publish(self, cut: Cut, audit: Audit | None = None) -> bool:
        """Make a batch visible, in one transaction, with its audit, for the holder of the audit's lease.

        False, and nothing is changed, if this very batch is published already. Raises LeaseError if the lease has been
        taken over, and StateError if the batch does not continue what is published: it is older than the newest cut, or
        the same batch with other positions.
        """
        with speaking_to("Publishing the cut"), writing(self._engine) as connection:
            if audit is not None:
                require_epoch(connection, cut.pipeline, cut.job, cut.generation, audit.epoch)
            last = _last_batch(connection, cut.pipeline, cut.job, cut.generation)
            if last is None or cut.batch > last:
                connection.execute(insert(CUTS), _cut_row(cut))
                if audit is not None:
                    connection.execute(insert(AUDITS), audit_row(audit))
                return True
            row = connection.execute(_select_cut(cut)).mappings().first()
        if row is None or _cut(row).positions != cut.positions:
            raise StateError(
                f"Batch {cut.batch} of job {cut.job!r} does not continue what is published: "
                f"the newest cut is {cut.generation}.{last}.",
                next_step="The checkpoint and the ledger tell different histories; start a new generation.",
            )
        return False

    def latest_cut(self, pipeline: str, job: str) -> Cut | None:
        """The newest cut of the generation readers see; None before the first."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            row = connection.execute(_NEWEST_CUT, {"of_pipeline": pipeline, "of_job": job}).mappings().first()
        return None if row is None else _cut(row)

    def cut(self, pipeline: str, job: str, generation: int, batch: int) -> Cut | None:
        """One cut, if it was published and is still kept."""
        statement = select(CUTS).where(_is(CUTS, pipeline, job, generation), CUTS.c.batch == batch)
        rows = self._read(statement)
        return _cut(rows[0]) if rows else None

    def cuts(self, pipeline: str, job: str, limit: int = 100) -> list[Cut]:
        """The newest cuts of the generation readers see, newest first."""
        statement = _current(CUTS).where(_is(CUTS, pipeline, job)).order_by(CUTS.c.batch.desc()).limit(limit)
        return [_cut(row) for row in self._read(statement)]

    def cut_at(self, pipeline: str, job: str, moment: datetime) -> Cut | None:
        """The newest cut of the generation readers see that was published by `moment`."""
        by_then = CUTS.c.published_at <= moment.astimezone(UTC).isoformat()
        return self._newest(_is(CUTS, pipeline, job), by_then)

    def cut_of_run(self, pipeline: str, job: str, run: str) -> Cut | None:
        """The last cut that a run published in the generation readers see."""
        return self._newest(_is(CUTS, pipeline, job), CUTS.c.run == run)

    def oldest_cut(self, pipeline: str, job: str) -> Cut | None:
        """The oldest cut that is kept of the generation readers see."""
        rows = self._read(_current(CUTS).where(_is(CUTS, pipeline, job)).order_by(CUTS.c.batch).limit(1))
        return _cut(rows[0]) if rows else None

    def _newest(self, *where: ColumnElement[bool]) -> Cut | None:
        rows = self._read(_current(CUTS).where(*where).order_by(CUTS.c.batch.desc()).limit(1))
        return _cut(rows[0]) if rows else None

    def generation(self, pipeline: str, job: str) -> int | None:
        """The generation of a job that readers see; None if it never ran."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return _generation(connection, pipeline, job)

    def generations(self, pipeline: str, job: str) -> list[int]:
        """The generations of a job that have been registered, whether readers see them or not."""
        statement = select(GENERATIONS.c.generation).where(_is(GENERATIONS, pipeline, job))
        return sorted(row["generation"] for row in self._read(statement))

    def last_batch(self, pipeline: str, job: str, generation: int) -> int | None:
        """Number of the newest batch published in a generation."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return _last_batch(connection, pipeline, job, generation)

    def forget_cuts(self, pipeline: str, job: str, generation: int, before: int) -> int:
        """Remove the cuts older than batch `before`, never the newest; returns how many."""
        with speaking_to("Removing old cuts"), writing(self._engine) as connection:
            last = _last_batch(connection, pipeline, job, generation)
            if last is None:
                return 0
            of, oldest = (pipeline, job, generation), min(before, last)
            connection.execute(delete(AUDITS).where(_is(AUDITS, *of), AUDITS.c.batch < oldest))
            return connection.execute(delete(CUTS).where(_is(CUTS, *of), CUTS.c.batch < oldest)).rowcount

    def forget_generation(self, pipeline: str, job: str, generation: int) -> None:
        """Remove all that is known of a generation that readers do not see; StateError if they do."""
        with speaking_to("Removing the generation"), writing(self._engine) as connection:
            if _generation(connection, pipeline, job) == generation:
                raise StateError(f"Readers see generation {generation} of job {job!r}.")
            for table in _BY_GENERATION:
                connection.execute(delete(table).where(_is(table, pipeline, job, generation)))

    def pipelines(self) -> list[str]:
        """Names of all pipelines with a registered job, sorted."""
        return [row["pipeline"] for row in self._read(select(JOBS.c.pipeline).distinct().order_by(JOBS.c.pipeline))]

    def jobs(self, pipeline: str) -> list[JobInfo]:
        """The pipeline's jobs, sorted by name, in the generations readers see."""
        rows = self._read(_current(GENERATIONS).where(GENERATIONS.c.pipeline == pipeline).order_by(GENERATIONS.c.job))
        return [self._job(row) for row in rows]

    def all_jobs(self, pipeline: str) -> list[JobInfo]:
        """The pipeline's jobs in all their generations, sorted by name and generation."""
        mine = select(GENERATIONS).where(GENERATIONS.c.pipeline == pipeline)
        return [self._job(row) for row in self._read(mine.order_by(GENERATIONS.c.job, GENERATIONS.c.generation))]

    def job(self, pipeline: str, job: str, generation: int) -> JobInfo | None:
        """What one generation of a job said of itself."""
        rows = self._read(select(GENERATIONS).where(_is(GENERATIONS, pipeline, job, generation)))
        return self._job(rows[0]) if rows else None

    def stores(self, pipeline: str | None = None) -> list[StoreInfo]:
        """The stores of one pipeline, or of all, in the generations readers see, sorted by pipeline and name."""
        statement = _current(STORES).order_by(STORES.c.pipeline, STORES.c.name)
        if pipeline is not None:
            statement = statement.where(STORES.c.pipeline == pipeline)
        return [StoreInfo(**_without_generation(row)) for row in self._read(statement)]

    def workers(self, pipeline: str, job: str) -> list[WorkerInfo]:
        """The workers of the generation readers see, sorted by number."""
        generation = self.generation(pipeline, job)
        return [] if generation is None else self._workers(pipeline, job, generation)

    def positions(self, pipeline: str) -> dict[str, dict[int, int]]:
        """How far the whole pipeline has read: topic → partition → the least next offset of the jobs that read it.

        A partition is left out as long as one of these jobs has not read it.
        """
        read: dict[str, list[dict[str, int]]] = {}
        for job in self.jobs(pipeline):
            cut = self.latest_cut(pipeline, job.job)
            for topic in job.topics:
                read.setdefault(topic, []).append(cut.positions.get(topic, {}) if cut else {})
        return {topic: _least(found) for topic, found in read.items()}

    def _job(self, row: RowMapping) -> JobInfo:
        of = (row["pipeline"], row["job"], row["generation"])
        stores = self._read(select(STORES).where(_is(STORES, *of)).order_by(STORES.c.name))
        known: dict[str, Any] = dict(row) | {
            "topics": tuple(msgspec.json.decode(row["topics"])),
            "operators": msgspec.json.decode(row["operators"]),
            "stores": tuple(StoreInfo(**_without_generation(store)) for store in stores),
            "workers": tuple(self._workers(*of)),
        }
        return JobInfo(**known)

    def _workers(self, pipeline: str, job: str, generation: int) -> list[WorkerInfo]:
        of = (pipeline, job, generation)
        statement = select(WORKERS).where(_is(WORKERS, *of)).order_by(WORKERS.c.number)
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            found = place_workers(connection, connection.execute(statement).mappings().all())
        damages = self.damages.get(*of)
        return [msgspec.structs.replace(one, unavailable=damages.get(one.number, "")) for one in found]

    def _read(self, statement: Select[Any]) -> list[RowMapping]:
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return list(connection.execute(statement).mappings())


def _worker_row(worker: WorkerInfo) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(worker).items() if name in WORKERS.c}


def _is(table: Table, pipeline: str, job: str, generation: int | None = None) -> ColumnElement[bool]:
    same = and_(table.c.pipeline == pipeline, table.c.job == job)
    return same if generation is None else and_(same, table.c.generation == generation)


def _current(table: Table) -> Select[Any]:
    """All rows of a table that belong to the generations readers see: one statement, hence one moment."""
    same = and_(*(JOBS.c[name] == table.c[name] for name in ("pipeline", "job", "generation")))
    return select(table).join(JOBS, same)


def _generation(connection: Connection, pipeline: str, job: str) -> int | None:
    return connection.execute(select(JOBS.c.generation).where(_is(JOBS, pipeline, job))).scalar()


def _last_batch(connection: Connection, pipeline: str, job: str, generation: int) -> int | None:
    return connection.execute(select(func.max(CUTS.c.batch)).where(_is(CUTS, pipeline, job, generation))).scalar()


def _replace(connection: Connection, table: Table, where: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    connection.execute(delete(table).where(_is(table, **where)))
    if values := [row | where for row in rows]:
        connection.execute(insert(table), values)


def _select_cut(cut: Cut) -> Select[Any]:
    return select(CUTS).where(_is(CUTS, cut.pipeline, cut.job, cut.generation), CUTS.c.batch == cut.batch)


def _cut_row(cut: Cut) -> dict[str, Any]:
    texts = {name: _json(getattr(cut, name)) for name in ("positions", "stream_times", "counts")}
    return msgspec.structs.asdict(cut) | texts | {"published_at": cut.published_at.astimezone(UTC).isoformat()}


def _cut(row: RowMapping) -> Cut:
    texts = {name: msgspec.json.decode(row[name]) for name in ("positions", "stream_times", "counts")}
    return Cut(**(dict(row) | texts | {"published_at": datetime.fromisoformat(row["published_at"])}))


def _least(found: list[dict[str, int]]) -> dict[int, int]:
    read_by_all = set.intersection(*(set(positions) for positions in found))
    return {int(partition): min(positions[partition] for positions in found) for partition in sorted(read_by_all)}


def _without_generation(row: RowMapping) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "generation"}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Asked many times a second by every server: made once.
_NEWEST_CUT = (
    _current(CUTS)
    .where(CUTS.c.pipeline == bindparam("of_pipeline"), CUTS.c.job == bindparam("of_job"))
    .order_by(CUTS.c.batch.desc())
    .limit(1)
)
