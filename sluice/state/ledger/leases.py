"""Leases decide which driver may write. A lease's epoch fences off drivers that have lost it.

Clocks of different machines are never compared. A live holder keeps incrementing a counter in the
lease, its beat. A waiting driver measures on its own monotonic clock how long the beat has not
changed. `engine/run/driver_lease.py` takes and renews a driver's lease.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from sluice.errors import LeaseError, StateError
from sluice.state.database import database_errors, transaction
from sluice.state.fencing import next_epoch
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import LEASES, current, of_ref
from sluice.state.model import GenerationRef, OfGeneration


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that holds a lease, or wants to."""

    host: str
    pid: int
    process: str
    """Identifies the process, even after a reboot of its machine; empty if unknown."""
    run: str = ""
    """The driver's Airflow run."""


class LeaseRow(OfGeneration, frozen=True, kw_only=True):
    """A lease as recorded in the ledger."""

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


class Leases(LedgerPart):
    """The leases of all generations."""

    def get(self, ref: GenerationRef) -> LeaseRow | None:
        """Return the lease, or None if it was never taken."""
        with database_errors("Reading the lease"), self._engine.connect() as connection:
            return _row(connection, ref)

    def of_all_pipelines(self) -> list[LeaseRow]:
        """Return the leases of the current generations of all pipelines."""
        return [LeaseRow(**dict(row)) for row in self._read(current(LEASES))]

    def take(self, ref: GenerationRef, holder: Holder, seen: LeaseRow | None) -> LeaseRow | None:
        """Take a lease if its row still equals `seen`; otherwise return None and change nothing.

        The previous holder cannot commit anything afterwards.
        """
        values: dict[str, Any] = {
            "held": True,
            "beat": 0,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        values |= msgspec.structs.asdict(ref) | msgspec.structs.asdict(holder)
        try:
            with database_errors("Taking the lease"), transaction(self._engine) as connection:
                # Since the caller read the lease, another driver may have taken it, or the holder
                # may have renewed it.
                if _row(connection, ref, lock=True) != seen:
                    return None
                if seen is None:
                    connection.execute(insert(LEASES), values | {"epoch": next_epoch(0)})
                else:
                    connection.execute(
                        update(LEASES).where(of_ref(LEASES, ref)),
                        values | {"epoch": next_epoch(seen.epoch)},
                    )
                return _row(connection, ref)
        except StateError as error:
            if seen is None and isinstance(error.__cause__, IntegrityError):
                # PostgreSQL cannot lock a row that does not exist yet, so another driver could
                # insert the row after this driver had looked for it.
                return None
            raise

    def outrank(self, lease: LeaseRow, epoch: int) -> LeaseRow:
        """Give a held lease an epoch above `epoch`, with which another lease has written a shard.

        Return the lease with its new epoch. Raise LeaseError if the lease is no longer held.
        """
        with database_errors("Renewing the lease"), transaction(self._engine) as connection:
            require_epoch(connection, lease.ref, lease.epoch)
            higher = update(LEASES).where(of_ref(LEASES, lease.ref)).values(epoch=next_epoch(epoch))
            connection.execute(higher)
            row = _row(connection, lease.ref)
            assert row is not None
            return row

    def renew(self, lease: LeaseRow) -> bool:
        """Renew `lease`. Return False if it is no longer held."""
        return self._update(lease, "Renewing the lease", beat=LEASES.c.beat + 1)

    def release(self, lease: LeaseRow) -> bool:
        """Release `lease`. Return False if it is no longer held."""
        return self._update(lease, "Releasing the lease", held=False)

    def _update(self, lease: LeaseRow, doing: str, **values: Any) -> bool:
        held = update(LEASES).where(
            of_ref(LEASES, lease.ref), LEASES.c.epoch == lease.epoch, LEASES.c.held
        )
        with database_errors(doing), transaction(self._engine) as connection:
            return connection.execute(held.values(**values)).rowcount == 1


def require_epoch(connection: Connection, ref: GenerationRef, epoch: int) -> None:
    """Lock the lease until the transaction ends.

    Raise LeaseError unless it is held in this epoch.
    """
    row = _row(connection, ref, lock=True)
    if row is None or row.epoch != epoch or not row.held:
        raise lost(row, epoch)


def lost(row: LeaseRow | None, epoch: int) -> LeaseError:
    """Return the error for a driver that lost its lease of `epoch`. `row` is the current lease."""
    if row is None:
        return LeaseError(
            "The ledger no longer has this driver's lease: "
            "the ledger was emptied, restored or replaced.",
            next_step="Run the pipeline again: the run first compares the ledger with the shards "
            "and the output.",
        )
    by = f"The lease was taken over by {row}."
    next_step = "Wait until the other driver has finished."
    if row.epoch == epoch:
        by = "The lease has been released."
        next_step = "Run the pipeline again."
    return LeaseError(
        f"This driver has lost its lease and can no longer publish. {by}", next_step=next_step
    )


def _row(connection: Connection, ref: GenerationRef, *, lock: bool = False) -> LeaseRow | None:
    statement = select(LEASES).where(of_ref(LEASES, ref))
    # A SQLite write transaction locks the database when it begins; PostgreSQL locks the row here.
    if lock:
        statement = statement.with_for_update()
    row = connection.execute(statement).mappings().first()
    return None if row is None else LeaseRow(**dict(row))
