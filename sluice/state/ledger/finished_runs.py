"""The runs that ended in the last days, and the daily cost of each pipeline's runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, RowMapping, delete, insert, select

from sluice.state.database import as_json, database_errors, insert_of, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import COSTS, FINISHED_RUNS
from sluice.state.ledger.measurements import Measurement, add_measurements
from sluice.state.model import GenerationInfo

KEPT = timedelta(days=8)
"""How long a run is kept, so that the page can show a whole week."""
MOST_RUNS = 10_000
"""How many runs of a pipeline are kept at most. A run a minute makes 10,080 a week."""
COST_DAYS = 90
"""The number of days for which costs are kept."""

Outcome = Literal["succeeded", "failed"]


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended. Each attempt of a run in Airflow counts as a separate run."""

    pipeline: str
    began_at: datetime
    ended_at: datetime
    run: str = ""
    """The Airflow run; empty for a run without Airflow."""
    outcome: Outcome
    host: str
    version: str
    """The version of Sluice."""
    topology: str = ""
    """A hash of the definitions that compute the state; empty if no batch was run. See
    `topology_hash`."""
    cpu_seconds: float | None = None
    """The CPU time of all processes on the driver's host; None if the driver was killed."""
    memory_bytes: int | None = None
    """The peak memory of these processes; None if the driver was killed."""
    state_bytes: int | None = None
    """The size of all shards at the end; None if the size of a shard is unknown."""

    @property
    def seconds(self) -> float:
        """Return the duration."""
        return max((self.ended_at - self.began_at).total_seconds(), 0.0)

    @property
    def gigabyte_seconds(self) -> float:
        """Return the peak memory times the duration."""
        return (self.memory_bytes or 0) / 2**30 * self.seconds


class DailyCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a pipeline's runs that ended on one day."""

    pipeline: str
    day: str
    """ISO 8601, UTC."""
    runs: int
    failed_runs: int
    cpu_seconds: float
    gigabyte_seconds: float


class FinishedRuns(LedgerPart):
    """The runs of all pipelines that have ended."""

    def add(self, run: FinishedRun, totals: Sequence[Measurement] = ()) -> None:
        """Add a run, and add `totals` to its pipeline's totals, in one transaction.

        Forget runs that are older than `KEPT`, and the oldest runs if there are more than
        `MOST_RUNS`.
        """
        with database_errors("Adding a run"), transaction(self._engine) as connection:
            connection.execute(delete(FINISHED_RUNS).where(_is_of(run)))
            connection.execute(insert(FINISHED_RUNS), _row(run))
            self._forget(connection, run)
            _add_cost(connection, run)
            add_measurements(connection, run.pipeline, totals)

    def between(
        self, pipeline: str, since: datetime, until: datetime, limit: int
    ) -> list[FinishedRun]:
        """Return the newest runs that ended in a period, newest first."""
        c = FINISHED_RUNS.c
        statement = (
            select(FINISHED_RUNS)
            .where(c.pipeline == pipeline, c.ended_at >= _text(since), c.ended_at <= _text(until))
            .order_by(c.began_at.desc())
            .limit(limit)
        )
        return [_run(row) for row in self._read(statement)]

    def newest_before(self, pipeline: str, time: datetime) -> FinishedRun | None:
        """Return the newest run that began before a time; None if there is none."""
        c = FINISHED_RUNS.c
        statement = (
            select(FINISHED_RUNS)
            .where(c.pipeline == pipeline, c.began_at < _text(time))
            .order_by(c.began_at.desc())
            .limit(1)
        )
        rows = self._read(statement)
        return _run(rows[0]) if rows else None

    def costs(self, since: date) -> list[DailyCost]:
        """Return the daily costs of all pipelines from a day on, sorted by pipeline and day."""
        c = COSTS.c
        statement = select(COSTS).where(c.day >= since.isoformat()).order_by(c.pipeline, c.day)
        return [DailyCost(**dict(row)) for row in self._read(statement)]

    def _forget(self, connection: Connection, run: FinishedRun) -> None:
        c = FINISHED_RUNS.c
        own = c.pipeline == run.pipeline
        connection.execute(
            delete(FINISHED_RUNS).where(own, c.began_at < _text(run.ended_at - KEPT))
        )
        oldest_kept = (
            select(c.began_at).where(own).order_by(c.began_at.desc()).offset(MOST_RUNS - 1)
        )
        first = connection.execute(oldest_kept.limit(1)).scalar()
        if first is not None:
            connection.execute(delete(FINISHED_RUNS).where(own, c.began_at < first))


def topology_hash(info: GenerationInfo) -> str:
    """Return a hash of the definitions that compute a generation's state.

    The hash changes if a change of the pipeline's file affects stores, steps, functions or
    contracts.
    """
    parts = [info.description, info.operators, info.functions, info.contracts, info.outputs]
    return hashlib.sha256(as_json(parts).encode()).hexdigest()[:12]


def _is_of(run: FinishedRun) -> Any:
    c = FINISHED_RUNS.c
    return (c.pipeline == run.pipeline) & (c.began_at == _text(run.began_at))


def _add_cost(connection: Connection, run: FinishedRun) -> None:
    day = run.ended_at.astimezone(UTC).date()
    first_kept = (day - timedelta(days=COST_DAYS - 1)).isoformat()
    connection.execute(
        delete(COSTS).where(COSTS.c.pipeline == run.pipeline, COSTS.c.day < first_kept)
    )
    added = {
        "runs": 1,
        "failed_runs": int(run.outcome == "failed"),
        "cpu_seconds": run.cpu_seconds or 0.0,
        "gigabyte_seconds": run.gigabyte_seconds,
    }
    statement = insert_of(connection.dialect.name)(COSTS)
    statement = statement.values(pipeline=run.pipeline, day=day.isoformat(), **added)
    sums = {name: COSTS.c[name] + statement.excluded[name] for name in added}
    connection.execute(
        statement.on_conflict_do_update(index_elements=[*COSTS.primary_key], set_=sums)
    )


def _row(run: FinishedRun) -> dict[str, Any]:
    times = {"began_at": _text(run.began_at), "ended_at": _text(run.ended_at)}
    return msgspec.structs.asdict(run) | times


def _run(row: RowMapping) -> FinishedRun:
    times = {name: datetime.fromisoformat(row[name]) for name in ("began_at", "ended_at")}
    return FinishedRun(**(dict(row) | times))


def _text(time: datetime) -> str:
    """Return a time as text. The texts sort like the times."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
