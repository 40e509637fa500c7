"""What a task after the stateless steps does for every job: put output aside, count records, hand facts over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.checkpoint import BatchClock
from sluice.engine.batch.dead_letters import dead_letters
from sluice.engine.batch.side_outputs import Facts, SideOutputs
from sluice.engine.batch.stream_time import SEEN, Clock, Mask
from sluice.engine.read.decode import DeadLetter
from sluice.errors import EngineError
from sluice.plan import Failure, Job, OrderedJob, Sink

Part = tuple[str, int]
"""Topic and partition."""


class Fate:
    """What becomes of each of a batch's rows; a record that had any effect is applied, whatever else it was."""

    def __init__(self, records: npt.NDArray[np.int64] | None, applied: Mask, rejected: Mask, skipped: Mask) -> None:
        self.records = records
        """A number for each row's record, where steps may have made several rows of one."""
        self.applied, self.rejected, self.skipped = applied, rejected, skipped
        self.late = np.zeros_like(applied)
        self.dropped = {"null_key": np.zeros_like(applied), "null_value": np.zeros_like(applied)}


_FATES = (
    "applied", "late_everywhere", "dropped/null_key", "dropped/null_value", "dead_letter/processing",
    "dropped/processing", "filtered",
)  # fmt: skip


@dataclass
class PartFacts:
    """One partition's share of a batch, while it is gone through."""

    counts: Counter[str] = field(default_factory=Counter)
    outputs: dict[str, list[pa.Table]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    """Column of a step's errors → the last record for which it failed."""
    last_letter: int = -1
    """The last record that has a dead letter."""
    _last: tuple[int, int] | None = None
    """Record and fate of the last row, whose record may go on in the next rows."""

    def count(self, fate: Fate) -> None:
        """Count each record once, by the best that became of it."""
        kinds = [fate.applied, fate.late, *fate.dropped.values(), fate.rejected, fate.skipped]
        best = np.select(kinds, range(len(kinds)), default=len(kinds))
        if fate.records is None:
            self._add(best)
            return
        first = np.flatnonzero(np.concatenate(([True], fate.records[1:] != fate.records[:-1])))
        of_records = np.minimum.reduceat(best, first)
        if self._last is not None and self._last[0] == fate.records[0]:
            of_records[0] = min(of_records[0], self._last[1])
        elif self._last is not None:
            self.counts[_FATES[self._last[1]]] += 1
        self._add(of_records[:-1])
        self._last = int(fate.records[-1]), int(of_records[-1])

    def _add(self, fates: npt.NDArray[np.int64]) -> None:
        for kind, number in enumerate(np.bincount(fates, minlength=len(_FATES)).tolist()):
            if number or _FATES[kind] in ("applied", "filtered"):
                self.counts[_FATES[kind]] += number

    def end(self) -> None:
        """Count the last record too."""
        if self._last is not None:
            self.counts[_FATES[self._last[1]]] += 1
            self._last = None


@dataclass(frozen=True)
class Clocks:
    """How a batch's tasks learn how far stream time was before it."""

    side_outputs: SideOutputs
    batches: BatchClock
    partitions: Mapping[str, int]
    """Of each topic of the streams."""
    idle_timeout_ms: int | None

    @classmethod
    def of(cls, job: Job, side_outputs: SideOutputs, batches: BatchClock, partitions: Mapping[str, int]) -> Self:
        """Those of a job, given how many partitions each topic has."""
        counts = {source.topic: partitions[source.topic] for source in job.streams}
        return cls(side_outputs, batches, counts, job.pipeline.idle_timeout_ms)

    def at(self, number: int) -> Clock:
        """The stream times before a batch."""
        return Clock(self.side_outputs.times(number), self.partitions, self.batches.begun(number), self.idle_timeout_ms)


@dataclass
class Task:
    """One task's records, while they are gone through."""

    clock: Clock
    parts: dict[Part, PartFacts] = field(default_factory=dict)

    def hand_over(self, sinks: RecordSinks, number: int) -> None:
        """Hand over what the records of each partition came to."""
        for part, facts in self.parts.items():
            sinks.hand_over(number, part, facts, self.clock.now)


@dataclass(frozen=True)
class RecordSinks:
    """The topics that single records go to, and what to count."""

    side_outputs: SideOutputs
    sinks: tuple[Sink, ...]
    topics: Mapping[int, str]
    passes: tuple[str, ...]
    """Columns: whether a record gets to an ordered operator."""
    failing: tuple[Failure, ...]
    dead_letters: str

    @classmethod
    def of(cls, job: Job, side_outputs: SideOutputs) -> RecordSinks:
        """Those of a job."""
        topics = {source.number: source.topic for source in job.streams}
        passes = tuple(edge.column for edge in job.feeds_of(0)) if isinstance(job, OrderedJob) else ()
        return cls(side_outputs, job.stream_sinks, topics, passes, job.first_failures, job.pipeline.dead_letters)

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

    def collect(self, batch: pa.RecordBatch, facts: PartFacts) -> Fate:
        """Put aside the output records of one partition's records; what became of each so far."""
        count = batch.num_rows
        applied = np.zeros(count, bool)
        for sink in self.sinks:
            there = truth(batch.column(sink.passed))
            applied |= there
            if there.any():
                chosen = batch.filter(pa.array(there))
                columns = {"key": chosen.column(sink.key), "value": chosen.column(sink.value)}
                records = pa.table(columns | {"timestamp": chosen.column("_time")})
                facts.outputs.setdefault(sink.topic, []).append(records)
        for name in self.passes:
            applied |= truth(batch.column(name))
        records = batch.column("_offset").to_numpy() if "_offset" in batch.schema.names else None
        return Fate(records, applied, *self._failed(batch, records, facts))

    def _failed(
        self, batch: pa.RecordBatch, records: npt.NDArray[np.int64] | None, facts: PartFacts
    ) -> tuple[Mask, Mask]:
        """The records that a step rejected or skipped. A record has one dead letter, of the first step that failed."""
        rejected, skipped = np.zeros(batch.num_rows, bool), np.zeros(batch.num_rows, bool)
        letters: dict[int, DeadLetter] = {}
        elsewhere: set[int] = set()
        for failure in self.failing:
            step, error = failure.step, batch.column(failure.column)
            failed = truth(error.is_valid())
            if not failed.any():
                continue
            rows = np.flatnonzero(failed)
            if step.on_error == "fail":
                raise _failed(failure, batch, int(rows[0]))
            if step.on_error == "skip":
                skipped |= failed
            else:
                rejected |= failed
            # A record once, however many rows other steps made of it.
            if records is not None:
                last, of_rows = facts.rejected.get(failure.column, -1), records[rows]
                rows = rows[np.diff(of_rows, prepend=last) != 0]
                facts.rejected[failure.column] = int(of_rows[-1])
            facts.counts[f"failed/{step.name}"] += len(rows)
            for row in rows.tolist() if step.on_error == "dead_letter" else ():
                record = row if records is None else int(records[row])
                if failure.tried_elsewhere:
                    elsewhere.add(record)
                elif record != facts.last_letter:
                    letters.setdefault(record, DeadLetter(row, "processing", error[row].as_py(), step.title, step.at))
        if mine := [letter for record, letter in sorted(letters.items()) if record not in elsewhere]:
            facts.outputs.setdefault(self.dead_letters, []).append(_dead_letters(batch, mine))
        if letters and records is not None:
            facts.last_letter = max(letters)
        return rejected, skipped

    def hand_over(self, number: int, part: Part, facts: PartFacts, now: int) -> None:
        """Hand over what one partition's records came to."""
        topic, partition = part
        name = f"place-{topic}-{partition:05}"
        facts.end()
        for output, tables in facts.outputs.items():
            facts.counts.update(self.side_outputs.write_records(number, output, name, pa.concat_tables(tables)))
        times = facts.times | {f"{SEEN}/{topic}/{partition}": now}
        self.side_outputs.write_facts(number, name, Facts(dict(facts.counts), times))


def _dead_letters(batch: pa.RecordBatch, letters: list[DeadLetter]) -> pa.Table:
    """The records that a step rejected, as they were read."""
    names = ("topic", "partition", "offset", "timestamp")
    columns = {name: batch.column(f"_{name}") for name in names}
    raw = {name: batch.column(f"_raw_{name}") for name in ("key", "value", "headers")}
    return pa.Table.from_batches([dead_letters(pa.RecordBatch.from_pydict(columns | raw), letters)])


def _failed(failure: Failure, batch: pa.RecordBatch, row: int) -> EngineError:
    """The error that ends the run where the author says so."""
    place = ", ".join(f"{name} {batch.column(f'_{name}')[row].as_py()}" for name in ("partition", "offset"))
    return EngineError(
        f"{failure.step} failed for the record of {batch.column('_topic')[row].as_py()}, {place}: "
        f"{batch.column(failure.column)[row].as_py()}",
        next_step='The step says on_error="fail": correct it or the topic, or let it say "dead_letter" or "skip".',
    )


def truth(booleans: pa.Array) -> Mask:
    """A column of conditions as an array; null is false."""
    filled: Any = pc.fill_null(booleans, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False), bool)
