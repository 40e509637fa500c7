"""Where a job's generation keeps what it needs between batches: checkpoint, handed-over files, shards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.engine.batch.checkpoint import BatchClock, batch_positions, forget_stray_checksums, last_batch
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.publish.shards import damaged, open_shard
from sluice.errors import DamagedState, EngineError
from sluice.ownership import close_folders, make_folder
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placements
from sluice.state.model import JobRef
from sluice.state.shard.addresses import location
from sluice.state.shard.shard import Checksums, Shard


@dataclass(frozen=True)
class Storage:
    """The places of one job in one generation."""

    job: Job
    generation: int
    folder: str
    """Of the two below."""
    checkpoint: str
    side_outputs: SideOutputs
    locations: tuple[str, ...] = field(repr=False)
    """Addresses of the workers' shards."""
    moved: str = ""
    """A test's file that says by how many ms its clock is ahead."""

    @property
    def batches(self) -> BatchClock:
        """When the batches were begun."""
        return BatchClock(self.checkpoint, self.moved)

    @classmethod
    def of(cls, job: Job, generation: int, settings: Settings) -> Storage:
        """The places that the settings give to the job."""
        pipeline = job.pipeline
        folder = f"{settings.checkpoints}/{pipeline.name}/{job.name}/g{generation}"
        ref = JobRef(pipeline.name, job.name, generation)
        shards = tuple(location(settings.shards, ref, number) for number in range(pipeline.workers))
        return cls(job, generation, folder, f"{folder}/spark", SideOutputs(f"{folder}/side_outputs"), shards)

    @property
    def ref(self) -> JobRef:
        return JobRef(self.job.pipeline.name, self.job.name, self.generation)

    def placed(self, placements: Placements) -> Storage:
        """The same, with the shards where state servers keep them."""
        return replace(self, locations=placements.written_at(self.ref, self.locations))

    def positions(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        """By topic and partition: up to where batches are done, and up to where they were begun."""
        batches = (last_batch(self.checkpoint, log) for log in ("commits", "offsets"))
        done, begun = (batch_positions(self.checkpoint, batch) if batch >= 0 else {} for batch in batches)
        return done, begun

    @property
    def next_batch(self) -> int:
        """The batch that Spark runs next: one that was begun and not done is done again."""
        begun, done = (last_batch(self.checkpoint, log) for log in ("offsets", "commits"))
        return begun if begun > done else done + 1

    def shard(self, worker: int) -> AbstractContextManager[Shard]:
        """A worker's shard, to be written. DamagedState says which worker's it is, and where."""
        return open_shard(worker, self.locations[worker])

    def checksums(self, batch: int) -> dict[str, Checksums]:
        """Worker's number as text → its shard's checksums at a batch."""
        found = {}
        for worker in range(len(self.locations)):
            with self.shard(worker) as shard:
                found[str(worker)] = shard.checksums(batch)
        return found

    def prepare(self, published: int | None, written: int, ledger: Ledger, epoch: int) -> None:
        """Make the shards before the first batch; afterwards EngineError or DamagedState if something has been lost.

        Whoever held the job's lease before `epoch` can write to no shard from then on.

        `published` is the ledger's last batch, `written` the last one whose output records are out, -1 if none. A
        checkpoint that knows less than either would count records twice, or leave their output out.
        """
        if "://" not in self.folder:  # elsewhere the storage controls access
            make_folder(Path(self.folder))
            close_folders(Path(self.folder), levels=3)
        forget_stray_checksums(self.checkpoint)
        known, done = (last_batch(self.checkpoint, log) for log in ("offsets", "commits"))
        if done >= written > (-1 if published is None else published):
            raise EngineError(
                f"The checkpoint {self.checkpoint} has finished batch {done}, but the ledger does not know of it.",
                next_step="Restore the ledger.",
            )
        if known < max(-1 if published is None else published, written):
            raise EngineError(
                f"Batch {max(published or 0, written)} of {self.job.pipeline.name} was published, but the checkpoint "
                f"{self.checkpoint} ends at batch {known}.",
                next_step="Restore the checkpoint, or build the state anew from the topics: "
                f"sluice rebuild {self.job.pipeline.name}.",
            )
        self._check_positions(published, ledger)
        if published is None:
            for place in self.locations:
                with Shard.create(place) as shard:
                    shard.begin(epoch, -1)
        else:
            self._check_shards(published, ledger, epoch)

    def _check_positions(self, published: int | None, ledger: Ledger) -> None:
        """EngineError unless the checkpoint says of the published batch, and of empty ones after it, what it says."""
        snapshot = None if published is None else ledger.snapshots.get(self.ref, published)
        if snapshot is None:
            return
        for batch in {snapshot.batch, max(snapshot.batch, last_batch(self.checkpoint, "commits"))}:
            if (said := batch_positions(self.checkpoint, batch)) != snapshot.positions:
                raise EngineError(
                    f"The checkpoint {self.checkpoint} is damaged: batch {batch} ends at {said} there, and at "
                    f"{snapshot.positions} in the ledger.",
                    next_step=f"Restore it, or build the state anew from the topics: sluice rebuild {self.ref.pipeline}.",
                )

    def _check_shards(self, published: int, ledger: Ledger, epoch: int) -> None:
        """DamagedState if a shard is lost, or is not as it was published; nobody reads it then, until it is rebuilt."""
        audit = ledger.audits.newest(self.ref)
        for worker, place in enumerate(self.locations):
            wanted = {} if audit is None else {"state_rows": audit.checksums, "operators' states": audit.states}
            if why := damage(place, published, {what: sums.get(str(worker)) for what, sums in wanted.items()}, epoch):
                ledger.quarantine.add(self.ref, worker, why)
        if found := ledger.quarantine.get(self.ref):
            error = damaged({worker: (self.locations[worker], why) for worker, why in found.items()})
            error.next_step = (
                f"Queries go on without it, and say so. Restore it, or: sluice rebuild {self.ref.pipeline}."
            )
            raise error


def damage(location: str, published: int, wanted: Mapping[str, str | None], epoch: int) -> str:
    """Why the shard at a location cannot be what was published up to a batch; empty if it may be.

    `wanted` has the published checksums of its state rows and of its operators' states, where they are known. Raises
    StateError if the shard cannot be reached: it may be as it was.
    """
    try:
        with Shard.open(location, to_write=True) as shard:
            found = shard.begin(epoch, published)
    except DamagedState as error:
        return error.detail
    for (what, checksum), there in zip(wanted.items(), (found.state_rows, found.states), strict=False):
        if checksum not in (None, there):
            return f"The checksum of its {what} is {there}, and {checksum} was published."
    return ""
