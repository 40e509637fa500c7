"""Computes a pipeline's new and changed stores from its topics, and keeps its other stores.

The changed stores, and the steps that they need, are computed as a separate job, in a generation
that readers do not see. Meanwhile, runs go on. The rows of this generation and the kept rows of the
newest
snapshot then fill the shards of a new generation. The new generation becomes current in one
transaction. If the
driver is killed before this transaction, the next call continues the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from msgspec import structs
from pyspark.sql import SparkSession

from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import OWN_TIMES
from sluice.engine.publish.kafka_transaction import fence
from sluice.engine.publish.markers import Writer
from sluice.engine.publish.target_tables import databases_of
from sluice.engine.run.broken_readers import require_kept_interface
from sluice.engine.run.compatibility import StoreChanges, computes_same_state, is_compatible
from sluice.engine.run.driver_lease import BETWEEN_RUNS, Lease, current_lease, this_process
from sluice.engine.run.pipeline_check import NoRecords
from sluice.engine.run.replay import ReplayStep
from sluice.engine.run.streaming_query import JobQuery
from sluice.errors import EngineError
from sluice.operations.fill_generation import ComputedStores, GroupMerge, processors_of
from sluice.operations.interrupted_batch import require_complete
from sluice.operations.rebuild import Rebuild, drop_other_generations, remove_forgotten
from sluice.plan import Job, PlanOf
from sluice.settings import Settings
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, Snapshot

log = structlog.get_logger()


@dataclass(frozen=True)
class _State:
    """The current generation and its newest snapshot, and how the changed pipeline differs."""

    info: GenerationInfo
    published: Snapshot
    storage: Storage
    query: JobQuery
    changes: StoreChanges


@dataclass(frozen=True)
class ChangedStores:
    """Adapts a pipeline's state to its changed file.

    If `from_topics` is set, new stores may lack records that Kafka has deleted since the other
    stores read them.
    """

    spark: SparkSession
    job: Job
    plan_of: PlanOf
    settings: Settings
    from_topics: bool = False

    def run(self) -> int:
        """Compute the changed stores and promote a new generation.

        Return the new generation's number. If no store has changed, do nothing and return the
        current generation's number. Runs go on while the stores are computed, and wait while the
        newest records are read and the generation is promoted.

        Raise CompatibilityError for a change that concerns all stores; EngineError if there is no
        published state, if the last batch was interrupted, or if the state has been replaced
        meanwhile; InputError if the topics no longer have all records that the changed stores need,
        unless `from_topics`; DamagedState if the state is not as published.
        """
        with Ledger.open(self.settings.ledger) as ledger:
            with self._lease(ledger) as lease:
                state = self._state(ledger, lease)
                if is_compatible(state.info, state.query.info):
                    log.info(
                        "no store has changed",
                        pipeline=state.info.pipeline,
                        generation=state.info.generation,
                    )
                    return state.info.generation
                self._require_movable(state)
                planned = self.job.pipeline
                require_kept_interface(ledger, state.info, state.query.info, planned)
                self._fence_drivers(ledger, state)
                if not state.changes.added:
                    drop_other_generations(ledger, self.job.pipeline.name, lease.row)
                    return self._promote(ledger, lease, state, None)
                rebuild, part, steps = self._begin(ledger, lease, state.changes.added)
            ref = part.info.ref
            # The lease is not held here, so runs go on.
            rebuild.build(ref, steps)
            with self._lease(ledger) as lease:
                self._require_same(ledger, lease, state, part)
                steps = rebuild.steps_since(ledger, lease.ref, ref).published
            # The second build reads only the records that runs have read during the first build.
            rebuild.build(ref, steps)
            with self._lease(ledger) as lease:
                state = self._require_same(ledger, lease, state, part)
                # The lease is held here, so runs wait. After the two builds above, few records are
                # left to read.
                rebuild.build(ref, rebuild.steps_since(ledger, lease.ref, ref).published)
                return self._promote(ledger, lease, state, part)

    def _lease(self, ledger: Ledger) -> AbstractContextManager[Lease]:
        """Return the lease of the current generation. Waits until no run holds it."""
        return current_lease(ledger, self.job.pipeline.name, self._holder, BETWEEN_RUNS)

    @property
    def _holder(self) -> Holder:
        return this_process(self.settings.run or "changed stores")

    def _state(self, ledger: Ledger, lease: Lease) -> _State:
        name = self.job.pipeline.name
        info, published = ledger.generations.get(lease.ref), ledger.snapshots.newest(lease.ref)
        if info is None or published is None:
            raise EngineError(f"{name} has no state yet.", next_step=f"Run it: sluice run {name}.")
        storage = Storage.of(self.job, info.generation, self.settings)
        query = JobQuery(
            self.spark, storage, NoRecords(self.spark), dict.fromkeys(self.job.topics, 1)
        )
        return _State(
            info,
            published,
            storage,
            query,
            StoreChanges.between(info, query.info, processors_of(self.job)),
        )

    def _require_movable(self, state: _State) -> None:
        """Raise EngineError if no state can be kept, because all stores have changed."""
        name, query = self.job.pipeline.name, state.query
        tables = {store.name for store in query.info.stores if store.kind == "global"}
        if not state.changes.stores - tables and not state.changes.operators:
            raise EngineError(
                f"All stores of {name} have changed, so none of its state can be kept.",
                next_step=f"Compute all of them from the topics: sluice rebuild {name}.",
            )

    def _fence_drivers(self, ledger: Ledger, state: _State) -> None:
        """Fence off other drivers, so that they write no more output.

        Raise EngineError if the last batch was interrupted.
        """
        output = fence(self.settings.kafka, Writer(state.info.ref, self.job.pipeline.markers))
        output.require_newest()
        formerly = ledger.renames.former_names(self.job.pipeline.name)
        for database in databases_of(self.job, self.settings, formerly).values():
            database.fence()
        name = self.job.pipeline.name
        next_step = (
            f"Undo the change, and run the pipeline once: sluice run {name}. Or rebuild all "
            f"stores: sluice rebuild {name}."
        )
        require_complete(ledger, state.published, output.last, next_step=next_step)

    def _begin(
        self, ledger: Ledger, lease: Lease, added: frozenset[str]
    ) -> tuple[Rebuild, ComputedStores, Sequence[ReplayStep]]:
        """Register a generation of the changed stores, or continue a killed call's generation.

        Return the generation's rebuild, the changed stores, and the batches published so far, which
        the generation has to read. From now on, runs of the changed pipeline leave the added stores
        out.
        """
        job = self.plan_of(added)
        operators = job.operators if self.from_topics else ()
        upstream: list[str] = []
        for operator in operators:
            if operator.name not in added:
                upstream.append(operator.name)
        if upstream:
            name = job.pipeline.name
            raise EngineError(
                f"{_names(added)} of {name} would not agree with {_names(upstream)}: the topics "
                f"have deleted records that the state of {_names(upstream)} contains.",
                next_step="Compute all stores from the topics as they are: "
                f"sluice rebuild {name} --from-topics.",
            )
        rebuild = Rebuild(self.spark, job, self.settings, self.from_topics).with_topics(
            ledger, lease.ref
        )
        for generation in ledger.generations.numbers(lease.ref.pipeline):
            begun = ledger.generations.get(structs.replace(lease.ref, generation=generation))
            if (
                generation > lease.ref.generation
                and begun
                and computes_same_state(begun, self._info(ledger, job, generation))
            ):
                log.info(
                    "continuing the interrupted rebuild",
                    pipeline=begun.pipeline,
                    generation=generation,
                )
                drop_other_generations(ledger, self.job.pipeline.name, lease.row, but=[begun.ref])
                return (
                    rebuild,
                    ComputedStores(job, begun),
                    rebuild.steps_since(ledger, lease.ref, begun.ref).published,
                )
        ref, steps = rebuild.begin_beside(ledger, lease)
        info = self._info(ledger, job, ref.generation)
        ledger.generations.register(info, hidden=True, lease=lease.row)
        return rebuild, ComputedStores(job, info), steps

    def _info(self, ledger: Ledger, job: Job, generation: int) -> GenerationInfo:
        """Return the description of a generation for readers."""
        storage = Storage.of(job, generation, self.settings).placed(ledger.placements)
        return JobQuery(
            self.spark, storage, NoRecords(self.spark), dict.fromkeys(job.topics, 1)
        ).info

    def _require_same(
        self,
        ledger: Ledger,
        lease: Lease,
        before: _State,
        part: ComputedStores,
    ) -> _State:
        """Read the state again.

        Raise EngineError if another command has replaced the state, or removed the changed stores.
        """
        state = self._state(ledger, lease)
        is_there = part.info.generation in ledger.generations.numbers(part.info.pipeline)
        if not is_there or state.info.ref != before.info.ref or state.changes != before.changes:
            name = state.info.pipeline
            raise EngineError(
                f"In the meantime, another command has replaced or removed a generation of {name}.",
                next_step="Compute the changed stores again: "
                f"sluice rebuild {name} --changed-only.",
            )
        return state

    def _promote(
        self,
        ledger: Ledger,
        lease: Lease,
        state: _State,
        part: ComputedStores | None,
    ) -> int:
        """Fill a new generation with the kept and the computed state, and promote it.

        Return its number.
        """
        old, batch, changes = state.info, state.published.batch, state.changes
        # While the stores were computed, a run may have started a batch and been interrupted.
        self._fence_drivers(ledger, state)
        places = ledger.placements.epochs(old.pipeline)
        if part is not None and (computed := ledger.generations.get(part.info.ref)) is not None:
            # The workers of the computed generation may have moved since it was begun.
            part = ComputedStores(part.job, computed)
        ref = ledger.generations.new(old.pipeline)
        # The topics that match a pattern are numbered in the order in which runs have found them.
        # The new generation continues from the state of these runs, so each topic must keep its
        # number.
        new = structs.replace(self._info(ledger, self.job, ref.generation), topics=old.topics)
        ledger.generations.register(new, hidden=True, lease=lease.row)
        with Lease(ledger.leases, ref, self._holder) as new_lease:
            merge = GroupMerge(self.job, old, part, new, changes)
            checksums = merge.fill(batch, ledger.audits.newest(old.ref), new_lease.epoch)
            times = merge.times(ledger, batch)
            shown: dict[str, int] = {}
            for key, at in times.items():
                if key.split("/")[0] not in OWN_TIMES:
                    shown[key] = at
            ledger.generations.inherit(
                ref, old.ref, batch, checksums, new_lease.epoch, lease.row, times, shown
            )
        added, removed = _names(changes.added), _names(changes.removed)
        note = f"Computed from the topics: {added}. Removed: {removed}."
        ledger.generations.promote(ref, lease.row, self.settings.run, note, places=places)
        # The generation of the changed stores is no longer needed: readers never saw it, and its
        # rows are in the new generation now.
        if part is not None:
            ledger.generations.forget(part.info.ref, lease.row)
            remove_forgotten(ledger, self.job.pipeline.name)
        log.info(
            "stores changed",
            pipeline=old.pipeline,
            generation=ref.generation,
            computed=sorted(changes.added),
            removed=sorted(changes.removed),
        )
        return ref.generation


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
