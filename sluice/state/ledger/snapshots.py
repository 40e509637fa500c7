"""The snapshots that were published: the newest of a job is what readers see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, bindparam, delete, func, insert, select
from sqlalchemy.sql import ColumnElement, Select

from sluice.errors import DamagedState, StateError
from sluice.state.database import Kept, as_json, speaking_to, writing
from sluice.state.ledger.audits import Audit, audit_row
from sluice.state.ledger.history import Batch, history_row
from sluice.state.ledger.leases import require_epoch
from sluice.state.ledger.tables import AUDITS, CUTS, HISTORY, TIMES, current, is_of
from sluice.state.model import Snapshot


class Snapshots(Kept):
    """The snapshots of a ledger."""

    def publish(
        self,
        snapshot: Snapshot,
        audit: Audit | None = None,
        times: Mapping[str, int] | None = None,
        batch: Batch | None = None,
    ) -> bool:
        """Make a batch visible, in one transaction, with its audit and as it was run, for the holder of the lease.

        `times` are all that the next batch goes on from; `snapshot.stream_times` unless they are given.

        False, and nothing is changed, if this very batch is published already. Raises LeaseError if the lease has been
        taken over, and StateError if the batch does not continue what is published: it is older than the newest snapshot, or
        the same batch with other positions.
        """
        with speaking_to("Publishing the snapshot"), writing(self._engine) as connection:
            if audit is not None:
                require_epoch(connection, snapshot.pipeline, snapshot.job, snapshot.generation, audit.epoch)
            last = _last_batch(connection, snapshot.pipeline, snapshot.job, snapshot.generation)
            if last is None or snapshot.batch > last:
                connection.execute(insert(CUTS), _snapshot_row(snapshot))
                _put_times(connection, snapshot, last, snapshot.stream_times if times is None else times)
                if audit is not None:
                    connection.execute(insert(AUDITS), audit_row(audit))
                if batch is not None:
                    of = {"pipeline": snapshot.pipeline, "job": snapshot.job, "generation": snapshot.generation}
                    connection.execute(insert(HISTORY), of | history_row(batch))
                return True
            row = connection.execute(_select_snapshot(snapshot)).mappings().first()
        if row is None or _snapshot(row).positions != snapshot.positions:
            raise StateError(
                f"Batch {snapshot.batch} of job {snapshot.job!r} does not continue what is published: "
                f"the newest snapshot is {snapshot.generation}.{last}.",
                next_step="The checkpoint and the ledger tell different histories; start a new generation.",
            )
        return False

    def times_before(self, pipeline: str, job: str, generation: int, batch: int) -> dict[str, int]:
        """The times that a batch goes on from: those of the snapshot before it; none before the first.

        Raises DamagedState if there was one, and its times are not kept: it is not among the newest two.
        """
        older = TIMES.c.batch < batch
        statement = select(TIMES).where(is_of(TIMES, pipeline, job, generation), older).order_by(TIMES.c.batch.desc())
        rows = self._read(statement.limit(1))
        if rows:
            return msgspec.json.decode(rows[0]["times"], type=dict[str, int])
        if self._read(select(CUTS).where(is_of(CUTS, pipeline, job, generation), CUTS.c.batch < batch).limit(1)):
            raise DamagedState(
                f"The ledger does not say from which stream times batch {batch} of job {job!r} goes on.",
                next_step=f"Restore the ledger, or build the state again from the topics: sluice rebuild {pipeline}.",
            )
        return {}

    def latest_snapshot(self, pipeline: str, job: str) -> Snapshot | None:
        """The newest snapshot of the generation readers see; None before the first."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            row = connection.execute(_NEWEST_SNAPSHOT, {"of_pipeline": pipeline, "of_job": job}).mappings().first()
        return None if row is None else _snapshot(row)

    def snapshot(self, pipeline: str, job: str, generation: int, batch: int) -> Snapshot | None:
        """One snapshot, if it was published and is still kept."""
        statement = select(CUTS).where(is_of(CUTS, pipeline, job, generation), CUTS.c.batch == batch)
        rows = self._read(statement)
        return _snapshot(rows[0]) if rows else None

    def snapshots(self, pipeline: str, job: str, limit: int = 100) -> list[Snapshot]:
        """The newest snapshots of the generation readers see, newest first."""
        statement = current(CUTS).where(is_of(CUTS, pipeline, job)).order_by(CUTS.c.batch.desc()).limit(limit)
        return [_snapshot(row) for row in self._read(statement)]

    def snapshot_at(self, pipeline: str, job: str, moment: datetime) -> Snapshot | None:
        """The newest snapshot of the generation readers see that was published by `moment`."""
        by_then = CUTS.c.published_at <= moment.astimezone(UTC).isoformat()
        return self._newest(is_of(CUTS, pipeline, job), by_then)

    def snapshot_of_run(self, pipeline: str, job: str, run: str) -> Snapshot | None:
        """The last snapshot that a run published in the generation readers see."""
        return self._newest(is_of(CUTS, pipeline, job), CUTS.c.run == run)

    def oldest_snapshot(self, pipeline: str, job: str) -> Snapshot | None:
        """The oldest snapshot that is kept of the generation readers see."""
        rows = self._read(current(CUTS).where(is_of(CUTS, pipeline, job)).order_by(CUTS.c.batch).limit(1))
        return _snapshot(rows[0]) if rows else None

    def last_batch(self, pipeline: str, job: str, generation: int) -> int | None:
        """Number of the newest batch published in a generation."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return _last_batch(connection, pipeline, job, generation)

    def forget_snapshots(self, pipeline: str, job: str, generation: int, before: int) -> int:
        """Remove the snapshots older than batch `before`, never the newest; returns how many."""
        with speaking_to("Removing old snapshots"), writing(self._engine) as connection:
            last = _last_batch(connection, pipeline, job, generation)
            if last is None:
                return 0
            of, oldest = (pipeline, job, generation), min(before, last)
            connection.execute(delete(AUDITS).where(is_of(AUDITS, *of), AUDITS.c.batch < oldest))
            return connection.execute(delete(CUTS).where(is_of(CUTS, *of), CUTS.c.batch < oldest)).rowcount

    def _newest(self, *where: ColumnElement[bool]) -> Snapshot | None:
        rows = self._read(current(CUTS).where(*where).order_by(CUTS.c.batch.desc()).limit(1))
        return _snapshot(rows[0]) if rows else None


def _last_batch(connection: Connection, pipeline: str, job: str, generation: int) -> int | None:
    return connection.execute(select(func.max(CUTS.c.batch)).where(is_of(CUTS, pipeline, job, generation))).scalar()


def _put_times(connection: Connection, snapshot: Snapshot, before: int | None, times: Mapping[str, int]) -> None:
    if before is not None:
        # The newest batch may be done again: the times before it stay until the next one.
        mine = is_of(TIMES, snapshot.pipeline, snapshot.job, snapshot.generation)
        connection.execute(delete(TIMES).where(mine, TIMES.c.batch < before))
    of = {name: getattr(snapshot, name) for name in ("pipeline", "job", "generation", "batch")}
    connection.execute(insert(TIMES), of | {"times": as_json(dict(times))})


def _select_snapshot(snapshot: Snapshot) -> Select[Any]:
    return select(CUTS).where(
        is_of(CUTS, snapshot.pipeline, snapshot.job, snapshot.generation), CUTS.c.batch == snapshot.batch
    )


def _snapshot_row(snapshot: Snapshot) -> dict[str, Any]:
    texts = {name: as_json(getattr(snapshot, name)) for name in ("positions", "stream_times", "counts")}
    return (
        msgspec.structs.asdict(snapshot) | texts | {"published_at": snapshot.published_at.astimezone(UTC).isoformat()}
    )


def _snapshot(row: RowMapping) -> Snapshot:
    texts = {name: msgspec.json.decode(row[name]) for name in ("positions", "stream_times", "counts")}
    return Snapshot(**(dict(row) | texts | {"published_at": datetime.fromisoformat(row["published_at"])}))


# Asked many times a second by every server: made once.
_NEWEST_SNAPSHOT = (
    current(CUTS)
    .where(CUTS.c.pipeline == bindparam("of_pipeline"), CUTS.c.job == bindparam("of_job"))
    .order_by(CUTS.c.batch.desc())
    .limit(1)
)
