"""Runs an operator for one batch: loads the states of keys, passes rows in order, and collects results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sluice.engine.batch.rejections import Rejected, describe_error, run_ending_error, step_error, subject_of
from sluice.engine.batch.row_schemas import (
    BEGIN,
    END,
    LAST,
    REJECTED,
    SCHEMA,
    SORT_KEY,
    Position,
    has_origin,
    partition_of,
    rows,
)
from sluice.engine.batch.stream_time import BEFORE_ALL, StreamTimes
from sluice.engine.stages.advances import Timeline
from sluice.operators.aggregation.aggregate import Aggregation, TableAggregate
from sluice.operators.base import DEFAULT_OUTPUT, Operator, Row, rejects_record
from sluice.operators.encoding import encode_state, state_decoder
from sluice.operators.joins.streams import StreamJoin
from sluice.operators.process import Process
from sluice.operators.processor import Timer
from sluice.operators.suppress import Suppress
from sluice.plan import PlannedOperator
from sluice.plan import operator_parameters as plan
from sluice.state.model import NO_WINDOW
from sluice.state.shard.operator_states import State, StoredState
from sluice.state.shard.shard import Shard
from sluice.values import row_order
from sluice.values.row_order import hashed
from sluice.values.windows import Bounds


@dataclass(frozen=True)
class StageOperator:
    """An operator of a stage. `make` creates it on the executor."""

    plan: PlannedOperator
    make: Callable[[], Operator[Any]]

    @cached_property
    def number(self) -> int:
        return self.plan.number

    @property
    def late(self) -> int | None:
        """The number of the sink for records that are late for every window, if any."""
        return None if self.plan.late is None else self.plan.late.number

    @property
    def chained_to(self) -> int | None:
        """The operator of the same stage that passes its results directly to this operator, if any."""
        return self.plan.chained_to

    @cached_property
    def answers(self) -> bool:
        """Whether results have another key than their row, as in a foreign-key join."""
        action = self.plan.action
        return isinstance(action, plan.TableJoin) and action.kind == "foreign-key"

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """The group numbers of a processor's stores that can be queried."""
        return tuple(store.group_id for store in self.plan.stores.values() if store.group_id is not None)


class Released(NamedTuple):
    """Results of a key that an operator sends because stream time has advanced, or the wall clock."""

    due: int
    """The time at which the results were due."""
    key: str
    before_row: bool
    """Whether the results sort before the results of the row that advances stream time."""
    timer: str = ""
    """The name of the wall-clock timer that sends the results; empty without one."""
    cause: int = 0
    """What has set this timer: a timer of the same name can be set again for the same time."""


