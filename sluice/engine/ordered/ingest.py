"""The task after the stateless steps of an ordered job: makes of each record a row for each operator that takes it.

Stream time belongs to an operator and a partition of its source, as in `windowing`; the two sides of a join of streams
share one. Every row carries stream time before its record and with it, so an operator that sees only one key's rows
decides as if it had seen all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.engine.batch.accounting import Part, PartFacts, RecordSinks, StreamTimeReader, Task, truth
from sluice.engine.batch.checkpoint import BatchClock, current_batch
from sluice.engine.batch.rows import LAST, SCHEMA, STREAM_TIME, origins, rows
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, Mask, Times, advance, advance_joint
from sluice.plan import Edge, OrderedJob, OrderedOperator


@dataclass
class _Task(Task):
    """One task's share of a batch and its joins' stream times, as they accumulate."""

    joint: dict[int, int] = field(default_factory=dict)
    """Join → the stream time that its sides share."""
    closed: dict[int, int] = field(default_factory=dict)
    """Join → the stream time up to which it has sent unmatched records."""
    alone: dict[str, int] = field(default_factory=dict)
    """The stream time of each side of a join by itself."""
    sequence: int = BEFORE_ALL

    def time(self, name: str, part: Part) -> int:
        """Current stream time of an operator in a partition."""
        time = self.parts[part].times.get(f"{name}/{part[0]}/{part[1]}") if part in self.parts else None
        return self.before.of(name, *part) if time is None else time


@dataclass(frozen=True)
class Ingest:
    """Makes rows of one task's records. `interleaved`: all topics come in one task, in the order of `_sequence`."""

    stream_times: StreamTimeReader
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
        """The ingest of a job. `partitions` has each topic's number of partitions."""
        stream_times = StreamTimeReader.of(job, side_outputs, batches, partitions)
        return cls(stream_times, RecordSinks.of(job, side_outputs), job.operators, job.pipeline.workers, interleaved)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = current_batch()
        task: _Task | None = None
        for batch in batches:
            if batch.num_rows:
                task = task or _Task(self.stream_times.before(number))
                yield from self._rows(batch, task)
        if task is not None:
            yield from self._reports(task)
            task.write(self.sinks, number)

    def _rows(self, batch: pa.RecordBatch, task: _Task) -> Iterator[pa.RecordBatch]:
        parts = list(self.sinks.parts(batch))
        for part, mask in parts:
            facts = task.parts.setdefault(part, PartFacts())
            facts.count(self.sinks.collect(batch if mask is None else batch.filter(pa.array(mask)), facts))
        if not self.operators:
            return
        sort_keys = self._sort_keys(batch, task)
        for operator in self._timed():
            yield from self._operator_rows(batch, operator, parts, sort_keys, task)

    def _sort_keys(self, batch: pa.RecordBatch, task: _Task) -> dict[str, Times]:
        times = batch.column("_time").to_numpy()
        if self.interleaved:
            sequence = batch.column("_sequence").to_numpy()
        else:
            # Topics are merged by stream time: a record comes when its partition's stream time is reached.
            sequence = np.maximum(np.maximum.accumulate(times), task.sequence)
            task.sequence = int(sequence[-1])
        sources, partitions = batch.column("_source").to_numpy(), batch.column("_partition").to_numpy()
        offsets = batch.column("_offset").to_numpy()
        origin = np.zeros(len(times), np.int64)
        for source, partition in dict.fromkeys(zip(sources.tolist(), partitions.tolist(), strict=True)):
            of_partition = (sources == source) & (partitions == partition)
            origin[of_partition] = origins(source, partition, offsets[of_partition])
        sub = np.zeros(len(times), np.int64)
        for row in (np.flatnonzero(origin[1:] == origin[:-1]) + 1).tolist():
            sub[row] = sub[row - 1] + 1
        return {"sequence": sequence, "origin": origin, "sub": sub}

    def _operator_rows(
        self,
        batch: pa.RecordBatch,
        operator: OrderedOperator,
        parts: list[tuple[Part, Mask | None]],
        sort_keys: dict[str, Times],
        task: _Task,
    ) -> Iterator[pa.RecordBatch]:
        times = batch.column("_time").to_numpy()
        passed = {side.side: truth(batch.column(side.column)) for side in operator.sides}
        advancing = {side.side: self._advancing(batch, side, passed[side.side]) for side in operator.sides}
        stream_times = _RowTimes(len(times))
        for side in operator.sides:
            mask = passed[side.side] if operator.joint else advancing[side.side]
            self._advance(operator, side, times, mask, parts, task, stream_times)
        if operator.joint:
            self._advance_joint(operator, times, passed, advancing, parts, task, stream_times)
        if not operator.sides and operator.waits:
            # It only takes other operators' results: its stream time is that of their topics.
            for part, in_part in parts:
                if part[0] in operator.topics:
                    latest = int((times if in_part is None else times[in_part]).max())
                    name = f"{operator.clock}/{part[0]}/{part[1]}"
                    task.parts[part].times[name] = max(latest, task.time(operator.clock, part))
        for side in operator.sides:
            indices = np.flatnonzero(passed[side.side])
            if len(indices):
                yield self._batch(batch, operator, side, indices, sort_keys, stream_times)

    @staticmethod
    def _advancing(batch: pa.RecordBatch, side: Edge, passed: Mask) -> Mask:
        """The records that advance stream time."""
        keyed = passed & truth(batch.column(side.key_column).is_valid())
        return keyed & truth(batch.column(side.value_column).is_valid()) if side.valued else keyed

    @staticmethod
    def _advance(
        operator: OrderedOperator,
        side: Edge,
        times: Times,
        advancing: Mask,
        parts: list[tuple[Part, Mask | None]],
        task: _Task,
        stream_times: _RowTimes,
    ) -> None:
        """Advance the stream time of one side, partition by partition."""
        name = operator.time_name(side.side)
        for part, mask in parts:
            if part[0] not in side.topics:
                continue
            in_part = np.ones(len(times), bool) if mask is None else mask
            # Stream time never falls behind the closed time, even if an idle partition has records again.
            begin = max(task.time(name, part), task.before.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL))
            before, after = advance(times, advancing & in_part, begin)
            stream_times.set(side.side, in_part, before, after)
            if (advancing & in_part).any():
                task.parts[part].times[f"{name}/{part[0]}/{part[1]}"] = int(after[-1])

    def _advance_joint(
        self,
        operator: OrderedOperator,
        times: Times,
        passed: dict[int, Mask],
        advancing: dict[int, Mask],
        parts: list[tuple[Part, Mask | None]],
        task: _Task,
        stream_times: _RowTimes,
    ) -> None:
        """Advance the stream time that a join's sides share, and that of each side by itself.

        Every row advances it. But unmatched records are sent only with a row that has a key and a value and is not out
        of order, so `before` is the stream time of the last such row before this one.
        """
        carried = [task.before.closed(operator.time_name(side.side), side.topics) for side in operator.sides]
        own = [task.before.of(operator.time_name(side.side), *part) for side in operator.sides for part, _ in parts]
        begin = task.joint.setdefault(operator.number, max(*carried, *own))
        since = task.before.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
        since = task.closed.setdefault(operator.number, since)
        any_side, complete = (np.logical_or.reduce(list(masks.values())) for masks in (passed, advancing))
        before, after, closed = advance_joint(times, any_side, complete, begin, since)
        task.joint[operator.number], task.closed[operator.number] = int(after[-1]), int(closed[-1])
        alone = dict.fromkeys(passed, after)
        if self.interleaved:
            # The sides' own stream times at each record are known only if both sides come in one task.
            for side in operator.sides:
                name = f"{operator.time_name(side.side)}.whole"
                since_side = task.alone.setdefault(name, task.before.closed(name, side.topics))
                _, alone[side.side] = advance(times, advancing[side.side], since_side)
                task.alone[name] = int(alone[side.side][-1])
                for part, _ in parts:
                    if part[0] in side.topics:
                        task.parts[part].times[f"{name}/{part[0]}/{part[1]}"] = task.alone[name]
        stream_times.set_joint(before, after, alone)

    @staticmethod
    def _batch(
        batch: pa.RecordBatch,
        operator: OrderedOperator,
        side: Edge,
        indices: npt.NDArray[np.intp],
        sort_keys: dict[str, Times],
        stream_times: _RowTimes,
    ) -> pa.RecordBatch:
        taken = pa.array(indices)
        columns: dict[str, pa.Array | int | bool | str] = {"target": operator.number, "side": side.side}
        columns["key"] = batch.column(side.key_column).take(taken)
        columns["value"] = batch.column(side.value_column).take(taken)
        if side.foreign is not None:
            columns["foreign"] = batch.column(side.foreign_column).take(taken)
        columns["time"] = batch.column("_time").take(taken)
        for name, numbers in (sort_keys | stream_times.columns(side.side)).items():
            columns[name] = pa.array(numbers[indices])
        return rows(len(indices), columns)

    def _reports(self, task: _Task) -> Iterator[pa.RecordBatch]:
        """Rows that report this task's stream times to every worker: keys without records wait for them too."""
        reports: list[dict[str, Any]] = []
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
                stream_time = task.time(operator.clock, (topic, partition))
                reports += [
                    {"target": operator.number, "side": STREAM_TIME, "after": stream_time, "worker": worker,
                     "output": name, "left_time": left, "right_time": right}
                    for worker in range(self.workers)
                ]  # fmt: skip
        if reports:
            defaults: dict[str, Any] = {"emitted": False, "old": False, "sequence": LAST, "origin": 0, "sub": 0}
            yield pa.RecordBatch.from_pylist([defaults | report for report in reports], SCHEMA)

    def _timed(self) -> Iterator[OrderedOperator]:
        """The operators that have a stream time of their own."""
        return (operator for operator in self.operators if operator.clock == operator.name)

    def _reached(self, operator: OrderedOperator, task: _Task) -> tuple[int | None, int | None]:
        """The stream times of both sides of a join of two streams."""
        if not operator.joint:
            return None, None
        times = {
            side.side: task.alone.get(f"{operator.time_name(side.side)}.whole", task.joint[operator.number])
            for side in operator.sides
        }
        return times.get(0), times.get(1)


class _RowTimes:
    """Stream time before and with every record, by side."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: dict[int, dict[str, Times]] = {}
        self._joint: dict[str, Times] = {}

    def set(self, side: int, in_part: Mask, before: Times, after: Times) -> None:
        """Set the stream times of one partition's records."""
        columns = self._columns.setdefault(
            side, {name: np.full(self._count, BEFORE_ALL) for name in ("before", "after")}
        )
        columns["before"][in_part], columns["after"][in_part] = before[in_part], after[in_part]

    def set_joint(self, before: Times, after: Times, reached: dict[int, Times]) -> None:
        """Set the stream times that both sides share."""
        unknown = np.full(self._count, BEFORE_ALL)
        left, right = (reached.get(side, unknown) for side in (0, 1))
        self._joint = {"before": before, "after": after, "left_time": left, "right_time": right}

    def columns(self, side: int) -> dict[str, Times]:
        return self._joint or self._columns[side]
