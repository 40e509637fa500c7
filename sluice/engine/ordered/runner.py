"""Runs an operator for one batch: loads the states of its keys, passes it rows in order, collects its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.batch.rejected import Rejected, describe, step_failed
from sluice.engine.batch.rows import LAST, REJECTED, SCHEMA, SUBS, partition_of
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes
from sluice.operators.aggregation.aggregate import TableAggregate
from sluice.operators.base import Operator, Row, Window
from sluice.operators.encoding import encode_state, state_decoder
from sluice.operators.joins.streams import StreamJoin
from sluice.operators.process import Process
from sluice.operators.suppress import Suppress
from sluice.plan import OrderedOperator
from sluice.state.model import NO_WINDOW
from sluice.state.shard.operator_states import State, StoredState
from sluice.state.shard.protocol import Shard


@dataclass(frozen=True)
class StageOperator:
    """An operator of a stage. `make` creates it on the executor."""

    plan: OrderedOperator
    make: Callable[[], Operator[Any]]

    @property
    def number(self) -> int:
        return self.plan.number

    @property
    def late(self) -> int | None:
        """The sink of records that are late for every window."""
        return None if self.plan.late is None else self.plan.late.number

    @property
    def inline(self) -> int | None:
        """The operator of the same stage whose results it takes directly."""
        return self.plan.inline

    @property
    def entries(self) -> tuple[int, ...]:
        """The groups of a processor's stores that can be queried."""
        return tuple(store.group_id for store in self.plan.stores.values() if store.group_id is not None)


@dataclass(frozen=True)
class StageTimes:
    """Stream times of a stage: as of the last snapshot, and with this batch."""

    last: StreamTimes
    now: StreamTimes
    sides: Mapping[int, tuple[int | None, int | None]]
    """Joins of two streams → the stream times of the left and the right side."""

    def closed(self, operator: StageOperator) -> int:
        """The stream time that all partitions of the operator's topics have reached with this batch."""
        return max(self._reached(self.now, operator), self.closed_before(operator))

    def closed_before(self, operator: StageOperator) -> int:
        """The same as of the last snapshot. It never goes back, even if an idle partition has records again."""
        closed = self.now.times.get(f"{CLOSED}/{operator.plan.clock}", BEFORE_ALL)
        return max(closed, self._reached(self.last, operator))

    @staticmethod
    def _reached(times: StreamTimes, operator: StageOperator) -> int:
        plan = operator.plan
        if not plan.joint:
            return times.closed(plan.clock, plan.topics)
        return max(times.closed(plan.clock, side.topics) for side in plan.sides)

    def reached(self, operator: StageOperator) -> tuple[int, int]:
        """The stream times of both sides of a join of two streams."""
        left, right = self.sides.get(operator.number, (None, None))
        return BEFORE_ALL if left is None else left, BEFORE_ALL if right is None else right

    def is_alone(self, operator: StageOperator) -> bool:
        """Whether a single partition feeds the operator, so that its stream time is that of all keys."""
        return sum(self.now.partitions[topic] for topic in operator.plan.topics) == 1

    def is_one_task(self, operator: StageOperator) -> bool:
        """Whether each topic has one partition: all keys then share a stream time, as in one task of Kafka Streams."""
        return all(self.now.partitions[topic] == 1 for topic in operator.plan.topics)


