"""Brings a ledger up to date after it, or its newest commits, were lost.

The newest marker in Kafka says which batch was written last, and has the data that the ledger
published with this batch. The shards have the batch's state. From the marker and the shards, the
ledger gets the batch's snapshot again. Output
is not written again, and the topics are not read. If a shard is lost, too, the next run restores
its state from a standby or from the topics, as always.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec
import structlog

from sluice.engine.batch.stream_time import times_of_operators
from sluice.engine.publish.kafka_transaction import fence
from sluice.engine.publish.markers import Marker, MarkerTopic, Writer, read_marker_topic
from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import LeaseError, Refused, StateError
from sluice.kafka.topics import topic_ids
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.audits import Audit, split_checksums
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot, WorkerInfo
from sluice.state.remote.opening import drop_shard, open_shard
from sluice.state.shard.addresses import is_remote, location, shards_of, shown
from sluice.state.shard.passwords import without_password
from sluice.state.shard.shard import Checksums
from sluice.values.phrases import counted, listed

log = structlog.get_logger()


@dataclass(frozen=True)
class Recovery:
    """What can be recovered of a pipeline whose ledger lacks the batch that was written last."""

    known: Snapshot | None
    """The newest snapshot in the ledger."""
    info: GenerationInfo
    """The generation of the marker, as it was registered."""
    marker: Marker
    lost_shards: Mapping[int, str]
    """Worker → why its shard cannot be used."""
    leftovers: tuple[str, ...]
    """The addresses of shards of later generations, which the ledger has lost and no marker
    names."""
    elsewhere: tuple[str, ...]
    """The addresses of shards that are not below `SLUICE_SHARDS` of this process. They may belong
    to another installation, from which the pipeline was copied."""

    @property
    def snapshot(self) -> str:
        """The id of the snapshot that is recovered."""
        return f"{self.info.generation}.{self.marker.batch.number}"

    def lines(self) -> Iterator[str]:
        """Describe what is recovered, what is lost and what is written again, in sentences."""
        name, workers = self.info.pipeline, len(self.info.workers)
        if self.known is None:
            known, lost = "no snapshot", "all snapshots"
        else:
            known, lost = f"snapshot {self.known.id}", f"the snapshots after {self.known.id}"
        yield (
            f"The ledger has {known} of {name}; the output is written up to batch {self.snapshot}."
        )
        intact = counted(workers - len(self.lost_shards), "worker")
        yield f"Recovered: snapshot {self.snapshot}, with the state of {intact} of {workers}."
        for worker, why in sorted(self.lost_shards.items()):
            yield (
                f"Worker {worker}'s shard: {why} "
                "The next run restores it from a standby or from the topics."
            )
        if self.elsewhere:
            yield (
                "These shards are outside of this process's SLUICE_SHARDS: "
                f"{listed(self.elsewhere)}. If another installation still runs {name} there, do "
                "not recover: both would write these shards. Give this pipeline another name."
            )
        yield (
            f"Lost: {lost} before {self.snapshot}, with their audits, measurements and notes; "
            "generations that a replay has built; standbys; and where the batches ended, so a "
            "later rebuild divides the records into other batches."
        )
        if self.leftovers:
            shards = counted(len(self.leftovers), "shard")
            yield f"Removed: {shards} of generations that the ledger has lost."
        yield "Written again: nothing. Records after this batch are read by the next run."


def find_recovery(ledger: Ledger, job: Job, settings: Settings) -> Recovery | None:
    """Return what can be recovered of a pipeline.

    Return None if the ledger has the batch that was written last.

    Raise Refused if the topic of markers lacks data for the recovery.
    """
    name, topic = job.pipeline.name, job.pipeline.markers
    markers = MarkerTopic()
    if topic_ids(settings.kafka, [topic]):
        markers = read_marker_topic(settings.kafka, Writer(GenerationRef(name, 1), topic))
    return _find(ledger, job, settings, markers)


def _find(ledger: Ledger, job: Job, settings: Settings, markers: MarkerTopic) -> Recovery | None:
    name = job.pipeline.name
    known = ledger.snapshots.latest(name)
    if not markers.markers:
        if known is not None:
            return None
        if not shards_of(settings.shards, name):
            raise _never_ran(name, job.pipeline.markers)
        raise _nothing_known(name, job.pipeline.markers)
    generation = max(markers.markers)
    marker = markers.markers[generation]
    if known is not None and (known.generation, known.batch) >= (generation, marker.batch.number):
        return None
    planned = ledger.plans.unpublished(GenerationRef(name, generation))
    is_next = known is None or known.batch == marker.batch.number - 1
    if planned is not None and is_next and planned.number == marker.batch.number:
        return None  # the next run finishes this batch
    info = markers.registration(generation)
    if info is None or not marker.state.shards:
        raise _nothing_known(name, job.pipeline.markers)
    lost = {}
    for worker in info.workers:
        why = _damage(worker, marker)
        if why:
            lost[worker.number] = why
    leftovers: list[str] = []
    for number, addresses in shards_of(settings.shards, name).items():
        if number > generation:
            leftovers += addresses
    elsewhere = _elsewhere(settings, info)
    return Recovery(known, info, marker, lost, tuple(leftovers), tuple(elsewhere))


def _nothing_known(name: str, topic: str) -> Refused:
    return Refused(
        f"The topic {topic} has no marker that says what {name} has written, "
        "so its ledger cannot be recovered.",
        next_step="Build the state from the topics, without writing output for the topics' "
        f"current records: sluice rebuild {name} --from-topics. Or begin anew, and write the "
        f"output of all records again: sluice recover {name} --anew removes what is left of the "
        f"state, then sluice run {name}.",
    )


def _never_ran(name: str, topic: str) -> Refused:
    return Refused(
        f"{name} has never run, or nothing is left of it: the ledger knows nothing of it, it has "
        "no "
        f"shards, and the topic {topic} has no markers.",
        next_step=f"Run it, which reads all records and writes their output: sluice run {name}. If "
        "it has run before and its output is still there, build the state from the topics without "
        f"writing output for the topics' current records: sluice rebuild {name} "
        "--from-topics.",
    )


def _damage(worker: WorkerInfo, marker: Marker) -> str:
    """Return why a worker's shard does not have the marker's state; empty if it has."""
    batch = marker.batch.number
    try:
        with open_shard(worker.location) as shard:
            return shard.checksums(batch).difference(_published(marker, worker.number))
    except StateError as error:
        return error.detail


def _published(marker: Marker, worker: int) -> Checksums:
    return marker.state.shards[str(worker)]


def _elsewhere(settings: Settings, info: GenerationInfo) -> Iterator[str]:
    for worker in info.workers:
        own = without_password(location(settings.shards, info.ref, worker.number))
        if without_password(worker.location) != own and not is_remote(worker.location):
            yield shown(worker.location)


def recover(job: Job, settings: Settings) -> Recovery | None:
    """Bring the ledger up to date. Return what was recovered; None if the ledger was up to date.

    Raise Refused if the topic of markers lacks data for the recovery, and LeaseError while a driver
    works on the pipeline.
    """
    name = job.pipeline.name
    with Ledger.open(settings.ledger) as ledger:
        found = find_recovery(ledger, job, settings)
        if found is None:
            return None
        ref = found.info.ref
        with _leases(ledger, ref, settings) as lease:
            # `fence` keeps a driver that works under a lost lease from writing another batch, and
            # reads the markers again.
            output = fence(settings.kafka, Writer(ref, job.pipeline.markers))
            found = _find(ledger, job, settings, output.topic)
            if found is None or found.info.ref != ref:
                raise Refused(
                    f"{name} was changed while it was recovered.",
                    next_step=f"Repeat: sluice recover {name}.",
                )
            for address in found.leftovers:
                drop_shard(address)
            for worker in found.info.workers:
                _fence(lease, worker, found)
            _write(ledger, lease, found, settings)
    log.info("ledger recovered", pipeline=name, snapshot=found.snapshot)
    return found


@contextmanager
def _leases(ledger: Ledger, ref: GenerationRef, settings: Settings) -> Iterator[Lease]:
    """Hold the leases of the marker's generation and of the ledger's current generation."""
    holder = this_process(settings.run or "recover")
    current = ledger.generations.current_number(ref.pipeline)
    with Lease(ledger.leases, ref, holder) as lease:
        if current in (None, ref.generation):
            yield lease
            return
        with Lease(ledger.leases, GenerationRef(ref.pipeline, current), holder):
            yield lease


def _fence(lease: Lease, worker: WorkerInfo, found: Recovery) -> None:
    """Keep drivers that lost their lease from writing the shard, and remove unpublished rows."""
    batch = found.marker.batch.number
    # The next run reports a shard that is gone or damaged.
    with suppress(StateError), open_shard(worker.location, to_write=True) as shard:
        try:
            shard.begin_run(lease.epoch, batch)
        except LeaseError:
            lease.require_in_ledger()
            lease.outrank(shard.journal().epoch)
            shard.begin_run(lease.epoch, batch)


def _write(ledger: Ledger, lease: Lease, found: Recovery, settings: Settings) -> None:
    info, marker = found.info, found.marker
    batch = marker.with_earlier
    outputs = {f"output/{topic}": number for topic, number in marker.outputs.items()}
    checksums, states = split_checksums(marker.state.shards)
    snapshot = Snapshot(
        pipeline=info.pipeline,
        generation=info.generation,
        batch=batch.number,
        published_at=datetime.fromtimestamp(batch.begun / 1_000, UTC),
        positions=_positions(marker),
        stream_times=times_of_operators(marker.state.times),
        counts=outputs,
        run=settings.run,
        due=marker.state.due,
    )
    audit = Audit(
        pipeline=info.pipeline,
        generation=info.generation,
        batch=batch.number,
        run=settings.run,
        epoch=lease.epoch,
        sources=(),
        outputs=marker.outputs,
        checksums=checksums,
        states=states,
        phases={"start": 0},
    )
    for place in info.workers:
        if is_remote(place.location):
            ledger.placements.claim(_placement(place))
    note = (
        f"The ledger had lost snapshot {found.snapshot}, "
        "which was recovered from the markers and the shards."
    )
    lost = msgspec.structs.replace(batch, boundaries_lost=True)
    sources = marker.state.sources
    ledger.generations.recover(info, snapshot, audit, marker.state.times, lost, sources, note)


def _placement(worker: WorkerInfo) -> Placement:
    """Return the state server at which a run writes the worker's shard."""
    url = urlsplit(worker.location)
    return Placement(
        worker.pipeline, worker.number, url.hostname or "", url.port or 0, url.scheme == "https"
    )


