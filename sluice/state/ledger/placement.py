"""Placements: which state server serves each worker's shards.

If a worker has no placement, every process opens the worker's shard itself. A worker with a
placement is queried at its state server. The server also writes the shard if the shard is a SQLite
file, which only the server's host can open. Runs write a shard in PostgreSQL directly.

Each change of a worker's placement has an epoch, which increases. A move takes its epoch when it
begins. A move that was paused while another move began has an older epoch, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, Table, delete, insert, select, update
from sqlalchemy.sql import ColumnElement

from sluice.errors import Refused
from sluice.state.database import database_errors, database_url, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import GENERATIONS, PLACEMENTS, PLACES, SERVERS, STANDBYS
from sluice.state.model import GenerationRef, WorkerInfo
from sluice.values.host_ports import address_of


class Placement(msgspec.Struct, frozen=True):
    """The state server of one worker of a pipeline, for all generations."""

    pipeline: str
    number: int
    host: str
    port: int
    tls: bool = False

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def host_port(self) -> str:
        """The address as commands print and accept it."""
        return address_of(*self.address)

    @property
    def url(self) -> str:
        """URL of the state server."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.host_port}/local"

    def shard(self, ref: GenerationRef) -> str:
        """Return the URL of the worker's shard of one generation."""
        return f"{self.url}/{self.pipeline}/{ref.generation}/{self.number}"


class Move(Placement, frozen=True):
    """A move that has begun: its epoch, the worker's new placement, the generations to move."""

    epoch: int = 0
    generations: frozenset[GenerationRef] = frozenset()
    """The generations whose shards are moved."""


class Placements(LedgerPart):
    """The placements of all workers."""

    def of(self, pipeline: str) -> dict[int, Placement]:
        """Return worker number → placement, for a pipeline's workers."""
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return _of_pipeline(connection, pipeline)

    def at(self, host: str, port: int) -> list[Placement]:
        """Return the workers that a state server serves."""
        rows = self._read(
            select(PLACEMENTS).where(PLACEMENTS.c.host == host, PLACEMENTS.c.port == port)
        )
        return [Placement(**dict(row)) for row in rows]

    def claim(self, placement: Placement) -> None:
        """Place a worker at a server.

        Raise Refused if another server has the worker, or if this server is the worker's standby.
        """
        with database_errors("Claiming the worker"), transaction(self._engine) as connection:
            if placement.address in addresses(connection, STANDBYS, placement):
                raise Refused(
                    f"This server is the standby of worker {placement.number} of "
                    f"{placement.pipeline!r}.",
                    next_step="Start the server without --workers. To use the standby in place "
                    f"of the worker: sluice standby promote {placement.pipeline} "
                    f"{placement.number}",
                )
            before = _of_pipeline(connection, placement.pipeline).get(placement.number)
            # Only a move takes a worker away from a server, because it also copies the shard.
            if before is not None and before.address != placement.address:
                tls = " --tls" if placement.tls else ""
                raise Refused(
                    f"Worker {placement.number} of {placement.pipeline!r} is at "
                    f"{before.host_port}, not here.",
                    next_step="To bring the worker here, start this server without --workers, "
                    f"then: sluice move {placement.pipeline} {placement.number} "
                    f"{placement.host_port}{tls}",
                )
            # The address is the same, but `tls` differs if the server has got a certificate since
            # the worker was placed.
            if before != placement:
                replace_placement(connection, placement)

    def begin_move(self, placement: Placement) -> Move:
        """Begin to move a worker to a server.

        From now on, earlier moves of the worker are refused.
        """
        with database_errors("Moving the worker"), transaction(self._engine) as connection:
            epoch = _next_epoch(connection, placement)
            return Move(
                **_columns(placement),
                epoch=epoch,
                generations=_generations(connection, placement.pipeline),
            )

    def is_newest(self, move: Move) -> bool:
        """Return whether the worker has not been placed anew since this move began."""
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return _epoch(connection, move) == move.epoch

    def require_newest(self, move: Move) -> None:
        """Raise Refused unless this move is the newest change of the worker's placement."""
        if not self.is_newest(move):
            raise _overtaken(self.of(move.pipeline).get(move.number), move)

    def finish_move(self, move: Move) -> None:
        """Place the moved worker at its new server.

        Raise Refused and change nothing if the worker's placement has changed since the move
        began, or another move was begun, or the pipeline has other generations now.
        """
        with database_errors("Moving the worker"), transaction(self._engine) as connection:
            # In PostgreSQL, another move that begins now waits for this lock until this move has
            # ended.
            if _epoch(connection, move, lock=True) != move.epoch:
                raise _overtaken(_of_pipeline(connection, move.pipeline).get(move.number), move)
            # A shard of a new generation has not been moved, so a run would not find it.
            if _generations(connection, move.pipeline) != move.generations:
                raise Refused(
                    f"A generation of {move.pipeline!r} was added or removed while its worker "
                    f"{move.number} was moved. The worker stays where it was.",
                    next_step="Repeat the command.",
                )
            _write_placement(connection, move)

    def epochs(self, pipeline: str) -> dict[int, int]:
        """Return worker number → the epoch of the newest change of its placement.

        Equal epochs mean equal placements.
        """
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return epochs_of(connection, pipeline)

    def clear(self) -> None:
        """Forget all placements, all standbys and the identities of their servers."""
        with database_errors("Removing the placements"), transaction(self._engine) as connection:
            for table in (PLACEMENTS, STANDBYS, SERVERS):
                connection.execute(delete(table))

    def written_at(self, ref: GenerationRef, locations: Sequence[str]) -> tuple[str, ...]:
        """Return the address at which a run writes each shard in `locations`.

        This is the address in `locations`, or a state server's URL.
        """
        placements = self.of(ref.pipeline)
        addresses: list[str] = []
        for number, location in enumerate(locations):
            addresses.append(_written_at(placements.get(number), ref, location))
        return tuple(addresses)


