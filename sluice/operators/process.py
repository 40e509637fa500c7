"""Functions with state: an author's class that sees one record after the other, with stores and timers of each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sluice.operators.base import FAILURES, Output, Row
from sluice.operators.encoding import to_json
from sluice.operators.processor import Context, Kept, Processor, Record, Schedule, StoreOptions, Timer


class Process:
    """Shows an author's processor its records and timers. `make` makes the processor.

    An event timer fires after the record that brings stream time to it, whichever key that record has: so before the
    next record of its own key. A processor that sets timers has a method `on_timer(timer)`. Where the author's code
    fails for a record, that record is rejected; where it fails for a timer, the timer is, and it has fired.
    """

    drops_null_values = False

    def __init__(
        self,
        make: Callable[[], Processor],
        stores: Mapping[str, StoreOptions] | None = None,
        *,
        argument_type: Any = Any,
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(stores or {})
        self.state_type = _state_type(options)
        self._ttls = [(f"s{number}", one.ttl) for number, one in enumerate(options.values()) if one.ttl is not None]
        self._decode = msgspec.json.Decoder(argument_type).decode
        self._processor = make()
        self._context = Context(options, outputs, timers=hasattr(self._processor, "on_timer"))
        self._processor.init(self._context)

    def begin(self) -> Kept:
        """No entries, no timers."""
        return self.state_type()  # type: ignore[no-any-return]

    def process(self, state: Kept, row: Row, out: Output) -> None:
        """Fire what was due before the record, hand it over, fire what is due with it."""
        if row.key is None:
            out.count("null_key")
            return
        self._fire(state, row.key, row.before, out)
        self._context.turn_to(state, row.key, row.time, row.after, out)
        self._attempt(self._take, row, out, row.key, row.value, row.time)
        self._fire(state, row.key, row.after, out)

    def _take(self, row: Row) -> None:
        assert row.key is not None
        value = None if row.value is None else self._decode(row.value)
        self._processor.process(Record(row.key, value, row.time))

    def _attempt(
        self, call: Callable[[Any], None], given: Any, out: Output, key: str, value: str | None, time: int,
        timer: str = "",
    ) -> None:  # fmt: skip
        """Call the author's code: where it fails, the key's stores and timers are as they were before."""
        self._context.begin()
        out.hold()
        try:
            call(given)
            self._context.check()
        except MemoryError:
            raise
        except FAILURES as error:
            self._context.undo()
            out.reject(error, key, value, time, timer)
        else:
            out.release()

    def due(self, state: Kept) -> int | None:
        """The earliest event timer, or when the first entry outlives its store's TTL."""
        times = [timer.time for timer in state.event.values()]
        for field, ttl in self._ttls:
            times += [written + ttl + 1 for written, _ in getattr(state.stores, field).values()]
        return min(times) if times else None

    def close(
        self, state: Kept, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        """Fire event timers, forget what has outlived its TTL."""
        if key is None:
            return
        self._fire(state, key, closed, out)
        self._context.turn_to(state, key, closed, closed, out)
        self._context.expire()

    def wall_due(self, state: Kept) -> int | None:
        """The earliest wall-clock timer, epoch ms."""
        return min(timer.time for timer in state.wall.values()) if state.wall else None

    def tick(self, state: Kept, key: str, now: int, stream_time: int, out: Output) -> None:
        """Fire the wall-clock timers that are due by now, each once; the host calls it in every run."""
        for name, timer in sorted(state.wall.items(), key=lambda one: (one[1].time, one[0])):
            if timer.time > now or state.wall.get(name) is not timer:
                continue
            if timer.every:
                passed = (now - timer.time) // timer.every + 1
                state.wall[name] = Schedule(timer.time + passed * timer.every, timer.every)
            else:
                del state.wall[name]
            self._call(state, Timer(key, name, "wall", timer.time), stream_time, out)

    def is_empty(self, state: Kept) -> bool:
        """Whether there are neither entries nor timers."""
        return not (state.event or state.wall or any(getattr(state.stores, f) for f in state.stores.__struct_fields__))

    def shown(self, state: Kept) -> list[str | None]:
        """What each store holds for a key, for queries: an object of its entries as JSON; None if there are none."""
        stores = [getattr(state.stores, field) for field in state.stores.__struct_fields__]
        return [_object(entries) if entries else None for entries in stores]

    def _fire(self, state: Kept, key: str, stream_time: int, out: Output) -> None:
        while state.event:
            name, timer = min(state.event.items(), key=lambda one: (one[1].time, one[0]))
            if timer.time > stream_time:
                return
            if timer.every:
                state.event[name] = Schedule(timer.time + timer.every, timer.every)
            else:
                del state.event[name]
            self._call(state, Timer(key, name, "event", timer.time), timer.time, out)

    def _call(self, state: Kept, timer: Timer, stream_time: int, out: Output) -> None:
        self._context.turn_to(state, timer.key, timer.time, stream_time, out)
        self._attempt(self._on_timer, timer, out, timer.key, None, timer.time, timer.name)

    def _on_timer(self, timer: Timer) -> None:
        self._processor.on_timer(timer)  # type: ignore[attr-defined]


def _object(entries: dict[str, tuple[int, Any]]) -> str:
    return f"{{{','.join(f'{to_json(name)}:{_value(value)}' for name, (_, value) in sorted(entries.items()))}}}"


def _value(value: Any) -> str:
    try:
        return to_json(value)
    except (TypeError, ValueError, OverflowError):
        return to_json(str(value))  # what a state can keep and JSON cannot, such as NaN


def _state_type(stores: Mapping[str, StoreOptions]) -> Any:
    """A struct whose fields are the stores, by name: stores may be added and taken away between runs."""
    entries: list[Any] = []
    for number, options in enumerate(stores.values()):
        kind: Any = tuple[int, options.value_type]  # type: ignore[name-defined]
        entries.append((f"s{number}", dict[str, kind], msgspec.field(default_factory=dict)))
    names = {f"s{number}": name for number, name in enumerate(stores)}
    held = msgspec.defstruct("Stores", entries, rename=names)
    timers = dict[str, Schedule]
    return msgspec.defstruct(
        "Kept",
        [
            ("stores", held, msgspec.field(default_factory=held)),
            ("event", timers, msgspec.field(default_factory=dict)),
            ("wall", timers, msgspec.field(default_factory=dict)),
        ],
    )