def _positions(marker: Marker) -> dict[str, dict[str, int]]:
    """Return the next offset of each partition.

    A partition of which no record was read begins at its first offset.
    """
    positions: dict[str, dict[str, int]] = {}
    for topic, ends in marker.with_earlier.ends.items():
        positions[topic] = dict(ends)
    for source in marker.state.sources:
        positions.setdefault(source.topic, {}).setdefault(str(source.partition), source.first)
    return positions


def forget(job: Job, settings: Settings, *, dry_run: bool = False) -> tuple[str, ...]:
    """Remove the shards of a pipeline that neither the ledger nor the markers know.

    The pipeline's next run then begins anew. Return the addresses of the shards. If `dry_run` is
    set, remove nothing. Raise Refused if the ledger knows the pipeline, or if the pipeline's
    markers say what was written.
    """
    name, topic = job.pipeline.name, job.pipeline.markers
    with Ledger.open(settings.ledger) as ledger:
        if ledger.generations.current_number(name) is not None:
            raise Refused(
                f"The ledger has the state of {name}, so nothing was removed.",
                next_step="Look at its state: sluice status.",
            )
        if topic_ids(settings.kafka, [topic]):
            writer = Writer(GenerationRef(name, 1), topic)
            if read_marker_topic(settings.kafka, writer).markers:
                raise Refused(
                    f"The topic {topic} says what {name} has written. "
                    "Without it, all output would be written again.",
                    next_step=f"Recover the ledger: sluice recover {name}. "
                    f"To write the output again on purpose, delete the topic {topic} first.",
                )
        addresses = [*itertools.chain(*shards_of(settings.shards, name).values())]
        if not dry_run:
            holder = this_process(settings.run or "recover")
            with Lease(ledger.leases, GenerationRef(name, 1), holder):
                for address in addresses:
                    drop_shard(address)
    return tuple(map(shown, addresses))