def place_workers(connection: Connection, rows: Sequence[RowMapping]) -> list[WorkerInfo]:
    """Return the workers in rows of the table `workers`, with their state servers."""
    pipelines = sorted({row["pipeline"] for row in rows})
    placements = _of_pipelines(connection, pipelines)
    workers = []
    for row in rows:
        values: dict[str, Any] = dict(row)
        placement = placements.get((row["pipeline"], row["number"]))
        if placement is not None:
            ref = GenerationRef(row["pipeline"], row["generation"])
            values |= {
                "host": placement.host,
                "port": placement.port,
                "server": placement.shard(ref),
            }
            values["location"] = _written_at(placement, ref, row["location"])
        workers.append(WorkerInfo(**values))
    return workers


def _written_at(placement: Placement | None, ref: GenerationRef, location: str) -> str:
    """Return the address at which a run writes a shard."""
    if placement is None:
        return location
    if (
        not location.startswith("http")
        and database_url(location).get_backend_name() == "postgresql"
    ):
        # Every host reaches the database, so writing through the state server would only take
        # longer.
        return location
    return placement.shard(ref)


def _of_pipeline(connection: Connection, pipeline: str) -> dict[int, Placement]:
    placements: dict[int, Placement] = {}
    for (_, number), placement in _of_pipelines(connection, [pipeline]).items():
        placements[number] = placement
    return placements


def _of_pipelines(
    connection: Connection,
    pipelines: Sequence[str],
) -> dict[tuple[str, int], Placement]:
    """Return pipeline and worker number → placement."""
    statement = select(PLACEMENTS).where(PLACEMENTS.c.pipeline.in_(pipelines))
    placements: dict[tuple[str, int], Placement] = {}
    for row in connection.execute(statement).mappings():
        placements[row["pipeline"], row["number"]] = Placement(**dict(row))
    return placements


def epochs_of(connection: Connection, pipeline: str) -> dict[int, int]:
    """Return the same as `Placements.epochs`, within a transaction."""
    rows = connection.execute(
        select(PLACES.c.number, PLACES.c.epoch).where(PLACES.c.pipeline == pipeline)
    )
    return {row.number: row.epoch for row in rows}


def _epoch(connection: Connection, placement: Placement, *, lock: bool = False) -> int:
    """Return the epoch of the newest change of a worker's placement; 0 if it has never changed."""
    statement = select(PLACES.c.epoch).where(*_same_worker(PLACES, placement))
    if lock:
        statement = statement.with_for_update()
    return connection.execute(statement).scalar() or 0


def _next_epoch(connection: Connection, placement: Placement) -> int:
    epoch = _epoch(connection, placement, lock=True) + 1
    if epoch == 1:
        values = {"pipeline": placement.pipeline, "number": placement.number, "epoch": epoch}
        connection.execute(insert(PLACES), values)
    else:
        connection.execute(
            update(PLACES).where(*_same_worker(PLACES, placement)).values(epoch=epoch)
        )
    return epoch


def _generations(connection: Connection, pipeline: str) -> frozenset[GenerationRef]:
    columns = GENERATIONS.c.pipeline, GENERATIONS.c.generation
    rows = connection.execute(select(*columns).where(GENERATIONS.c.pipeline == pipeline))
    return frozenset(GenerationRef(*row) for row in rows)


def _overtaken(now: Placement | None, move: Move) -> Refused:
    place = "without a state server" if now is None else f"at {now.host_port}"
    return Refused(
        f"While this command ran, another command moved worker {move.number} of {move.pipeline!r}, "
        f"or began to move it. The worker is {place}, and this command has not changed that.",
        next_step=f"Look where the worker is: sluice workers {move.pipeline}. "
        "Move it again if it has to be elsewhere.",
    )


def replace_placement(connection: Connection, placement: Placement) -> int:
    """Place a worker at a server, within a transaction.

    Moves of this worker that began earlier are refused from now on. Return the epoch of this
    change.
    """
    _write_placement(connection, placement)
    return _next_epoch(connection, placement)


def _write_placement(connection: Connection, placement: Placement) -> None:
    connection.execute(delete(PLACEMENTS).where(*_same_worker(PLACEMENTS, placement)))
    connection.execute(insert(PLACEMENTS), _columns(placement))


def _columns(placement: Placement) -> dict[str, Any]:
    """Return the row of a placement, or of the placement that a move makes."""
    return {name: getattr(placement, name) for name in Placement.__struct_fields__}


def addresses(connection: Connection, table: Table, placement: Placement) -> set[tuple[str, int]]:
    """Return the worker's servers in a table, `PLACEMENTS` or `STANDBYS`."""
    statement = select(table.c.host, table.c.port).where(*_same_worker(table, placement))
    return {(row.host, row.port) for row in connection.execute(statement)}


def _same_worker(
    table: Table,
    placement: Placement,
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.pipeline == placement.pipeline, table.c.number == placement.number
