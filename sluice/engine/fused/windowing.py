"""Assigns each record to its windows, per aggregation group, and finds the records that are late.

Stream time belongs to a group and a partition of its source: the largest event time of the records so far, including
late records. It determines when windows close (see `sluice.values.windows`). A task sees a partition in offset order,
so stream time is a running maximum that continues from the last batch, and results do not depend on where batches end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.engine.batch.accounting import Fate, Part, PartFacts, RecordSinks, StreamTimeReader, Task, truth
from sluice.engine.batch.headers import headers_of_records, with_headers
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.start import this_batch
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes, Times, advance
from sluice.plan import AggregationGroup, FusedJob
from sluice.state.model import NO_WINDOW
from sluice.values.windows import Window

TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Windowed:
    rows: npt.NDArray[np.intp]
    """Indices of records, each repeated once per window that the record belongs to."""
    starts: Times
    """The window's start for each element of `rows`."""
    late: int
    """Number of (record, window) pairs in which the record is late for the window."""
    stream_time: int
    """Stream time after the records."""


def assign_windows(times: Times, window: Window, stream_time: int, closed: int = BEFORE_ALL) -> Windowed:
    """Assign windows to event times (ms, in offset order), given the stream time before the first record.

    A window that closes at or before `closed` accepts no records, whatever this partition's stream time.
    """
    if not len(times):
        return Windowed(np.empty(0, np.intp), times, 0, stream_time)
    _, running = advance(times, np.ones(len(times), bool), stream_time)
    # A matrix with a row per record and a column per window that may contain it, oldest window first.
    starts = window.first_start(times)[:, None] + np.arange(window.overlap) * window.every_ms
    holds = (starts >= 0) & (starts <= times[:, None])
    late = holds & (starts + window.size_ms <= window.last_closed(np.maximum(running, closed))[:, None])
    rows, columns = np.nonzero(holds & ~late)
    return Windowed(rows, starts[rows, columns], int(late.sum()), int(running[-1]))


def closed(groups: Iterable[AggregationGroup], times: StreamTimes) -> int:
    """The stream time that all groups have reached in all partitions. Earlier windows are closed.

    The first record of a so far empty partition may have any event time, but windows that were already closed stay
    closed because Spark has dropped their state.
    """
    reached = [times.closed(group.name, group.topics) for group in groups if group.window]
    return max(min(reached, default=BEFORE_ALL), times.times.get(CLOSED, BEFORE_ALL))


@dataclass
class _Task(Task):
    closed: int = BEFORE_ALL


@dataclass(frozen=True)
class Windowing:
    """The task after the stateless steps: yields rows for the stateful operator and writes side outputs."""

    stream_times: StreamTimeReader
    groups: tuple[AggregationGroup, ...]
    sinks: RecordSinks
    inputs: Mapping[str, pa.DataType]

    @classmethod
    def of(
        cls,
        job: FusedJob,
        side_outputs: SideOutputs,
        partitions: Mapping[str, int],
        inputs: Mapping[str, pa.DataType],
    ) -> Self:
        """The windowing of a job. `partitions`: topic → number of partitions; `inputs`: aggregated column → type."""
        stream_times = StreamTimeReader.of(job, partitions)
        return cls(stream_times, job.groups, RecordSinks.of(job, side_outputs), dict(inputs))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start = this_batch()
        task: _Task | None = None
        for batch in batches:
            if batch.num_rows:
                if task is None:
                    before = self.stream_times.before(start)
                    task = _Task(before, closed=closed(self.groups, before))
                for part, mask in self.sinks.parts(batch):
                    yield from self._part(part, batch if mask is None else batch.filter(pa.array(mask)), task)
        if task is not None:
            for facts in task.parts.values():
                if task.closed > BEFORE_ALL:
                    facts.times[CLOSED] = task.closed
            task.write(self.sinks, start.number)

    def _part(self, part: Part, batch: pa.RecordBatch, task: _Task) -> Iterator[pa.RecordBatch]:
        facts = task.parts.setdefault(part, PartFacts())
        fate = self.sinks.collect(batch, facts)
        for group in self.groups:
            if part[0] in group.topics:
                yield self._state_rows(batch, group, part, task, fate)
        facts.count(fate)

    def _state_rows(
        self, batch: pa.RecordBatch, group: AggregationGroup, part: Part, task: _Task, fate: Fate
    ) -> pa.RecordBatch:
        facts = task.parts[part]
        passed = truth(batch.column(group.passed))
        keyed = passed & truth(batch.column(group.key).is_valid())
        fate.dropped["null_key"] |= passed & ~keyed
        self._count(facts, "null_key", group, int((passed & ~keyed).sum()))
        if group.window is None:
            valued = keyed & ~truth(batch.column(group.null)) if group.null else keyed
            fate.dropped["null_value"] |= keyed & ~valued
            self._count(facts, "null_value", group, int((keyed & ~valued).sum()))
            fate.applied |= valued
            return self._batch(batch, group, np.flatnonzero(valued), None, task.closed)
        rows = np.flatnonzero(keyed)
        name = f"{group.name}/{part[0]}/{part[1]}"
        times = batch.column("_time").to_numpy()[rows]
        since = facts.times.get(name, task.before.of(group.name, *part))
        windowed = assign_windows(times, group.window, since, task.closed)
        if len(rows):
            facts.times[name] = windowed.stream_time
        fate.applied[rows[windowed.rows]] = True
        fate.late[rows] = True  # `applied` comes before `late` when records are counted
        self._count(facts, "late", group, windowed.late)
        late_rows = np.setdiff1d(rows, rows[windowed.rows]) if group.late is not None else ()
        if group.late is not None and len(late_rows):
            late = batch.take(pa.array(late_rows))
            columns = {"key": late.column(group.late_key), "value": late.column(group.late_value)}
            table = with_headers(pa.table(columns | {"timestamp": late.column("_time")}), headers_of_records(late))
            facts.outputs.setdefault(group.late.topic, []).append(table)
        return self._batch(batch, group, rows[windowed.rows], windowed.starts, task.closed)

    @staticmethod
    def _count(facts: PartFacts, reason: str, group: AggregationGroup, number: int) -> None:
        if number:
            facts.counts.update({f"{reason}/{store_column.store}": number for store_column in group.store_columns})

    def _batch(
        self,
        batch: pa.RecordBatch,
        group: AggregationGroup,
        rows: npt.NDArray[np.intp],
        starts: Times | None,
        closed: int,
    ) -> pa.RecordBatch:
        chosen = pa.array(rows)
        count = len(rows)
        none = pa.repeat(pa.scalar(NO_WINDOW, pa.int64()), count)
        columns: dict[str, pa.Array] = {
            "group_id": pa.repeat(pa.scalar(group.number, pa.int32()), count),
            "key": batch.column(group.key).take(chosen),
            "window_start": none,
            "window_end": none,
            "expires_at": pa.nulls(count, TIME),
            "closed_at": pa.repeat(pa.scalar(max(closed, 0) * 1000, pa.int64()).cast(TIME), count),
            "time": batch.column("_time").take(chosen),
        }
        if starts is not None and group.window is not None:
            ends = starts + group.window.size_ms
            columns["window_start"], columns["window_end"] = pa.array(starts), pa.array(ends)
            columns["expires_at"] = pa.array(group.window.closes_at(ends) * 1000).cast(TIME)
        for name, kind in self.inputs.items():
            columns[name] = batch.column(name).take(chosen) if name in group.inputs else pa.nulls(count, kind)
        return pa.RecordBatch.from_pydict(columns)
