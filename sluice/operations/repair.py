"""Restores lost or damaged state before a run: from standbys, or from topics with all records.

A standby with the newest snapshot and its checksums replaces a worker's shard if the shard is
damaged or its state server does not answer. Otherwise, damaged state is restored from
the topics by a rebuild: a new generation is built, compared with the published checksums, and
promoted. Until then, readers get the intact part of the damaged generation, marked as partial. If
the driver is killed, the next run removes the unfinished generation and starts again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from sluice.engine.read.source_identity import InputError
from sluice.engine.run.job_run import JobRun
from sluice.engine.run.standby_upkeep import promote_standbys
from sluice.engine.session import Starting, wait_for_session
from sluice.errors import DamagedState, Unreachable
from sluice.operations.rebuild import Rebuild
from sluice.plan import Job, PlanOf
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger

log = structlog.get_logger()


@dataclass(frozen=True)
class RepairingRun:
    """A run of the current generation that restores damaged state before it reads records."""

    spark: Starting
    job: Job
    settings: Settings
    plan_without: PlanOf | None = None
    """Plans the pipeline without some stores: those that another command is computing meanwhile."""

    def run(self) -> int:
        """Read, compute and publish all records. Return the number of records read.

        Raise DamagedState if the state is damaged, no standby has it, and the topics no longer
        have all of its records. Raise Unreachable if a state server does not answer and no standby
        has the state. The state is not restored from the topics in this case, because the server's
        shards may be intact.
        """
        run = JobRun(
            self.spark,
            self.job,
            self.settings,
            max_records=self.settings.max_records,
            plan_without=self.plan_without,
        )
        name = self.job.pipeline.name
        with Ledger.open(self.settings.ledger) as ledger:
            generation = ledger.generations.current_number(name)
            try:
                return run.run_with(ledger)
            except DamagedState as damaged:
                # A standby is faster than the topics, which have to be read from the beginning. So
                # the topics are read only if no standby can be promoted.
                if promote_standbys(ledger, name, self.settings.run, damaged):
                    self._restore(generation, damaged)
            except Unreachable as gone:
                # The state is not restored from the topics, because the lost server may come back
                # with intact shards.
                if why := promote_standbys(ledger, name, self.settings.run, gone):
                    raise Unreachable(f"{gone.detail} {why}", next_step=gone.next_step) from gone
        return run.run()

    def _restore(self, damaged: int | None, why: DamagedState) -> None:
        name, begun = self.job.pipeline.name, time.monotonic()
        log.warning("state damaged, restoring it from the topics", pipeline=name, why=why.detail)
        try:
            spark = wait_for_session(self.spark)
            generation = Rebuild(spark, self.job, self.settings, only=damaged, why=why.detail).run()
        except InputError as lost:
            raise DamagedState(
                f"{why.detail} The state cannot be restored from the topics. {lost.detail}",
                next_step=lost.next_step,
            ) from lost
        log.warning(
            "state restored",
            pipeline=name,
            generation=generation,
            seconds=round(time.monotonic() - begun, 1),
        )
