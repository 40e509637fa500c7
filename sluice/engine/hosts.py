"""One operator in one batch: what it knows of stream time, the states of the keys it meets, what it sends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.clock import BEFORE_ALL, CLOSED, Clock
from sluice.engine.rows import SCHEMA, SUBS, place_of
from sluice.engine.specs import OperatorSpec
from sluice.operators.base import Operator, Row, Window
from sluice.operators.process import Process
from sluice.operators.stream_join import StreamJoin
from sluice.operators.suppress import Suppress
from sluice.state.model import NO_WINDOW
from sluice.state.operators import OperatorStates, State

LAST = 2**62
"""The place of what is sent on after the last row."""
_SHARED = "\0shared"
"""The key of what an operator keeps for all keys of a worker: its `shared`, where it has one."""


@dataclass(frozen=True)
class Hosted:
    """An operator as a stage runs it. `make` makes it on the executor; `inline` takes its results at once."""

    spec: OperatorSpec
    make: Callable[[], Operator[Any]]
    inline: int | None = None
    late: int | None = None
    """The sink of records that are late for every window."""

    @property
    def number(self) -> int:
        """The operator's number."""
        return self.spec.number


@dataclass(frozen=True)
class StageTimes:
    """How far stream time is: as of the last cut, and with this batch."""

    last: Clock
    now: Clock
    sides: Mapping[int, tuple[int | None, int | None]]

    def closed(self, host: Hosted) -> int:
        """The stream time that an operator's topics have all reached with this batch."""
        return max(self._reached(self.now, host), self.closed_before(host))

    def closed_before(self, host: Hosted) -> int:
        """The same as of the last cut. What was closed stays closed, though a partition was idle and comes back."""
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
    _columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in SCHEMA.names})

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
        start, end = window or (NO_WINDOW, NO_WINDOW)
        columns = self._columns
        for name, cell in (
            ("target", target), ("side", 0), ("emitted", emitted), ("old", old), ("output", to), ("key", key),
            ("value", value), ("foreign", None), ("time", time), ("before", self.moment[0]), ("after", self.moment[1]),
            ("left_time", None), ("right_time", None), ("window_start", start), ("window_end", end),
            ("sequence", sequence), ("place", place), ("sub", sub * SUBS + min(self._made, SUBS - 1)), ("worker", None),
        ):  # fmt: skip
            columns[name].append(cell)
        self._made += 1

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
        arrays = [pa.array(self._columns[one.name], one.type) for one in SCHEMA]
        if len(arrays[0]):
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class HostRun:
    """One operator in one batch, with the states of the keys that it has met."""

    def __init__(self, host: Hosted, states: OperatorStates, batch: int, times: StageTimes) -> None:
        self.host = host
        self.operator = host.make()
        self.closed_before = times.closed_before(host)
        self.closed = times.closed(host)
        self.reached = times.reached(host)
        self.alone = times.is_alone(host)
        self.now = times.now.now
        self._states = states
        self._batch = batch
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(self.operator.state_type).decode
        self._held: dict[str, Any] = {}
        self._had: set[str] = set()
        if isinstance(self.operator, StreamJoin) and times.is_one_task(host):
            self.operator.watch()
        empty: Any = getattr(self.operator, "shared", None)
        if empty is not None and (kept := states.read(host.number, [_SHARED], batch)):
            self.operator.shared = msgspec.msgpack.decode(kept[_SHARED], type=type(empty))  # type: ignore[attr-defined]

    def load(self, keys: list[str]) -> None:
        """Read the states of the keys that will come."""
        found = self._states.read(self.host.number, keys, self._batch)
        self._had.update(found)
        for key in keys:
            data = found.get(key)
            self._held[key] = self.operator.begin() if data is None else self._decode(data)

    def process(self, row: Row, output: StageOutput) -> None:
        """Take one row."""
        output.host, output.row = self.host, row
        key = row.key
        if key is None:
            self.operator.process(self.operator.begin(), row, output)
            return
        if key not in self._held:
            self.load([key])
        self.operator.process(self._held[key], row, output)

    def close(self, output: StageOutput) -> None:
        """Let the keys that wait for stream time know how far it is."""
        if not self.host.spec.clocked:
            return
        called: Collection[str] = self.operator.called if isinstance(self.operator, Suppress) else ()
        due = [*self._states.due(self.host.number, self.closed, self._batch), *called]
        self.load([key for key in due if key not in self._held and key != _SHARED])
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
        due = self._states.wall_due(self.host.number, self.now, self._batch)
        self.load([key for key in due if key not in self._held])
        for key, state in self._held.items():
            moment = operator.wall_due(state)
            if moment is not None and moment <= self.now:
                output.host = self.host
                operator.tick(state, key, self.now, self.closed, output)

    def changed(self) -> Iterator[State]:
        """The states to keep."""
        operator, number = self.operator, self.host.number
        for key, state in self._held.items():
            if not operator.is_empty(state):
                wall = operator.wall_due(state) if isinstance(operator, Process) else None
                yield State(number, key, self._encode(state), operator.due(state), wall)
            elif key in self._had:
                yield State(number, key, None, None)
        if (shared := getattr(operator, "shared", None)) is not None:
            yield State(number, _SHARED, self._encode(shared), None)
