"""Where a job's generation keeps what it needs between batches: checkpoint, handed-over files, shards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.engine.handoff import Handoff
from sluice.engine.source import last_batch
from sluice.errors import EngineError
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.places import Places
from sluice.state.shard import Shard, location


@dataclass(frozen=True)
class Storage:
    """The places of one job in one generation."""

    job: Job
    generation: int
    checkpoint: str
    handoff: Handoff
    locations: tuple[str, ...]
    """Addresses of the workers' shards."""

    @classmethod
    def of(cls, job: Job, generation: int, settings: Settings) -> Storage:
        """The places that the settings give to the job."""
        pipeline = job.pipeline
        folder = f"{settings.checkpoints}/{pipeline.name}/{job.name}/g{generation}"
        shards = (location(settings.shards, pipeline.name, job.name, generation, n) for n in range(pipeline.workers))
        return cls(job, generation, f"{folder}/spark", Handoff(f"{folder}/handoff"), tuple(shards))

    def placed(self, places: Places) -> Storage:
        """The same, with the shards where state servers keep them."""
        shards = places.written_at(self.job.pipeline.name, self.job.name, self.generation, self.locations)
        return replace(self, locations=shards)

    def prepare(self, published: int | None, written: int) -> None:
        """Make the shards before the first batch; afterwards EngineError or StateError if something has been lost.

        `published` is the ledger's last batch, `written` the last one whose output records are out, -1 if none. A
        checkpoint that knows less than either would count records twice, or leave their output out.
        """
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
                next_step="Restore the checkpoint. To begin again from the start of the topics, remove the pipeline's "
                f"checkpoint, ledger and shards, and the topic {self.job.pipeline.markers}.",
            )
        for place in self.locations:
            opened = Shard.create(place) if published is None else Shard.open(place, to_write=True)
            opened.close()
