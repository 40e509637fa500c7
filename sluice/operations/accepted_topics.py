"""Accepts the deletion of topics that a pipeline writes. The pipeline can then run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from sluice.engine.batch.job_topics import ensure_topics, topic_limits
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.markers import MARKER_SETTINGS, Marker, PublishedState, Writer
from sluice.engine.publish.output_identity import changed_topics
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.errors import EngineError, Refused, StateError
from sluice.kafka.redrive_topic import accept_redrive_topic
from sluice.kafka.topics import topic_ids
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import open_shard
from sluice.values.phrases import listed


def accept_topics(
    job: Job, settings: Settings, *, restored: bool = False, may_repeat: bool = False
) -> list[str]:
    """Accept the topics of outputs, dead letters, markers and re-drive markers as they are now.

    Return those that were deleted, or that have lost the newest marker.

    If `restored` is set, the topics have all of their records again. Otherwise, the next run
    creates the missing topics. If the next run repeats a batch whose driver has ended, it writes
    the batch's records to the new topics again.

    If the markers are lost, the ledger tells which batch was published last. If a later batch was
    begun, its output may have been written already, and the next run writes it again. In this case,
    raise Refused, unless `may_repeat`.

    Raise LeaseError while a run is in progress, and EngineError if a topic cannot be restored
    because it is missing.
    """
    kafka, name, markers = settings.kafka, job.pipeline.name, job.pipeline.markers
    holder = this_process(settings.run or "accept")
    outputs = [*dict.fromkeys((*job.outputs, job.pipeline.dead_letters))]
    changed: list[str] = []
    with Ledger.open(settings.ledger) as ledger, current_lease(ledger, name, holder) as lease:
        ids = topic_ids(kafka, [*outputs, markers])
        newest = ledger.audits.newest(lease.ref)
        # Before its first batch, a pipeline needs no topic of markers.
        if markers in ids or (newest is not None and newest.is_written):
            ensure_topics(kafka, {markers: 1}, {markers: MARKER_SETTINGS})
            writer = Writer(lease.ref, markers)
            with TransactionalOutput(kafka, writer, topic_limits(kafka, [markers])) as output:
                output.require_newest()
                if newest is not None and output.lacks_marker(newest):
                    marker = _lost_marker(ledger, newest, outputs, ids)
                    if not may_repeat:
                        _require_no_begun_batch(ledger, newest, outputs)
                    output.replace_lost(marker)
                    changed = [markers]
                else:
                    changed = _accept_outputs(output, outputs, ids, restored=restored)
    redriven = accept_redrive_topic(kafka, name)
    if redriven is not None:
        changed.append(redriven)
    return changed


def _accept_outputs(
    output: TransactionalOutput, outputs: Iterable[str], ids: Mapping[str, str], *, restored: bool
) -> list[str]:
    """Accept the outputs that were deleted since the newest marker. Return them."""
    marker = output.newest_marker
    changed = changed_topics(marker, outputs, ids)
    if restored:
        _require_existing(changed, ids)
    if marker is not None and changed:
        now = {topic: ids[topic] for topic in changed if topic in ids}
        marker = marker.restored(now) if restored else marker.without(changed)
        output.replace_newest(marker)
    return changed


def _lost_marker(
    ledger: Ledger, newest: Audit, outputs: Iterable[str], ids: Mapping[str, str]
) -> Marker:
    """Make the marker of the newest published batch again, from the ledger.

    The ledger does not have the checksums of the batch's output. The marker names the output topics
    that exist now.
    """
    ref = GenerationRef(newest.pipeline, newest.generation)
    snapshot = ledger.snapshots.get(ref, newest.batch)
    assert snapshot is not None
    batch = Batch(number=newest.batch, begun=0, partitions={}, ends=snapshot.positions)
    for published in ledger.history.recent(ref, 1):
        if published.number == newest.batch:
            batch = published
    topics = [topic for topic in outputs if topic in ids]
    state = PublishedState(
        ledger.snapshots.times_before(ref, newest.batch + 1),
        tuple(ledger.sources.get(ref)),
        newest.all_checksums,
        snapshot.due,
    )
    return Marker(
        batch,
        {topic: newest.outputs.get(topic, 0) for topic in topics},
        snapshot.positions,
        ids={topic: ids[topic] for topic in topics},
        state=state,
    )


def _require_no_begun_batch(ledger: Ledger, newest: Audit, outputs: Sequence[str]) -> None:
    """Raise Refused if a batch after the newest published one may have written output."""
    ref = GenerationRef(newest.pipeline, newest.generation)
    first, last = newest.batch + 1, _newest_begun(ledger, ref)
    if last < first:
        return
    name = ref.pipeline
    begun = f"According to the ledger, batch {first} of {name} was begun but not published"
    if last > first:
        begun = (
            f"According to the ledger, batches {first} to {last} of {name} were begun but not "
            "published"
        )
    raise Refused(
        f"{begun}. Without the markers, it is unknown whether the output was written. Nothing was "
        "changed.",
        next_step=f"Look for the results in {listed(outputs)}. To let the next run write them, "
        f"perhaps a second time: sluice topics accept {name} --may-repeat.",
    )


def _newest_begun(ledger: Ledger, ref: GenerationRef) -> int:
    """Return a generation's newest batch in the ledger or a shard; -1 if there is no batch.

    The shards have later batches than the ledger if the ledger has lost its newest commits.
    """
    planned, info = ledger.plans.newest(ref), ledger.generations.get(ref)
    newest = -1 if planned is None else planned.number
    for worker in () if info is None else info.workers:
        # The next run reports a shard that is gone or damaged.
        with suppress(StateError), open_shard(worker.location) as shard:
            newest = max(newest, shard.journal().newest)
    return newest


def _require_existing(topics: Iterable[str], ids: Collection[str]) -> None:
    missing = [topic for topic in topics if topic not in ids]
    if missing:
        raise EngineError(
            f"There is no topic {', '.join(missing)}, so it was not restored.",
            next_step="Write its records back first, or accept the loss without --restored.",
        )
