"""Computes the new and changed stores of a pipeline from its topics, and keeps the state of the others.

The changed stores, and what they need, are computed as a job of their own, in a generation that readers do not see. Its
rows and the kept rows of the newest snapshot then fill the shards of a new generation, which becomes current in one
transaction. If the driver is killed before, the next call begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from pyspark.sql import SparkSession

from sluice.engine.batch.checkpoint import has_spark_state
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import OWN_TIMES
from sluice.engine.job.check import NoRecords
from sluice.engine.job.compatibility import StoreChanges, is_compatible
from sluice.engine.job.driver_lease import Lease, current_lease, this_process
from sluice.engine.job.merge import Merge, Part
from sluice.engine.job.moving import move_checkpoint, require_complete, require_local
from sluice.engine.job.query import JobQuery
from sluice.engine.job.rebuild import Rebuild, drop_others, remove_forgotten
from sluice.engine.job.replay import change_sources
from sluice.engine.publish.databases import databases_of
from sluice.engine.publish.transaction import Writer, fence
from sluice.errors import EngineError
from sluice.plan import FusedJob, Job, OrderedJob
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobInfo

log = structlog.get_logger()

PlanOf: TypeAlias = Callable[[Collection[str]], Job]
"""Plans a part of the pipeline: the stores and steps with these names, and what they need."""


@dataclass(frozen=True)
class ChangedStores:
    """Brings a job's state to its changed pipeline. With `from_topics`, new stores may lack records deleted since."""

    spark: SparkSession
    job: Job
    plan_of: PlanOf
    settings: Settings
    from_topics: bool = False

    def run(self) -> int:
        """Compute the changed stores and promote a new generation. Returns its number, or the current one's.

        Nothing happens if no store has changed. Raises CompatibilityError for a change that concerns all stores;
        EngineError without published state, after an interrupted batch, or if the kept state is in Spark; InputError if
        the topics no longer have all records that the changed stores need, unless `from_topics`; LeaseError during a
        run; DamagedState if the state is not as published.
        """
        begun, (name, of_job) = time.monotonic(), (self.job.pipeline.name, self.job.name)
        holder = this_process(self.settings.run or "changed stores")
        with Ledger.open(self.settings.ledger) as ledger, current_lease(ledger, name, of_job, holder) as lease:
            old, batch = ledger.jobs.get(lease.ref), ledger.snapshots.last_batch(lease.ref)
            if old is None or batch is None:
                raise EngineError(f"{name} has no state yet.", next_step=f"Run it: sluice run {name}.")
            storage = Storage.of(self.job, old.generation, self.settings)
            query = JobQuery(self.spark, storage, NoRecords(self.spark), dict.fromkeys(self.job.topics, 1))
            changes = StoreChanges.between(old, query.info)
            if is_compatible(old, query.info):
                log.info("no store has changed", pipeline=name, generation=old.generation)
                return old.generation
            self._require_movable(query, old, changes)
            require_local(old)
            output = fence(self.settings.kafka, Writer(old.ref, self.job.pipeline.markers))
            output.require_newest()
            for database in databases_of(self.job, self.settings).values():
                database.fence()
            require_complete(
                storage, batch, output.last, next_step=f"Undo the change, and run it once: sluice run {name}."
            )
            part = self._compute(ledger, lease, changes.added)
            ref = ledger.jobs.new_generation(name, of_job)
            target = Storage.of(self.job, ref.generation, self.settings)
            new = JobQuery(self.spark, target, NoRecords(self.spark), query.partitions).info
            ledger.jobs.register(new, hidden=True)
            with Lease(ledger.leases, ref, holder) as own:
                move_checkpoint(storage, target, batch)
                change_sources(target.checkpoint, batch, self.job.topics_of_sources)
                merge = Merge(self.job, old, part, new, changes)
                checksums = merge.fill(batch, ledger.audits.newest(old.ref), own.epoch)
                times = merge.times(ledger, batch)
                shown = {key: at for key, at in times.items() if key.split("/")[0] not in OWN_TIMES}
                ledger.jobs.continue_as(ref, old.ref, batch, checksums, own.epoch, times, shown)
            note = f"Computed from the topics: {_names(changes.added)}. Removed: {_names(changes.removed)}."
            ledger.jobs.promote(ref, lease.row, self.settings.run, note)
            if part is not None:
                ledger.jobs.forget_generation(part.info.ref, lease.row)
                remove_forgotten(ledger, self.job, self.settings)
        log.info(
            "stores changed", pipeline=name, generation=ref.generation, computed=sorted(changes.added),
            removed=sorted(changes.removed), seconds=round(time.monotonic() - begun, 1),
        )  # fmt: skip
        return ref.generation

    def _require_movable(self, query: JobQuery, old: JobInfo, changes: StoreChanges) -> None:
        """Raise EngineError if no state can be kept: all stores have changed, or the state is in Spark."""
        name = self.job.pipeline.name
        tables = {store.name for store in query.info.stores if store.kind == "global"}
        if bool(old.operators) != bool(query.info.operators):
            why = "A step was added or removed that needs each key's records in order, so that all others do too"
        elif not changes.stores - tables and not changes.operators:
            why = "All of its stores have changed"
        elif has_spark_state(query.storage.checkpoint) or (
            isinstance(self.job, FusedJob) and query.frames.totals is None
        ):
            why = "Spark keeps the state of all its stores together, because one of them has an aggregate such as avg"
        else:
            return
        raise EngineError(
            f"{name} cannot keep the state of single stores. {why}.",
            next_step=f"Compute all of them from the topics: sluice rebuild {name}.",
        )

    def _compute(self, ledger: Ledger, lease: Lease, added: frozenset[str]) -> Part | None:
        """Compute the changed stores in a generation of their own; None if stores were only removed."""
        if not added:
            drop_others(ledger, self.job, lease.row, self.settings)
            return None
        job = self.plan_of(added)
        operators = job.operators if isinstance(job, OrderedJob) and self.from_topics else ()
        if upstream := [operator.name for operator in operators if operator.name not in added]:
            name = job.pipeline.name
            raise EngineError(
                f"{_names(added)} of {name} would not fit {_names(upstream)}, which also counts deleted records.",
                next_step=f"Compute all stores from the topics as they are: sluice rebuild {name} --from-topics.",
            )
        ref = Rebuild(self.spark, job, self.settings, self.from_topics).build_beside(ledger, lease)
        info = ledger.jobs.get(ref)
        assert info is not None
        return Part(job, info)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
