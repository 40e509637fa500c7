"""Records in event time: for each cell family the windows a record counts in, or that it is late, in offset order.

Stream time belongs to a family and a partition of its source: the largest event time of the records that got there,
late ones included. A record is late for a window once stream time has reached the window's end and grace. As a task
sees one partition in offset order, stream time is a running maximum whose start was kept with the last batch, so that
nothing depends on where the input is cut into batches. No Spark here but the batch's number: arrays in, arrays out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.handoff import Facts, Handoff
from sluice.engine.source import current_batch
from sluice.plan import Family, Job
from sluice.state.model import NO_WINDOW
from sluice.topology import nodes
from sluice.topology.windows import Window

Times = npt.NDArray[np.int64]

BEFORE_ALL = -1
"""Stream time where nothing was seen yet."""

CLOSED = "closed"
"""Among the stream times: how far everything is closed."""

TIME = pa.timestamp("us", tz="UTC")
CELL = {"cell": "INT", "key": "STRING", "window_start": "BIGINT", "window_end": "BIGINT"}


Send = Callable[[Mapping[str, pa.Table]], Mapping[str, int]]
"""Writes those of the tables, by topic, that it is for; how many records of each it wrote."""


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
    running = np.maximum(np.maximum.accumulate(times), stream_time)
    # A row for each record, a column for each window that may hold it, oldest first.
    hops = np.arange(-(-window.size_ms // window.every_ms))[::-1] * window.every_ms
    starts = (times - times % window.every_ms)[:, None] - hops
    holds = (starts >= 0) & (starts + window.size_ms > times[:, None])
    late = holds & (starts + window.size_ms + window.grace_ms <= np.maximum(running, closed)[:, None])
    rows, columns = np.nonzero(holds & ~late)
    return Placed(rows, starts[rows, columns], int(late.sum()), int(running[-1]))


@dataclass(frozen=True)
class FamilySpec:
    """What placing needs to know of a cell family."""

    number: int
    topic: str
    stores: tuple[str, ...]
    passed: str
    key: str
    window: Window | None
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, family: Family) -> FamilySpec:
        """The same family, without what only the driver needs."""
        stores = tuple(slot.store for slot in family.slots)
        topic = nodes.source_of(family.at).topic
        return cls(family.number, topic, stores, family.passed, family.key, family.window, family.inputs)


@dataclass
class _Task:
    """One task's partition, while it is placed."""

    source: str
    partition: int
    times: dict[str, int]
    closed: int
    counts: Counter[str] = field(default_factory=Counter)
    outputs: dict[str, list[pa.Table]] = field(default_factory=dict)


class _Fate:
    """What becomes of each record of a batch; a record that had any effect is applied, whatever else it was."""

    def __init__(self, applied: npt.NDArray[np.bool_]) -> None:
        self.applied = applied
        self.late, self.unkeyed = np.zeros_like(applied), np.zeros_like(applied)

    def counts(self) -> dict[str, int]:
        late = self.late & ~self.applied
        dropped = self.unkeyed & ~self.applied & ~late
        filtered = ~(self.applied | late | dropped)
        found = {"late_everywhere": late.sum(), "dropped/null_key": dropped.sum()}
        kept = {"applied": int(self.applied.sum()), "filtered": int(filtered.sum())}
        return kept | {name: int(number) for name, number in found.items() if number}


