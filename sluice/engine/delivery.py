"""Which outputs are written at least once, by the tasks themselves, instead of exactly once, by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from sluice.engine.produce import send_at_least_once
from sluice.plan import Job, StreamSink, TableSink

AT_LEAST_ONCE = "at_least_once"


def topics_at_least_once(job: Job, default: str) -> frozenset[str]:
    """The job's output topics whose sinks, or else the default, say `at_least_once`. Dead letters never do."""
    sinks: tuple[StreamSink | TableSink, ...] = (*job.stream_sinks, *job.table_sinks)
    return frozenset(sink.topic for sink in sinks if (getattr(sink, "delivery", None) or default) == AT_LEAST_ONCE)


@dataclass(frozen=True)
class AtLeastOnce:
    """Writes the records of these topics without a transaction, wherever it is called."""

    kafka: dict[str, str]
    topics: frozenset[str]

    def __call__(self, records: Mapping[str, pa.Table]) -> dict[str, int]:
        """Write what is for these topics; how many records of each."""
        mine = [(topic, table) for topic, table in records.items() if topic in self.topics]
        return send_at_least_once(self.kafka, mine) if mine else {}
