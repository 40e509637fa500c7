"""Spreads a job's state over another number of workers, in a new generation, while readers use the old one.

The newest snapshot's rows and states go to the worker that owns their key, and the checkpoint is copied, so the topics
are not read. Spark's own state and its logs do not depend on the number of workers. The new generation becomes current
in one transaction at the end; if the driver is killed before, the next call removes the unfinished generation.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import TypeVar

import msgspec
import structlog

from sluice.engine.batch.checkpoint import copy_checkpoint, last_batch
from sluice.engine.batch.shards import damaged_state, worker_shard
from sluice.engine.batch.side_outputs import delete_folder
from sluice.engine.batch.storage import Storage
from sluice.engine.job.driver_lease import Lease, current_lease, this_process
from sluice.engine.job.rebuild import drop_others
from sluice.engine.publish.databases import databases_of
from sluice.engine.publish.transaction import Writer, fence
from sluice.errors import EngineError
from sluice.plan import Job
from sluice.remote.opening import create_shard
from sluice.settings import Settings
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobInfo, WorkerInfo, owner
from sluice.state.shard.addresses import is_remote
from sluice.state.shard.checksums import checksum_of
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.pages import PAGE, pages_of_states, pages_of_versions
from sluice.state.shard.protocol import Checksums, Journal, JournalEntry, Shard, Version
from sluice.values.counts import counted

log = structlog.get_logger()

Progress = Callable[[str], None]

_STATE_ROWS = -1

_Moved = TypeVar("_Moved", Version, StateVersion)
_Divide = Callable[[list[_Moved]], dict[int, list[_Moved]]]
_Add = Callable[["_Target", list[_Moved]], None]


@dataclass(frozen=True)
class Repartitioned:
    """The current generation of a job, and the number of rows and states that its shards have."""

    generation: int
    workers: int
    rows: int | None
    """None if the job already had this number of workers, so that nothing was moved."""


@dataclass
class _Target:
    """A shard that is filled, and what it got: by operator, or -1 for state rows."""

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


def repartition(job: Job, settings: Settings, progress: Progress = lambda _: None) -> Repartitioned:
    """Spread a job's state over the workers that its pipeline now has. Returns the new generation.

    With the same number of workers, nothing changes, so that a successful call can be repeated. Raises EngineError
    without published state, after an interrupted batch, without a broker, or for a state that cannot be divided by key;
    LeaseError during a run; DamagedState if the state is not as published.
    """
    begun, (name, of_job) = time.monotonic(), (job.pipeline.name, job.name)
    holder = this_process(settings.run or "repartition")
    with Ledger.open(settings.ledger) as ledger, current_lease(ledger, name, of_job, holder) as lease:
        old = ledger.jobs.get(lease.ref)
        batch = ledger.snapshots.last_batch(lease.ref)
        if old is None or batch is None:
            raise EngineError(f"{name} has no state yet.", next_step=f"Run it: sluice run {name}.")
        if len(old.workers) == job.pipeline.workers:
            return Repartitioned(old.generation, len(old.workers), None)
        # A driver that does not know that it has lost the lease could still write a batch, which the new generation
        # would write again.
        written = fence(settings.kafka, Writer(old.ref, job.pipeline.markers))
        for database in databases_of(job, settings).values():
            database.fence()
        _require_divisible(job, old, batch, -1 if written is None else written.number, settings)
        drop_others(ledger, job, lease.row, settings)
        ref = ledger.jobs.new_generation(name, of_job)
        storage = Storage.of(job, ref.generation, settings)
        workers = tuple(
            WorkerInfo(pipeline=name, job=of_job, number=number, location=address)
            for number, address in enumerate(storage.locations)
        )
        new = msgspec.structs.replace(old, generation=ref.generation, workers=workers)
        ledger.jobs.register(new, hidden=True)
        with Lease(ledger.leases, new.ref, holder) as own:
            _copy_checkpoint(Storage.of(job, old.generation, settings), storage, batch)
            checksums, rows = _divide(ledger, old, new, batch, own.epoch, progress)
            ledger.jobs.continue_as(new.ref, old.ref, batch, checksums, own.epoch)
        note = (
            f"The state of {len(old.workers)} workers was spread over {len(workers)}, in generation {ref.generation}."
        )
        ledger.jobs.promote(new.ref, lease.row, settings.run, note)
    log.info(
        "state repartitioned", pipeline=name, generation=ref.generation, workers=len(workers), rows=rows,
        seconds=round(time.monotonic() - begun, 1),
    )  # fmt: skip
    return Repartitioned(ref.generation, len(workers), rows)


def _require_divisible(job: Job, old: JobInfo, batch: int, written: int, settings: Settings) -> None:
    """Raise EngineError unless the batch is the last that was begun, done and written, and local shards have it."""
    name = job.pipeline.name
    if remote := [worker for worker in old.workers if is_remote(worker.location)]:
        raise EngineError(
            f"Worker {remote[0].number} of {name} is at a state server.",
            next_step=f"Compute the state again from the topics: sluice rebuild {name}.",
        )
    checkpoint = Storage.of(job, old.generation, settings).checkpoint
    begun, done = (last_batch(checkpoint, logs) for logs in ("offsets", "commits"))
    if not begun == done == batch or written > batch:
        raise EngineError(
            f"The last run of {name} was interrupted: batch {max(begun, batch, written)} has begun but has not ended.",
            next_step=f"Run it once more with {len(old.workers)} workers: sluice run {name}.",
        )


def _copy_checkpoint(old: Storage, new: Storage, batch: int) -> None:
    try:
        delete_folder(new.folder)
        copy_checkpoint(old.checkpoint, new.checkpoint, batch)
    except OSError as error:
        raise EngineError(
            f"The checkpoint of {old.job.pipeline.name} cannot be copied: {error}.",
            next_step="Check the folder's permissions and the free space, then repeat the command.",
        ) from error


def _divide(
    ledger: Ledger, old: JobInfo, new: JobInfo, batch: int, epoch: int, progress: Progress
) -> tuple[list[Checksums], int]:
    """Fill the new shards from the old ones. Returns the new shards' checksums, and the number of rows and states."""
    tables = frozenset(store.group_id for store in old.stores if store.kind == "global")
    audit = ledger.audits.newest(old.ref)
    rows = 0

    def move(
        pages: Iterator[list[_Moved]], divide: _Divide[_Moved], add: Callable[[_Target, list[_Moved]], None]
    ) -> str:
        """Move versions to the new shards. Returns their checksum."""
        nonlocal rows
        total = 0
        for page in pages:
            for number, moved in divide(page).items():
                add(targets[number], moved)
            total += sum(version.digest for version in page)
            rows += len(page)
            progress(f"{counted(rows, 'row')} moved")
        return checksum_of(total)

    with ExitStack() as stack:
        targets = [_Target(stack.enter_context(create_shard(worker.location, anew=True))) for worker in new.workers]
        for worker in old.workers:
            division = _Division(old, worker.number, len(targets), tables)
            with worker_shard(worker.number, worker.location) as shard:
                state_rows = move(_pages(_newest_rows(shard)), division.of_rows, _Target.add)
                states = move(_pages(_newest_states(shard)), division.of_states, _Target.add_states)
            _require_published(audit, worker, Checksums(state_rows, states))
        return [target.finish(batch, epoch) for target in targets], rows


