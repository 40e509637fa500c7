"""The persistent storage of a generation: checkpoint, side outputs, shards."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.engine.batch.checkpoint import BatchClock, batch_positions, forget_stray_checksums, last_batch
from sluice.engine.batch.shards import damaged_state, worker_shard
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.errors import DamagedState, EngineError
from sluice.file_modes import close_folders, make_folder
from sluice.plan import Job
from sluice.remote.opening import create_shard, open_shard
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placements
from sluice.state.model import GenerationRef
from sluice.state.shard.addresses import location
from sluice.state.shard.protocol import Checksums, Shard


@dataclass(frozen=True)
class Storage:
    """The locations of a generation's data."""

    job: Job
    generation: int
    folder: str
    """The folder of the checkpoint and the side outputs."""
    checkpoint: str
    side_outputs: SideOutputs
    locations: tuple[str, ...] = field(repr=False)
    """Addresses of the workers' shards."""
    moved: str = ""
    """In tests, a file with the number of ms by which the clock is advanced."""

    @property
    def batches(self) -> BatchClock:
        return BatchClock(self.checkpoint, self.moved)

    @classmethod
    def of(cls, job: Job, generation: int, settings: Settings) -> Storage:
        ref = GenerationRef(job.pipeline.name, generation)
        folder = _folder(settings.checkpoints, ref)
        shards = tuple(location(settings.shards, ref, number) for number in range(job.pipeline.workers))
        side_outputs = SideOutputs(f"{folder}/side_outputs")
        return cls(job, generation, folder, checkpoint_of(settings.checkpoints, ref), side_outputs, shards)

    @property
    def ref(self) -> GenerationRef:
        return GenerationRef(self.job.pipeline.name, self.generation)

    def placed(self, placements: Placements) -> Storage:
        """The same storage, with the addresses of shards on state servers."""
        return replace(self, locations=placements.written_at(self.ref, self.locations))

    def held(self, epoch: int) -> Storage:
        """The same storage for the holder of the lease's `epoch`, with side outputs of its own.

        A driver that wakes up after it has lost its lease would otherwise delete those of the batch in progress.
        """
        return replace(self, side_outputs=replace(self.side_outputs, root=f"{self.side_outputs.root}/{epoch}"))

    def positions(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        """End offsets by topic and partition of the last batch that is done, and of the last batch that was begun."""
        batches = (last_batch(self.checkpoint, log) for log in ("commits", "offsets"))
        done, begun = (batch_positions(self.checkpoint, batch) if batch >= 0 else {} for batch in batches)
        return done, begun

    @property
    def next_batch(self) -> int:
        """The number of the batch that Spark runs next, which is the last begun batch if it is not done."""
        begun, done = (last_batch(self.checkpoint, log) for log in ("offsets", "commits"))
        return begun if begun > done else done + 1

    def shard(self, worker: int) -> AbstractContextManager[Shard]:
        """Open a worker's shard for writing. Raises DamagedState with the worker's number and the shard's address."""
        return worker_shard(worker, self.locations[worker])

    def checksums(self, batch: int) -> dict[str, Checksums]:
        """Worker's number as text → its shard's checksums as of a batch."""
        checksums = {}
        for worker in range(len(self.locations)):
            with self.shard(worker) as shard:
                checksums[str(worker)] = shard.checksums(batch)
        return checksums

    def prepare(self, published: int | None, written: int, ledger: Ledger, epoch: int) -> None:
        """Create the shards before the first batch. Later, raise EngineError or DamagedState if data has been lost.

        Afterwards, earlier holders of the lease, with an epoch below `epoch`, can no longer write to any shard.

        `published` is the ledger's last batch; `written` is the last batch whose output records were written, or -1.
        If the checkpoint were older than either, Spark would count records twice or omit their output.
        """
        if "://" not in self.folder:  # remote storage controls access itself
            make_folder(Path(self.folder))
            close_folders(Path(self.folder), levels=2)
        forget_stray_checksums(self.checkpoint)
        begun, done = (last_batch(self.checkpoint, log) for log in ("offsets", "commits"))
        # Without a snapshot, the shards would be emptied, and Spark would not read the finished batches again.
        is_lost = published is None and done >= 0 and self._has_read(done, ledger)
        if done >= written > (-1 if published is None else published) or is_lost:
            raise EngineError(
                f"The checkpoint {self.checkpoint} has finished batch {done}, but the ledger does not have it.",
                next_step="Restore the ledger. If readers do not see this generation yet, drop it: "
                f"sluice generations drop {self.job.pipeline.name}.",
            )
        if begun < max(-1 if published is None else published, written):
            raise EngineError(
                f"Batch {max(published or 0, written)} of {self.job.pipeline.name} was published, but the checkpoint "
                f"{self.checkpoint} ends at batch {begun}.",
                next_step="Restore the checkpoint, or rebuild the state from the topics: "
                f"sluice rebuild {self.job.pipeline.name}.",
            )
        self._check_positions(published, ledger)
        if published is None:
            for address in self.locations:
                with create_shard(address) as shard:
                    shard.begin(epoch, -1)
        else:
            self._check_shards(published, ledger, epoch)
        self.side_outputs.forget_earlier()

    def _has_read(self, batch: int, ledger: Ledger) -> bool:
        """Whether the batches up to a finished one have read records. Those of empty topics are not published."""
        firsts = {(source.topic, str(source.partition)): source.first for source in ledger.sources.get(self.ref)}
        return any(
            end != firsts.get((topic, number))
            for topic, ends in batch_positions(self.checkpoint, batch).items()
            for number, end in ends.items()
        )

    def _check_positions(self, published: int | None, ledger: Ledger) -> None:
        """Raise EngineError unless the checkpoint's offsets match the newest published snapshot."""
        snapshot = None if published is None else ledger.snapshots.get(self.ref, published)
        if snapshot is None:
            return
        for batch in {snapshot.batch, max(snapshot.batch, last_batch(self.checkpoint, "commits"))}:
            if (positions := batch_positions(self.checkpoint, batch)) != snapshot.positions:
                raise EngineError(
                    f"The checkpoint {self.checkpoint} is damaged: its batch {batch} ends at {positions}, but "
                    f"the ledger's batch {snapshot.batch} ends at {snapshot.positions}.",
                    next_step="Restore the checkpoint, or rebuild the state from the topics: "
                    f"sluice rebuild {self.ref.pipeline}.",
                )

    def _check_shards(self, published: int, ledger: Ledger, epoch: int) -> None:
        """Quarantine shards that are lost or do not match the published checksums, and raise DamagedState for them.

        Queries do not read a quarantined shard until it is rebuilt.
        """
        audit = ledger.audits.newest(self.ref)
        for worker, address in enumerate(self.locations):
            expected = None if audit is None else audit.published(worker)
            if reason := damage(address, published, expected, epoch):
                ledger.quarantine.add(self.ref, worker, reason)
        if quarantined := ledger.quarantine.get(self.ref):
            error = damaged_state({worker: (self.locations[worker], why) for worker, why in quarantined.items()})
            error.next_step = (
                "Queries omit this state and mark their answers as partial. Restore the shard, or rebuild the state: "
                f"sluice rebuild {self.ref.pipeline}."
            )
            raise error


def checkpoint_of(checkpoints: str, ref: GenerationRef) -> str:
    """The folder of a generation's checkpoint, in the folder of all checkpoints."""
    return f"{_folder(checkpoints, ref)}/spark"


def _folder(checkpoints: str, ref: GenerationRef) -> str:
    return f"{checkpoints}/{ref.pipeline}/g{ref.generation}"


def damage(location: str, published: int, expected: Checksums | None, epoch: int) -> str:
    """Describe how a shard differs from the state published up to a batch; empty if it does not differ.

    `expected` are the published checksums, if they are known. Raises StateError if the shard cannot be reached, because
    it may be intact.
    """
    try:
        with open_shard(location, to_write=True) as shard:
            checksums = shard.begin(epoch, published)
    except DamagedState as error:
        return error.detail
    return "" if expected is None else checksums.difference(expected)
