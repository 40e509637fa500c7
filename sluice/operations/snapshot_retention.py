"""Retention of snapshots: deletes old snapshots, and row versions that no kept snapshot includes.

The retention of windows is in `engine/publish/window_expiry.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice.errors import RetentionFailed, StateError
from sluice.kafka.unread_records import Offsets
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot
from sluice.state.remote.opening import open_shard

_ALL = 2**31 - 1
_LONGEST_BATCH = timedelta(days=7)


@dataclass(frozen=True)
class RetentionResult:
    """The number of snapshots and row versions deleted; `failed` maps workers to errors."""

    pipeline: str
    snapshots: int
    versions: int
    failed: dict[int, str]


def retain(
    ledger: Ledger,
    pipeline: str,
    keep_snapshots: int = 100,
    keep_seconds: float = 3_600.0,
    now: datetime | None = None,
) -> RetentionResult:
    """Delete a pipeline's old snapshots.

    Keep the newest `keep_snapshots`, but at least one, and those younger than `keep_seconds`. A
    reader can use its snapshot for at least `keep_seconds`.
    Snapshots are removed from the ledger before their row versions, so that no new reader pins a
    snapshot that is being deleted. If a shard is unreachable, a later call removes its row
    versions.
    """
    deadline = (now or datetime.now(UTC)) - timedelta(seconds=keep_seconds)
    snapshots = ledger.snapshots.recent(pipeline, limit=_ALL)
    read = _read_by_others(ledger, pipeline, now or datetime.now(UTC))
    oldest = _oldest_kept(snapshots, max(keep_snapshots, 1), deadline, read)
    if oldest is None:
        return RetentionResult(pipeline, 0, 0, {})
    newest = snapshots[0]
    forgotten = ledger.snapshots.forget(oldest.ref, oldest.batch)
    versions, failed = 0, {}
    # Use the generation of the snapshots that were read. A rebuild may by now have made another
    # generation current, with other batch numbers.
    info = ledger.generations.get(oldest.ref)
    workers = [] if info is None else info.workers
    for worker in workers:
        try:
            versions += _compact(worker.location, min(oldest.batch, newest.batch - 1))
            # A standby with an older copy still needs the versions of the last batch that it has.
            if worker.standby is not None and worker.standby.batch >= 0:
                versions += _compact(
                    worker.standby.server, min(oldest.batch, worker.standby.batch - 1)
                )
        except StateError as error:
            failed[worker.number] = error.detail
    return RetentionResult(pipeline, forgotten, versions, failed)


def note_retention(
    ledger: Ledger, pipeline: str, reasons: Sequence[str], secrets: Iterable[str] = ()
) -> None:
    """Record the failure `retention`, with the reasons why old state could not be deleted.

    Clear the failure if there are no reasons.
    """
    if reasons:
        error = RetentionFailed(" ".join(reasons))
        ledger.failures.keep(Failure.of(error, pipeline, kind="retention", secrets=secrets))
    else:
        ledger.failures.clear(pipeline, "retention")


def merge_history(ledger: Ledger, pipeline: str, begins: Offsets) -> int:
    """Merge the batches of a pipeline's history that no rebuild can repeat.

    Return by how many batches the history is shorter now.

    `begins`: topic → partition → the offset of the oldest record that the topic has. A batch is
    merged only if it comes before all batches whose snapshots are kept, and before all batches of
    which the topics still have a record.
    """
    oldest = ledger.snapshots.oldest(pipeline)
    if oldest is None:
        return 0
    last = None
    for batch in ledger.history.all(oldest.ref):
        if batch.number >= oldest.batch or not _is_gone(batch, begins):
            break
        last = batch.number
    if last is None:
        return 0
    return ledger.history.merge(oldest.ref, last)


def _is_gone(batch: Batch, begins: Offsets) -> bool:
    """Return whether all of a batch's records have been removed from the topics.

    Return False if one of the topics does not exist.
    """
    for topic, ends in batch.ends.items():
        for partition, end in ends.items():
            if begins.get(topic, {}).get(int(partition), -1) < end:
                return False
    return True


def _oldest_kept(
    snapshots: list[Snapshot],
    keep_snapshots: int,
    deadline: datetime,
    read: Collection[str] = (),
) -> Snapshot | None:
    """Return the oldest snapshot to keep: the one that was the newest at the deadline.

    Return an earlier snapshot if this is needed to keep `keep_snapshots` snapshots, or all those
    with ids in `read`. `snapshots` are sorted from newest to oldest.
    """
    kept = None
    replaced_at: datetime | None = None
    for index, snapshot in enumerate(snapshots):
        # A snapshot was the newest until the next snapshot replaced it, so its age counts from then
        # on.
        is_young = replaced_at is None or replaced_at > deadline
        if is_young or index < keep_snapshots or snapshot.id in read:
            kept = snapshot
        replaced_at = snapshot.published_at
    return kept


def _read_by_others(ledger: Ledger, pipeline: str, now: datetime) -> set[str]:
    """Return the ids of the snapshots that unfinished batches of other pipelines read.

    A batch that was planned long ago will hardly be repeated, and does not keep its snapshot.
    """
    oldest = (now - _LONGEST_BATCH).timestamp() * 1_000
    read: set[str] = set()
    for reader, plan in ledger.plans.readers(pipeline).items():
        if plan.begun >= oldest and ledger.plans.unpublished(reader) is not None:
            read.add(plan.snapshots[pipeline])
    return read


def _compact(location: str, keep_from: int) -> int:
    # A retry of the newest batch starts from the versions that this batch has replaced, so they are
    # kept. If batch 0 is the newest, it has replaced nothing, and `keep_from` is -1.
    with open_shard(location, to_write=True) as shard:
        return shard.compact(max(keep_from, 0))
