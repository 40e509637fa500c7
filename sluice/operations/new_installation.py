"""Fills an empty installation with copies of a ledger and its shards, for imports and restores.

The shards are copied first, and stay sealed. After them, the ledger is copied, in one transaction.
Until this transaction ends, nothing reads the shards, so an interrupted copy can be repeated. At
the end, the shards are unsealed.
"""

from __future__ import annotations

from contextlib import ExitStack

from sluice.errors import Refused
from sluice.state.ledger.copy_ledger import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef, WorkerInfo
from sluice.state.remote.copying import ShardCopy
from sluice.state.shard.addresses import exists, location
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.passwords import without_password


class NewInstallation:
    """A ledger and the shards at addresses under `shards`, which become copies of the `source`."""

    def __init__(self, source: Ledger, target: Ledger, shards: str) -> None:
        self._source, self._target, self._shards = source, target, shards
        self._addresses: dict[tuple[GenerationRef, int], str] = {}
        self._copies: list[ShardCopy] = []

    def finish_interrupted(self, *, next_step: str) -> bool:
        """Finish a copy of an installation that was interrupted after the ledger was copied.

        Return whether there was such a copy. Raise Refused, with `next_step`, if the ledger has
        pipelines that do not come from such a copy.
        """
        pipelines = self._target.generations.pipelines()
        if not pipelines:
            return False
        if self._unseal_copies():
            return True
        raise Refused(
            f"The ledger in SLUICE_LEDGER has pipelines already: {', '.join(pipelines)}.",
            next_step=next_step,
        )

    def place(self, worker: WorkerInfo) -> str:
        """Choose the new address of a worker's shard, and return it."""
        address = location(self._shards, worker.ref, worker.number)
        self._addresses[worker.ref, worker.number] = address
        return address

    def add(self, copy: ShardCopy) -> None:
        """Add the filled copy of a shard."""
        self._copies.append(copy)

    def finish(self) -> None:
        """Copy the ledger, with the new addresses of the shards, and unseal the shards."""
        copy_ledger(self._source, self._target, self._addresses)
        for copy in self._copies:
            copy.target.seal(sealed=False)

    def _unseal_copies(self) -> bool:
        """Unseal the shards of a copied ledger. Return whether any were sealed."""
        with ExitStack() as stack:
            sealed: list[LocalShard] = []
            for info in self._target.generations.of_all_pipelines():
                batch = self._source.snapshots.last_batch(info.ref)
                if batch is None:
                    continue
                if self._source.snapshots.get(info.ref, batch) != self._target.snapshots.get(
                    info.ref, batch
                ):
                    continue
                for worker in info.workers:
                    address = without_password(location(self._shards, info.ref, worker.number))
                    # A shard at another address, such as a state server's URL, is not a copy of
                    # this source.
                    if worker.location == address and exists(address):
                        shard = stack.enter_context(LocalShard.open(worker.location, to_write=True))
                        if shard.is_sealed():
                            sealed.append(shard)
            for shard in sealed:
                shard.seal(sealed=False)
        return bool(sealed)
