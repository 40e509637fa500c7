"""Standbys: copies of workers' shards at second state servers, and their snapshots.

A worker has at most one standby. Its copy is sealed, so that no run can write to it, until the
standby is promoted. Only the holder of the generation's lease refreshes or promotes a standby.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.sql import ColumnElement

from sluice.errors import Refused
from sluice.state.database import database_errors, transaction
from sluice.state.ledger.leases import require_epoch
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import PLACEMENTS, STANDBYS
from sluice.state.ledger.notes import add_note
from sluice.state.ledger.placement import Placement, addresses, epochs_of, replace_placement
from sluice.state.ledger.quarantine import replace_quarantine
from sluice.state.model import GenerationRef, StandbyInfo
from sluice.values.host_ports import address_of

_NO_COPY: dict[str, Any] = {"generation": 0, "batch": -1, "copied_at": ""}


class Standby(Placement, frozen=True):
    """The state server of a worker's standby, and the snapshot that its copy holds."""

    generation: int = 0
    """The number of the generation to which the copied shard belongs; 0 without a complete copy."""
    batch: int = -1
    copied_at: str = ""
    """When the copy was last refreshed, ISO 8601, UTC."""

    @property
    def copied_generation(self) -> GenerationRef | None:
        """The generation to which the copied shard belongs; None without a complete copy."""
        if not self.generation:
            return None
        return GenerationRef(self.pipeline, self.generation)

    def info(self, ref: GenerationRef) -> StandbyInfo:
        """Return the standby as readers of a generation see it.

        If the standby has a copy of another generation, these readers see a standby without a copy.
        """
        batch = self.batch if self.copied_generation == ref else -1
        return StandbyInfo(host=self.host, port=self.port, server=self.shard(ref), batch=batch)


class Standbys(LedgerPart):
    """The standbys of all workers."""

    def of(self, pipeline: str) -> dict[int, Standby]:
        """Return worker number → standby, for a pipeline's workers."""
        standbys: dict[int, Standby] = {}
        for (_, number), standby in self.of_pipelines([pipeline]).items():
            standbys[number] = standby
        return standbys

    def of_pipelines(self, pipelines: Sequence[str]) -> dict[tuple[str, int], Standby]:
        """Return pipeline and worker number → standby."""
        rows = self._read(select(STANDBYS).where(STANDBYS.c.pipeline.in_(pipelines)))
        return {(row["pipeline"], row["number"]): Standby(**dict(row)) for row in rows}

    def at(self, host: str, port: int) -> list[Standby]:
        """Return the standbys at a state server."""
        rows = self._read(select(STANDBYS).where(STANDBYS.c.host == host, STANDBYS.c.port == port))
        return [Standby(**dict(row)) for row in rows]

    def add(self, place: Placement) -> None:
        """Register a server as a worker's standby, without a copy yet.

        Raise Refused if the server has the worker itself, or if another server is the worker's
        standby.
        """
        with database_errors("Adding the standby"), transaction(self._engine) as connection:
            if place.address in addresses(connection, PLACEMENTS, place):
                raise Refused(
                    f"The shard of worker {place.number} of {place.pipeline!r} is at "
                    f"{place.host_port}, so its standby must be at another state server.",
                    next_step="Give the address of another state server.",
                )
            standbys = addresses(connection, STANDBYS, place)
            others = standbys - {place.address}
            if others:
                raise Refused(
                    f"Worker {place.number} of {place.pipeline!r} has a standby at "
                    f"{address_of(*others.pop())}.",
                    next_step=f"To replace it, first: sluice standby remove {place.pipeline} "
                    f"{place.number}",
                )
            if not standbys:
                connection.execute(insert(STANDBYS), msgspec.structs.asdict(place) | _NO_COPY)

    def remove(self, standby: Standby) -> None:
        """Forget a worker's standby.

        Raise Refused and change nothing if the standby has changed since it was read.
        """
        with database_errors("Removing the standby"), transaction(self._engine) as connection:
            _require_same(connection, standby)
            connection.execute(delete(STANDBYS).where(*_worker(standby.pipeline, standby.number)))

    def record_copy(
        self,
        standby: Standby,
        ref: GenerationRef,
        batch: int | None,
        epoch: int,
    ) -> Standby:
        """Record that a standby has a complete copy up to `batch`; None means no copy.

        Return the new standby. Raise LeaseError and change nothing if the generation's lease is
        no longer held in this epoch, and Refused if the standby has changed since it was read.
        """
        values = _NO_COPY
        if batch is not None:
            # Two copies never have the same time to the microsecond, so `_require_same` notices a
            # new copy.
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            values = {"generation": ref.generation, "batch": batch, "copied_at": now}
        with database_errors("Refreshing the standby"), transaction(self._engine) as connection:
            require_epoch(connection, ref, epoch)
            _require_same(connection, standby)
            connection.execute(
                update(STANDBYS).where(*_worker(ref.pipeline, standby.number)).values(**values)
            )
        return msgspec.structs.replace(standby, **values)

    def promote(
        self,
        standby: Standby,
        ref: GenerationRef,
        epoch: int,
        place: int,
        run: str,
        note: str,
        quarantined: str = "",
    ) -> int:
        """Place a worker at its standby's server, remove the standby, and add a note.

        `place` is the epoch of the worker's current placement. Return the epoch of the new
        placement.

        Begin the quarantine of the worker's shard for the reason `quarantined`, or end it if the
        reason is empty. Raise an error, and change nothing: LeaseError if the generation's lease is
        no longer held in this epoch; Refused if the standby or the worker's placement has changed
        since it was read.
        """
        with database_errors("Promoting the standby"), transaction(self._engine) as connection:
            require_epoch(connection, ref, epoch)
            _require_same(connection, standby)
            connection.execute(delete(STANDBYS).where(*_worker(standby.pipeline, standby.number)))
            # A move may have placed the worker at another server since the caller read the
            # placement. That server is not lost, so the standby must not take its place.
            if epochs_of(connection, standby.pipeline).get(standby.number, 0) != place:
                raise Refused(
                    f"While this command ran, another command moved worker {standby.number} of "
                    f"{standby.pipeline!r}, or began to move it. The standby was not promoted.",
                    next_step=f"Look where the worker is: sluice workers {standby.pipeline}. "
                    "Repeat the command if needed.",
                )
            new_place = replace_placement(connection, standby)
            replace_quarantine(connection, ref, standby.number, quarantined)
            add_note(connection, ref, run, note)
            return new_place


def _require_same(connection: Connection, standby: Standby) -> None:
    """Raise Refused unless the ledger has this standby, with this copy."""
    of_worker = select(STANDBYS).where(*_worker(standby.pipeline, standby.number)).with_for_update()
    row = connection.execute(of_worker).mappings().first()
    if row is None or Standby(**dict(row)) != standby:
        raise Refused(
            f"While this command ran, the standby of worker {standby.number} of "
            f"{standby.pipeline!r} at {standby.host_port} was removed or replaced, or got another "
            "copy. This command has changed nothing.",
            next_step=f"Look at the standbys: sluice workers {standby.pipeline}. "
            "Then repeat the command if needed.",
        )


def _worker(pipeline: str, number: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return STANDBYS.c.pipeline == pipeline, STANDBYS.c.number == number