@dataclass
class StageOutput:
    """The results of a stage's operators: rows that sort where the row sorts from which they come."""

    counts: Counter[str] = field(default_factory=Counter)
    by_partition: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    """Source and partition → its records' share of the counts."""
    operator: StageOperator | None = None
    sort_key: tuple[int, int, int] = (LAST, 0, 0)
    stream_time: tuple[int, int] = (BEFORE_ALL, BEFORE_ALL)
    """Before the current row and with it."""
    listeners: dict[int, list[OperatorRun]] = field(default_factory=dict)
    """Operator → the operators that take its results directly."""
    row: Row | None = None
    """The current row."""
    _results: int = 0
    """Number of results of the current row."""
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Values in the order of the schema."""
    _held: list[tuple[Any, ...]] | None = None
    """Results since `hold`, which listeners take on `release`."""
    _mark: int = 0

    def begin(self, sort_key: tuple[int, int, int], stream_time: tuple[int, int]) -> None:
        """Begin with the next row."""
        self.sort_key, self.stream_time, self._results = sort_key, stream_time, 0

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Window | None = None,
        old: bool = False,
        to: str = "output",
    ) -> None:
        if self._held is None:
            self._emit(key, value, time, window, old, to)
        else:
            self._held.append((key, value, time, window, old, to))

    def _emit(self, key: str | None, value: str | None, time: int, window: Window | None, old: bool, to: str) -> None:
        assert self.operator is not None
        self._add(self.operator.number, key, value, time, window, emitted=True, old=old, to=to)
        for listener in self.listeners.get(self.operator.number, ()):
            before, after = self.stream_time
            if not listener.alone:
                before = after = listener.closed_before
            row = Row(key, value, time, before, after, old=old, window=window)
            operator = self.operator
            listener.process(row, self)
            self.operator = operator

    def _add(
        self,
        target: int,
        key: str | None,
        value: str | None,
        time: int,
        window: Window | None,
        *,
        emitted: bool,
        old: bool = False,
        to: str | None = None,
    ) -> None:
        sequence, origin, sub = self.sort_key
        before, after = self.stream_time
        start, end = window or (NO_WINDOW, NO_WINDOW)
        self._rows.append(
            (target, 0, emitted, old, to, key, value, None, time, before, after, None, None, start, end,
             sequence, origin, sub * SUBS + min(self._results, SUBS - 1), None)
        )  # fmt: skip
        self._results += 1

    def put(self, group_id: int, key: str, value: str | None) -> None:
        """Add a change to a state row."""
        self._add(group_id, key, value, self.stream_time[1], None, emitted=False)

    def hold(self) -> None:
        self._mark = len(self._rows)
        if self.listeners and self.operator is not None and self.operator.number in self.listeners:
            self._held = []

    def release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            for result in held:
                self._emit(*result)

    def reject(self, error: BaseException, key: str | None, value: str | None, time: int, timer: str = "") -> None:
        assert self.operator is not None
        del self._rows[self._mark :]
        self._held = None
        detail = describe(error)
        if self.operator.plan.step.on_error == "fail":
            raise step_failed(str(self.operator.plan.step), key, detail, timer) from error
        rejected = Rejected(self.operator.number, detail, value, timer or None)
        window = None if timer or self.row is None else self.row.window
        self._add(REJECTED, key, msgspec.json.encode(rejected).decode(), time, window, emitted=False)

    def count(self, reason: str) -> None:
        assert self.operator is not None
        name = f"{reason}/{self.operator.plan.name}"
        self.counts[name] += 1
        if self.sort_key[0] != LAST:
            self.by_partition.setdefault(partition_of(self.sort_key[1]), Counter())[name] += 1
        if reason == "late" and self.operator.late is not None and self.row is not None:
            self._add(self.operator.late, self.row.key, self.row.foreign, self.row.time, None, emitted=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@dataclass(frozen=True)
class BatchStates:
    """The states of a worker's operators as of the previous batch, read under a lease."""

    shard: Shard
    batch: int
    epoch: int

    def read(self, operator: int, keys: list[str]) -> dict[str, StoredState]:
        """The states of keys. A key without a state is left out."""
        return self.shard.read_states(operator, keys, self.batch, self.epoch)

    def shared(self, operator: int) -> StoredState | None:
        """The state that the operator keeps for all keys of the worker."""
        return self.shard.read_states(operator, [""], self.batch, self.epoch, shared=True).get("")

    def due(self, operator: int, until: int) -> list[str]:
        """The keys whose state is due at stream time `until`."""
        return self.shard.due(operator, until, self.batch, self.epoch)

    def wall_due(self, operator: int, until: int) -> list[str]:
        """The keys with a wall-clock timer that is due at `until`, epoch ms."""
        return self.shard.due(operator, until, self.batch, self.epoch, "wall")


