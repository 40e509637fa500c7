"""Where workers are: the state servers that answer for shards, and what all servers share.

A worker without a place has its shard opened by whoever reads or writes it. A worker with a place is asked at its state
server. If the shard is a SQLite file, which only that server's host can open, it is written there, too; a shard in
PostgreSQL is written straight to its database.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, RowMapping, delete, insert, select, text

from sluice.errors import Refused
from sluice.state.database import database_url, speaking_to, writing
from sluice.state.ledger.tables import PLACES, SECRETS
from sluice.state.model import WorkerInfo

if TYPE_CHECKING:
    from sluice.state.ledger.ledger import Ledger

_SECRET_BYTES = 32
_ADD_SECRET = text("INSERT INTO secrets (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING")


class Place(msgspec.Struct, frozen=True):
    """The state server of one worker of one pipeline, in every job and generation."""

    pipeline: str
    number: int
    host: str
    port: int
    tls: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    def shard(self, job: str, generation: int) -> str:
        """Address of the worker's shard of one job."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        base = f"{'https' if self.tls else 'http'}://{host}:{self.port}"
        return f"{base}/local/{self.pipeline}/{job}/{generation}/{self.number}"


class Places:
    """The places kept in a ledger. Every method raises StateError when that cannot be reached."""

    def __init__(self, ledger: Ledger) -> None:
        self._engine = ledger.engine

    def of(self, pipeline: str) -> dict[int, Place]:
        """The places of a pipeline's workers, by their number."""
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return _places(connection, [pipeline])[pipeline]

    def at(self, host: str, port: int) -> list[Place]:
        """The workers that a state server answers for."""
        here = select(PLACES).where(PLACES.c.host == host, PLACES.c.port == port)
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            return [Place(**row) for row in connection.execute(here).mappings()]

    def claim(self, place: Place) -> None:
        """Let a server answer for a worker from now on; Refused if another one does."""
        with speaking_to("Claiming the worker"), writing(self._engine) as connection:
            held = _places(connection, [place.pipeline])[place.pipeline].get(place.number)
            if held is not None and held.address != place.address:
                raise Refused(
                    f"Worker {place.number} of {place.pipeline!r} is at {held.host}:{held.port}, not here.",
                    next_step=f"To bring it here: sluice move {place.pipeline} {place.number} "
                    f"{place.host}:{place.port}",
                )
            _put(connection, place)

    def move(self, place: Place) -> None:
        """Let a server answer for a worker, whoever did so before."""
        with speaking_to("Moving the worker"), writing(self._engine) as connection:
            _put(connection, place)

    def written_at(self, pipeline: str, job: str, generation: int, locations: Sequence[str]) -> tuple[str, ...]:
        """Where a run writes the shards which, without places, would be at `locations`."""
        places = self.of(pipeline)
        return tuple(_location(places.get(n), job, generation, one) for n, one in enumerate(locations))

    def secret(self, name: str) -> bytes:
        """A random key that everything with this ledger shares; made when it is first asked for."""
        known = select(SECRETS.c.value).where(SECRETS.c.name == name)
        with speaking_to("Reading the ledger"), self._engine.connect() as connection:
            found = connection.execute(known).scalar()
        if found is None:
            with speaking_to("Writing the ledger"), writing(self._engine) as connection:
                connection.execute(_ADD_SECRET, {"name": name, "value": secrets.token_bytes(_SECRET_BYTES)})
                found = connection.execute(known).scalar_one()
        return bytes(found)


def place_workers(connection: Connection, rows: Sequence[RowMapping]) -> list[WorkerInfo]:
    """Workers as readers find them, from their rows in the ledger."""
    places = _places(connection, {row["pipeline"] for row in rows})
    return [_placed(row, places[row["pipeline"]].get(row["number"])) for row in rows]


def _placed(row: RowMapping, place: Place | None) -> WorkerInfo:
    known = {name: value for name, value in row.items() if name != "generation"}
    if place is None:
        return WorkerInfo(**known)
    shard = place.shard(row["job"], row["generation"])
    location = _location(place, row["job"], row["generation"], row["location"])
    return WorkerInfo(**known | {"location": location, "host": place.host, "port": place.port, "server": shard})


def _location(place: Place | None, job: str, generation: int, otherwise: str) -> str:
    if place is None:
        return otherwise
    if not otherwise.startswith("http") and database_url(otherwise).get_backend_name() == "postgresql":
        return otherwise
    return place.shard(job, generation)


def _places(connection: Connection, pipelines: Iterable[str]) -> dict[str, dict[int, Place]]:
    names = list(pipelines)
    found: dict[str, dict[int, Place]] = {name: {} for name in names}
    for row in connection.execute(select(PLACES).where(PLACES.c.pipeline.in_(names))).mappings():
        found[row["pipeline"]][row["number"]] = Place(**row)
    return found


def _put(connection: Connection, place: Place) -> None:
    mine = (PLACES.c.pipeline == place.pipeline, PLACES.c.number == place.number)
    connection.execute(delete(PLACES).where(*mine))
    connection.execute(insert(PLACES), msgspec.structs.asdict(place))
