"""What an author's processor is given: records one after the other, named stores, timers, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from sluice.errors import TopologyError
from sluice.operators.base import Output

_ENCODER = msgspec.json.Encoder(decimal_format="number")

Clock = Literal["event", "wall"]


@dataclass(frozen=True)
class Record:
    """What a processor sees. The value is of the stream's type, its contract's Struct perhaps; None is a null value."""

    key: str
    value: Any
    time: int
    """Event time, ms."""


@dataclass(frozen=True)
class Firing:
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


class Store:
    """A named key-value store: what it holds belongs to the record's key and is invisible to other keys."""

    def __init__(self, name: str, options: StoreOptions) -> None:
        self.name = name
        self.ttl = options.ttl
        self.entries: dict[str, tuple[int, Any]] = {}
        self.now = -1

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` if there is none or it has outlived the store's TTL."""
        entry = self.entries.get(key)
        return default if entry is None or self._expired(entry[0]) else entry[1]

    def put(self, key: str, value: Any) -> None:
        """Set the value; its life begins anew."""
        self.entries[key] = self.now, value

    def delete(self, key: str) -> None:
        """Take the value out, if there is one."""
        self.entries.pop(key, None)

    def items(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Keys and values by key, of those keys that begin with the prefix."""
        for key in sorted(self.entries):
            written, value = self.entries[key]
            if key.startswith(prefix) and not self._expired(written):
                yield key, value

    def _expired(self, written: int) -> bool:
        return self.ttl is not None and written + self.ttl < self.now


class Context:
    """What a processor is given once, in `init`: its stores, timers and outputs, always those of the key at hand."""

    def __init__(self, stores: Mapping[str, StoreOptions]) -> None:
        self._stores = {name: Store(name, options) for name, options in stores.items()}
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
        text = None if value is None else _ENCODER.encode(value).decode()
        self._out.emit(key, text, self.time if time is None else time, to=to)

    def schedule(self, name: str, at: int, *, every: int = 0, clock: Clock = "event") -> None:
        """Set the key's timer of that name: at `at`, then each `every` ms; a timer of the same name is replaced.

        On the event clock it fires once stream time has reached it, for every time that has passed. On the wall clock
        it fires once in a run, however many times have passed.

        Raises ValueError for a negative `every`.
        """
        if every < 0:
            raise ValueError(f"Timer {name!r} is to fire every {every} ms: that must be above 0, or 0 for once.")
        timers = self._kept.event if clock == "event" else self._kept.wall
        timers[name] = Timer(at, every)

    def cancel(self, name: str, *, clock: Clock = "event") -> None:
        """Take a timer of the key back, if it is set."""
        (self._kept.event if clock == "event" else self._kept.wall).pop(name, None)

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


class Processor(Protocol):
    """What an author writes. One object sees all keys of a task: what must last is in stores, not in attributes."""

    def init(self, context: Context) -> None:
        """Keep the context; called once, before all records."""

    def process(self, record: Record) -> None:
        """Take in one record; records of a key come in order."""
