"""Who may write: one lease for each generation of a job, with an epoch that fences whoever held it before.

No clock is compared with another. A holder raises its lease's beat as long as it lives; whoever waits for it measures,
with a clock of its own that never steps, for how long the beat has not changed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, and_, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql import ColumnElement

from sluice.errors import LeaseError, StateError
from sluice.state.database import speaking_to, writing
from sluice.state.ledger.tables import LEASES


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that holds a lease, or wants to."""

    host: str
    pid: int
    process: str
    """Which process of which machine, told apart over reboots; empty if that cannot be known."""
    run: str = ""
    """The run of Airflow that it works for."""


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as it stands in the ledger."""

    pipeline: str
    job: str
    generation: int
    epoch: int
    held: bool
    beat: int
    host: str
    pid: int
    process: str
    since: str
    run: str

    def __str__(self) -> str:
        run = f", run {self.run}" if self.run else ""
        return f"host {self.host}, process {self.pid}, since {self.since}{run}"


class Leases:
    """The ledger's leases. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, pipeline: str, job: str, generation: int) -> LeaseRow | None:
        """The lease of a job's generation; None if nobody ever took it."""
        with speaking_to("Reading the lease"), self._engine.connect() as connection:
            return _row(connection, pipeline, job, generation)

    def take(self, pipeline: str, job: str, generation: int, holder: Holder, seen: LeaseRow | None) -> LeaseRow | None:
        """Take a lease that still is as it was `seen`; None, and nothing is changed, if it is not.

        Whoever held it can commit nothing from then on.
        """
        of = (pipeline, job, generation)
        values: dict[str, Any] = dict(zip(("pipeline", "job", "generation"), of, strict=True))
        values |= {"held": True, "beat": 0, "since": datetime.now(UTC).isoformat(timespec="seconds")}
        values |= msgspec.structs.asdict(holder)
        try:
            with speaking_to("Taking the lease"), writing(self._engine) as connection:
                if _row(connection, *of, lock=True) != seen:
                    return None
                if seen is None:
                    connection.execute(insert(LEASES), values | {"epoch": 1})
                else:
                    connection.execute(update(LEASES).where(_is(*of)), values | {"epoch": seen.epoch + 1})
                return _row(connection, *of)
        except StateError as error:
            if seen is None and isinstance(error.__cause__, IntegrityError):
                return None  # PostgreSQL locks no row that is not there: another driver took it first
            raise

    def beat(self, lease: LeaseRow) -> bool:
        """Show that the holder of `lease` lives; False if it holds it no more."""
        return self._change(lease, "Renewing the lease", beat=LEASES.c.beat + 1)

    def release(self, lease: LeaseRow) -> bool:
        """Let go of `lease`; False if it was held no more."""
        return self._change(lease, "Releasing the lease", held=False)

    def _change(self, lease: LeaseRow, doing: str, **values: Any) -> bool:
        mine = and_(_is(lease.pipeline, lease.job, lease.generation), LEASES.c.epoch == lease.epoch, LEASES.c.held)
        with speaking_to(doing), writing(self._engine) as connection:
            return connection.execute(update(LEASES).where(mine).values(**values)).rowcount == 1


def require_epoch(connection: Connection, pipeline: str, job: str, generation: int, epoch: int) -> None:
    """Raise LeaseError unless the lease is held in this epoch; it stays so until the transaction ends."""
    row = _row(connection, pipeline, job, generation, lock=True)
    if row is None or row.epoch != epoch or not row.held:
        raise lost(row, epoch)


def lost(row: LeaseRow | None, epoch: int) -> LeaseError:
    """The error of a driver that has lost its lease, of which `row` is what became."""
    by = f"It was taken over by {row}." if row and row.epoch != epoch else "It is held no more."
    return LeaseError(
        f"This driver has lost its lease, and publishes nothing. {by}", next_step="Let the other driver finish."
    )


def _row(connection: Connection, pipeline: str, job: str, generation: int, *, lock: bool = False) -> LeaseRow | None:
    statement = select(LEASES).where(_is(pipeline, job, generation))
    # SQLite's writers are alone from their first statement; PostgreSQL's wait here for each other.
    found = connection.execute(statement.with_for_update() if lock else statement).mappings().first()
    return None if found is None else LeaseRow(**dict(found))


def _is(pipeline: str, job: str, generation: int) -> ColumnElement[bool]:
    return and_(LEASES.c.pipeline == pipeline, LEASES.c.job == job, LEASES.c.generation == generation)
