"""Building a job's state anew from its topics: in a generation of its own, beside the one that goes on being read.

The new generation reads the topics up to where the old one was published, and writes no output: that is out already.
Then it takes the old one's place, and the next run goes on from there. This mends a lost checkpoint as well as a lost
or damaged shard, and puts a pipeline's changes into effect over its whole history.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
from pyarrow import fs
from pyspark.sql import SparkSession

from sluice.engine.batch.side_outputs import open_path
from sluice.engine.batch.storage import Storage
from sluice.engine.job.compatibility import means_the_same
from sluice.engine.job.lease import current_lease, this_process
from sluice.engine.job.replay import Step, evenly, steps_of
from sluice.engine.job.run import JobRun
from sluice.engine.publish.transaction import TransactionalOutput, Writer, ensure_topics, message_limits
from sluice.engine.read.identity import InputError, Positions, Topic, look
from sluice.errors import EngineError
from sluice.plan import Job, Plan
from sluice.settings import Settings
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import JobRef, Snapshot
from sluice.state.shard.addresses import drop

log = structlog.get_logger()


@dataclass(frozen=True)
class Rebuild:
    """Builds a job's state anew. `from_topics` takes the topics as they are now, whatever they have lost.

    With `only`, LeaseError if readers do not see that generation any more. `why` the state has to be restored, if it
    was damaged, is noted with the time that it took.
    """

    spark: SparkSession
    job: Job
    settings: Settings
    from_topics: bool = False
    only: int | None = None
    why: str = ""

    def run(self) -> int:
        """Build a new generation and let readers see it; returns its number.

        Raises InputError if the topics do not hold all that was read, unless `from_topics`; LeaseError while a driver
        works on the job; EngineError if what comes out is not what was published.
        """
        name, job = self.job.pipeline.name, self.job.name
        begun = time.monotonic()
        with Ledger.open(self.settings.ledger) as ledger:
            if ledger.jobs.generation(name, job) is None:
                return self._begin(ledger)
            holder = this_process(self.settings.run or "rebuild")
            with current_lease(ledger, name, job, holder, only=self.only) as lease:
                old = lease.ref
                drop_others(ledger, self.job, old.generation, self.settings)
                new = JobRef(name, job, max(ledger.jobs.generations(name, job)) + 1)
                history = self._history(ledger, old)
                self._build(new, history.published)
                self._compare(ledger, old, new, history)
                self._build(new, history.unpublished)
                seconds = round(time.monotonic() - begun, 1)
                note = f"State was damaged, and restored from the topics in {seconds} s: {self.why}" if self.why else ""
                ledger.jobs.promote(new, lease.row, self.settings.run, note)
        log.info(
            "generation promoted", pipeline=name, job=job, generation=new.generation, before=old.generation,
            seconds=seconds,
        )  # fmt: skip
        return new.generation

    def _begin(self, ledger: Ledger) -> int:
        """Build the state of a job that is new in its pipeline, up to where the others are: what is out is out."""
        name = self.job.pipeline.name
        others = [
            snapshot
            for info in ledger.jobs.current(name)
            if (snapshot := ledger.snapshots.latest(name, info.job)) is not None
        ]
        if not others:
            raise EngineError(f"{name} has no state to build anew.", next_step=f"Run it: sluice run {name}.")
        read: dict[str, dict[str, int]] = {}
        for snapshot in others:
            read |= {
                topic: dict(positions) for topic, positions in snapshot.positions.items() if topic in self.job.topics
            }
        drop_others(ledger, self.job, 0, self.settings)  # what a rebuild that was killed has left
        ref = JobRef(name, self.job.name, 1)
        self._build(ref, evenly({}, read, self.settings.max_records))
        ledger.jobs.promote(ref)
        log.info("state built", pipeline=name, job=self.job.name, generation=1)
        return 1

    def _build(self, ref: JobRef, steps: Sequence[Step]) -> None:
        JobRun(self.spark, self.job, self.settings, ref.generation, self.settings.max_records, steps=steps).run()

    def _history(self, ledger: Ledger, old: JobRef) -> History:
        known = ledger.sources.get(old)
        now = look(self.settings.kafka, self.job.topics)
        latest = ledger.snapshots.latest(old.pipeline, old.job)
        read = latest.positions if latest else {}
        if not self.from_topics and (lost := list(_lost(known, now, read))):
            raise InputError(
                f"The topics do not hold all that {old.pipeline} has read: {'; '.join(lost)}.",
                next_step=f"Restore them, or take what they hold: sluice rebuild {old.pipeline} --from-topics.",
            )
        same = {one.topic: one.topic_id for one in known}
        ends = {topic: found.ends for topic, found in now.items() if same.get(topic) == found.id}
        batches, unpublished = ledger.history.all(old), self._unpublished(latest, old)
        steps = [replace(step, ends=_within(ends, step.ends)) for step in steps_of([*batches, *unpublished])]
        published = steps[: len(batches)]
        if latest and (not published or published[-1].ends != _within(ends, read)):
            log.warning(
                "history lost", pipeline=old.pipeline, job=old.job, generation=old.generation, batches=len(batches),
                note=_NO_HISTORY,
            )  # fmt: skip
            firsts = {topic: {str(n): first for n, (first, _) in enumerate(found)} for topic, found in ends.items()}
            published = evenly(firsts, _within(ends, read), self.settings.max_records)
            return History(published, steps[len(batches) :], complete=False)
        return History(published, steps[len(batches) :], complete=True)

    def _unpublished(self, latest: Snapshot | None, old: JobRef) -> list[Batch]:
        """The batch whose output is out, if the driver came to its end before it could publish it."""
        markers = self.job.pipeline.markers
        ensure_topics(self.settings.kafka, {markers: 1}, {markers: {"cleanup.policy": "compact"}})
        writer = Writer(old, markers)
        # To begin as a writer is to stop a driver that has lost its lease and does not know it: no more comes of it.
        with TransactionalOutput(self.settings.kafka, writer, message_limits(self.settings.kafka, [markers])) as output:
            last = output.last
        return [last] if last is not None and last.number > (latest.batch if latest else -1) else []

    def _compare(self, ledger: Ledger, old: JobRef, new: JobRef, history: History) -> None:
        """EngineError if the same topology over the same records has another state than was published."""
        before, after = ledger.jobs.get(old), ledger.jobs.get(new)
        assert before is not None
        assert after is not None
        sums = [_checksums(ledger.audits.newest(ref), history) for ref in (old, new)]
        alike = before.description == after.description and means_the_same(before, after)
        if self.from_topics or not alike or not sums[0]:
            log.info("state built anew", generation=new.generation, checksums=sums[1])
        elif sums[0] == sums[1]:
            log.info("state built anew, and equal to what was published", generation=new.generation, checksums=sums[1])
        else:
            raise EngineError(
                f"Built anew, {new.pipeline} has the checksums {sums[1]}, and {sums[0]} were published; nothing was changed."
                f"{'' if history.complete else f' {_NO_HISTORY}'}",
                next_step=f"Generation {new.generation} is kept to be looked at. To take it: "
                f"sluice rebuild {new.pipeline} --from-topics.",
            )


@dataclass(frozen=True)
class History:
    """What is to be run again: the batches that were published, and one that was written to topics alone."""

    published: Sequence[Step]
    unpublished: Sequence[Step]
    complete: bool
    """The ledger has it all; else the records are the same, but not the batches that they were read in."""


def _checksums(audit: Audit | None, history: History) -> dict[str, str]:
    """Those of the state rows, and of the operators' states too where the batches are the same: by worker."""
    if audit is None:
        return {}
    if not history.complete:
        return audit.checksums
    return {worker: f"{state_rows}/{audit.states.get(worker, '')}" for worker, state_rows in audit.checksums.items()}


