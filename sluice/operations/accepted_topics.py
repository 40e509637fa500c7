"""Accepts topics that a pipeline writes and that were deleted, so that the pipeline goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sluice.engine.batch.job_topics import topic_limits
from sluice.engine.publish.markers import Writer
from sluice.engine.publish.output_identity import changed_topics
from sluice.engine.publish.transaction import TransactionalOutput
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.errors import EngineError
from sluice.kafka.redrive_topic import accept_redrive_topic
from sluice.kafka.topics import topic_ids
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger


def accept_topics(job: Job, settings: Settings, *, restored: bool = False) -> list[str]:
    """Accept the topics of outputs, dead letters and re-drive markers as they are now.

    Return those that were deleted.

    With `restored`, the topics have all of their records again. Otherwise, the next run creates the
    topics that are missing, and if it repeats a batch whose driver has ended, it writes the batch's
    records to these topics again.

    Raise LeaseError while a run is in progress, and EngineError if a topic cannot be restored
    because it is missing.
    """
    kafka, name, markers = settings.kafka, job.pipeline.name, job.pipeline.markers
    holder = this_process(settings.run or "accept")
    outputs = [*dict.fromkeys((*job.outputs, job.pipeline.dead_letters))]
    changed: list[str] = []
    with Ledger.open(settings.ledger) as ledger, current_lease(ledger, name, holder) as lease:
        ids = topic_ids(kafka, [*outputs, markers])
        # Without its markers, the pipeline does not run, and the error of a run says what to do.
        if markers in ids:
            writer = Writer(lease.ref, markers)
            with TransactionalOutput(kafka, writer, topic_limits(kafka, [markers])) as output:
                output.require_newest()
                marker = output.newest_marker
                changed = changed_topics(marker, outputs, ids)
                if restored:
                    _require_existing(changed, ids)
                if marker is not None and changed:
                    if restored:
                        marker = marker.restored({topic: ids[topic] for topic in changed})
                    else:
                        marker = marker.without(changed)
                    output.replace_newest(marker)
    redriven = accept_redrive_topic(kafka, name)
    if redriven is not None:
        changed.append(redriven)
    return changed


def _require_existing(topics: Iterable[str], ids: Collection[str]) -> None:
    missing = [topic for topic in topics if topic not in ids]
    if missing:
        raise EngineError(
            f"There is no topic {', '.join(missing)}, so it was not restored.",
            next_step="Write its records back first, or accept the loss without --restored.",
        )
