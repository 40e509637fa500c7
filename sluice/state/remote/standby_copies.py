"""Refreshes and promotes standbys: copies of workers' shards at second state servers.

Both operations need the generation's lease. While an operation holds the lease, no run writes a
batch, and no other command refreshes or promotes the same standby.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sluice.errors import DamagedState, LeaseError, NotFound, Refused, StateError, Unreachable
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.standbys import Standby
from sluice.state.model import GenerationInfo, GenerationRef, WorkerInfo
from sluice.state.remote.copying import Progress, ShardCopy
from sluice.state.remote.opening import drop_shard, open_shard
from sluice.state.shard.addresses import is_file, is_remote, shown
from sluice.state.shard.shard import Checksums, Shard

RETRY_SECONDS = 10.0
"""How long a run waits for an unreachable state server, which may be restarting, before it promotes
a standby."""


@dataclass(frozen=True)
class FailedRefresh:
    """A standby that was not refreshed, and why."""

    worker: int
    error: StateError | Refused


@dataclass(frozen=True)
class RefreshedCopy:
    """A worker's copied shard after a refresh: its newest batch, the number of new versions."""

    worker: int
    batch: int
    copied: int
    why_whole: str
    """Why the whole shard was copied anew; empty if only new versions were copied."""


def refresh_standbys(
    ledger: Ledger,
    ref: GenerationRef,
    epoch: int,
    *,
    only_behind: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[RefreshedCopy | FailedRefresh]:
    """Bring the copies of a generation's standbys up to its newest snapshot, one after the other.

    The lease of the generation must be held in `epoch`. With `only_behind`, copies that hold this
    snapshot are not read. All rows of the other copies are compared with the published checksums; a
    damaged copy is replaced. If a server does not answer, or if the worker's own shard is damaged,
    the copy is kept, and the next standby is refreshed.
    """
    standbys = ledger.standbys.of(ref.pipeline)
    if not standbys:
        return
    info, batch = ledger.generations.get(ref), ledger.snapshots.last_batch(ref)
    if info is None or batch is None:
        return
    for worker in info.workers:
        standby = standbys.get(worker.number)
        if standby is None or (
            only_behind and (standby.copied_generation, standby.batch) == (ref, batch)
        ):
            continue
        try:
            require_copyable(worker)
            outcome: RefreshedCopy | FailedRefresh = _refresh(
                ledger, ref, worker, standby, batch, epoch, progress
            )
        except (StateError, Refused) as error:
            # An error of this standby must not prevent the refresh of the other standbys.
            outcome = FailedRefresh(worker.number, error)
        yield outcome


def _refresh(
    ledger: Ledger,
    ref: GenerationRef,
    worker: WorkerInfo,
    standby: Standby,
    batch: int,
    epoch: int,
    progress: Progress,
) -> RefreshedCopy:
    place, published = standby.shard(ref), ledger.audits.newest_checksums(ref, worker.number)
    has_copy = standby.copied_generation == ref
    with open_shard(worker.location) as source:
        with _damage_of(worker):
            _compare_journal(source, batch, published)

        def forget_copy() -> None:
            """Record that the standby has no copy, so that no query reads it. Delete the copy."""
            nonlocal standby
            copied = standby.copied_generation
            standby = ledger.standbys.record_copy(standby, ref, None, epoch)
            if copied is not None:
                drop_shard(standby.shard(copied))

        def before_replacing() -> None:
            # If the source is damaged, this raises an error, which keeps the copy: the copy may be
            # the only undamaged shard.
            with _damage_of(worker):
                _verify(source, batch, published)
            forget_copy()

        # The standby may hold a copy of a generation that has been replaced.
        if not has_copy:
            forget_copy()
        with ShardCopy(source, place, progress, until=batch, is_complete=has_copy) as copy:
            copy.fill(published, before_replacing=before_replacing)
    ledger.standbys.record_copy(standby, ref, batch, epoch)
    why = copy.why_replaced
    if not why and not has_copy:
        why = "There was no copy yet."
    return RefreshedCopy(worker.number, batch, copy.versions, why)


def promote_standby(
    ledger: Ledger,
    ref: GenerationRef,
    number: int,
    epoch: int,
    *,
    run: str = "",
    why: str,
    accept_stale: bool = False,
) -> str:
    """Put a worker's standby in the worker's place, for readers and for runs.

    Return the note that the ledger keeps. The lease of the generation must be held in `epoch`. The
    copy must hold the newest snapshot and match its published checksums. With `accept_stale`, an
    older copy is promoted too: it is quarantined, and the next run restores the state from the
    topics.

    Raise NotFound if the worker has no standby, and DamagedState if the copy is damaged. Raise
    Refused if the copy is older than the newest snapshot, or if the worker's placement or standby
    has changed meanwhile.
    """
    place = ledger.placements.epochs(ref.pipeline).get(number, 0)
    info, batch = ledger.generations.get(ref), ledger.snapshots.last_batch(ref)
    standby = ledger.standbys.of(ref.pipeline).get(number)
    if info is None or batch is None or standby is None or number >= len(info.workers):
        raise NotFound(
            f"Worker {number} of {ref.pipeline!r} has no standby.",
            next_step=f"Look for the workers with standbys in: sluice workers {ref.pipeline}.",
        )
    if standby.copied_generation == ref:
        copy_text = f"snapshot {ref.generation}.{standby.batch}"
    else:
        copy_text = "no complete copy"
    is_stale = (standby.copied_generation, standby.batch) != (ref, batch)
    if is_stale and not accept_stale:
        raise Refused(
            f"The standby of worker {number} of {ref.pipeline!r} at {standby.host_port} has "
            f"{copy_text}, but {ref.generation}.{batch} is published.",
            next_step="Bring the worker's server back. If the server is lost, accept that the "
            f"state is computed again from the topics: sluice standby promote {ref.pipeline} "
            f"{number} --stale",
        )
    old, quarantined = info.workers[number].location, ""
    if is_stale:
        quarantined = f"The standby that took the worker's place had {copy_text}."
        if standby.copied_generation == ref:
            with open_shard(standby.shard(ref), to_write=True) as copy:
                copy.seal(sealed=False)
    else:
        published = ledger.audits.newest_checksums(ref, number)
        try:
            with open_shard(standby.shard(ref), to_write=True) as copy:
                _verify(copy, batch, published)
                copy.seal(sealed=False)
        except DamagedState as error:
            raise DamagedState(
                f"The standby of worker {number} is damaged, too. {error.detail}"
            ) from error
    note = (
        f"Worker {number}: the standby at {standby.host_port}, which had {copy_text}, took the "
        f"place of the shard at {shown(old)}. {why}"
    )
    try:
        place = ledger.standbys.promote(standby, ref, epoch, place, run, note, quarantined)
    except (LeaseError, Refused):
        # The copy stays a standby, so it is sealed again, and no run can write to it.
        if (
            ledger.standbys.of(ref.pipeline).get(number) == standby
            and standby.copied_generation == ref
        ):
            with (
                suppress(StateError, Refused),
                open_shard(standby.shard(ref), to_write=True) as copy,
            ):
                copy.seal()
        raise
    # The ledger's new placement says that the copy is used from now on. The seal of the worker's
    # old shard also stops programs that do not ask the ledger.
    with suppress(StateError, Refused), open_shard(old, to_write=True) as shard:
        if ledger.placements.epochs(ref.pipeline).get(number) == place:
            shard.seal()
    return note


def promote_lost_standbys(
    ledger: Ledger, ref: GenerationRef, epoch: int, lost: Iterable[int] | None, run: str, why: str
) -> list[str]:
    """Promote the standbys of the `lost` workers; None stands for all whose servers are silent.

    Return the notes. Raise the same errors as `promote_standby`.
    """
    if lost is None:
        info = ledger.generations.get(ref)
        lost = [] if info is None else _unreachable(info)
    notes: list[str] = []
    for number in lost:
        notes.append(promote_standby(ledger, ref, number, epoch, run=run, why=why))
    return notes


def require_copyable(worker: WorkerInfo) -> None:
    """Raise Refused if a worker's shard is in PostgreSQL."""
    if not (is_remote(worker.location) or is_file(worker.location)):
        raise Refused(
            f"The shard of worker {worker.number} of {worker.pipeline!r} is in PostgreSQL: "
            f"{shown(worker.location)}.",
            next_step="Use a replica of the PostgreSQL server instead of a standby.",
        )


def _unreachable(info: GenerationInfo) -> list[int]:
    """Return the workers whose state servers have not answered for `RETRY_SECONDS`."""
    until = time.monotonic() + RETRY_SECONDS
    silent = _silent(info.workers)
    while silent and time.monotonic() < until:
        time.sleep(0.5)
        silent = _silent(silent)
    return [worker.number for worker in silent]


def _silent(workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers whose state servers do not answer now."""
    return [worker for worker in workers if not _answers(worker)]


def _answers(worker: WorkerInfo) -> bool:
    try:
        open_shard(worker.location).close()
    except Unreachable:
        return False
    except StateError:
        # The server answers, so it is not lost, although it cannot open the shard.
        pass
    return True


def _verify(shard: Shard, batch: int, published: Checksums | None) -> None:
    """Read all rows of a shard.

    Raise DamagedState if its rows or its journal differ from the published checksums.
    """
    _compare_journal(shard, batch, published)
    shard.verify_rows(batch, published)
    shard.verify_states(batch, published)


def _compare_journal(shard: Shard, batch: int, published: Checksums | None) -> None:
    if published is None:
        return
    reason = shard.checksums(batch).difference(published)
    if reason:
        raise DamagedState(f"The shard is damaged: {reason}")


@contextmanager
def _damage_of(worker: WorkerInfo) -> Iterator[None]:
    """Name the worker, and the next step, in an error of the worker's own shard."""
    try:
        yield
    except DamagedState as error:
        reason = error.detail.removeprefix("The shard is damaged: ")
        raise DamagedState(
            f"Worker {worker.number}'s shard is damaged: {reason} "
            f"Its address is {shown(worker.location)}. Its standby's copy is kept.",
            next_step=f"To exclude the shard from queries: sluice audit {worker.pipeline} "
            "--verify. The next run then promotes the standby or restores the state from the "
            f"topics: sluice run {worker.pipeline}",
            workers={worker.number: shown(worker.location)},
        ) from error
