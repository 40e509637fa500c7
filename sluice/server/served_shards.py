"""The shards that one state server serves, and their addresses."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, MutableSet
from contextlib import suppress
from functools import partial
from pathlib import Path

from sluice.errors import Refused
from sluice.query.ledger_reads import read_ledger
from sluice.query.local_worker import LocalWorker
from sluice.query.workers import OpenWorkers
from sluice.server.shared import ShardId
from sluice.state.database import database_url
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.model import GenerationInfo, GenerationRef, WorkerInfo
from sluice.state.remote.server_identity import Card
from sluice.state.shard.addresses import location
from sluice.support.file_modes import make_file, make_folder

_IDENTITY_FILE = ".state-server"
REFRESH_SECONDS = 2.0
"""How often the server reads from the ledger which workers it serves. Until the next reading, it
also serves a worker that was moved to another server, because other processes may not know of the
move yet."""


class ServedShards:
    """The shards, below `base_url`, that the ledger places at `host` and `port`."""

    def __init__(
        self,
        ledger: Ledger,
        base_url: str,
        host: str,
        port: int,
        clock: Callable[[], float] = time.monotonic,
        arriving: MutableSet[ShardId] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.database = database_url(base_url).get_backend_name()
        self.identity = identity_of(base_url)
        self._ledger = ledger
        self._is_own_address = True
        self._base_url = base_url
        self._clock = clock
        self._refreshed_at = float("-inf")
        self._served: set[tuple[str, int]] = set()
        self._served_before: set[tuple[str, int]] = set()
        self._arriving = set[ShardId]() if arriving is None else arriving
        self._open = OpenWorkers[LocalWorker](clock)

    @property
    def card(self) -> Card:
        """The server's description of itself: its address, database and identity."""
        return Card(self.host, self.port, self.database, self.identity)

    async def location(self, ref: GenerationRef, number: int) -> str:
        """Return the address of a shard that this server serves or is receiving.

        Raise Refused if another server has the shard.
        """
        if not await self._is_served(ref.pipeline, number) and (ref, number) not in self._arriving:
            raise Refused(f"Worker {number} of {ref.pipeline!r} is not at this server.")
        return location(self._base_url, ref, number)

    async def worker(self, ref: GenerationRef, number: int) -> LocalWorker:
        """Return the worker that executes queries over a shard.

        Raise Refused if another server has the shard.
        """
        address = await self.location(ref, number)
        if self._open.may_have_unused():
            await self._open.close_unused()
        worker = self._open.get((ref, number))
        if worker is None:
            published = partial(self._ledger.audits.checksum, ref, number)
            worker = self._open.add((ref, number), LocalWorker(address, published))
        return worker

    async def expect(self, ref: GenerationRef, number: int) -> str:
        """Accept a shard that is about to be moved here. Return its address.

        Raise Refused if the ledger has no such worker.
        """
        info = await read_ledger(lambda: self._expected(ref))
        if info is None or number >= len(info.workers):
            raise Refused(
                f"The ledger has no worker {number} of generation {ref.generation} of "
                f"{ref.pipeline!r}."
            )
        self._arriving.add((ref, number))
        return location(self._base_url, ref, number)

    def _expected(self, ref: GenerationRef) -> GenerationInfo | None:
        """Return the generation, or the generation from which a renaming copies it."""
        info = self._ledger.generations.get(ref)
        if info is None:
            source = self._ledger.renames.source_of(ref)
            info = None if source is None else self._ledger.generations.get(source)
        return info

    def served_location(self, worker: WorkerInfo) -> str | None:
        """Return the address of a worker's shard if this server serves it, else None."""
        if (worker.host, worker.port) != (self.host, self.port) or not self._is_own_address:
            return None
        # The URL of a shard at a server ends with /GENERATION/NUMBER.
        generation = int(worker.server.split("/")[-2])
        return location(self._base_url, GenerationRef(worker.pipeline, generation), worker.number)

    async def _is_served(self, pipeline: str, number: int) -> bool:
        worker = pipeline, number
        if (
            self._clock() > self._refreshed_at + REFRESH_SECONDS
            or worker not in self._served | self._served_before
        ):
            self._refreshed_at = self._clock()
            served = await read_ledger(self._at_this_server)
            self._served_before = self._served if self._is_own_address else set()
            self._served = {(placement.pipeline, placement.number) for placement in served}
            # The ledger now places these workers here, so their shards are no longer marked as
            # arriving. A shard with this mark would still be served after its worker has moved to
            # another server.
            for ref, number in [*self._arriving]:
                if (ref.pipeline, number) in self._served:
                    self._arriving.discard((ref, number))
        return worker in self._served | self._served_before

    def _at_this_server(self) -> list[Placement]:
        # If the address is a loopback address such as 127.0.0.1, a server on another host may have
        # registered it. This server must not serve the workers of that other server.
        self._is_own_address = self._ledger.servers.identity(self.host, self.port) in (
            "",
            self.identity,
        )
        if not self._is_own_address:
            return []
        ledger = self._ledger
        return [
            *ledger.placements.at(self.host, self.port),
            *ledger.standbys.at(self.host, self.port),
        ]


def identity_of(base_url: str) -> str:
    """Return a state server's identity.

    It is a random number in the folder of its shards, or a hash of its database's address.
    """
    url = database_url(base_url)
    if url.get_backend_name() != "sqlite":
        return hashlib.sha256(f"{url.host}:{url.port}/{url.database}".encode()).hexdigest()
    folder = Path(url.database or "")
    make_folder(folder)
    file = folder / _IDENTITY_FILE
    if not file.exists():
        new = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        make_file(new)
        new.write_text(secrets.token_hex(32))
        # Another server of this folder may have made the file meanwhile. Its file is kept.
        with suppress(FileExistsError):
            file.hardlink_to(new)
        new.unlink()
    return file.read_text()
