"""The task after the stateless steps of an ordered job: records become rows on their way to the operators.

Stream time belongs to an operator and a partition of its source, as in `place`; a join of two streams has one for both.
Every row carries stream time as it was before its record and with it, so that an operator that sees one key's rows
decides as if it had seen all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.engine.batch.accounting import Clocks, Part, PartFacts, RecordSinks, Task, truth
from sluice.engine.batch.checkpoint import BatchClock, current_batch
from sluice.engine.batch.rows import CLOCK, SCHEMA, places, rows
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, Mask, Times, advance, advance_joint
from sluice.plan import Edge, OrderedJob, OrderedOperator


@dataclass
class _Task(Task):
    """One task's records, while they become rows."""

    joint: dict[int, int] = field(default_factory=dict)
    """Operator → the stream time that both sides of a join share."""
    closed: dict[int, int] = field(default_factory=dict)
    """Operator → the stream time up to which a join has sent what has no match."""
    alone: dict[str, int] = field(default_factory=dict)
    """The stream time of each side of a join by itself."""
    sequence: int = BEFORE_ALL

    def time(self, name: str, part: Part) -> int:
        """Stream time of an operator in a partition, as of now."""
        found = self.parts[part].times.get(f"{name}/{part[0]}/{part[1]}") if part in self.parts else None
        return self.clock.of(name, *part) if found is None else found