class OperatorRun:
    """One operator in one batch, with the states of its keys."""

    def __init__(self, spec: StageOperator, states: BatchStates, times: StageTimes) -> None:
        self.spec = spec
        self.operator = spec.make()
        self.closed_before = times.closed_before(spec)
        self.closed = times.closed(spec)
        self.reached = times.reached(spec)
        self.alone = times.is_alone(spec)
        self.now = times.now.now
        self._states = states
        self._decode = state_decoder(self.operator.state_type)
        self._held: dict[str, Any] = {}
        self._digests: dict[str, int] = {}
        """Digests of the loaded states."""
        self._shared_digest = 0
        self._shown: dict[str, list[str | None]] = {}
        if isinstance(self.operator, StreamJoin) and times.is_one_task(spec):
            self.operator.watch()
        empty: Any = getattr(self.operator, "shared", None)
        if empty is not None and (stored := states.shared(spec.number)) is not None:
            self.operator.shared = msgspec.msgpack.decode(stored.data, type=type(empty))  # type: ignore[attr-defined]
            self._shared_digest = stored.digest

    def load(self, keys: list[str]) -> None:
        """Load the states of keys, all in one read."""
        states = self._states.read(self.spec.number, keys)
        for key in keys:
            stored = states.get(key)
            if stored is None:
                state = self._held[key] = self.operator.begin()
            else:
                state = self._held[key] = self._decode(stored.data)
                self._digests[key] = stored.digest
            if self.spec.entries:
                assert isinstance(self.operator, Process)
                self._shown[key] = self.operator.shown(state)

    def process(self, row: Row, output: StageOutput) -> None:
        output.operator, output.row = self.spec, row
        self.operator.process(self._state(row.key), row, output)

    def change(self, old: Row, new: Row, output: StageOutput) -> None:
        """Process the old and the new value of a table's change, both or neither."""
        assert isinstance(self.operator, TableAggregate)
        output.operator, output.row = self.spec, new
        self.operator.change(self._state(new.key), old, new, output)

    def _state(self, key: str | None) -> Any:
        if key is None:
            return self.operator.begin()
        if key not in self._held:
            self.load([key])
        return self._held[key]

    def close(self, output: StageOutput) -> None:
        """Close the keys that are due, and fire wall-clock timers."""
        if not self.spec.plan.waits:
            return
        called: Collection[str] = self.operator.called if isinstance(self.operator, Suppress) else ()
        due = [*self._states.due(self.spec.number, self.closed), *called]
        self.load([key for key in due if key not in self._held])
        for key, state in self._held.items():
            due_time = self.operator.due(state)
            if key in called or (due_time is not None and due_time <= self.closed):
                output.operator = self.spec
                self.operator.close(state, key, self.closed, output, self.reached)
        if isinstance(self.operator, Process):
            self._tick(self.operator, output)
        if isinstance(self.operator, Suppress):
            self.operator.check()

    def _tick(self, operator: Process, output: StageOutput) -> None:
        """Fire the wall-clock timers that are due."""
        due = self._states.wall_due(self.spec.number, self.now)
        self.load([key for key in due if key not in self._held])
        for key, state in self._held.items():
            due_time = operator.wall_due(state)
            if due_time is not None and due_time <= self.now:
                output.operator = self.spec
                operator.tick(state, key, self.now, self.closed, output)

    def show(self, output: StageOutput) -> None:
        """Add the changes of a processor's stores that can be queried."""
        if not self.spec.entries:
            return
        assert isinstance(self.operator, Process)
        for key, state in self._held.items():
            for group_id, before, now in zip(
                self.spec.entries, self._shown[key], self.operator.shown(state), strict=True
            ):
                if before != now:
                    output.put(group_id, key, None if now is None else f"[{now}]")

    def changed(self) -> Iterator[State]:
        operator, number = self.operator, self.spec.number
        for key, state in self._held.items():
            before = self._digests.get(key, 0)
            if not operator.is_empty(state):
                wall = operator.wall_due(state) if isinstance(operator, Process) else None
                yield State(number, key, encode_state(state), operator.due(state), wall, replaces=before)
            elif key in self._digests:
                yield State(number, key, None, replaces=before)
        if (shared := getattr(operator, "shared", None)) is not None:
            yield State(number, "", encode_state(shared), shared=True, replaces=self._shared_digest)
