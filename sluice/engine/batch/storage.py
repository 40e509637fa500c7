"""The storage of a generation: the shards, and the side outputs on their way to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.worker_shards import damaged_state, worker_shard
from sluice.errors import DamagedState, EngineError, recovery_advice
from sluice.plan import Job
from sluice.registry.http_registry import NO_REGISTRY
from sluice.registry.opening import registry_of
from sluice.registry.registry import Registry
from sluice.settings import Settings
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placements
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationRef
from sluice.state.postgres_checks import require_usable_shards
from sluice.state.remote.opening import create_shard, open_shard
from sluice.state.shard.addresses import location, shown
from sluice.state.shard.shard import Checksums, Shard
from sluice.values.sink_tables import connection_variable

_UNKNOWN: Mapping[str, Checksums] = MappingProxyType({})


@dataclass(frozen=True)
class Storage:
    """The locations of a generation's data."""

    job: Job
    generation: int
    side_outputs: SideOutputs
    locations: tuple[str, ...] = field(repr=False)
    """Addresses of the workers' shards."""
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variable → the URL of a database in which records are looked up."""
    registry: Registry = field(default=NO_REGISTRY, repr=False)
    """The registry with the schemas of topics' values."""
    token: str = field(default="", repr=False)
    """The token of the state servers. Tasks get it from here, because executors on other hosts lack
    the driver's environment."""

    @classmethod
    def of(cls, job: Job, generation: int, settings: Settings) -> Storage:
        ref = GenerationRef(job.pipeline.name, generation)
        workers = range(job.pipeline.workers)
        shards = tuple(location(settings.shards, ref, worker) for worker in workers)
        connections: dict[str, str] = {}
        for name in job.lookup_connections:
            variable = connection_variable(name)
            if variable in settings.connections:
                connections[variable] = settings.connections[variable]
        return cls(
            job,
            generation,
            SideOutputs(),
            shards,
            connections,
            registry_of(settings.registry),
            settings.server_token,
        )

    @property
    def ref(self) -> GenerationRef:
        return GenerationRef(self.job.pipeline.name, self.generation)

    def placed(self, placements: Placements) -> Storage:
        """Return the same storage, with servers' addresses for the shards that servers serve."""
        return replace(self, locations=placements.written_at(self.ref, self.locations))

    def shard(self, worker: int) -> AbstractContextManager[Shard]:
        """Open a worker's shard for writing.

        Raises DamagedState with the worker's number and the shard's address.
        """
        return worker_shard(worker, self.locations[worker])

    def checksums(
        self, batch: int, before: Mapping[str, Checksums] = _UNKNOWN
    ) -> dict[str, Checksums]:
        """Return the checksums of the workers' shards as of a written batch.

        The keys are the workers' numbers as text. `before` are the checksums that were published
        for the previous batch, if they are known. Raises DamagedState if a shard's checksums of
        that batch differ: the shard has lost commits, so this batch was computed from older state.
        """
        checksums: dict[str, Checksums] = {}
        lost: dict[int, tuple[str, str]] = {}
        for worker, address in enumerate(self.locations):
            with self.shard(worker) as shard:
                checksums[str(worker)] = shard.checksums(batch)
                difference = ""
                published = before.get(str(worker))
                if published is not None:
                    difference = shard.checksums(batch - 1).difference(published)
            if difference:
                lost[worker] = address, f"It has lost commits: {difference}"
        if lost:
            raise damaged_state(lost)
        return checksums

    def newest_epoch(self) -> int:
        """Return the highest epoch under which a shard was written."""
        epochs: list[int] = []
        for worker in range(len(self.locations)):
            with self.shard(worker) as shard:
                epochs.append(shard.journal().epoch)
        return max(epochs)

    def forget_failures(self, batch: int, epoch: int) -> None:
        """Remove the recorded failures of a batch's calls, because the batch was not published."""
        if self.job.calls_out:
            for worker in range(len(self.locations)):
                with self.shard(worker) as shard:
                    shard.forget_failures(batch, epoch)

    def prepare(self, ledger: Ledger, written: Batch | None, epoch: int) -> None:
        """Create the shards before the first batch. Later, raise an error if data has been lost.

        The error is an EngineError or DamagedState. Afterwards, earlier holders of the lease, with
        an epoch below `epoch`, can no longer write to any shard.

        `written` is the last batch whose output was written, according to its marker. The ledger
        must know this batch. Otherwise, Sluice would count records twice, or write other records
        under the number of this batch.
        """
        require_usable_shards(self.locations)
        published = ledger.snapshots.last_batch(self.ref)
        planned = ledger.plans.unpublished(self.ref)
        # A planned batch may have been written by a driver that died before it published the batch.
        is_of_planned = (
            planned is not None and written is not None and _is_planned(planned, written)
        )
        if written is not None and not is_of_planned:
            self._require_published(written, published)
        if published is None:
            for address in self.locations:
                with create_shard(address) as shard:
                    # If a batch is planned, the shard may have rows although no snapshot is
                    # published: a run may have been interrupted before it published its first
                    # snapshot.
                    if planned is None and shard.journal().batches:
                        raise self._unknown_rows(address, ledger)
                    # From here on, the shard refuses writes of earlier holders of the lease.
                    shard.begin_run(epoch, -1)
        else:
            self._check_shards(published, ledger, epoch)

    def _require_published(self, written: Batch, published: int | None) -> None:
        """Raise EngineError if the ledger does not have a batch whose output was written."""
        if published is None or written.number > published:
            name = self.job.pipeline.name
            newest = "none" if published is None else published
            raise EngineError(
                f"Batch {written.number} of {name} has written its output, but the ledger does not "
                f"have this batch: its newest published batch is {newest}. The ledger is older "
                "than the output.",
                next_step=recovery_advice(name),
            )

    def _unknown_rows(self, address: str, ledger: Ledger) -> EngineError:
        name = self.job.pipeline.name
        if ledger.generations.current_number(name) in (None, self.generation):
            next_step = (
                "Restore the ledger. If the ledger and the markers are lost for good, compute the "
                "state from the topics, without writing output for the topics' current records: "
                f"sluice rebuild {name} --from-topics. Or begin anew, and write the output of "
                f"all records again: sluice recover {name} --anew."
            )
        else:
            next_step = (
                "Restore the ledger. Or drop this generation, which readers do not see: "
                f"sluice generations drop {name}."
            )
        return EngineError(
            f"{shown(address)} has batches of generation {self.generation} of {name}, but the "
            "ledger has none of them.",
            next_step=next_step,
        )

    def _check_shards(self, published: int, ledger: Ledger, epoch: int) -> None:
        """Raise DamagedState for shards that are lost or do not match the published checksums.

        Such shards are quarantined: queries do not read them until they are rebuilt.
        """
        audit = ledger.audits.newest(self.ref)
        for worker, address in enumerate(self.locations):
            expected = None if audit is None else audit.published_checksums(worker)
            # `damage` also fences earlier holders of the lease off from the shard.
            reason = damage(address, published, expected, epoch)
            if reason:
                ledger.quarantine.add(self.ref, worker, reason)
        quarantined = ledger.quarantine.get(self.ref)
        if quarantined:
            damaged = {}
            for worker, why in quarantined.items():
                damaged[worker] = self.locations[worker], why
            error = damaged_state(damaged)
            error.next_step = (
                "Queries omit this state and mark their answers as partial. Restore the shard, or "
                f"rebuild the state: sluice rebuild {self.ref.pipeline}."
            )
            raise error


def _is_planned(planned: PlannedBatch, written: Batch) -> bool:
    """Return whether the planned batch is the batch whose output was written."""
    if (planned.number, planned.begun) != (written.number, written.begun):
        return False
    # The marker of a written batch leaves out partitions from which the batch has read nothing.
    for topic, ends in written.ends.items():
        planned_ends = planned.ends.get(topic, {})
        for number, end in ends.items():
            if planned_ends.get(number) != end:
                return False
    return True


def damage(location: str, published: int, expected: Checksums | None, epoch: int) -> str:
    """Describe how a shard differs from the state published up to a batch.

    Returns an empty text if the shard does not differ. `expected` are the published checksums, if
    they are known. Raises StateError if the shard cannot be reached, because the shard may be
    intact.
    """
    try:
        with open_shard(location, to_write=True) as shard:
            checksums = shard.begin_run(epoch, published)
    except DamagedState as error:
        return error.detail
    if expected is None:
        return ""
    return checksums.difference(expected)
