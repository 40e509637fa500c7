"""Finds the topics that match a pipeline's patterns, when a run begins."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.engine.batch.job_topics import TIMEOUT_S, kafka_errors
from sluice.kafka.brokers import silent_admin
from sluice.plan import Job, matched_job
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef


def with_matching_topics(
    job: Job,
    kafka: Mapping[str, str],
    ledger: Ledger,
    known: GenerationRef | None,
) -> Job:
    """Return the job with the topics that match its patterns and exist or have been read.

    A topic that the generation `known` has read stays in the job even if it is gone:
    `SourceIdentity.check` then reports it. Raises the same errors as `matched_job`.
    """
    if not job.unmatched_patterns:
        return job
    with kafka_errors("Listing the topics", kafka):
        existing = silent_admin(kafka).list_topics(timeout=TIMEOUT_S).topics
    info = None if known is None else ledger.generations.get(known)
    topics_read = () if info is None else info.topics
    return matched_job(job, topics_read, existing)
