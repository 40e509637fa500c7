"""Moves the newest snapshot of a pipeline's state to the shards of a new generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import TypeVar

from sluice.engine.batch.shards import damaged_state
from sluice.engine.batch.side_outputs import delete_folder
from sluice.engine.batch.spark_state import copy_checkpoint, has_spark_state, last_batch
from sluice.engine.batch.storage import Storage
from sluice.errors import EngineError
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, Snapshot, WorkerInfo
from sluice.state.shard.addresses import is_remote
from sluice.state.shard.checksums import checksum_of
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.pages import PAGE, pages_of_states, pages_of_versions
from sluice.state.shard.protocol import Checksums, Journal, JournalEntry, Shard, Version

Moved = TypeVar("Moved", Version, StateVersion)

_STATE_ROWS = -1


@dataclass
class Origin:
    """A shard from which the newest versions are read, and the sums of their digests."""

    shard: Shard
    total_of_rows: int = 0
    total_of_states: int = 0

    def rows(self) -> Iterator[list[Version]]:
        """The newest version of each state row that has a value, in pages, sorted by group, key and window."""
        for page in in_pages(newest_rows(self.shard)):
            self.total_of_rows += sum(version.digest for version in page)
            yield page

    def states(self) -> Iterator[list[StateVersion]]:
        """The newest version of each operator state that has not been removed, in pages, sorted."""
        for page in in_pages(newest_states(self.shard)):
            self.total_of_states += sum(version.digest for version in page)
            yield page

    def require_published(self, worker: WorkerInfo, audit: Audit | None) -> None:
        """Raise DamagedState unless everything was read, with the published checksums."""
        published = None if audit is None else audit.published(worker.number)
        read = Checksums(checksum_of(self.total_of_rows), checksum_of(self.total_of_states))
        if published is not None and (reason := read.difference(published)):
            raise damaged_state({worker.number: (worker.location, reason)})


@dataclass
class Target:
    """A new shard that is filled, and what it got: by operator, or -1 for state rows."""

    shard: Shard
    rows: Counter[int] = field(default_factory=Counter)
    totals: Counter[int] = field(default_factory=Counter)
    """Sums of digests."""

    def add(self, versions: Sequence[Version]) -> None:
        self.shard.absorb(versions)
        self._count(_STATE_ROWS, versions)

    def add_states(self, states: Sequence[StateVersion]) -> None:
        self.shard.absorb_states(states)
        for operator, of_operator in groupby(states, lambda state: state.operator):
            self._count(operator, [*of_operator])

    def _count(self, operator: int, versions: Sequence[Version | StateVersion]) -> None:
        self.rows[operator] += len(versions)
        self.totals[operator] += sum(version.digest for version in versions)

    def finish(self, batch: int, epoch: int) -> Checksums:
        """Write the journal, compare the checksums with the rows, and accept writes. Returns the checksums."""
        entries = [
            JournalEntry(operator, batch, rows, checksum_of(self.totals[operator]))
            for operator, rows in self.rows.items()
        ]
        self.shard.settle(batch + 1, Journal(epoch, entries))
        checksums = self.shard.checksums(batch)
        self.shard.verify(batch, checksums)
        self.shard.verify_states(batch, checksums)
        self.shard.seal(sealed=False)
        return checksums


def require_local(info: GenerationInfo) -> None:
    """Raise EngineError unless this process opens the shards itself."""
    if remote := [worker for worker in info.workers if is_remote(worker.location)]:
        raise EngineError(
            f"Worker {remote[0].number} of {info.pipeline} is at a state server: {remote[0].location}. State is only "
            "moved between shards that this command opens itself.",
            next_step=f"Compute the state again from the topics: sluice rebuild {info.pipeline}.",
        )


def require_complete(
    ledger: Ledger, storage: Storage, published: Snapshot, written: Batch | None, *, next_step: str
) -> None:
    """Raise EngineError with this next step unless all batches that were begun or written have been published."""
    last_written = -1 if written is None else written.number
    if is_interrupted(ledger, storage, published) or last_written > published.batch:
        planned = ledger.plans.unpublished(storage.ref)
        begun = -1 if planned is None else planned.number
        raise EngineError(
            f"The last run of {storage.job.pipeline.name} was interrupted: batch "
            f"{max(begun, published.batch, last_written)} has begun but has not ended.",
            next_step=next_step,
        )


def is_interrupted(ledger: Ledger, storage: Storage, published: Snapshot) -> bool:
    """Whether the next run repeats a batch that was planned, or, for Spark's own state, published."""
    lacks_it = has_spark_state(storage.checkpoint) and last_batch(storage.checkpoint, "commits") < published.batch
    return lacks_it or ledger.plans.unpublished(storage.ref) is not None


def move_spark_state(old: Storage, new: Storage, batch: int) -> None:
    """Copy the checkpoint of a job whose state Spark keeps, without batches after `batch`.

    Raises EngineError if its files cannot be read or written.
    """
    if not has_spark_state(old.checkpoint):
        return
    try:
        delete_folder(new.folder)
        copy_checkpoint(old.checkpoint, new.checkpoint, batch)
    except OSError as error:
        raise EngineError(
            f"The checkpoint of {old.job.pipeline.name} cannot be copied: {error}.",
            next_step="Check the folder's permissions and the free space, then repeat the command.",
        ) from error


def newest_rows(shard: Shard, group: int | None = None) -> Iterator[Version]:
    """The newest version of each state row with a value, of all groups or of one, sorted by group, key and window."""
    versions = chain.from_iterable(pages_of_versions(shard, group=group))
    for _, of_row in groupby(versions, lambda version: (version.group_id, version.key, version.window_start)):
        *_, newest = of_row
        if newest.value is not None:
            yield newest


def newest_states(shard: Shard) -> Iterator[StateVersion]:
    """The newest version of each operator state that has not been removed, sorted."""
    versions = chain.from_iterable(pages_of_states(shard))
    for _, of_state in groupby(versions, lambda state: (state.operator, state.shared, state.key)):
        *_, newest = of_state
        if newest.state is not None:
            yield newest


def in_pages(versions: Iterable[Moved]) -> Iterator[list[Moved]]:
    """Group versions into lists of a moderate size."""
    versions = iter(versions)
    while page := list(islice(versions, PAGE)):
        yield page