@dataclass(frozen=True)
class Placer:
    """The task after the stateless steps: cells go on to the stateful operator, output records to the driver."""

    handoff: Handoff
    families: tuple[FamilySpec, ...]
    sinks: tuple[tuple[int, str], ...]
    topics: Mapping[int, str]
    partitions: Mapping[str, int]
    inputs: Mapping[str, pa.DataType]
    send: Send | None
    """Writes output of a topic that takes it at least once, from the task itself."""

    @classmethod
    def of(
        cls,
        job: Job,
        handoff: Handoff,
        partitions: Mapping[str, int],
        inputs: Mapping[str, pa.DataType],
        send: Send | None = None,
    ) -> Self:
        """The placer of a job, given each topic's number of partitions and the types of the aggregates' columns."""
        families = tuple(FamilySpec.of(family) for family in job.families)
        sinks = tuple((sink.number, sink.topic) for sink in job.stream_sinks)
        topics = {source.number: source.topic for source in job.streams}
        return cls(handoff, families, sinks, topics, {t: partitions[t] for t in topics.values()}, dict(inputs), send)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Place the records of one task."""
        number = current_batch()
        task: _Task | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if task is None:
                task = self._begin(batch, self.handoff.times(number - 1))
            fate = _Fate(self._collect_outputs(batch, task))
            for family in self.families:
                if family.topic == task.source:
                    yield self._cells(batch, family, task, fate)
            task.counts.update(fate.counts())
        if task is not None:
            self._hand_over(number, task)

    def closed(self, times: Mapping[str, int]) -> int:
        """The time that stream time has reached everywhere: nothing that ends before it can be added to any more.

        A partition in which a family has seen nothing yet can still bring anything; but what was closed before it came
        stays closed, since Spark has let go of it.
        """
        reached = min(
            (
                times.get(f"{family.stores[0]}/{family.topic}/{partition}", BEFORE_ALL)
                for family in self.families
                if family.window is not None
                for partition in range(self.partitions[family.topic])
            ),
            default=BEFORE_ALL,
        )
        return max(reached, times.get(CLOSED, BEFORE_ALL))

    def _begin(self, batch: pa.RecordBatch, times: dict[str, int]) -> _Task:
        topic = self.topics[batch.column("_source")[0].as_py()]
        return _Task(topic, batch.column("_partition")[0].as_py(), times, self.closed(times))

    def _collect_outputs(self, batch: pa.RecordBatch, task: _Task) -> npt.NDArray[np.bool_]:
        """Keep the output records; which of the batch's records made any."""
        taken = np.zeros(batch.num_rows, bool)
        for number, topic in self.sinks:
            value = batch.column(f"o{number}_value")
            there = value.is_valid()
            taken |= _numpy(there)
            found = pa.table({"key": batch.column(f"o{number}_key").filter(there), "value": value.filter(there)})
            if found.num_rows:
                task.outputs.setdefault(topic, []).append(found)
        return taken

    def _cells(self, batch: pa.RecordBatch, family: FamilySpec, task: _Task, fate: _Fate) -> pa.RecordBatch:
        passed = _numpy(batch.column(family.passed))
        keyed = passed & _numpy(batch.column(family.key).is_valid())
        rows = np.flatnonzero(keyed)
        fate.unkeyed |= passed & ~keyed
        self._count(task, "null_key", family, int(passed.sum()) - len(rows))
        if family.window is None:
            fate.applied[rows] = True
            return self._batch(batch, family, rows, None, task.closed)
        name = f"{family.stores[0]}/{task.source}/{task.partition}"
        times = batch.column("_time").to_numpy()[rows]
        placed = place(times, family.window, task.times.get(name, BEFORE_ALL), task.closed)
        if len(rows):
            task.times[name] = placed.stream_time
        fate.applied[rows[placed.rows]] = True
        fate.late[rows] = True  # it counts where it was not applied
        self._count(task, "late", family, placed.late)
        return self._batch(batch, family, rows[placed.rows], placed.starts, task.closed)

    @staticmethod
    def _count(task: _Task, what: str, family: FamilySpec, number: int) -> None:
        if number:
            task.counts.update({f"{what}/{store}": number for store in family.stores})

    def _batch(
        self, batch: pa.RecordBatch, family: FamilySpec, rows: npt.NDArray[np.intp], starts: Times | None, closed: int
    ) -> pa.RecordBatch:
        chosen = pa.array(rows)
        count = len(rows)
        none = pa.repeat(pa.scalar(NO_WINDOW, pa.int64()), count)
        columns: dict[str, pa.Array] = {
            "cell": pa.repeat(pa.scalar(family.number, pa.int32()), count),
            "key": batch.column(family.key).take(chosen),
            "window_start": none,
            "window_end": none,
            "expires_at": pa.nulls(count, TIME),
            "closed_at": pa.repeat(pa.scalar(max(closed, 0) * 1000, pa.int64()).cast(TIME), count),
        }
        if starts is not None and family.window is not None:
            ends = starts + family.window.size_ms
            columns["window_start"], columns["window_end"] = pa.array(starts), pa.array(ends)
            columns["expires_at"] = pa.array((ends + family.window.grace_ms) * 1000).cast(TIME)
        for name, kind in self.inputs.items():
            columns[name] = batch.column(name).take(chosen) if name in family.inputs else pa.nulls(count, kind)
        return pa.RecordBatch.from_pydict(columns)

    def _hand_over(self, number: int, task: _Task) -> None:
        part = f"place-{task.source}-{task.partition:05}"
        made = {topic: pa.concat_tables(tables) for topic, tables in task.outputs.items()}
        if self.send is not None:
            sent = self.send(made)
            task.counts.update({f"output/{topic}": rows for topic, rows in sent.items()})
            made = {topic: table for topic, table in made.items() if topic not in sent}
        for topic, table in made.items():
            self.handoff.write_records(number, topic, part, table)
        mine = f"/{task.source}/{task.partition}"
        times = {name: time for name, time in task.times.items() if name.endswith(mine)}
        if task.closed > BEFORE_ALL:
            times[CLOSED] = task.closed
        self.handoff.write_facts(number, part, Facts(dict(task.counts), times))


def _numpy(booleans: pa.Array) -> npt.NDArray[np.bool_]:
    filled: Any = pc.fill_null(booleans, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False), bool)