@dataclass(frozen=True)
class _Division:
    """Divides the rows of an old worker among the new ones."""

    job: JobInfo
    worker: int
    workers: int
    """The new number of workers."""
    tables: frozenset[int]
    """Groups of global tables, of which every worker has all rows."""

    def of_rows(self, page: Sequence[Version]) -> dict[int, list[Version]]:
        divided: dict[int, list[Version]] = defaultdict(list)
        for version in page:
            if version.group_id not in self.tables:
                divided[self._owner(version.key)].append(version)
            elif self.worker == 0:
                for number in range(self.workers):
                    divided[number].append(version)
        return divided

    def of_states(self, page: Sequence[StateVersion]) -> dict[int, list[StateVersion]]:
        divided: dict[int, list[StateVersion]] = defaultdict(list)
        for state in page:
            if state.shared:
                raise self._indivisible("The keys of a worker share a state, such as the buffer of a suppress step.")
            divided[self._owner(state.key)].append(state)
        return divided

    def _owner(self, key: str) -> int:
        if owner(key, len(self.job.workers)) != self.worker:
            raise self._indivisible(f"Worker {self.worker} has the state of key {key!r} for another worker.")
        return owner(key, self.workers)

    def _indivisible(self, why: str) -> EngineError:
        return EngineError(
            f"The state of {self.job.pipeline} cannot be divided by key. {why}",
            next_step=f"Compute it again from the topics: sluice rebuild {self.job.pipeline}.",
        )


def _newest_rows(shard: Shard) -> Iterator[Version]:
    """The newest version of each state row that has a value."""
    versions = chain.from_iterable(pages_of_versions(shard))
    for _, of_row in groupby(versions, lambda version: (version.group_id, version.key, version.window_start)):
        *_, newest = of_row
        if newest.value is not None:
            yield newest


def _newest_states(shard: Shard) -> Iterator[StateVersion]:
    """The newest version of each operator state that has not been removed."""
    versions = chain.from_iterable(pages_of_states(shard))
    for _, of_state in groupby(versions, lambda state: (state.operator, state.shared, state.key)):
        *_, newest = of_state
        if newest.state is not None:
            yield newest


def _pages(versions: Iterator[_Moved]) -> Iterator[list[_Moved]]:
    while page := list(islice(versions, PAGE)):
        yield page


def _require_published(audit: Audit | None, worker: WorkerInfo, moved: Checksums) -> None:
    """Raise DamagedState unless the moved rows have the published checksums."""
    published = None if audit is None else audit.published(worker.number)
    if published is not None and (reason := moved.difference(published)):
        raise damaged_state({worker.number: (worker.location, reason)})
