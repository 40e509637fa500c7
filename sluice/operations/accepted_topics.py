"""Accepts topics that a pipeline writes and that were deleted, so that it goes on with the topics as they are now."""

from __future__ import annotations

from sluice.engine.batch.job_topics import topic_limits
from sluice.engine.publish.output_identity import changed_topics
from sluice.engine.publish.transaction import TransactionalOutput, Writer
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.kafka.redrive_topic import accept_redrive_topic
from sluice.kafka.topics import topic_ids
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger


def accept_topics(job: Job, settings: Settings) -> list[str]:
    """Accept the topics of outputs, dead letters and re-drive markers as they are now. Returns those that were deleted.

    The next run creates the topics that are missing. If it repeats a batch whose driver has ended, it writes the
    batch's records to these topics again. Raises LeaseError while a run is in progress.
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
                changed = changed_topics(output.newest_marker, outputs, ids)
                output.forget(changed)
    redriven = accept_redrive_topic(kafka, name)
    return changed if redriven is None else [*changed, redriven]
