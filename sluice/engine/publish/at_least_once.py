"""Which outputs are written at least once, by the tasks themselves, instead of exactly once, by the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sluice.engine.batch.side_outputs import Written
from sluice.engine.publish.encode import NO_LIMIT, UNWRITTEN, SetAside, encoded, fitting
from sluice.engine.publish.transaction import send_at_least_once
from sluice.plan import Job, Sink

AT_LEAST_ONCE = "at_least_once"

Records = list[tuple[str, pa.Table]]
"""Topics and tables of records for them."""


@dataclass(frozen=True)
class AtLeastOnce:
    """Writes the records of some topics without a transaction, wherever it is called."""

    kafka: dict[str, str]
    topics: frozenset[str]
    streams: dict[str, Sink]
    """Of these topics those that single records go to: tasks write them."""
    limits: Mapping[str, int]
    """Topic → bytes of its largest record."""
    dead_letters: str
    """The topic of what cannot be written, which the driver writes to."""

    @classmethod
    def of(cls, job: Job, kafka: dict[str, str], default: str, limits: Mapping[str, int]) -> AtLeastOnce | None:
        """For the outputs of a job that say `at_least_once`, or for all if that is the default; None if there are none.

        Dead letters are never among them.
        """
        topics = frozenset(sink.topic for sink in job.sinks if AT_LEAST_ONCE in (sink.delivery, default))
        streams = {sink.topic: sink for sink in job.stream_sinks if sink.topic in topics}
        return cls(kafka, topics, streams, limits, job.pipeline.dead_letters) if topics else None

    def __call__(self, topic: str, table: pa.Table) -> Written | None:
        """Write a task's records if they are for one of these topics."""
        if topic not in self.streams:
            return None
        sink, aside = self.streams[topic], SetAside()
        fine = fitting(sink, encoded(sink, table, aside), self.limits.get(topic, NO_LIMIT), aside)
        sent = send_at_least_once(self.kafka, [(topic, fine)], self.limits)
        counts = {f"output/{topic}": sent.get(topic, 0)} | {f"{UNWRITTEN}{name}": n for name, n in aside.counts.items()}
        return Written(counts, {self.dead_letters: pa.concat_tables(aside.letters)} if aside.letters else {})

    def send(self, records: Iterable[tuple[str, pa.Table]]) -> tuple[dict[str, int], Records]:
        """Write what is for these topics, and is encoded; how many by topic, and what is left."""
        mine: Records = []
        rest: Records = []
        for topic, table in records:
            (mine if topic in self.topics else rest).append((topic, table))
        return (send_at_least_once(self.kafka, mine, self.limits) if mine else {}), rest
