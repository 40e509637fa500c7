"""What an author's processor is given: records one after the other, named stores, timers, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from sluice.errors import TopologyError
from sluice.operators.base import Output
from sluice.operators.encoding import IMMUTABLE, Declared, encode_state, require_key, state_decoder, to_json

Clock = Literal["event", "wall"]


class Record(msgspec.Struct, frozen=True):
    """What a processor sees. The value is of the stream's type, its contract's Struct perhaps; None is a null value."""

    key: str
    value: Any
    time: int
    """Event time, ms."""


class Firing(msgspec.Struct, frozen=True):
    """A timer that has come due for a key."""

    key: str
    name: str
    clock: Clock
    time: int
    """The time it was set for, ms."""


@dataclass(frozen=True)
class StoreOptions:
    """A processor's store: the type of its values, and for how many ms of stream time an entry lives once it is put."""

    value_type: Any = Any
    ttl: int | None = None


class Timer(msgspec.Struct, array_like=True):
    """A timer of a key. Time in ms; `every` 0: it fires once."""

    time: int
    every: int = 0


class Kept(Protocol):
    """A key's state: a field for each store, with the time of each entry; then the timers by name."""

    stores: Any
    event: dict[str, Timer]
    wall: dict[str, Timer]


class Journal:
    """How a key's stores and timers were before the author's code was called, as far as it may have changed them."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], str, Any, Store | None]] = []
        """What held something, under which name, and what; of a value that was handed out encoded, with its store."""
        self._unchecked: dict[tuple[Store, str], None] = {}

    def begin(self) -> None:
        """What was done so far stays."""
        if self._before:
            self._before.clear()
        if self._unchecked:
            self._unchecked.clear()

    def change(self, kept: dict[str, Any], name: str) -> None:
        """An entry or a timer is about to be set or taken away."""
        self._before.append((kept, name, kept.get(name), None))

    def hand_out(self, store: Store, name: str, written: int, value: Any) -> None:
        """The author's code gets a value that it can change in place."""
        self._before.append((store.entries, name, (written, encode_state(value)), store))
        self._unchecked[store, name] = None

    def put(self, store: Store, name: str) -> None:
        """The author's code sets a value that may not be what the store is declared to hold."""
        self._unchecked[store, name] = None

    def check(self) -> None:
        """Raise an error unless the next batch can read what was put as what it is declared to be."""
        for store, name in self._unchecked:
            if name in store.entries:
                store.decode(encode_state(store.entries[name][1]))

    def undo(self) -> None:
        """Make everything what it was."""
        for kept, name, before, store in reversed(self._before):
            if before is None:
                kept.pop(name, None)
            elif store is None:
                kept[name] = before
            else:
                written, data = before
                kept[name] = written, store.decode(data)


