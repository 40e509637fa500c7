"""Moves a worker to another state server while queries continue.

The shard is copied while it is in use. Then it is sealed: a run in progress fails at its next batch, and its retry
writes to the new server. The latest changes are copied, and the ledger registers the new placement. The old shard
stays sealed, and its server answers queries until all readers have seen the new placement.

The ledger registers the new placement only if nothing has changed the worker's place since the move began. A move that
was paused meanwhile therefore neither puts the worker back to an old copy, nor seals or unseals a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

from sluice.errors import DamagedState, NotFound, Refused, StateError
from sluice.remote import identity
from sluice.remote.copying import Progress, copy_versions
from sluice.remote.opening import create_shard, open_shard
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.shard.protocol import Journal, Shard
from sluice.values.addresses import address_of


def move(ledger: Ledger, place: Placement, progress: Progress = lambda _: None) -> int:
    """Move a worker with all its shards to `place`. Returns the number of copied versions. Can be repeated.

    Raises NotFound if the pipeline has no such worker, and Refused if another server answers at that address, if the
    server is the worker's standby, or if another command has changed the worker's place meanwhile.
    """
    require_server(ledger, place)
    generations = ledger.generations.all(place.pipeline)
    # A worker can have a server before the pipeline's first run.
    is_placed = place.number in ledger.placements.of(place.pipeline)
    if not is_placed and place.number >= max((len(info.workers) for info in generations), default=0):
        raise NotFound(f"Pipeline {place.pipeline!r} has no worker {place.number}.")
    if (standby := ledger.standbys.of(place.pipeline).get(place.number)) and standby.address == place.address:
        raise Refused(
            f"{place.shown} is the standby of worker {place.number} of {place.pipeline!r}.",
            next_step=f"sluice standby promote {place.pipeline} {place.number}, or remove the standby first.",
        )
    change = ledger.placements.begin(place)
    copied = 0
    with ExitStack() as stack:
        left, arrived = [], []
        for info in ledger.generations.all(place.pipeline):
            if (pair := _shards(ledger, info, place)) is not None:
                source, target = (stack.enter_context(shard) for shard in pair)
                if source is not target:
                    copied += copy_shard(source, target, progress, lambda: ledger.placements.require_newest(change))
                    left.append(source)
                arrived.append(target)
        try:
            ledger.placements.move(change)
        except Refused:
            if ledger.placements.is_newest(change):
                for source in left:
                    source.seal(sealed=False)
            raise
        for target in arrived:
            ledger.placements.require_newest(change)
            target.seal(sealed=False)
    return copied


def require_server(ledger: Ledger, place: Placement, database: str = "") -> None:
    """Raise an error unless the state server of this placement answers: StateError if none does, Refused if another.

    With `database`, raise Refused if the server has its shards in another kind of database.
    """
    address = place.shown
    card = identity.ask(place.url, address)
    if (card.host, card.port) != place.address:
        own = address_of(card.host, card.port)
        raise Refused(
            f"The state server at {address} calls itself {own}.",
            next_step=f"Use the address {own}. If it does not lead to the server from here, restart the server with "
            "--host.",
        )
    if ledger.servers.identity(*place.address) not in ("", card.server):
        raise Refused(
            f"The state server that answers at {address} is not the one that has this address in the ledger.",
            next_step="Give each server an address of its own, which all hosts can reach: sluice serve --bind --host.",
        )
    if database and card.database != database:
        raise Refused(f"The state server at {address} keeps its shards in {card.database}, not in {database}.")


def _shards(ledger: Ledger, info: GenerationInfo, place: Placement) -> tuple[Shard, Shard] | None:
    """Source and target of the move: the same shard after an earlier move; None if there is no shard."""
    worker = next((one for one in info.workers if one.number == place.number), None)
    if worker is None or _is_shared(worker):
        return None
    try:
        source = open_shard(worker.location, to_write=True)
    except StateError:
        if ledger.snapshots.last_batch(info.ref) is None:
            return None
        raise
    there = place.shard(info.ref)
    if worker.location == there:
        return source, source
    try:
        return source, create_shard(there, anew=True)
    except Refused:
        with suppress(StateError, Refused):
            target = open_shard(there, to_write=True)
            if not _difference(ledger, info, place.number, target) and _difference(ledger, info, place.number, source):
                source.close()
                return target, target
            target.close()
        source.close()
        raise


def _difference(ledger: Ledger, info: GenerationInfo, worker: int, shard: Shard) -> str:
    """How a shard differs from the published state; empty if it does not."""
    audit = ledger.audits.newest(info.ref)
    published = None if audit is None else audit.published(worker)
    if audit is None or published is None:
        return "Nothing is published."
    try:
        shard.verify(audit.batch, published)
        shard.verify_states(audit.batch, published)
    except DamagedState as error:
        return error.detail
    return ""


def _is_shared(worker: WorkerInfo) -> bool:
    return not worker.location.startswith(("sqlite", "http"))


def copy_shard(
    source: Shard, target: Shard, progress: Progress, require_newest: Callable[[], None] = lambda: None
) -> int:
    """Copy a shard to a new, sealed one, and seal it. Returns the number of copied versions.

    Raises DamagedState, and leaves the source unsealed, if the copy's checksums differ. `require_newest` raises an
    error if another command has taken over, so that the source is no longer this command's to seal.
    """
    before = source.journal()
    copied = copy_versions(source, target, 0, progress)
    require_newest()
    source.seal()
    try:
        # Meanwhile, a run may have retried the last batch or written new batches.
        target.settle(before.newest, Journal(before.epoch, []))
        copied += copy_versions(source, target, before.newest, progress)
        journal = source.journal()
        target.settle(journal.newest + 1, journal)
        target.verify_states(journal.newest)
    except DamagedState:
        require_newest()
        source.seal(sealed=False)
        raise
    return copied
