"""Spreads a pipeline's state over another number of workers, in a new generation.

Meanwhile, readers use the old generation. The newest snapshot's rows and states go to the worker
that owns their key, so the topics are not read. The new generation becomes current in one
transaction at the end; if the driver is killed before this transaction, the next call removes the
unfinished generation.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import spread_timers
from sluice.engine.batch.worker_shards import damaged_state, worker_shard
from sluice.engine.publish.kafka_transaction import fence
from sluice.engine.publish.markers import Writer
from sluice.engine.publish.target_tables import databases_of
from sluice.engine.run.driver_lease import Lease, current_lease, this_process
from sluice.errors import DamagedState, EngineError, StateError, Unreachable
from sluice.kafka.brokers import require_brokers
from sluice.operations.interrupted_batch import require_complete
from sluice.operations.rebuild import drop_other_generations
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.remote.copying import NewShard, Progress, SourceShard, Versions
from sluice.state.remote.opening import create_shard
from sluice.state.shard.addresses import shown
from sluice.state.shard.answer_rows import by_worker
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.pages import pages_of_answers
from sluice.state.shard.shard import Checksums, Version
from sluice.values.key_owners import owner
from sluice.values.phrases import counted

log = structlog.get_logger()

_Divide = Callable[[list[Versions]], dict[int, list[Versions]]]


@dataclass(frozen=True)
class RepartitionResult:
    """The current generation, and the number of rows and states that its shards have."""

    generation: int
    workers: int
    rows: int | None
    """None if the pipeline already had this number of workers, so that nothing was moved."""


def repartition(
    job: Job,
    settings: Settings,
    progress: Progress = lambda _: None,
) -> RepartitionResult:
    """Spread a pipeline's state over the workers that it now has. Return the new generation.

    If the number of workers has not changed, do nothing, so that a successful call can be repeated.
    Raise EngineError if there is no published state, if the last batch was interrupted, or if the
    state cannot be divided by key; BrokersUnreachable if no broker answers; LeaseError if a run is
    in progress; DamagedState if the state is not as published.
    """
    begun, name = time.monotonic(), job.pipeline.name
    holder = this_process(settings.run or "repartition")
    with Ledger.open(settings.ledger) as ledger, current_lease(ledger, name, holder) as lease:
        old = ledger.generations.get(lease.ref)
        places = ledger.placements.epochs(name)
        published = ledger.snapshots.newest(lease.ref)
        if old is None or published is None:
            raise EngineError(f"{name} has no state yet.", next_step=f"Run it: sluice run {name}.")
        batch = published.batch
        if len(old.workers) == job.pipeline.workers:
            return RepartitionResult(old.generation, len(old.workers), None)
        ref = ledger.generations.new(name)
        storage = Storage.of(job, ref.generation, settings).placed(ledger.placements)
        workers: tuple[WorkerInfo, ...] = ()
        for number, address in enumerate(storage.locations):
            workers += (
                WorkerInfo(
                    pipeline=name, generation=ref.generation, number=number, location=address
                ),
            )
        new = msgspec.structs.replace(old, generation=ref.generation, workers=workers)
        require_brokers(settings.kafka)
        # Fence off other drivers. A driver that has not noticed the loss of its lease could still
        # write a batch, and the new generation would write this batch again.
        output = fence(settings.kafka, Writer(old.ref, job.pipeline.markers))
        output.require_newest()
        formerly = ledger.renames.former_names(job.pipeline.name)
        for database in databases_of(job, settings, formerly).values():
            database.fence()
        retry = f"Run it once more with {counted(len(old.workers), 'worker')}: sluice run {name}."
        require_complete(ledger, published, output.last, next_step=retry)
        # If an earlier call was killed, remove the generation that it has left.
        drop_other_generations(ledger, job.pipeline.name, lease.row)
        ledger.generations.register(new, hidden=True, lease=lease.row)
        with Lease(ledger.leases, new.ref, holder) as new_lease:
            with _errors(name, settings):
                checksums, rows = _divide(ledger, old, new, batch, new_lease.epoch, progress)
            times = spread_timers(ledger.snapshots.times_before(old.ref, batch + 1), len(workers))
            ledger.generations.inherit(
                new.ref,
                old.ref,
                batch,
                checksums,
                new_lease.epoch,
                lease.row,
                times,
            )
        before = counted(len(old.workers), "worker")
        note = (
            f"The state of {before} was spread over {len(workers)}, in generation {ref.generation}."
        )
        ledger.generations.promote(new.ref, lease.row, settings.run, note, places=places)
    log.info(
        "state repartitioned",
        pipeline=name,
        generation=ref.generation,
        workers=len(workers),
        rows=rows,
        seconds=round(time.monotonic() - begun, 1),
    )
    return RepartitionResult(ref.generation, len(workers), rows)


@contextmanager
def _errors(name: str, settings: Settings) -> Iterator[None]:
    try:
        yield
    except DamagedState as error:
        error.next_step = (
            f"Restore the shard, or rebuild the state from the topics: sluice rebuild {name}."
        )
        raise
    except Unreachable as error:
        raise EngineError(
            f"The state of {name} was not moved: {error.detail} "
            "Its old shards are unchanged and still in use.",
            next_step="Start that state server again, or move its workers to another one: "
            f"sluice move {name} WORKER HOST:PORT. Then repeat the command.",
        ) from error
    except StateError as error:
        raise EngineError(
            f"The state of {name} was not moved to new shards in {shown(settings.shards)}: "
            f"{error.detail} Its old shards are unchanged and still in use.",
            next_step="Check the free space there, and the limit of open files (ulimit -n) or of "
            "connections: a new shard has three files in SQLite, or one connection to PostgreSQL. "
            "Then repeat the command.",
        ) from error


def _divide(
    ledger: Ledger,
    old: GenerationInfo,
    new: GenerationInfo,
    batch: int,
    epoch: int,
    progress: Progress,
) -> tuple[list[Checksums], int]:
    """Fill the new shards from the old shards.

    Return the new shards' checksums, and the number of rows and states.
    """
    tables = frozenset(store.group_id for store in old.stores if store.kind == "global")
    audit = ledger.audits.newest(old.ref)
    rows = 0

    def move(
        pages: Iterator[list[Versions]],
        divide: _Divide[Versions],
        add: Callable[[NewShard, list[Versions]], None],
    ) -> None:
        """Move versions to the new shards."""
        nonlocal rows
        for page in pages:
            for number, moved in divide(page).items():
                add(targets[number], moved)
            rows += len(page)
            progress(f"{counted(rows, 'row')} moved")

    with ExitStack() as stack:
        targets: list[NewShard] = []
        for worker in new.workers:
            shard = stack.enter_context(create_shard(worker.location, anew=True))
            targets.append(NewShard(shard))
        for worker in old.workers:
            division = _Division(old, worker.number, len(targets), tables)
            with worker_shard(worker.number, worker.location) as shard:
                origin = SourceShard(shard)
                move(origin.rows(), division.of_rows, NewShard.add)
                move(origin.states(), division.of_states, NewShard.add_states)
                for page in pages_of_answers(shard):
                    for number, answers in by_worker(page, len(new.workers)).items():
                        targets[number].add_answers(answers)
            published = None
            if audit is not None:
                published = audit.published_checksums(worker.number)
            if reason := origin.difference(published):
                raise damaged_state({worker.number: (worker.location, reason)})
        return [target.finish(batch, epoch) for target in targets], rows


@dataclass(frozen=True)
class _Division:
    """Divides the rows of an old worker among the new workers."""

    old: GenerationInfo
    worker: int
    workers: int
    """The new number of workers."""
    tables: frozenset[int]
    """Groups of global tables, of which every worker has all rows."""

    def of_rows(self, page: Sequence[Version]) -> dict[int, list[Version]]:
        divided: dict[int, list[Version]] = defaultdict(list)
        for version in page:
            # Every worker has all rows of global tables, so the first old worker gives them to all
            # new workers.
            if version.group_id not in self.tables:
                divided[self._owner(version.key)].append(version)
            elif self.worker == 0:
                for number in range(self.workers):
                    divided[number].append(version)
        return divided

    def of_states(self, page: Sequence[StateVersion]) -> dict[int, list[StateVersion]]:
        divided: dict[int, list[StateVersion]] = defaultdict(list)
        for state in page:
            if state.shared and state.key:
                # Every worker has the same tables that processors read, so the first old worker
                # gives its copy to all new workers.
                if self.worker == 0:
                    for number in range(self.workers):
                        divided[number].append(state)
                continue
            if state.shared:
                raise self._indivisible(
                    "The keys of a worker share a state, such as the buffer of a suppress step."
                )
            divided[self._owner(state.key)].append(state)
        return divided

    def _owner(self, key: str) -> int:
        # If a row or a state is not at the worker that owns its key, the key does not determine the
        # worker to which it belongs.
        if owner(key, len(self.old.workers)) != self.worker:
            raise self._indivisible(
                f"Worker {self.worker} has the state of key {key!r}, which another worker owns."
            )
        return owner(key, self.workers)

    def _indivisible(self, why: str) -> EngineError:
        return EngineError(
            f"The state of {self.old.pipeline} cannot be divided by key. {why}",
            next_step=f"Compute it again from the topics: sluice rebuild {self.old.pipeline}.",
        )
