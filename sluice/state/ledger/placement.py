"""Placements: which state server serves each worker's shards.

Every process opens the shard of a worker without a placement itself. A worker with a placement is queried at its state
server. The server also writes the shard if it is a SQLite file, which only the server's host can open; a shard in
PostgreSQL is written directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, Table, delete, insert, select
from sqlalchemy.sql import ColumnElement

from sluice.errors import Refused
from sluice.state.database import database_errors, database_url, transaction
from sluice.state.ledger.part import LedgerPart
from sluice.state.ledger.tables import PLACEMENTS, STANDBYS
from sluice.state.model import JobRef, WorkerInfo


class Placement(msgspec.Struct, frozen=True):
    """The state server of one worker of a pipeline, for all jobs and generations."""

    pipeline: str
    number: int
    host: str
    port: int
    tls: bool = False

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def url(self) -> str:
        """URL of the state server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}/local"

    def shard(self, ref: JobRef) -> str:
        """URL of the worker's shard of one job."""
        return f"{self.url}/{self.pipeline}/{ref.job}/{ref.generation}/{self.number}"


class Placements(LedgerPart):
    """The placements of all workers."""

    def of(self, pipeline: str) -> dict[int, Placement]:
        """Worker number → placement, for a pipeline's workers."""
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return _of_pipeline(connection, pipeline)

    def at(self, host: str, port: int) -> list[Placement]:
        """The workers that a state server serves."""
        rows = self._read(select(PLACEMENTS).where(PLACEMENTS.c.host == host, PLACEMENTS.c.port == port))
        return [Placement(**dict(row)) for row in rows]

    def claim(self, placement: Placement) -> None:
        """Place a worker at a server. Raises Refused if another server has it, or if this server is its standby."""
        with database_errors("Claiming the worker"), transaction(self._engine) as connection:
            standby = select(STANDBYS.c.host, STANDBYS.c.port).where(*_same_worker(STANDBYS, placement))
            if placement.address in {(row.host, row.port) for row in connection.execute(standby)}:
                raise Refused(
                    f"This server is the standby of worker {placement.number} of {placement.pipeline!r}.",
                    next_step="Start the server without --workers. To use the standby in place of the worker: sluice "
                    f"standby promote {placement.pipeline} {placement.number}",
                )
            before = _of_pipeline(connection, placement.pipeline).get(placement.number)
            if before is not None and before.address != placement.address:
                raise Refused(
                    f"Worker {placement.number} of {placement.pipeline!r} is at {before.host}:{before.port}, not here.",
                    next_step=f"To bring it here: sluice move {placement.pipeline} {placement.number} "
                    f"{placement.host}:{placement.port}",
                )
            replace_placement(connection, placement)

    def move(self, placement: Placement) -> None:
        """Place a worker at a server, even if another server has it."""
        with database_errors("Moving the worker"), transaction(self._engine) as connection:
            replace_placement(connection, placement)

    def clear(self) -> None:
        """Forget all placements, and all standbys."""
        with database_errors("Removing the placements"), transaction(self._engine) as connection:
            connection.execute(delete(PLACEMENTS))
            connection.execute(delete(STANDBYS))

    def written_at(self, ref: JobRef, locations: Sequence[str]) -> tuple[str, ...]:
        """The addresses at which a run writes the shards at `locations`: unchanged, or state servers' URLs."""
        placements = self.of(ref.pipeline)
        return tuple(_written_at(placements.get(n), ref, location) for n, location in enumerate(locations))


def place_workers(connection: Connection, ref: JobRef, rows: Sequence[RowMapping]) -> list[WorkerInfo]:
    """The workers of a job, combined from their rows and their placements."""
    placements = _of_pipeline(connection, ref.pipeline)
    workers = []
    for row in rows:
        values: dict[str, Any] = dict(row)
        if (placement := placements.get(row["number"])) is not None:
            values |= {"host": placement.host, "port": placement.port, "server": placement.shard(ref)}
            values["location"] = _written_at(placement, ref, row["location"])
        workers.append(WorkerInfo(**values))
    return workers


def _written_at(placement: Placement | None, ref: JobRef, location: str) -> str:
    if placement is None:
        return location
    if not location.startswith("http") and database_url(location).get_backend_name() == "postgresql":
        return location
    return placement.shard(ref)


def _of_pipeline(connection: Connection, pipeline: str) -> dict[int, Placement]:
    statement = select(PLACEMENTS).where(PLACEMENTS.c.pipeline == pipeline)
    return {row["number"]: Placement(**dict(row)) for row in connection.execute(statement).mappings()}


def replace_placement(connection: Connection, placement: Placement) -> None:
    """Place a worker at a server, within a transaction."""
    connection.execute(delete(PLACEMENTS).where(*_same_worker(PLACEMENTS, placement)))
    values = {name: getattr(placement, name) for name in Placement.__struct_fields__}
    connection.execute(insert(PLACEMENTS), values)


def _same_worker(table: Table, placement: Placement) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.pipeline == placement.pipeline, table.c.number == placement.number
