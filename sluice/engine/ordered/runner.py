"""One operator in one batch: what it knows of stream time, the states of the keys it meets, what it sends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.batch.rejected import Rejected, ends_the_run, said
from sluice.engine.batch.rows import LAST, REJECTED, SCHEMA, SUBS, place_of
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, Clock
from sluice.operators.aggregation.aggregate import TableAggregate
from sluice.operators.base import Operator, Row, Window
from sluice.operators.encoding import encode_state, state_decoder
from sluice.operators.joins.streams import StreamJoin
from sluice.operators.process import Process
from sluice.operators.suppress import Suppress
from sluice.plan import OrderedOperator
from sluice.state.model import NO_WINDOW
from sluice.state.shard.operator_states import Remembered, State
from sluice.state.shard.shard import Shard


@dataclass(frozen=True)
class Hosted:
    """An operator as a stage runs it. `make` makes it on the executor."""

    spec: OrderedOperator
    make: Callable[[], Operator[Any]]

    @property
    def number(self) -> int:
        """The operator's number."""
        return self.spec.number

    @property
    def late(self) -> int | None:
        """The sink of records that are late for every window."""
        return None if self.spec.late is None else self.spec.late.number

    @property
    def inline(self) -> int | None:
        """The operator whose results it takes at once."""
        return self.spec.inline

    @property
    def entries(self) -> tuple[int, ...]:
        """Of a processor whose stores can be queried: the numbers of their state rows."""
        return tuple(store.group_id for store in self.spec.stores.values() if store.group_id is not None)


@dataclass(frozen=True)
class StageTimes:
    """How far stream time is: as of the last snapshot, and with this batch."""

    last: Clock
    now: Clock
    sides: Mapping[int, tuple[int | None, int | None]]

    def closed(self, host: Hosted) -> int:
        """The stream time that an operator's topics have all reached with this batch."""
        return max(self._reached(self.now, host), self.closed_before(host))

    def closed_before(self, host: Hosted) -> int:
        """The same as of the last snapshot. What was closed stays closed, though a partition was idle and comes back."""
        was = self.now.times.get(f"{CLOSED}/{host.spec.clock}", BEFORE_ALL)
        return max(was, self._reached(self.last, host))

    @staticmethod
    def _reached(clock: Clock, host: Hosted) -> int:
        spec = host.spec
        if not spec.joint:
            return clock.closed(spec.clock, spec.topics)
        return max(clock.closed(spec.clock, side.topics) for side in spec.sides)

    def reached(self, host: Hosted) -> tuple[int, int]:
        """How far each side of a join of two streams is."""
        left, right = self.sides.get(host.number, (None, None))
        return BEFORE_ALL if left is None else left, BEFORE_ALL if right is None else right

    def is_alone(self, host: Hosted) -> bool:
        """Whether one partition feeds the operator: its stream time is then everybody's."""
        return sum(self.now.partitions[topic] for topic in host.spec.topics) == 1

    def is_one_task(self, host: Hosted) -> bool:
        """Whether each topic has one partition: then all keys share a stream time, as in one task of Kafka Streams."""
        return all(self.now.partitions[topic] == 1 for topic in host.spec.topics)


