"""The task of a stage: one worker's rows, in order, through the operators of that stage, with each key's state.

States lie in the worker's shard as versions of the batch, so that a batch that is tried again begins where it did. A
task whose driver has lost its lease fails when it reads or writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import Clocks
from sluice.engine.batch.checkpoint import current_batch
from sluice.engine.batch.rows import CLOCK, LAST, in_order
from sluice.engine.batch.side_outputs import Facts, no_garbage_collection
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED
from sluice.engine.ordered.runner import BatchStates, Hosted, HostRun, StageOutput, StageTimes
from sluice.engine.publish.shards import open_shard
from sluice.operators.aggregation.aggregate import TableAggregate
from sluice.operators.base import Row
from sluice.state.model import NO_WINDOW
from sluice.state.shard.operator_states import State

_READ = ("target", "key", "value", "time", "before", "after", "side", "old", "window_start", "window_end", "left_time",
         "right_time", "foreign", "sequence", "place", "sub")  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """What the task of a stage needs to know."""

    number: int
    clocks: Clocks
    locations: tuple[str, ...]
    """Addresses of the workers' shards."""
    operators: tuple[Hosted, ...]
    topics: Mapping[int, str]
    """Of the sources, by number."""
    epoch: int
    """Of the lease under which states are read and written."""
    token: str = field(default="", repr=False)
    """What state servers are shown."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take one worker's rows; those for other stages go on as they are."""
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        table = pa.Table.from_batches(found)
        targets = pa.array([one.number for one in self.operators], pa.int32())
        mine = pc.and_(pc.is_in(table.column("target"), targets), pc.invert(table.column("emitted")))
        yield from table.filter(pc.invert(mine)).to_batches()
        rows = table.filter(mine)
        if rows.num_rows:
            with no_garbage_collection():
                yield from self._run(rows, table.column("worker")[0].as_py())

    def _run(self, rows: pa.Table, worker: int) -> Iterator[pa.RecordBatch]:
        batch = current_batch()
        clocks = pc.equal(rows.column("side"), CLOCK)
        times = self._times(batch, rows.filter(clocks))
        with open_shard(worker, self.locations[worker], self.token) as shard:
            run = StageRun.of(self, BatchStates(shard, batch, self.epoch), times)
            run.take(rows.filter(pc.invert(clocks)))
            run.close()
            shard.write_states(batch, run.hosts, run.changed(), self.epoch)
        closed = {f"{CLOSED}/{one.spec.clock}": time for one in self.operators if (time := times.closed(one)) >= 0}
        by_place = {f"{self.topics[source]}-{number}": dict(counts)
                    for (source, number), counts in run.output.by_place.items()}  # fmt: skip
        facts = Facts(dict(run.output.counts), closed, by_place)
        self.clocks.side_outputs.write_facts(batch, f"stage-{self.number}-{worker:05}", facts)
        yield from run.output.batches()

    def _times(self, batch: int, clocks: pa.Table) -> StageTimes:
        names = clocks.column("output").to_pylist()
        now = dict(zip(names, clocks.column("after").to_pylist(), strict=True))
        sides = zip(*(clocks.column(name).to_pylist() for name in ("left_time", "right_time")), strict=True)
        before = self.clocks.at(batch)
        return StageTimes(
            before,
            replace(before, times={**before.times, **now}),
            dict(zip(clocks.column("target").to_pylist(), sides, strict=True)),
        )


class StageRun:
    """All operators of a stage in one batch."""

    def __init__(self, hosts: dict[int, HostRun]) -> None:
        self.hosts = hosts
        self.output = StageOutput()
        for host in hosts.values():
            if host.host.inline is not None:
                self.output.listeners.setdefault(host.host.inline, []).append(host)

    @classmethod
    def of(cls, stage: Stage, states: BatchStates, times: StageTimes) -> Self:
        """The run of a batch."""
        return cls({one.number: HostRun(one, states, times) for one in stage.operators})

    def take(self, rows: pa.Table) -> None:
        """Take rows in order."""
        ordered = rows.take(pa.array(in_order(rows)))
        self._load(ordered)
        columns = [ordered.column(name).to_pylist() for name in _READ]
        output, hosts = self.output, self.hosts
        changes, halves = self._changes(ordered), dict[int, Row]()
        for number, (target, key, value, time, before, after, side, old, start, end, left, right, foreign, sequence,
                     place, sub) in enumerate(zip(*columns, strict=True)):  # fmt: skip
            output.begin((sequence, place, sub), (before, after))
            window = None if start == NO_WINDOW else (start, end)
            reached = (BEFORE_ALL if left is None else left, BEFORE_ALL if right is None else right)
            row = Row(key, value, time, before, after, side, old, window, reached, foreign)
            if number not in changes:
                hosts[target].process(row, output)
            elif old:
                halves[target] = row
            else:
                hosts[target].change(halves.pop(target), row, output)

    def _changes(self, rows: pa.Table) -> frozenset[int]:
        """The rows that are halves of a table's change within one group: the old value, and the new one right after."""
        subtracting = {number for number, host in self.hosts.items() if isinstance(host.operator, TableAggregate)}
        if not subtracting:
            return frozenset()
        names = ("target", "old", "key", "sequence", "place")
        columns = [rows.column(name).to_pylist() for name in names]
        found: list[int] = []
        last: dict[int, tuple[int, tuple[object, ...]]] = {}
        for number, (target, old, *group) in enumerate(zip(*columns, strict=True)):
            if target in subtracting and group[0] is not None:
                before, of = last.pop(target, (-1, ()))
                if old:
                    last[target] = number, tuple(group)
                elif of == tuple(group):
                    found += (before, number)
        return frozenset(found)

    def _load(self, rows: pa.Table) -> None:
        keys: dict[int, dict[str, None]] = {}
        for target, key in zip(rows.column("target").to_pylist(), rows.column("key").to_pylist(), strict=True):
            if key is not None:
                keys.setdefault(target, {})[key] = None
        for target, mine in keys.items():
            self.hosts[target].load(list(mine))
            for listener in self.output.listeners.get(target, ()):
                listener.load(list(mine))

    def close(self) -> None:
        """After the last row: what waited for stream time. An operator's results may go to one that is closed next."""
        for host in self.hosts.values():
            self.output.begin((LAST, host.host.number, 0), (host.closed, host.closed))
            host.close(self.output)
            host.show(self.output)

    def changed(self) -> list[State]:
        """The states to keep, of all operators."""
        return [state for host in self.hosts.values() for state in host.changed()]