class Store:
    """A named key-value store: what it holds belongs to the record's key and is invisible to other keys."""

    def __init__(self, name: str, options: StoreOptions, journal: Journal) -> None:
        self.name = name
        self.ttl = options.ttl
        self.entries: dict[str, tuple[int, Any]] = {}
        self.now = -1
        self.decode = state_decoder(options.value_type)
        self._plain = options.value_type if options.value_type in IMMUTABLE else None
        self._journal = journal

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` if there is none or it has outlived the store's TTL."""
        entry = self.entries.get(key)
        if entry is None or self._expired(entry[0]):
            return default
        value = entry[1]
        if type(value) not in IMMUTABLE:
            self._journal.hand_out(self, key, *entry)
        return value

    def put(self, key: str, value: Any) -> None:
        """Set the value; its life begins anew."""
        if type(key) is not str:
            raise TypeError(f"a key of store {self.name!r} must be a str, not {type(key).__name__}")
        if not key.isascii():
            key.encode()
        if type(value) is self._plain:
            encode_state(value)
        else:
            self._journal.put(self, key)
        self._journal.change(self.entries, key)
        self.entries[key] = self.now, value

    def delete(self, key: str) -> None:
        """Take the value out, if there is one."""
        if key in self.entries:
            self._journal.change(self.entries, key)
            del self.entries[key]

    def items(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Keys and values by key, of those keys that begin with the prefix."""
        for key in sorted(self.entries):
            written, value = self.entries[key]
            if key.startswith(prefix) and not self._expired(written):
                if type(value) not in IMMUTABLE:
                    self._journal.hand_out(self, key, written, value)
                yield key, value

    def _expired(self, written: int) -> bool:
        return self.ttl is not None and written + self.ttl < self.now


class Context:
    """What a processor is given once, in `init`: its stores, timers and outputs, always those of the key at hand."""

    def __init__(
        self, stores: Mapping[str, StoreOptions], outputs: Mapping[str, Any] | None = None, *, timers: bool = True
    ) -> None:
        self._journal = Journal()
        self._stores = {name: Store(name, options, self._journal) for name, options in stores.items()}
        self._outputs = None if outputs is None else {name: Declared(kind) for name, kind in outputs.items()}
        self._timers = timers
        self.begin, self.check, self.undo = self._journal.begin, self._journal.check, self._journal.undo
        self._kept: Kept
        self._out: Output
        self.key = ""
        self.time = -1
        """Event time of the record at hand, or the time the timer was set for, ms."""
        self.stream_time = -1
        """The largest event time seen so far, ms."""

    def store(self, name: str) -> Store:
        """A declared store.

        Raises TopologyError if there is none of the name.
        """
        if name not in self._stores:
            raise TopologyError(
                f"The processor has no store {name!r}.", next_step=f"Declare it; it has {sorted(self._stores)}."
            )
        return self._stores[name]

    def forward(self, key: str | None, value: Any, *, to: str = "output", time: int | None = None) -> None:
        """Send a record to an output; without a time, at that of the record or timer at hand."""
        if key is not None:
            if type(key) is not str:
                raise TypeError(f"a record's key must be a str, not {type(key).__name__}")
            require_key(key)
        if time is not None:
            _require_time("forward", time)
        text = None if value is None else to_json(value)
        if self._outputs is not None:
            if to not in self._outputs:
                raise ValueError(f"there is no output {to!r}; there are {', '.join(self._outputs)}")
            if text is not None:
                self._outputs[to].require(value, text)
        self._out.emit(key, text, self.time if time is None else time, to=to)

    def schedule(self, name: str, at: int, *, every: int = 0, clock: Clock = "event") -> None:
        """Set the key's timer of that name: at `at`, then each `every` ms; a timer of the same name is replaced.

        On the event clock it fires once stream time has reached it, for every time that has passed. On the wall clock
        it fires once in a run, however many times have passed.

        Raises ValueError for a negative `every`.
        """
        _require_time(f"timer {name!r}", at)
        _require_time(f"every of timer {name!r}", every)
        if every < 0:
            raise ValueError(f"Timer {name!r} is to fire every {every} ms: that must be above 0, or 0 for once.")
        if not self._timers:
            raise TypeError("a processor that sets timers needs a method on_timer(firing)")
        name.encode()
        timers = self._kept.event if clock == "event" else self._kept.wall
        self._journal.change(timers, name)
        timers[name] = Timer(at, every)

    def cancel(self, name: str, *, clock: Clock = "event") -> None:
        """Take a timer of the key back, if it is set."""
        timers = self._kept.event if clock == "event" else self._kept.wall
        if name in timers:
            self._journal.change(timers, name)
            del timers[name]

    def turn_to(self, kept: Kept, key: str, time: int, stream_time: int, out: Output) -> None:
        """Show the processor another key, record or timer; the host's business."""
        self._kept, self._out = kept, out
        self.key, self.time, self.stream_time = key, time, stream_time
        for number, store in enumerate(self._stores.values()):
            store.entries = getattr(kept.stores, f"s{number}")
            store.now = stream_time

    def expire(self) -> None:
        """Forget entries that have outlived their store's TTL."""
        for store in self._stores.values():
            if store.ttl is not None:
                for key in [key for key, (written, _) in store.entries.items() if written + store.ttl < store.now]:
                    del store.entries[key]


def _require_time(what: str, time: Any) -> None:
    if type(time) is not int or not -(1 << 63) <= time < 1 << 63:
        raise TypeError(f"{what}: {time!r} is no time in ms")


class Processor(Protocol):
    """What an author writes. One object sees all keys of a task: what must last is in stores, not in attributes."""

    def init(self, context: Context) -> None:
        """Keep the context; called once, before all records."""

    def process(self, record: Record) -> None:
        """Take in one record; records of a key come in order."""