@dataclass
class StageOutput:
    """The results of a stage's operators. A result has the position of the row that caused it."""

    counts: Counter[str] = field(default_factory=Counter)
    by_partition: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    """Source and partition → the counts of its records."""
    operator: StageOperator | None = None
    position: Position = (LAST, 0, b"")
    stream_time: int = BEFORE_ALL
    """Stream time after the current row."""
    listeners: dict[int, list[OperatorRun]] = field(default_factory=dict)
    """Operator → the operators that get its results directly."""
    only_stored: frozenset[int] = frozenset()
    """The operators for which only a key's last result matters."""
    row: Row | None = None
    """The current row."""
    headers: str | None = None
    """The headers of the next results, as JSON."""
    released: Released | None = None
    """The release at the position; None while a row is processed."""
    _results: int = 0
    """Number of results of the current row."""
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows, with the values of `_COLUMNS`."""
    _held: list[tuple[Any, ...]] | None = None
    """Results since `hold`, which listeners get on `release`."""
    _mark: int = 0

    @property
    def cause(self) -> int:
        """Identifies the record or the timer from which the current row comes, in whatever batch it is processed."""
        sequence, origin, path = self.position
        if self.released is None and has_origin(sequence):
            return origin
        return hashed(repr((path, self.released)).encode())

    def start_row(self, position: Position, stream_time: int, released: Released | None = None) -> None:
        """Start the results of the next row or release."""
        self.position, self.stream_time, self.released, self._results = position, stream_time, released, 0

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        old: bool = False,
        to: str = DEFAULT_OUTPUT,
        rank: int | None = None,
    ) -> None:
        if self._held is not None:
            self._held.append((key, value, time, window, old, to, rank))
            return
        assert self.operator is not None
        self._add(self.operator.number, key, value, time, window, True, old, to, rank)
        if self.listeners:
            self._tell(key, value, time, window, old)

    def _tell(self, key: str | None, value: str | None, time: int, window: Bounds | None, old: bool) -> None:
        """Pass a result of the operator directly to its listeners."""
        operator, headers = self.operator, self.headers
        assert operator is not None
        for listener in self.listeners.get(operator.number, ()):
            row = Row(key, value, time, BEFORE_ALL, BEFORE_ALL, old=old, window=window, headers=headers)
            listener.process(row, self)
            self.operator, self.headers = operator, headers

    def _add(
        self,
        target: int,
        key: str | None,
        value: str | None,
        time: int,
        window: Bounds | None,
        emitted: bool,
        old: bool = False,
        to: str | None = None,
        rank: int | None = None,
    ) -> None:
        assert self.operator is not None
        sequence, origin, path = self.position
        start, end = window or _NO_BOUNDS
        if (released := self.released) is not None:
            rank = released.due if rank is None else rank
            path = row_order.release(path, rank, released.key, before=released.before_row)
            if not has_origin(sequence):
                path = row_order.event(path, self.operator.plan.name, released.timer, released.cause)
        path = row_order.result(path, self._results)
        if self.operator.answers:
            path = row_order.rekeyed(path)
        row = (target, emitted, old, to, key, value, self.headers, time, start, end, sequence, origin, path)
        self._rows.append(row)
        self._results += 1

    def put(self, group_id: int, key: str, value: str | None) -> None:
        """Add a change to a state row."""
        self._add(group_id, key, value, self.stream_time, None, False)

    def hold(self) -> None:
        self._mark = len(self._rows)
        if self.listeners and self.operator is not None and self.operator.number in self.listeners:
            self._held = []

    def release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            for key, value, time, window, old, to, rank in held:
                self.emit(key, value, time, window=window, old=old, to=to, rank=rank)

    def reject(self, error: BaseException, key: str | None, value: str | None, time: int, timer: str = "") -> None:
        assert self.operator is not None
        del self._rows[self._mark :]
        self._held = None
        if not rejects_record(error):
            raise run_ending_error(str(self.operator.plan.step), error, subject_of(key, timer)) from error
        detail = describe_error(error)
        if self.operator.plan.step.on_error == "fail":
            raise step_error(str(self.operator.plan.step), key, detail, timer) from error
        rejected = Rejected(self.operator.number, detail, value, timer or None)
        window = None if timer or self.row is None else self.row.window
        self._add(REJECTED, key, msgspec.json.encode(rejected).decode(), time, window, False)

    def count(self, reason: str, number: int = 1) -> None:
        assert self.operator is not None
        name = f"{reason}/{self.operator.plan.name}"
        self.counts[name] += number
        sequence, origin, _ = self.position
        if has_origin(sequence):
            self.by_partition.setdefault(partition_of(origin), Counter())[name] += number

    def send_late(self) -> None:
        assert self.operator is not None
        if self.operator.late is not None and self.row is not None:
            self._add(self.operator.late, self.row.key, self.row.foreign, self.row.time, None, False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            columns = zip(*(self._last_results() if self.only_stored else self._rows), strict=True)
            arrays = {
                name: pa.array(column, SCHEMA.field(name).type) for name, column in zip(_COLUMNS, columns, strict=True)
            }
            yield rows(len(arrays["target"]), arrays | {"before": BEFORE_ALL, "after": BEFORE_ALL})

    def _last_results(self) -> list[tuple[Any, ...]]:
        """The rows, without the results that a later result of the same key replaces in the store."""
        kept: list[tuple[Any, ...]] = []
        stored: list[tuple[Any, ...]] = []
        for row in self._rows:
            (stored if row[_EMITTED] and row[_TARGET] in self.only_stored else kept).append(row)
        stored.sort(key=_POSITION)
        return [*kept, *{_STATE_ROW(row): row for row in stored}.values()]


_NO_BOUNDS = NO_WINDOW, NO_WINDOW
_COLUMNS = (
    "target", "emitted", "old", "output", "key", "value", "headers", "time", "window_start", "window_end", *SORT_KEY,
)  # fmt: skip
_TARGET, _EMITTED = _COLUMNS.index("target"), _COLUMNS.index("emitted")
_POSITION = itemgetter(*map(_COLUMNS.index, SORT_KEY))
_STATE_ROW = itemgetter(*map(_COLUMNS.index, ("target", "key", "window_start")))


@dataclass(frozen=True)
class BatchStates:
    """The states of a worker's operators as of the previous batch, read under a lease."""

    shard: Shard
    batch: int
    epoch: int
    before: StreamTimes
    """The stream times at the start of the batch."""

    def read(self, operator: int, keys: list[str]) -> dict[str, StoredState]:
        """The states of keys. Keys without a state are omitted."""
        return self.shard.read_states(operator, keys, self.batch, self.epoch)

    def shared(self, operator: int) -> StoredState | None:
        """The operator's state that all keys of the worker share, if any."""
        return self.shard.read_states(operator, [""], self.batch, self.epoch, shared=True).get("")

    def due(self, operator: int, until: int) -> list[str]:
        """The keys whose state is due at stream time `until`."""
        return self.shard.due_keys(operator, until, self.batch, self.epoch)

    def wall_due(self, operator: int, until: int) -> list[str]:
        """The keys with a wall-clock timer that is due at `until`, epoch ms."""
        return self.shard.due_keys(operator, until, self.batch, self.epoch, "wall")


