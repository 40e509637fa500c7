"""Where a job's generation keeps what it needs between batches: checkpoint, handed-over files, shards."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.engine.handoff import Handoff
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.shard import location


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