_NO_HISTORY = (
    "The ledger does not know all batches in which they were read: what depends on the order over several topics, or "
    "on the time of processing, may come out differently."
)


def _within(ends: Mapping[str, Sequence[tuple[int, int]]], positions: Positions) -> Positions:
    """Positions in the partitions that there are, each within what its partition holds: (first offset, end)."""
    return {
        topic: {
            str(number): min(max(int(positions.get(topic, {}).get(str(number), first)), first), end)
            for number, (first, end) in enumerate(found)
        }
        for topic, found in ends.items()
    }


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
    for generation in ledger.jobs.generations(job.pipeline.name, job.name):
        ref = JobRef(job.pipeline.name, job.name, generation)
        info = ledger.jobs.get(ref)
        if generation == kept or info is None:
            continue
        for worker in info.workers:
            drop(worker.location)
        _delete(Storage.of(job, generation, settings).folder)
        ledger.jobs.forget_generation(ref)


def forget_gone(planned: Plan, settings: Settings) -> None:
    """Remove all that is left of jobs that a pipeline has no more."""
    name, jobs = planned.pipeline.name, {job.name for job in planned.jobs}
    with Ledger.open(settings.ledger) as ledger:
        gone = [info for info in ledger.jobs.all(name) if info.job not in jobs]
        for info in gone:
            for worker in info.workers:
                drop(worker.location)
            _delete(f"{settings.checkpoints}/{name}/{info.job}")
        for job in {info.job for info in gone}:
            ledger.jobs.forget(name, job)
            log.info("job forgotten", pipeline=name, job=job)


def _delete(path: str) -> None:
    filesystem, folder = open_path(path)
    if filesystem.get_file_info(folder).type != fs.FileType.NotFound:
        filesystem.delete_dir(folder)
