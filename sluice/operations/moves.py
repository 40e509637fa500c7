"""Moves a worker to another state server while queries continue.

The shard is copied while it is in use. Then it is sealed: a run in progress fails at its next
batch, and its retry writes to the new server. The latest changes are copied, and the ledger
registers the new placement. The old shard stays sealed, and its server answers queries until all
readers have seen the new placement.

The ledger registers the new placement only if the worker's placement has not changed since the move
began. Therefore, if the placement changes while a move is paused, the move does not put the worker
back to an old copy, and does not seal or unseal a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

from sluice.errors import DamagedState, NotFound, Refused, StateError
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.remote import server_identity
from sluice.state.remote.copying import Progress, ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.shard import Shard
from sluice.values.host_ports import address_of


def move(ledger: Ledger, place: Placement, progress: Progress = lambda _: None) -> int:
    """Move a worker with all its shards to `place`. Return the number of copied versions.

    The call can be repeated. Raise NotFound if the pipeline has no such worker. Raise Refused if
    another server answers at the address in `place`, if the server is the worker's standby, or if
    another command has changed the worker's placement meanwhile.
    """
    require_server(ledger, place)
    generations = ledger.generations.all(place.pipeline)
    # Before the pipeline's first run, a worker has no generation, but may have a server.
    is_placed = place.number in ledger.placements.of(place.pipeline)
    numbers_of_workers = [len(info.workers) for info in generations]
    if not is_placed and place.number >= max(numbers_of_workers, default=0):
        raise NotFound(
            f"Pipeline {place.pipeline!r} has no worker {place.number}.",
            next_step=f"Look for the numbers of its workers in: sluice workers {place.pipeline}.",
        )
    standby = ledger.standbys.of(place.pipeline).get(place.number)
    if standby is not None and standby.address == place.address:
        raise Refused(
            f"{place.host_port} is the standby of worker {place.number} of {place.pipeline!r}.",
            next_step=f"Promote the standby: sluice standby promote {place.pipeline} "
            f"{place.number}. Or remove it first.",
        )
    change = ledger.placements.begin_move(place)
    copied = 0
    with ExitStack() as stack:
        sources: list[Shard] = []
        targets: list[Shard] = []
        for info in ledger.generations.all(place.pipeline):
            if (shards := _shards(ledger, info, place, progress)) is None:
                continue
            source, copy = shards
            stack.enter_context(source)
            if copy is None:
                targets.append(source)
                continue
            stack.enter_context(copy)
            fill_and_seal(source, copy, lambda: ledger.placements.require_newest(change))
            copied += copy.versions
            sources.append(source)
            targets.append(copy.target)
        try:
            ledger.placements.finish_move(change)
        except Refused:
            # The old shards stay in use, so they are unsealed. If a newer move has begun, it has
            # sealed the shards for its own copy, and they stay sealed.
            if ledger.placements.is_newest(change):
                for source in sources:
                    source.seal(sealed=False)
            raise
        for target in targets:
            ledger.placements.require_newest(change)
            target.seal(sealed=False)
    return copied


def require_server(ledger: Ledger, place: Placement, database: str = "") -> None:
    """Raise StateError if no state server answers at this placement's address.

    Raise Refused if another server answers or, with `database`, if the server has its shards in
    another kind of database.
    """
    address = place.host_port
    card = server_identity.fetch_card(place.url, address)
    if (card.host, card.port) != place.address:
        own_address = address_of(card.host, card.port)
        raise Refused(
            f"The state server at {address} reports another address, {own_address}.",
            next_step=f"Use the address {own_address}. If this address does not lead to the "
            "server from here, restart the server with --host.",
        )
    if ledger.servers.identity(*place.address) not in ("", card.server):
        raise Refused(
            f"The state server that answers at {address} is not the one "
            "that has this address in the ledger.",
            next_step="Give each server its own address, which all hosts can reach: "
            "sluice serve --bind --host.",
        )
    if database and card.database != database:
        raise Refused(
            f"The state server at {address} keeps its shards in {card.database}, "
            f"not in {database}.",
            next_step=f"Use the address of a state server with SLUICE_SHARDS in {database}.",
        )


def _shards(
    ledger: Ledger, info: GenerationInfo, place: Placement, progress: Progress
) -> tuple[Shard, ShardCopy | None] | None:
    """Return the shard to move, and the copy to fill; None if there is no shard to move.

    The copy is None if an earlier move has already filled it.
    """
    worker = next((worker for worker in info.workers if worker.number == place.number), None)
    if worker is None or _is_shared(worker):
        return None
    published = ledger.snapshots.last_batch(info.ref)
    try:
        source = open_shard(worker.location, to_write=True)
    except StateError:
        if published is None:
            # A generation without a snapshot may have no shard yet.
            return None
        raise
    new_address = place.shard(info.ref)
    if worker.location == new_address:
        # An earlier move was interrupted after it changed the ledger, and may have left the shard
        # sealed.
        return source, None
    try:
        settled = -1 if published is None else published
        return source, ShardCopy(source, new_address, progress, settled=settled)
    except Refused:
        # The new server has a shard in use. This shard replaces the old shard if it has the
        # published state and the old shard does not.
        with suppress(StateError, Refused):
            target = open_shard(new_address, to_write=True)
            if not _difference(ledger, info, place.number, target) and _difference(
                ledger, info, place.number, source
            ):
                source.close()
                return target, None
            target.close()
        source.close()
        raise


def _difference(ledger: Ledger, info: GenerationInfo, worker: int, shard: Shard) -> str:
    """Return how a shard differs from the published state; an empty text if it does not differ."""
    audit = ledger.audits.newest(info.ref)
    if audit is None or (published := audit.published_checksums(worker)) is None:
        return "Nothing is published."
    try:
        shard.verify_rows(audit.batch, published)
        shard.verify_states(audit.batch, published)
    except DamagedState as error:
        return error.detail
    return ""


def _is_shared(worker: WorkerInfo) -> bool:
    return not worker.location.startswith(("sqlite", "http"))


def fill_and_seal(
    source: Shard,
    copy: ShardCopy,
    require_newest: Callable[[], None] = lambda: None,
) -> None:
    """Fill a copy of a shard that is in use, and seal the shard.

    Raise DamagedState, and leave the source unsealed, if the copy differs. `require_newest` is
    called before each change of the source's seal. It raises an error if another command has
    taken over, because only that command may now seal and unseal the source.
    """

    def seal(*, sealed: bool = True) -> None:
        require_newest()
        source.seal(sealed=sealed)

    copy.fill(
        stop_writers=seal, let_write=lambda: seal(sealed=False), before_replacing=require_newest
    )