class Releases:
    """The keys whose results an operator sends when stream time reaches a certain time, ordered by this time.

    `before_row`: results are sent before the row that advances stream time is processed, not afterwards.
    """

    def __init__(self, timeline: Timeline, *, before_row: bool) -> None:
        self.timeline = timeline
        self.before_row = before_row
        self._heap: list[tuple[int, str]] = []
        self._due: dict[str, tuple[int, Position]] = {}

    def schedule(self, key: str, due: int | None, position: Position) -> None:
        """Set the time at which the key's next result is due. It is sent at `position` at the earliest.

        Results that are due after the batch are ignored.
        """
        if due is None or due > self.timeline.closed_after:
            self._due.pop(key, None)
        elif key not in self._due or self._due[key][0] != due:
            self._due[key] = due, position
            heappush(self._heap, (due, key))

    def next(self, position: Position, *, inclusive: bool) -> tuple[Position, int, str] | None:
        """The next result that is due before a position, or at it if `inclusive`: its position, time and key."""
        head = self._head()
        if head is None:
            return None
        due, key = head
        at = max(self.timeline.closing(due), self._due[key][1])
        return self._pop(at) if at < position or (inclusive and at == position) else None

    def _head(self) -> tuple[int, str] | None:
        while self._heap:
            due, key = self._heap[0]
            if key in self._due and self._due[key][0] == due:
                return due, key
            heappop(self._heap)
        return None

    def _pop(self, at: Position) -> tuple[Position, int, str]:
        due, key = heappop(self._heap)
        del self._due[key]
        return at, due, key


class Looks(Releases):
    """The searches of a join for unmatched records, at the same times as in a Kafka Streams task (see `Watch`)."""

    def __init__(self, timeline: Timeline, join: StreamJoin) -> None:
        super().__init__(timeline, before_row=True)
        self._join = join
        self._looked: tuple[Position, int] | None = None
        """Position and stream time of the current search."""
        self._from = 0
        """The number of advances that have been processed."""

    def next(self, position: Position, *, inclusive: bool) -> tuple[Position, int, str] | None:
        while True:
            head = self._head()
            if self._looked is not None and head is not None and head[0] <= self._looked[1]:
                return self._pop(self._looked[0])
            self._looked = None
            advance = self._next()
            if advance is None:
                return None
            number, time = advance
            at = self.timeline.position(number)
            if not (at < position or (inclusive and at == position)):
                return None
            self._from = number + 1
            self._join.look(time)
            self._looked = at, time

    def _next(self) -> tuple[int, int] | None:
        """The next advance at which the join looks, with its stream time."""
        looks: list[tuple[int, int]] = []
        for side, (advances, times) in enumerate(self.timeline.looks):
            late_enough = np.searchsorted(times, self._join.looks_after(side), "right")
            first = max(late_enough, np.searchsorted(advances, self._from))
            if first < len(times):
                looks.append((int(advances[first]), int(times[first])))
        return min(looks, default=None)