@dataclass
class StageOutput:
    """What operators send on: rows that come where the one comes that they are made of."""

    counts: Counter[str] = field(default_factory=Counter)
    by_place: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    """Source and partition → how many of the counts are of its records."""
    host: Hosted | None = None
    place: tuple[int, int, int] = (LAST, 0, 0)
    moment: tuple[int, int] = (BEFORE_ALL, BEFORE_ALL)
    listeners: dict[int, list[HostRun]] = field(default_factory=dict)
    row: Row | None = None
    """The row at hand."""
    _made: int = 0
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Values in the order of the schema."""
    _held: list[tuple[Any, ...]] | None = None
    """What listeners are to take once it is certain."""
    _mark: int = 0

    def begin(self, place: tuple[int, int, int], moment: tuple[int, int]) -> None:
        """The next row is taken."""
        self.place, self.moment, self._made = place, moment, 0

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
        """Send a result on."""
        if self._held is None:
            self._emit(key, value, time, window, old, to)
        else:
            self._held.append((key, value, time, window, old, to))

    def _emit(self, key: str | None, value: str | None, time: int, window: Window | None, old: bool, to: str) -> None:
        assert self.host is not None
        self._add(self.host.number, key, value, time, window, emitted=True, old=old, to=to)
        for listener in self.listeners.get(self.host.number, ()):
            before, after = self.moment
            if not listener.alone:
                before = after = listener.closed_before
            row = Row(key, value, time, before, after, old=old, window=window)
            host = self.host
            listener.process(row, self)
            self.host = host

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
        sequence, place, sub = self.place
        before, after = self.moment
        start, end = window or (NO_WINDOW, NO_WINDOW)
        self._rows.append(
            (target, 0, emitted, old, to, key, value, None, time, before, after, None, None, start, end,
             sequence, place, sub * SUBS + min(self._made, SUBS - 1), None)
        )  # fmt: skip
        self._made += 1

    def put(self, group_id: int, key: str, value: str | None) -> None:
        """Write a state row of a store."""
        self._add(group_id, key, value, self.moment[1], None, emitted=False)

    def hold(self) -> None:
        """What is sent from here on may be withdrawn; so listeners do not take it yet."""
        self._mark = len(self._rows)
        if self.listeners and self.host is not None and self.host.number in self.listeners:
            self._held = []

    def release(self) -> None:
        """What was sent since `hold` stays."""
        if self._held is not None:
            held, self._held = self._held, None
            for result in held:
                self._emit(*result)

    def reject(self, error: BaseException, key: str | None, value: str | None, time: int, timer: str = "") -> None:
        """Withdraw what was sent since `hold`, and reject what it came of."""
        assert self.host is not None
        del self._rows[self._mark :]
        self._held = None
        detail = said(error)
        if self.host.spec.step.on_error == "fail":
            raise ends_the_run(str(self.host.spec.step), key, detail, timer) from error
        rejected = Rejected(self.host.number, detail, value, timer or None)
        window = None if timer or self.row is None else self.row.window
        self._add(REJECTED, key, msgspec.json.encode(rejected).decode(), time, window, emitted=False)

    def count(self, reason: str) -> None:
        """Count the row at hand as dropped."""
        assert self.host is not None
        name = f"{reason}/{self.host.spec.name}"
        self.counts[name] += 1
        if self.place[0] != LAST:
            self.by_place.setdefault(place_of(self.place[1]), Counter())[name] += 1
        if reason == "late" and self.host.late is not None and self.row is not None:
            self._add(self.host.late, self.row.key, self.row.foreign, self.row.time, None, emitted=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All that was sent on."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, one.type) for column, one in zip(columns, SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@dataclass(frozen=True)
class BatchStates:
    """What a worker's operators remember as of the batch before, read under a lease."""

    shard: Shard
    batch: int
    epoch: int

    def read(self, operator: int, keys: list[str]) -> dict[str, Remembered]:
        """The states of keys; those without one are left out."""
        return self.shard.read_states(operator, keys, self.batch, self.epoch)

    def shared(self, operator: int) -> Remembered | None:
        """What the operator keeps for all keys of the worker."""
        return self.shard.read_states(operator, [""], self.batch, self.epoch, shared=True).get("")

    def due(self, operator: int, until: int) -> list[str]:
        """The keys that wait for a stream time up to `until`."""
        return self.shard.due(operator, until, self.batch, self.epoch)

    def wall_due(self, operator: int, until: int) -> list[str]:
        """The keys that wait for the wall clock."""
        return self.shard.due(operator, until, self.batch, self.epoch, "wall")


