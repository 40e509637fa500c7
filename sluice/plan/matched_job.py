"""Gives a job the topics that match its patterns."""

from __future__ import annotations

from collections.abc import Collection

from sluice.errors import EngineError, InputAway
from sluice.plan.job import Job
from sluice.values.topic_patterns import matches


def matched_job(
    job: Job, known: Collection[str], existing: Collection[str], *, partly: bool = False
) -> Job:
    """Return the job with the topics that match its patterns.

    The `known` topics, which the generation has read before, come first and in their order, because
    they must keep their numbers. The other `existing` topics follow. Raises EngineError if a
    pattern matches too many topics, or if two patterns match the same topic. If a pattern matches
    no topic, raises InputAway or, if `partly` is set, keeps the pattern.
    """
    topics_by_pattern: dict[str, list[str]] = {}
    patterns: dict[str, str] = {}
    """Topic → its pattern."""
    in_order = list(dict.fromkeys([*known, *sorted(existing)]))
    for pattern, most in job.unmatched_patterns.items():
        topics = [topic for topic in in_order if matches(pattern, topic)]
        if topics:
            topics_by_pattern[pattern] = topics
        elif not partly:
            raise InputAway(
                f"No topic matches {pattern}.",
                next_step="Create a topic, or correct the pattern in the pipeline. "
                f"{InputAway.next_step}",
            )
        if len(topics) > most:
            raise EngineError(
                f"{len(topics)} topics match {pattern}, but `max_topics` is {most}. No records "
                "were read.",
                next_step="Narrow the pattern, or raise `max_topics`.",
            )
        for topic in topics:
            if topic in patterns:
                raise EngineError(
                    f"Topic {topic} matches two patterns of the pipeline: "
                    f"{patterns[topic]} and {pattern}.",
                    next_step="Leave the topic out of one of the patterns.",
                )
            patterns[topic] = pattern
    return job.matching(topics_by_pattern)
