"""Records in event time: for each aggregation group the windows a record counts in, or that it is late, in offset order.

Stream time belongs to a group and a partition of its source: the largest event time of the records that got there,
late ones included. A record is late for a window once stream time has reached the window's end and grace. As a task
sees one partition in offset order, stream time is a running maximum whose start was kept with the last batch, so that
nothing depends on where the input is cut into batches. No Spark here but the batch's number: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.engine.batch.accounting import Clocks, Fate, Part, PartFacts, RecordSinks, Task, truth
from sluice.engine.batch.checkpoint import BatchClock, current_batch
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, Clock, Times, advance
from sluice.plan import AggregationGroup, FusedJob
from sluice.state.model import NO_WINDOW
from sluice.values.windows import Window

TIME = pa.timestamp("us", tz="UTC")
STATE_KEY = {"group_id": "INT", "key": "STRING", "window_start": "BIGINT", "window_end": "BIGINT"}


@dataclass(frozen=True)
class Placed:
    """Which of the records count, in which window, and how far stream time is after them.

    A record stands in `rows` once for every window it counts in, and in `late` once for every window it is late for.
    """

    rows: npt.NDArray[np.intp]
    starts: Times
    late: int
    stream_time: int


def place(times: Times, window: Window, stream_time: int, closed: int = BEFORE_ALL) -> Placed:
    """Place event times (ms, in offset order) into `window`s, given stream time before the first of them.

    A window that ended, with grace, at or before `closed` takes nothing, whatever this partition's stream time is.
    """
    if not len(times):
        return Placed(np.empty(0, np.intp), times, 0, stream_time)
    _, running = advance(times, np.ones(len(times), bool), stream_time)
    # A row for each record, a column for each window that may hold it, oldest first.
    hops = np.arange(-(-window.size_ms // window.every_ms))[::-1] * window.every_ms
    starts = (times - times % window.every_ms)[:, None] - hops
    holds = (starts >= 0) & (starts + window.size_ms > times[:, None])
    late = holds & (starts + window.size_ms + window.grace_ms <= np.maximum(running, closed)[:, None])
    rows, columns = np.nonzero(holds & ~late)
    return Placed(rows, starts[rows, columns], int(late.sum()), int(running[-1]))


@dataclass
class _Task(Task):
    """One task's records, while they are placed."""

    closed: int = BEFORE_ALL


@dataclass(frozen=True)
class Placer:
    """The task after the stateless steps: state rows go on to the stateful operator, output records to the driver."""

    clocks: Clocks
    groups: tuple[AggregationGroup, ...]
    sinks: RecordSinks
    inputs: Mapping[str, pa.DataType]

    @classmethod
    def of(
        cls,
        job: FusedJob,
        side_outputs: SideOutputs,
        batches: BatchClock,
        partitions: Mapping[str, int],
        inputs: Mapping[str, pa.DataType],
    ) -> Self:
        """The placer of a job, given each topic's number of partitions and the types of the aggregates' columns."""
        clocks = Clocks.of(job, side_outputs, batches, partitions)
        return cls(clocks, job.groups, RecordSinks.of(job, side_outputs), dict(inputs))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Place the records of one task."""
        number = current_batch()
        task: _Task | None = None
        for batch in batches:
            if batch.num_rows:
                task = task or self._begun(number)
                for part, mask in self.sinks.parts(batch):
                    yield from self._part(part, batch if mask is None else batch.filter(pa.array(mask)), task)
        if task is not None:
            for facts in task.parts.values():
                if task.closed > BEFORE_ALL:
                    facts.times[CLOSED] = task.closed
            task.hand_over(self.sinks, number)

    def _begun(self, number: int) -> _Task:
        clock = self.clocks.at(number)
        return _Task(clock, closed=self.closed(clock))

    def _part(self, part: Part, batch: pa.RecordBatch, task: _Task) -> Iterator[pa.RecordBatch]:
        facts = task.parts.setdefault(part, PartFacts())
        fate = self.sinks.collect(batch, facts)
        for group in self.groups:
            if part[0] in group.topics:
                yield self._state_rows(batch, group, part, task, fate)
        facts.count(fate)

    def closed(self, clock: Clock) -> int:
        """The time that stream time has reached everywhere: nothing that ends before it can be added to any more.

        A partition in which a group has seen nothing yet can still bring anything; but what was closed before it came
        stays closed, since Spark has let go of it.
        """
        reached = [clock.closed(group.name, group.topics) for group in self.groups if group.window]
        return max(min(reached, default=BEFORE_ALL), clock.times.get(CLOSED, BEFORE_ALL))

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
        since = facts.times.get(name, task.clock.of(group.name, *part))
        placed = place(times, group.window, since, task.closed)
        if len(rows):
            facts.times[name] = placed.stream_time
        fate.applied[rows[placed.rows]] = True
        fate.late[rows] = True  # it counts where it was not applied
        self._count(facts, "late", group, placed.late)
        if group.late is not None:
            self._set_aside(batch, group, np.setdiff1d(rows, rows[placed.rows]), facts)
        return self._batch(batch, group, rows[placed.rows], placed.starts, task.closed)

    @staticmethod
    def _set_aside(
        batch: pa.RecordBatch, group: AggregationGroup, rows: npt.NDArray[np.intp], facts: PartFacts
    ) -> None:
        """Hand over the records that are late for every window."""
        if len(rows) and group.late is not None:
            late = batch.take(pa.array(rows))
            columns = {"key": late.column(group.late_key), "value": late.column(group.late_value)}
            table = pa.table(columns | {"timestamp": late.column("_time")})
            facts.outputs.setdefault(group.late.topic, []).append(table)

    @staticmethod
    def _count(facts: PartFacts, what: str, group: AggregationGroup, number: int) -> None:
        if number:
            facts.counts.update({f"{what}/{store_column.store}": number for store_column in group.store_columns})

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
        }
        if starts is not None and group.window is not None:
            ends = starts + group.window.size_ms
            columns["window_start"], columns["window_end"] = pa.array(starts), pa.array(ends)
            columns["expires_at"] = pa.array((ends + group.window.grace_ms) * 1000).cast(TIME)
        for name, kind in self.inputs.items():
            columns[name] = batch.column(name).take(chosen) if name in group.inputs else pa.nulls(count, kind)
        return pa.RecordBatch.from_pydict(columns)