class HostRun:
    """One operator in one batch, with the states of the keys that it has met."""

    def __init__(self, host: Hosted, states: BatchStates, times: StageTimes) -> None:
        self.host = host
        self.operator = host.make()
        self.closed_before = times.closed_before(host)
        self.closed = times.closed(host)
        self.reached = times.reached(host)
        self.alone = times.is_alone(host)
        self.now = times.now.now
        self._states = states
        self._decode = state_decoder(self.operator.state_type)
        self._held: dict[str, Any] = {}
        self._digests: dict[str, int] = {}
        """Of the states that were read."""
        self._shared_digest = 0
        self._shown: dict[str, list[str | None]] = {}
        if isinstance(self.operator, StreamJoin) and times.is_one_task(host):
            self.operator.watch()
        empty: Any = getattr(self.operator, "shared", None)
        if empty is not None and (kept := states.shared(host.number)) is not None:
            self.operator.shared = msgspec.msgpack.decode(kept.data, type=type(empty))  # type: ignore[attr-defined]
            self._shared_digest = kept.digest

    def load(self, keys: list[str]) -> None:
        """Read the states of the keys that will come."""
        found = self._states.read(self.host.number, keys)
        for key in keys:
            kept = found.get(key)
            if kept is None:
                state = self._held[key] = self.operator.begin()
            else:
                state = self._held[key] = self._decode(kept.data)
                self._digests[key] = kept.digest
            if self.host.entries:
                assert isinstance(self.operator, Process)
                self._shown[key] = self.operator.shown(state)

    def process(self, row: Row, output: StageOutput) -> None:
        """Take one row."""
        output.host, output.row = self.host, row
        self.operator.process(self._state(row.key), row, output)

    def change(self, old: Row, new: Row, output: StageOutput) -> None:
        """Take both halves of a table's change, all or none."""
        assert isinstance(self.operator, TableAggregate)
        output.host, output.row = self.host, new
        self.operator.change(self._state(new.key), old, new, output)

    def _state(self, key: str | None) -> Any:
        if key is None:
            return self.operator.begin()
        if key not in self._held:
            self.load([key])
        return self._held[key]

    def close(self, output: StageOutput) -> None:
        """Let the keys that wait for stream time know how far it is."""
        if not self.host.spec.waits:
            return
        called: Collection[str] = self.operator.called if isinstance(self.operator, Suppress) else ()
        due = [*self._states.due(self.host.number, self.closed), *called]
        self.load([key for key in due if key not in self._held])
        for key, state in self._held.items():
            moment = self.operator.due(state)
            if key in called or (moment is not None and moment <= self.closed):
                output.host = self.host
                self.operator.close(state, key, self.closed, output, self.reached)
        if isinstance(self.operator, Process):
            self._tick(self.operator, output)
        if isinstance(self.operator, Suppress):
            self.operator.check()

    def _tick(self, operator: Process, output: StageOutput) -> None:
        """Let the keys whose wall-clock timers have run out know: in the first batch after, whatever it has."""
        due = self._states.wall_due(self.host.number, self.now)
        self.load([key for key in due if key not in self._held])
        for key, state in self._held.items():
            moment = operator.wall_due(state)
            if moment is not None and moment <= self.now:
                output.host = self.host
                operator.tick(state, key, self.now, self.closed, output)

    def show(self, output: StageOutput) -> None:
        """Send what has changed in a processor's stores to the shard, for queries."""
        if not self.host.entries:
            return
        assert isinstance(self.operator, Process)
        for key, state in self._held.items():
            for group_id, before, now in zip(
                self.host.entries, self._shown[key], self.operator.shown(state), strict=True
            ):
                if before != now:
                    output.put(group_id, key, None if now is None else f"[{now}]")

    def changed(self) -> Iterator[State]:
        """The states to keep."""
        operator, number = self.operator, self.host.number
        for key, state in self._held.items():
            before = self._digests.get(key, 0)
            if not operator.is_empty(state):
                wall = operator.wall_due(state) if isinstance(operator, Process) else None
                yield State(number, key, encode_state(state), operator.due(state), wall, replaces=before)
            elif key in self._digests:
                yield State(number, key, None, replaces=before)
        if (shared := getattr(operator, "shared", None)) is not None:
            yield State(number, "", encode_state(shared), shared=True, replaces=self._shared_digest)
