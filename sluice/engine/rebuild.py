"""Building a job's state anew from its topics: in a generation of its own, beside the one that goes on being read.

The new generation reads the topics up to where the old one was published, and writes no output: that is out already.
Then it takes the old one's place, and the next run goes on from there. This mends a lost checkpoint as well as a lost
or damaged shard, and puts a pipeline's changes into effect over its whole history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog
from pyarrow import fs
from pyspark.sql import SparkSession

from sluice.engine.guard import InputError, Positions, Topic, look
from sluice.engine.handoff import open_path
from sluice.engine.job import JobRun
from sluice.engine.lease import PATIENCE, Lease, this_process
from sluice.engine.storage import Storage
from sluice.errors import EngineError
from sluice.plan import Job, Plan
from sluice.settings import Settings
from sluice.state.addresses import drop
from sluice.state.ledger import Ledger
from sluice.state.sources import SourcePartition

log = structlog.get_logger()


@dataclass(frozen=True)
class Rebuild:
    """Builds a job's state anew. `from_topics` takes the topics as they are now, whatever they have lost."""

    spark: SparkSession
    job: Job
    settings: Settings
    from_topics: bool = False

    def run(self) -> int:
        """Build a new generation and let readers see it; returns its number.

        Raises InputError if the topics do not hold all that was read, unless `from_topics`; LeaseError while a driver
        works on the job; EngineError if what comes out is not what was published.
        """
        name, job = self.job.pipeline.name, self.job.name
        with Ledger.open(self.settings.ledger) as ledger:
            old = ledger.generation(name, job)
            if old is None:
                return self._begin(ledger)
            with Lease(ledger.leases, name, job, old, this_process("rebuild"), PATIENCE):
                drop_others(ledger, self.job, old, self.settings)
                target = self._target(ledger, old)
                new = max(ledger.generations(name, job)) + 1
                self._build(new, target)
                self._compare(ledger, old, new)
                ledger.promote(name, job, new)
        log.info("generation promoted", pipeline=name, job=job, generation=new, before=old)
        return new

    def _begin(self, ledger: Ledger) -> int:
        """Build the state of a job that is new in its pipeline, up to where the others are: what is out is out."""
        name = self.job.pipeline.name
        others = [cut for info in ledger.jobs(name) if (cut := ledger.latest_cut(name, info.job)) is not None]
        if not others:
            raise EngineError(f"{name} has no state to build anew.", next_step=f"Run it: sluice run {name}.")
        read: dict[str, dict[str, int]] = {}
        for cut in others:
            read |= {topic: dict(positions) for topic, positions in cut.positions.items() if topic in self.job.topics}
        self._build(1, read)
        log.info("state built", pipeline=name, job=self.job.name, generation=1)
        return 1

    def _build(self, generation: int, target: Positions) -> None:
        JobRun(self.spark, self.job, self.settings, generation, self.settings.max_records, replay_to=target).run()

    def _target(self, ledger: Ledger, old: int) -> Positions:
        name, job = self.job.pipeline.name, self.job.name
        known = ledger.sources.get(name, job, old)
        now = look(self.settings.kafka, self.job.topics)
        latest = ledger.latest_cut(name, job)
        read = latest.positions if latest else {}
        if not self.from_topics and (lost := list(_lost(known, now, read))):
            raise InputError(
                f"The topics do not hold all that {name} has read: {'; '.join(lost)}.",
                next_step=f"Restore them, or take what they hold: sluice rebuild {name} --from-topics.",
            )
        same = {one.topic: one.topic_id for one in known}
        return {
            topic: {
                str(number): min(max(int(read.get(topic, {}).get(str(number), first)), first), end)
                for number, (first, end) in enumerate(found.ends)
            }
            for topic, found in now.items()
            if same.get(topic) == found.id
        }

    def _compare(self, ledger: Ledger, old: int, new: int) -> None:
        """EngineError if the same topology over the same records has another state than was published."""
        name, job = self.job.pipeline.name, self.job.name
        before, after = (ledger.job(name, job, generation) for generation in (old, new))
        assert before is not None
        assert after is not None
        sums = [ledger.audits.checksums(name, job, generation) for generation in (old, new)]
        alike = before.description == after.description and len(before.workers) == len(after.workers)
        if self.from_topics or not alike or not sums[0]:
            log.info("state built anew", generation=new, checksums=sums[1])
        elif sums[0] == sums[1]:
            log.info("state built anew, and equal to what was published", generation=new, checksums=sums[1])
        else:
            raise EngineError(
                f"Built anew, {name} has the checksums {sums[1]}, and {sums[0]} were published; nothing was changed.",
                next_step=f"Generation {new} is kept to be looked at. To take it: sluice rebuild {name} --from-topics.",
            )


def _lost(known: Iterable[SourcePartition], now: Mapping[str, Topic], read: Positions) -> Iterable[str]:
    for one in known:
        found = now.get(one.topic)
        if found is None or found.id != one.topic_id:
            if one.partition == 0:
                yield f"{one.topic} was deleted{' and made anew' if found else ''}"
            continue
        first, end = found.ends[one.partition]
        if first > one.first:
            yield f"{one.topic}, partition {one.partition}, offsets {one.first} to {first - 1} are gone"
        if (reached := int(read.get(one.topic, {}).get(str(one.partition), 0))) > end:
            yield f"{one.topic}, partition {one.partition}, ends at {end}, and was read up to {reached}"


def drop_others(ledger: Ledger, job: Job, kept: int, settings: Settings) -> None:
    """Remove all generations of a job but one: older ones, and those that were never finished."""
    for generation in ledger.generations(job.pipeline.name, job.name):
        info = ledger.job(job.pipeline.name, job.name, generation)
        if generation == kept or info is None:
            continue
        for worker in info.workers:
            drop(worker.location)
        _delete(Storage.of(job, generation, settings).folder)
        ledger.forget_generation(job.pipeline.name, job.name, generation)


def forget_gone(planned: Plan, settings: Settings) -> None:
    """Remove all that is left of jobs that a pipeline has no more."""
    name, jobs = planned.pipeline.name, {job.name for job in planned.jobs}
    with Ledger.open(settings.ledger) as ledger:
        gone = [info for info in ledger.all_jobs(name) if info.job not in jobs]
        for info in gone:
            for worker in info.workers:
                drop(worker.location)
            _delete(f"{settings.checkpoints}/{name}/{info.job}")
        for job in {info.job for info in gone}:
            ledger.forget_job(name, job)
            log.info("job forgotten", pipeline=name, job=job)


def _delete(path: str) -> None:
    filesystem, folder = open_path(path)
    if filesystem.get_file_info(folder).type != fs.FileType.NotFound:
        filesystem.delete_dir(folder)
