"""What a task after the stateless steps does for every job: output records aside, records counted, facts handed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.clock import SEEN
from sluice.engine.handoff import Facts, Handoff
from sluice.plan import Job

Mask = npt.NDArray[np.bool_]
Part = tuple[str, int]
"""Topic and partition."""


@dataclass
class PartFacts:
    """One partition's share of a batch, while it is gone through."""

    counts: Counter[str] = field(default_factory=Counter)
    outputs: dict[str, list[pa.Table]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordSinks:
    """The topics that single records go to, and what to count."""

    handoff: Handoff
    sinks: tuple[tuple[int, str], ...]
    topics: Mapping[int, str]
    passes: tuple[str, ...]
    """Columns: whether a record gets to a store."""

    @classmethod
    def of(cls, job: Job, handoff: Handoff) -> RecordSinks:
        """Those of a job."""
        passes = (*(family.passed for family in job.families), *(feed.name for feed in first_feeds(job)))
        sinks = tuple((sink.number, sink.topic) for sink in job.stream_sinks)
        return cls(handoff, sinks, {source.number: source.topic for source in job.streams}, passes)

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[Part, Mask | None]]:
        """The partitions that a batch's records are from, each with its records; None stands for all.

        From Kafka a task gets one partition; records that a test pipes in come in one task, in their order.
        """
        sources, partitions = batch.column("_source").to_numpy(), batch.column("_partition").to_numpy()
        if (sources == sources[0]).all() and (partitions == partitions[0]).all():
            yield (self.topics[int(sources[0])], int(partitions[0])), None
            return
        for source, partition in dict.fromkeys(zip(sources.tolist(), partitions.tolist(), strict=True)):
            yield (self.topics[source], partition), (sources == source) & (partitions == partition)

    def collect(self, batch: pa.RecordBatch, facts: PartFacts) -> None:
        """Put aside the output records of one partition's records, and count what became of each."""
        taken = np.zeros(batch.num_rows, bool)
        for number, topic in self.sinks:
            there = truth(batch.column(f"o{number}"))
            taken |= there
            if there.any():
                columns = {name: batch.column(f"o{number}_{name}").filter(pa.array(there)) for name in ("key", "value")}
                facts.outputs.setdefault(topic, []).append(pa.table(columns))
        for name in self.passes:
            taken |= truth(batch.column(name))
        facts.counts["applied"] += int(taken.sum())
        facts.counts["filtered"] += int(len(taken) - taken.sum())

    def hand_over(self, number: int, part: Part, facts: PartFacts, now: int) -> None:
        """Hand over what one partition's records came to."""
        topic, partition = part
        name = f"place-{topic}-{partition:05}"
        for output, tables in facts.outputs.items():
            self.handoff.write_records(number, output, name, pa.concat_tables(tables))
        times = facts.times | {f"{SEEN}/{topic}/{partition}": now}
        self.handoff.write_facts(number, name, Facts(dict(facts.counts), times))


def first_feeds(job: Job) -> Sequence[Any]:
    """What gets to ordered operators right after the stateless steps."""
    return [feed for operator in job.operators for feed in operator.feeds if feed.stage == 0]


def truth(booleans: pa.Array) -> Mask:
    """A column of conditions as an array; null is false."""
    filled: Any = pc.fill_null(booleans, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False), bool)
