"""At-least-once outputs, written by tasks directly instead of by the driver in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from sluice.engine.batch.dead_letters import RejectedOutput
from sluice.engine.batch.job_topics import NO_LIMITS, TopicLimits
from sluice.engine.batch.side_outputs import DirectOutput
from sluice.engine.publish.encode import UNWRITTEN, accepted_records, encode_records
from sluice.engine.publish.transaction import send_at_least_once
from sluice.kafka.brokers import with_certificates
from sluice.plan import Job, Sink

AT_LEAST_ONCE = "at_least_once"

Records = list[tuple[str, pa.Table]]
"""Pairs of a topic and a table of records for it."""


@dataclass(frozen=True)
class AtLeastOnce:
    """Writes the records of some topics without a transaction, on the driver or in a task."""

    kafka: Mapping[str, str] = field(repr=False)
    topics: frozenset[str]
    streams: dict[str, Sink]
    """Topic → sink, for the outputs that tasks write themselves: those that follow only stateless
    steps."""
    limits: Mapping[str, TopicLimits]
    """Topic → the limits of the records that it accepts."""
    dead_letters: str
    """The topic for records that cannot be written; the driver writes to it."""

    @classmethod
    def of(
        cls,
        job: Job,
        kafka: dict[str, str],
        default: str,
        limits: Mapping[str, TopicLimits],
    ) -> AtLeastOnce | None:
        """The writer of a job's at-least-once outputs, or None if all outputs are written exactly once.

        `default` is the delivery of outputs that do not choose a delivery. Dead letters are never
        written at least once.
        """
        topics: set[str] = set()
        for sink in job.sinks:
            if sink.table is None and AT_LEAST_ONCE in (sink.delivery, default):
                topics.add(sink.topic)
        if not topics:
            return None
        streams = {sink.topic: sink for sink in job.stream_sinks if sink.topic in topics}
        return cls(
            with_certificates(kafka), frozenset(topics), streams, limits, job.pipeline.dead_letters
        )

    def __call__(self, topic: str, table: pa.Table) -> DirectOutput | None:
        """Write a task's records for a topic in `streams`. For other topics, write nothing and return None."""
        if topic not in self.streams:
            return None
        sink, rejected = self.streams[topic], RejectedOutput()
        records = encode_records(sink, table, rejected)
        records = accepted_records(sink, records, self.limits.get(topic, NO_LIMITS), rejected)
        sent = send_at_least_once(self.kafka, [(topic, records)], self.limits)
        counts = {f"output/{topic}": sent.get(topic, 0)}
        counts |= {f"{UNWRITTEN}{name}": number for name, number in rejected.counts.items()}
        # Dead letters are written exactly once, so they go to the driver.
        for_driver: dict[str, pa.Table] = {}
        if rejected.dead_letters:
            for_driver[self.dead_letters] = pa.concat_tables(rejected.dead_letters)
        return DirectOutput(counts, for_driver)

    def send(self, records: Iterable[tuple[str, pa.Table]]) -> tuple[dict[str, int], Records]:
        """Write the encoded records for `topics`. Returns their number per topic, and the records for other topics."""
        at_once: Records = []
        in_transaction: Records = []
        for topic, table in records:
            (at_once if topic in self.topics else in_transaction).append((topic, table))
        sent = send_at_least_once(self.kafka, at_once, self.limits) if at_once else {}
        return sent, in_transaction