@dataclass(frozen=True)
class Ingest:
    """Rows of one task's records. `interleaved`: all topics come in this task, in the order of `_sequence`."""

    clocks: Clocks
    sinks: RecordSinks
    operators: tuple[OrderedOperator, ...]
    workers: int
    interleaved: bool

    @classmethod
    def of(
        cls,
        job: OrderedJob,
        side_outputs: SideOutputs,
        batches: BatchClock,
        partitions: Mapping[str, int],
        *,
        interleaved: bool,
    ) -> Self:
        """The feeder of a job, given each topic's number of partitions."""
        clocks = Clocks.of(job, side_outputs, batches, partitions)
        return cls(clocks, RecordSinks.of(job, side_outputs), job.operators, job.pipeline.workers, interleaved)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Make rows of the records of one task."""
        number = current_batch()
        task: _Task | None = None
        for batch in batches:
            if batch.num_rows:
                task = task or _Task(self.clocks.at(number))
                yield from self._rows(batch, task)
        if task is not None:
            yield from self._clocks(task)
            task.hand_over(self.sinks, number)

    def _rows(self, batch: pa.RecordBatch, task: _Task) -> Iterator[pa.RecordBatch]:
        parts = list(self.sinks.parts(batch))
        for part, mask in parts:
            facts = task.parts.setdefault(part, PartFacts())
            facts.count(self.sinks.collect(batch if mask is None else batch.filter(pa.array(mask)), facts))
        if not self.operators:
            return
        orders = self._orders(batch, parts, task)
        for operator in self._timed():
            yield from self._fed(batch, operator, parts, orders, task)

    def _orders(self, batch: pa.RecordBatch, parts: list[tuple[Part, Mask | None]], task: _Task) -> dict[str, Times]:
        """Where each record stands: `sequence`, `place`, `sub`."""
        times = batch.column("_time").to_numpy()
        if self.interleaved:
            sequence = batch.column("_sequence").to_numpy()
        else:
            # Among topics, the order of stream time: each partition's records come when its largest time is reached.
            sequence = np.maximum(np.maximum.accumulate(times), task.sequence)
            task.sequence = int(sequence[-1])
        sources, partitions = batch.column("_source").to_numpy(), batch.column("_partition").to_numpy()
        offsets = batch.column("_offset").to_numpy()
        place = np.zeros(len(times), np.int64)
        for source, partition in dict.fromkeys(zip(sources.tolist(), partitions.tolist(), strict=True)):
            mine = (sources == source) & (partitions == partition)
            place[mine] = places(source, partition, offsets[mine])
        again = np.zeros(len(times), np.int64)
        same = np.flatnonzero(place[1:] == place[:-1]) + 1
        for row in same.tolist():
            again[row] = again[row - 1] + 1
        return {"sequence": sequence, "place": place, "sub": again}

    def _fed(
        self,
        batch: pa.RecordBatch,
        operator: OrderedOperator,
        parts: list[tuple[Part, Mask | None]],
        orders: dict[str, Times],
        task: _Task,
    ) -> Iterator[pa.RecordBatch]:
        times = batch.column("_time").to_numpy()
        there = {side.side: truth(batch.column(side.column)) for side in operator.sides}
        moves = {side.side: self._moves(batch, side, there[side.side]) for side in operator.sides}
        stream_times = _StreamTimes(len(times))
        for side in operator.sides:
            moving = there[side.side] if operator.joint else moves[side.side]
            self._advance(operator, side, times, moving, parts, task, stream_times)
        if operator.joint:
            self._advance_joint(operator, times, there, moves, parts, task, stream_times)
        if not operator.sides and operator.waits:
            self._note(operator, times, parts, task)
        for side in operator.sides:
            chosen = np.flatnonzero(there[side.side])
            if len(chosen):
                yield self._batch(batch, operator, side, chosen, orders, stream_times)

    @staticmethod
    def _moves(batch: pa.RecordBatch, side: Edge, there: Mask) -> Mask:
        """The records that move stream time."""
        moves = there & truth(batch.column(side.key_column).is_valid())
        return moves & truth(batch.column(side.value_column).is_valid()) if side.valued else moves

    @staticmethod
    def _advance(
        operator: OrderedOperator,
        side: Edge,
        times: Times,
        moves: Mask,
        parts: list[tuple[Part, Mask | None]],
        task: _Task,
        stream_times: _StreamTimes,
    ) -> None:
        """Stream time of one side, partition by partition."""
        name = operator.time_name(side.side)
        for part, mask in parts:
            if part[0] not in side.topics:
                continue
            mine = np.ones(len(times), bool) if mask is None else mask
            # What was closed stays closed, though a partition was idle and comes back.
            begin = max(task.time(name, part), task.clock.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL))
            before, after = advance(times, moves & mine, begin)
            stream_times.set(side.side, mine, before, after)
            if (moves & mine).any():
                task.parts[part].times[f"{name}/{part[0]}/{part[1]}"] = int(after[-1])

    def _advance_joint(
        self,
        operator: OrderedOperator,
        times: Times,
        present: dict[int, Mask],
        moves: dict[int, Mask],
        parts: list[tuple[Part, Mask | None]],
        task: _Task,
        stream_times: _StreamTimes,
    ) -> None:
        """The stream time that a join's sides share, and how far each side is by itself."""
        there = np.logical_or.reduce(list(present.values()))
        carried = [task.clock.closed(operator.time_name(side.side), side.topics) for side in operator.sides]
        own = [task.clock.of(operator.time_name(side.side), *part) for side in operator.sides for part, _ in parts]
        begin = task.joint.setdefault(operator.number, max(*carried, *own))
        since = task.clock.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
        since = task.closed.setdefault(operator.number, since)
        whole = np.logical_or.reduce(list(moves.values()))
        before, after, closed = advance_joint(times, there, whole, begin, since)
        task.joint[operator.number], task.closed[operator.number] = int(after[-1]), int(closed[-1])
        alone = dict.fromkeys(present, after)
        if self.interleaved:
            # Only where both sides come in one task is it known how far each is when the other's record comes.
            for side in operator.sides:
                name = f"{operator.time_name(side.side)}.whole"
                since_side = task.alone.setdefault(name, task.clock.closed(name, side.topics))
                _, alone[side.side] = advance(times, moves[side.side], since_side)
                task.alone[name] = int(alone[side.side][-1])
                for part, _ in parts:
                    if part[0] in side.topics:
                        task.parts[part].times[f"{name}/{part[0]}/{part[1]}"] = task.alone[name]
        stream_times.set_joint(before, after, alone)

    @staticmethod
    def _note(operator: OrderedOperator, times: Times, parts: list[tuple[Part, Mask | None]], task: _Task) -> None:
        """Stream time of an operator that takes other operators' results: that of the topics they are made of."""
        for part, mask in parts:
            if part[0] in operator.topics:
                mine = times if mask is None else times[mask]
                reached = max(int(mine.max()), task.time(operator.clock, part))
                task.parts[part].times[f"{operator.clock}/{part[0]}/{part[1]}"] = reached

    @staticmethod
    def _batch(
        batch: pa.RecordBatch,
        operator: OrderedOperator,
        side: Edge,
        chosen: npt.NDArray[np.intp],
        orders: dict[str, Times],
        stream_times: _StreamTimes,
    ) -> pa.RecordBatch:
        rows_of = pa.array(chosen)
        columns: dict[str, pa.Array | int | bool | str] = {"target": operator.number, "side": side.side}
        columns["key"] = batch.column(side.key_column).take(rows_of)
        columns["value"] = batch.column(side.value_column).take(rows_of)
        if side.foreign is not None:
            columns["foreign"] = batch.column(side.foreign_column).take(rows_of)
        columns["time"] = batch.column("_time").take(rows_of)
        for name, numbers in (orders | stream_times.columns(side.side)).items():
            columns[name] = pa.array(numbers[chosen])
        return rows(len(chosen), columns)

    def _clocks(self, task: _Task) -> Iterator[pa.RecordBatch]:
        """For every worker how far stream time is in this task's partitions: keys without records wait for it too."""
        found: list[dict[str, Any]] = []
        for operator in self._timed():
            if not operator.waits:
                continue
            for topic, partition in task.parts:
                if topic not in operator.topics:
                    continue
                name = f"{operator.clock}/{topic}/{partition}"
                if operator.joint:
                    task.parts[topic, partition].times[name] = task.closed[operator.number]
                left, right = self._reached(operator, task)
                moment = task.time(operator.clock, (topic, partition))
                found += [
                    {"target": operator.number, "side": CLOCK, "after": moment, "worker": worker, "output": name,
                     "left_time": left, "right_time": right}
                    for worker in range(self.workers)
                ]  # fmt: skip
        if found:
            defaults: dict[str, Any] = {"emitted": False, "old": False, "sequence": 2**62, "place": 0, "sub": 0}
            yield pa.RecordBatch.from_pylist([defaults | one for one in found], SCHEMA)

    def _timed(self) -> Iterator[OrderedOperator]:
        """The operators that have a stream time of their own."""
        return (operator for operator in self.operators if operator.clock == operator.name)

    def _reached(self, operator: OrderedOperator, task: _Task) -> tuple[int | None, int | None]:
        """How far each side of a join of two streams is."""
        if not operator.joint:
            return None, None
        times = {
            side.side: task.alone.get(f"{operator.time_name(side.side)}.whole", task.joint[operator.number])
            for side in operator.sides
        }
        return times.get(0), times.get(1)


class _StreamTimes:
    """Stream time before and with every record, by side."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: dict[int, dict[str, Times]] = {}
        self._joint: dict[str, Times] = {}

    def set(self, side: int, mine: Mask, before: Times, after: Times) -> None:
        """Stream time of the records of one partition."""
        columns = self._columns.setdefault(
            side, {name: np.full(self._count, BEFORE_ALL) for name in ("before", "after")}
        )
        columns["before"][mine], columns["after"][mine] = before[mine], after[mine]

    def set_joint(self, before: Times, after: Times, reached: dict[int, Times]) -> None:
        """Stream time that two sides share."""
        unknown = np.full(self._count, BEFORE_ALL)
        left, right = (reached.get(side, unknown) for side in (0, 1))
        self._joint = {"before": before, "after": after, "left_time": left, "right_time": right}

    def columns(self, side: int) -> dict[str, Times]:
        """The columns of a side's rows."""
        return self._joint or self._columns[side]
