"""The API for authors of processors: records, stores, timers and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, get_args, overload

import msgspec
from typing_extensions import TypeVar

from sluice.errors import TopologyError
from sluice.operators.base import DEFAULT_OUTPUT, READ, Receiver
from sluice.operators.encoding import (
    IMMUTABLE,
    Declared,
    encode_state,
    require_key,
    require_same,
    state_decoder,
    state_type,
    to_json,
)
from sluice.operators.plain_values import plain_check, plain_copy
from sluice.values.contract_parts import amount_check
from sluice.values.headers import NO_HEADERS, Headers, HeaderValue
from sluice.values.kept_headers import kept_headers
from sluice.values.keys import key_text
from sluice.values.stored_values import value_decoder
from sluice.values.utc_times import AFTER_LAST
from sluice.values.windowed_keys import Windowed, key_and_window
from sluice.values.windows import Bounds

Clock = Literal["event", "wall"]
_UNDECLARED = Declared(Any)
V = TypeVar("V", default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)
V_contra = TypeVar("V_contra", contravariant=True, default=Any)
RecordKey = TypeVar("RecordKey", covariant=True, default=str | None)
"""The type of a record's key."""
TimerKey = TypeVar("TimerKey", covariant=True, default=str)
"""The type of a timer's key."""


class Record(msgspec.Struct, Generic[V_co, RecordKey], frozen=True):
    """A record of a stream, whose value has the declared type or is None.

    A record of a stream with windowed keys is a `Record[V, Windowed[str]]`.
    """

    key: RecordKey
    """The record's key. None for a record without a key, which has no entries in stores and no
    timers."""
    value: V_co
    time: int
    """Event time, ms."""
    headers: Headers = NO_HEADERS


class Timer(msgspec.Struct, Generic[TimerKey], frozen=True):
    """A timer that has fired for a key.

    For a stream with windowed keys, the timer is a `Timer[Windowed[str]]`.
    """

    key: TimerKey
    name: str
    clock: Clock
    time: int
    """The time for which the timer was set, ms."""
    now: int = -1
    """Stream time (or, for a wall-clock timer, the batch's time) when the timer fires, ms."""


@dataclass(frozen=True)
class StoreOptions:
    """The type of a store's values, and the time to live of its entries: ms of stream time."""

    value_type: Any = Any
    ttl: int | None = None
    keeps_headers: bool = False


class Schedule(msgspec.Struct, array_like=True):
    """The next time at which a key's timer fires, and the timer's period `every`, in ms.

    If `every` is 0, the timer fires once.
    """

    time: int
    every: int = 0
    cause: int = 0
    """A number that identifies the record or timer that has set a wall-clock timer; see
    `Output.cause`."""
    once: bool = False
    """Whether an event timer fires once for all periods that have passed."""

    def after(self, now: int, *, once: bool) -> Schedule | None:
        """Return the schedule after the timer has fired at the time `now`.

        Return None if it does not fire again.

        `once`: the timer has fired once for all periods that have passed.
        """
        if not self.every:
            return None
        if once:
            passed = (now - self.time) // self.every + 1
        else:
            passed = 1
        return Schedule(self.time + passed * self.every, self.every, self.cause, self.once)


def field_of(number: int) -> str:
    """Return the field of `KeyState.stores` for a processor's store.

    The store's own name may be invalid in Python.
    """
    return f"s{number}"


class NoEntries(dict[str, Any]):
    """Stands for the entries of a store if the record has no key. Any use raises an error."""

    def __init__(self, store: str) -> None:
        super().__init__()
        self._store = store

    def _refuse(self, *_: object) -> Any:
        raise ValueError(
            f"store {self._store!r} has entries per record key, and the record has no key"
        )

    get = __contains__ = __iter__ = _refuse


class KeyState(Protocol):
    """A processor's state for one key."""

    stores: Any
    """A struct with a field for each store. The field has the entries by key, each with the time of
    its `put`."""
    event: dict[str, Schedule]
    wall: dict[str, Schedule]