class OperatorRun:
    """One operator in one batch, with the states of its keys."""

    def __init__(self, spec: StageOperator, states: BatchStates, timeline: Timeline | None) -> None:
        self.spec = spec
        self.operator = spec.make()
        self._process = self.operator.process
        self._suppresses = isinstance(self.operator, Suppress)
        self.timeline = timeline
        self.closed = BEFORE_ALL if timeline is None else timeline.closed_after
        self._states = states
        self._decode = state_decoder(self.operator.state_type)
        self._held: dict[str, Any] = {}
        self._digests: dict[str, int] = {}
        """Digests of the loaded states."""
        self._shared_digest = 0
        self._shown: dict[str, list[str | None]] = {}
        self._touched: dict[str, None] = {}
        """The keys processed since the last release."""
        is_one_task = all(states.before.partitions[topic] == 1 for topic in spec.plan.topics)
        if isinstance(self.operator, StreamJoin) and is_one_task:
            self.operator.watch()
        empty: Any = getattr(self.operator, "shared", None)
        if empty is not None and (stored := states.shared(spec.number)) is not None:
            self.operator.shared = msgspec.msgpack.decode(stored.data, type=type(empty))  # type: ignore[attr-defined]
            self._shared_digest = stored.digest
        self.releases = self._releases()

    def _releases(self) -> Releases | None:
        """The results that the operator sends as stream time advances; None if it sends none."""
        if self.timeline is None:
            return None
        match self.operator:
            case StreamJoin(shared=None, outer=(left, right)):
                releases = Releases(self.timeline, before_row=True) if left or right else None
            case StreamJoin() as join:
                releases = Looks(self.timeline, join)
            case Suppress() | Process():
                releases = Releases(self.timeline, before_row=False)
            case _:
                releases = None
        if releases is not None:
            due = self._states.due(self.spec.number, self.timeline.closed_after)
            if not due and isinstance(self.operator, Process) and not self.operator.sets_timers:
                return None  # no timer can be due in this batch
            self.load(due)
            for key in due:
                releases.schedule(key, self._release_due(key), BEGIN)
        return releases

    def _release_due(self, key: str) -> int | None:
        assert isinstance(self.operator, StreamJoin | Suppress | Process)
        return self.operator.release_due(self._held[key])

    def release(self, output: StageOutput, position: Position, *, with_row: bool) -> None:
        """Send the results that are due before a row at `position` is processed, or after it if `with_row`."""
        releases = self.releases
        assert releases is not None
        if self._touched:
            for key in self._touched:
                releases.schedule(key, self._release_due(key), position)
            self._touched.clear()
        if isinstance(self.operator, Suppress):
            for key in sorted(self.operator.called):
                self._release(output, position, BEFORE_ALL, key)
        if with_row and releases.before_row and position != END:
            return
        while (due := releases.next(position, inclusive=with_row or releases.before_row)) is not None:
            self._release(output, *due)
        if isinstance(self.operator, Suppress):
            self.operator.check()

    def _release(self, output: StageOutput, position: Position, due: int, key: str) -> None:
        assert self.releases is not None
        # As in Kafka Streams, the results have the headers of the record that has advanced stream time.
        output.operator, output.row, output.headers = self.spec, None, self.releases.timeline.headers.get(position)
        output.start_row(position, due, Released(due, key, self.releases.before_row))
        self.operator.close(self._state(key), key, due, output)
        self.releases.schedule(key, self._release_due(key), position)

    def load(self, keys: list[str]) -> None:
        """Load the states of keys in one read."""
        states = self._states.read(self.spec.number, keys)
        for key in keys:
            stored = states.get(key)
            if stored is None:
                state = self._held[key] = self.operator.new_state()
            else:
                state = self._held[key] = self._decode(stored.data)
                self._digests[key] = stored.digest
            if self.spec.entries:
                assert isinstance(self.operator, Process)
                self._shown[key] = self.operator.shown(state)

    def process(self, row: Row, output: StageOutput) -> None:
        output.operator, output.row, output.headers = self.spec, row, row.headers
        key = row.key
        if self.releases is not None and key is not None:
            self._touched[key] = None
        if self._suppresses:
            row.before = row.after = BEFORE_ALL  # due results, of any key, are released after the row
        state = self._held.get(key)  # type: ignore[arg-type]  # the key may be None
        self._process(self._state(key) if state is None else state, row, output)

    def change(self, old: Row, new: Row, output: StageOutput) -> None:
        """Process the old and the new value of a table's change as a unit."""
        assert isinstance(self.operator, TableAggregate)
        output.operator, output.row, output.headers = self.spec, new, new.headers
        self.operator.change(self._state(new.key), old, new, output)

    def _state(self, key: str | None) -> Any:
        if key is None:
            return self.operator.new_state()
        if key not in self._held:
            self.load([key])
        return self._held[key]

    def finish(self, output: StageOutput) -> None:
        """Send the results that the operator has held back to the end of the batch."""
        if isinstance(self.operator, Aggregation):
            output.operator = self.spec
            self.operator.finish(self._held, output)

    def close(self, output: StageOutput) -> None:
        """Drop expired state, and fire wall-clock timers."""
        if self.timeline is None:
            return
        due = self._states.due(self.spec.number, self.closed)
        self.load([key for key in due if key not in self._held])
        reached = self.timeline.reached
        for key, state in self._held.items():
            due_time = self.operator.due(state)
            if due_time is not None and due_time <= self.closed:
                output.operator = self.spec
                self.operator.close(state, key, self.closed, output, reached)
        if isinstance(self.operator, Process):
            self._tick(self.operator, output)

    def _tick(self, operator: Process, output: StageOutput) -> None:
        """Fire the wall-clock timers that are due."""
        now = self._states.before.now
        due = self._states.wall_due(self.spec.number, now)
        self.load([key for key in due if key not in self._held])
        position, closed = output.position, self.closed

        def start_timer(timer: Timer, cause: int) -> None:
            released = Released(timer.time, timer.key, before_row=False, timer=timer.name, cause=cause)
            output.start_row(position, closed, released)

        for key, state in self._held.items():
            due_time = operator.wall_due(state)
            if due_time is not None and due_time <= now:
                output.operator = self.spec
                operator.tick(state, key, now, closed, output, start_timer)

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