class Journal:
    """An undo log: old values of entries and timers that the author's code has set or deleted."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], str, Any]] = []
        """For each change: the dictionary, the name of the entry or timer in it, and the old
        value."""
        self.is_kept = True
        """Whether changes are logged."""

    def keep_changes(self) -> None:
        """Make all changes so far final, and log the next changes."""
        self.is_kept = True
        if self._before:
            self._before.clear()

    def stop(self) -> None:
        """Log no changes until the next call of `keep_changes`."""
        self.is_kept = False

    def change(self, kept: dict[str, Any], name: str) -> None:
        """Log an entry or a timer before it is set or deleted."""
        # Log the old value itself, not a copy: entries and timers are replaced, never changed in
        # place.
        self._before.append((kept, name, kept.get(name)))

    def undo_changes(self) -> None:
        """Restore every changed entry and timer."""
        # Undo the last change first, because an entry may have changed several times.
        for kept, name, before in reversed(self._before):
            if before is None:
                kept.pop(name, None)
            else:
                kept[name] = before


HeadersArgument = Headers | Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]


def headers_json(headers: HeadersArgument) -> str | None:
    """Return the headers as JSON; None if there are none."""
    return (headers if isinstance(headers, Headers) else Headers(headers)).json()


class Store(Generic[V]):
    """A named key-value store. A processor sees only the entries of the current record's key.

    As in Kafka Streams, only `put` and `delete` change the store: `put` stores a copy of a list, a
    dict or another object that can be modified, and `get` and `items` return copies.
    """

    def __init__(self, name: str, options: StoreOptions, context: ContextBase) -> None:
        self.name = name
        self.ttl = options.ttl
        self._keeps_headers = options.keeps_headers
        self.entries: dict[str, tuple[Any, ...]] = {}
        """Key → the time of the `put`, the value and, if the store keeps headers, the headers as
        JSON."""
        self._context = context
        self._journal = context.journal
        self._is_plain = plain_check(options.value_type)
        self._copy_plain = plain_copy(options.value_type)
        self._decode: Callable[[bytes], V] = state_decoder(state_type(options.value_type))
        if options.value_type is Any:
            self._check_amounts = None
        else:
            self._check_amounts = amount_check(options.value_type)
        self._accepted = Declared(options.value_type).accepted
        if options.value_type in IMMUTABLE:
            self._plain = options.value_type
        else:
            self._plain = None
        self._is_undeclared = options.value_type is Any

    @overload
    def get(self, key: str) -> V | None: ...
    @overload
    def get(self, key: str, default: V) -> V: ...
    def get(self, key: str, default: V | None = None) -> V | None:
        """Return the value of a key.

        Returns `default` if the key has no value, or the value has expired.
        """
        entry = self.entries.get(key)
        if entry is None:
            return default
        if self.ttl is not None and self._expired(entry[0]):
            return default
        value: V = entry[1]
        if type(value) in IMMUTABLE:
            return value
        return self._copy(value)

    def headers(self, key: str) -> Headers:
        """Return the headers that `put` has stored with a key's value; empty if it has no value.

        Raises ValueError unless the pipeline's `keep_headers` names the store.
        """
        self._require_kept_headers()
        entry = self.entries.get(key)
        if entry is None or self._expired(entry[0]):
            return NO_HEADERS
        return Headers.of_json(entry[2])

    def put(self, key: str, value: V, *, headers: HeadersArgument | None = None) -> None:
        """Set the value of a key. The time to live of the value begins again.

        If the store keeps headers, `put` also stores `headers`, by default the headers of the
        current record. A timer has no headers.
        """
        if type(key) is not str:
            raise TypeError(f"a key of store {self.name!r} must be a str, not {type(key).__name__}")
        # `encode` raises an error for surrogates, which no database can store.
        if not key.isascii():
            key.encode()
        if not self._is_plain(value):
            stored = self._as_read(value)
        else:
            if self._copy_plain is None:
                stored = value
            else:
                stored = self._copy_plain(value)
        if headers is not None:
            self._require_kept_headers()
        if self._journal.is_kept:
            self._journal.change(self.entries, key)
        if self._keeps_headers:
            if headers is None:
                text = self._context._record_headers
            else:
                text = headers_json(headers)
            self.entries[key] = self._context.stream_time, stored, kept_headers(text)
        else:
            self.entries[key] = self._context.stream_time, stored

    def delete(self, key: str) -> None:
        """Delete the value of a key, if it has one."""
        if key in self.entries:
            if self._journal.is_kept:
                self._journal.change(self.entries, key)
            del self.entries[key]

    def items(self, prefix: str = "") -> Iterator[tuple[str, V]]:
        """Iterate over the keys that start with `prefix`, in order, with their values."""
        for key in sorted(self.entries):
            # The author's code may have deleted the entry during the iteration.
            if not key.startswith(prefix) or key not in self.entries:
                continue
            entry = self.entries[key]
            if not self._expired(entry[0]):
                yield key, self._copy(entry[1])

    def _copy(self, value: V) -> V:
        if type(value) in IMMUTABLE:
            return value
        # All fields of a plain Struct have immutable values.
        copy: V
        if self._copy_plain is None:
            copy = self._decode(encode_state(value))
        else:
            copy = self._copy_plain(value)
        return copy

    def _as_read(self, value: V) -> V:
        """Return the value in the form that the next batch reads.

        Raises an error if the value is not of the store's type.
        """
        accepted = self._accepted(value)
        data = encode_state(accepted)
        # `to_json` raises an error if queries could not show the value.
        to_json(accepted)
        if type(value) is self._plain:
            return value
        if self._check_amounts is not None:
            self._check_amounts(accepted)
        decoded = self._decode(data)
        if self._is_undeclared:
            require_same(value, decoded, f"stores={{{self.name!r}: ...}}")
        return decoded

    def _require_kept_headers(self) -> None:
        if not self._keeps_headers:
            raise ValueError(
                f"store {self.name!r} keeps no headers; create the pipeline with "
                f"keep_headers=[{self.name!r}]"
            )

    def _expired(self, written: int) -> bool:
        return self.ttl is not None and written + self.ttl < self._context.stream_time


ReadRow = Callable[[int, str], str | None]
"""Takes a table's number and a key. Returns the row's value as JSON text, or None if there is no
row."""


class ReadOnlyTable(Generic[V]):
    """The rows of a table of the pipeline, as of the current record.

    Every worker has all rows of this table.
    """

    def __init__(self, number: int, value_type: Any) -> None:
        self._number = number
        self._decode: Callable[[str], V] = value_decoder(value_type)
        self.read_row: ReadRow = lambda _, __: None

    @overload
    def get(self, key: Any) -> V | None: ...
    @overload
    def get(self, key: Any, default: V) -> V: ...
    def get(self, key: Any, default: V | None = None) -> V | None:
        """Return the value of a key.

        A key that is not a str is turned into text. Returns `default` if the key has no row.
        """
        text_of_key = key_text(key)
        if text_of_key is None:
            value = None
        else:
            value = self.read_row(self._number, text_of_key)
        if value is None:
            return default
        return self._decode(value)


class ContextBase:
    """A processor's stores and timers, for the key of the current record or timer."""

    def __init__(
        self,
        stores: Mapping[str, StoreOptions],
        outputs: Mapping[str, Any] | None = None,
        *,
        timers: bool = True,
        tables: Mapping[str, Any] | None = None,
    ) -> None:
        self.journal = Journal()
        self.tables: dict[str, ReadOnlyTable[Any]] = {}
        for number, (name, value_type) in enumerate((tables or {}).items(), start=READ):
            self.tables[name] = ReadOnlyTable(number, value_type)
        self._stores: dict[str, Store[Any]] = {}
        self._fields: list[tuple[Store[Any], str]] = []
        for number, (name, options) in enumerate(stores.items()):
            store = self._stores[name] = Store(name, options, self)
            self._fields.append((store, field_of(number)))
        self._outputs: dict[str, Declared] | None = None
        if outputs is not None:
            self._outputs = {name: Declared(kind) for name, kind in outputs.items()}
        self._timers = timers
        self._state: KeyState
        self._out: Receiver
        self.key: Any = ""
        """The key of the stores and timers: the record's key, or the value of the argument `by`."""
        self.sent_key: Windowed[str] | str | None = ""
        """The key of the record or timer."""
        self.time = -1
        """Event time of the record, or the time for which the timer was set, ms."""
        self.stream_time = -1
        """The largest event time seen so far, ms."""
        self.wall_clock = -1
        """The time at which the batch began, epoch ms. A repeated batch has the same time."""
        self._time_before = -1
        """Stream time before the current record. In a timer, the time that the timer's clock has
        reached."""

    @property
    def _record_headers(self) -> str | None:
        """The headers of the current record, as JSON; None if there are none, and in a timer."""
        return self._out.headers

    def store(self, name: str) -> Store[Any]:
        """Return the store with this name in `process(stores=...)`."""
        try:
            return self._stores[name]
        except KeyError:
            raise TopologyError(
                f"The processor has no store {name!r}, only {sorted(self._stores)}.",
                next_step=f"Declare it: process(..., stores={{{name!r}: ...}}).",
            ) from None

    def table(self, name: str) -> ReadOnlyTable[Any]:
        """Return the table with this name in `process(tables=...)`, for reading."""
        try:
            return self.tables[name]
        except KeyError:
            raise TopologyError(
                f"The processor has no table {name!r}, only {sorted(self.tables)}.",
                next_step=f"Declare it: process(..., tables={{{name!r}: ...}}).",
            ) from None

    def _send(
        self,
        key: Any,
        value: Any,
        to: str,
        time: int | None,
        headers: HeadersArgument | None,
        window: Bounds | None = None,
    ) -> None:
        """Send a record to an output. A key that is not a str is turned into text."""
        text_of_key = key_text(key)
        # The key of the current record was checked when the record was read.
        if text_of_key is not None and text_of_key is not self.sent_key:
            require_key(text_of_key)
        if time is not None:
            _require_time("forward", time)
            if not 0 <= time < AFTER_LAST:
                raise ValueError(f"forward: {time} ms is not a time in the years 1970 to 9999")
        if self._outputs is not None and to not in self._outputs:
            raise ValueError(f"unknown output {to!r}; the outputs are {', '.join(self._outputs)}")
        declared = _UNDECLARED if self._outputs is None else self._outputs[to]
        text = None if value is None else declared.json(value)
        out = self._out
        sent_at = self.time if time is None else time
        if headers is None:
            out.emit(text_of_key, text, sent_at, window=window, to=to)
            return
        own_headers = out.headers
        out.headers = headers_json(headers)
        out.emit(text_of_key, text, sent_at, window=window, to=to)
        out.headers = own_headers

    def schedule(self, name: str, at: int, *, every: int = 0, clock: Clock = "event") -> None:
        """Set a timer of the key for the time `at`, in epoch ms.

        `at` is a time, not a delay: a minute after a record is `record.time + 60_000`. With
        `every`, the timer repeats every `every` ms. The timer replaces the key's timer of the same
        name. By default, the timer fires when stream time reaches its time, and `at` must not be
        before the time of the current record or timer. If stream time jumps over several periods of
        a repeating timer, the timer fires once for each of them. A timer with `clock="wall"` fires
        at most once per batch, even if several of its periods have passed since the previous batch.
        """
        self._require_timers(name)
        _require_time(f"timer {name!r}", at)
        if at < 0:
            raise ValueError(
                f"timer {name!r}: {at} is before 1970; give an epoch time, such as "
                "record.time + 60_000"
            )
        _require_time(f"timer {name!r}, every=", every)
        if every < 0:
            raise ValueError(f"timer {name!r}: every={every} must be at least 0")
        # Refuse a time in the past: the timer would fire at a position before the record that sets
        # it.
        if clock == "event" and at < (now := min(self.time, self.stream_time)):
            raise ValueError(
                f"timer {name!r}: {at} is before {now}, the current event time; give a time, not a "
                "delay, such as record.time + 60_000"
            )
        if clock == "wall":
            cause = self._out.cause
        else:
            cause = 0
        self._set_timer(name, clock, Schedule(at, every, cause))

    def punctuate(self, name: str, every: int, *, clock: Clock = "event") -> None:
        """Let a key's timer fire whenever its clock reaches or passes a multiple of `every` ms.

        The clock is stream time or, with `clock="wall"`, the wall clock. The timers fire like the
        punctuators of Kafka Streams. If the clock jumps over several multiples, the timer fires
        once; `timer.now` is the time that the clock has reached. The record that advances stream
        time is processed before the timer fires. If the key already has a timer of this name,
        `punctuate` does nothing.
        """
        self._require_timers(name)
        _require_time(f"timer {name!r}, every=", every)
        if every < 1:
            raise ValueError(f"timer {name!r}: every={every} must be at least 1 ms")
        if name in self._timers_of(clock):
            return
        is_wall = clock == "wall"
        now = self.wall_clock if is_wall else self._time_before
        at = (now // every + 1) * every
        cause = self._out.cause if is_wall else 0
        self._set_timer(name, clock, Schedule(at, every, cause, once=True))

    def _require_timers(self, name: str) -> None:
        """Raise an error if the processor or the record cannot have a timer of this name."""
        if not self._timers:
            raise TypeError("a processor that sets timers needs a method on_timer(self, timer)")
        if not isinstance(name, str):
            raise TypeError(f"the name of a timer must be a str, not {type(name).__name__}")
        if self.key is None:
            raise ValueError(
                f"timer {name!r}: a timer belongs to a record key, and the record has no key"
            )

    def _set_timer(self, name: str, clock: Clock, schedule: Schedule) -> None:
        # `encode` raises an error for surrogates, which no database can store.
        name.encode()
        timers = self._timers_of(clock)
        self.journal.change(timers, name)
        timers[name] = schedule

    def cancel(self, name: str, *, clock: Clock = "event") -> None:
        """Cancel a timer of the key, if it is set."""
        timers = self._timers_of(clock)
        if name in timers:
            self.journal.change(timers, name)
            del timers[name]

    def _timers_of(self, clock: Clock) -> dict[str, Schedule]:
        """Return the key's timers of one of the clocks."""
        if clock not in get_args(Clock):
            raise ValueError(f"clock={clock!r} must be 'event' or 'wall'")
        if clock == "event":
            return self._state.event
        return self._state.wall

    def turn_to(
        self,
        kept: KeyState,
        key: Windowed[str] | str | None,
        time: int,
        stream_time: int,
        out: Receiver,
        *,
        sent_key: Windowed[str] | str | None,
        time_before: int,
    ) -> None:
        """Switch to another key, record or timer. Called by the engine."""
        self.turn_to_key(kept, key, out)
        self.turn_to_record(time, stream_time, sent_key=sent_key, time_before=time_before)

    def turn_to_key(self, kept: KeyState, key: Windowed[str] | str | None, out: Receiver) -> None:
        """Switch to the stores and timers of another key. Called by the engine."""
        self._state, self._out, self.key = kept, out, key
        for store, field in self._fields:
            if key is not None:
                store.entries = getattr(kept.stores, field)
            else:
                store.entries = NoEntries(store.name)

    def turn_to_record(
        self, time: int, stream_time: int, *, sent_key: Windowed[str] | str | None, time_before: int
    ) -> None:
        """Switch to another record or timer of the key. Called by the engine."""
        self.time, self.stream_time, self.sent_key = time, stream_time, sent_key
        self._time_before = time_before

    def expire(self) -> None:
        """Delete entries whose time to live has ended. Called by the engine."""
        for store in self._stores.values():
            if store.ttl is None:
                continue
            for key, entry in [*store.entries.items()]:
                if entry[0] + store.ttl < self.stream_time:
                    del store.entries[key]


class Context(ContextBase):
    """The stores, timers and outputs of a `Processor`, for the current record's or timer's key."""

    def forward(
        self,
        key: Any,
        value: Any,
        *,
        to: str = DEFAULT_OUTPUT,
        time: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> None:
        """Send a record to an output. A key that is not a str is turned into text.

        `time` is in epoch ms; by default, it is the time of the current record or timer. `headers`
        are by default the current record's headers; a timer has no headers.
        """
        self._send(key, value, to, time, headers)


class ValueContext(ContextBase):
    """The stores, timers and outputs of a `ValueProcessor`.

    The processor's results have the key of the current record or timer.
    """

    def forward(
        self,
        value: Any,
        *,
        to: str = DEFAULT_OUTPUT,
        time: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> None:
        """Send a record with the key of the current record or timer to an output.

        `time` is in epoch ms; by default, it is the time of the current record or timer. `headers`
        are by default the current record's headers; a timer has no headers.
        """
        key, window = key_and_window(self.sent_key)
        self._send(key, value, to, time, headers, window)


def _require_time(name: str, time: Any) -> None:
    if type(time) is not int or not -(1 << 63) <= time < 1 << 63:
        raise TypeError(f"{name}: {time!r} is not a time in ms")


class Processor(Protocol[V_contra]):
    """The interface of an author's processor class.

    An instance handles many keys, so all state must be in stores.

    If the code fails for a record, or a task is repeated, records may be processed again, with the
    stores as they were before these records.

    Records without a key are processed, too. If the code uses a store or sets a timer for a record
    without a key, the record is rejected.

    A processor that sets timers also has a method `on_timer(self, timer: Timer)`.
    """

    def init(self, context: Context) -> None:
        """Store the context. Called once, before all records."""

    def process(self, record: Record[V_contra, Any]) -> None:
        """Process one record. The records of a key are passed in order."""


class ValueProcessor(Protocol[V_contra]):
    """The interface of a processor whose results keep their record's key, for `process_values`.

    Everything else is as in a `Processor`.
    """

    def init(self, context: ValueContext) -> None:
        """Store the context. Called once, before all records."""

    def process(self, record: Record[V_contra, Any]) -> None:
        """Process one record. The records of a key are passed in order."""
