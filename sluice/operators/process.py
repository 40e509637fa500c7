"""Runs an author's Processor on one record at a time, with stores and timers for each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sluice.operators.base import DEFAULT_OUTPUT, Output, Row, require_run
from sluice.operators.columns import KeyedRows, Results
from sluice.operators.encoding import state_type, to_json
from sluice.operators.processor import (
    Context,
    KeyState,
    Processor,
    ReadRow,
    Record,
    Schedule,
    StoreOptions,
    Timer,
    ValueContext,
    ValueProcessor,
    field_of,
)
from sluice.values.headers import NO_HEADERS, Headers
from sluice.values.stored_values import value_decoder


class Process:
    """Calls an author's processor with records and timers. `make` creates the processor.

    `keeps_key`: the processor is a `ValueProcessor`, whose results have the key of the record.
    `is_keyed_by`: the author has chosen the key of the stores with `by=`. The row's key is the
    chosen key, and the record's own key is in `foreign`.
    `tables`: the types of the values of the tables that the processor reads. Rows of these tables
    have a side of READ or higher. They are kept for look-ups and are not passed to the author's code.

    An event timer fires right after the record that advances stream time to the timer's time. The
    key of this record does not matter. A processor that sets timers has a method
    `on_timer(timer)`. If the author's code fails for a record or a timer, this record or timer is
    rejected. A rejected timer counts as fired.
    """

    def __init__(
        self,
        make: Callable[[], Processor | ValueProcessor],
        stores: Mapping[str, StoreOptions] | None = None,
        *,
        argument_type: Any = Any,
        outputs: Mapping[str, Any] | None = None,
        keeps_key: bool = False,
        is_keyed_by: bool = False,
        tables: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(stores or {})
        self.state_type = _state_type(options)
        self._ttls: list[tuple[str, int]] = []
        for number, store in enumerate(options.values()):
            if store.ttl is not None:
                self._ttls.append((field_of(number), store.ttl))
        self._decode = value_decoder(argument_type)
        self._processor = make()
        self.sets_timers = hasattr(self._processor, "on_timer")
        context_class = ValueContext if keeps_key else Context
        self._context = context_class(options, outputs, timers=self.sets_timers, tables=tables)
        self.reads_tables = bool(tables)
        self.fires_with_rows = True
        """Whether `process` fires event timers. If not, only `release` fires them, after all rows
        that come from one record."""
        self._processor.init(self._context)  # type: ignore[arg-type]  # the class fits the processor
        self._is_keyed_by = is_keyed_by
        self._goes_by_row = self.sets_timers
        """Whether this and all later rows of the batch are processed one by one."""
        self._process_record: Callable[[Any], object] = self._processor.process

    def read_tables_with(self, read_row: ReadRow) -> None:
        """Set the function that reads a table's row for the processor; a table's number is the `side` of its rows."""
        for table in self._context.tables.values():
            table.read_row = read_row

    def set_clock(self, now: int) -> None:
        """Set the time of the batch on the wall clock, epoch ms."""
        self._context.wall_clock = now

    def new_state(self) -> KeyState:
        return self.state_type()  # type: ignore[no-any-return]

    def process(self, state: KeyState, row: Row, out: Output) -> None:
        """Fire the timers that are due, process the record, and fire the timers that the record makes due.

        If the author's code fails for the record, the key's stores and timers are restored.
        """
        key, value, time = row.key, row.value, row.time
        # Timers fire in the order of time, so timers that are due already fire before the record.
        if key is not None and state.event and self.fires_with_rows:
            self._fire(state, key, row.before, out)
            # The timers have reset the headers, because the results of a timer have no headers.
            out.headers = row.headers
        context = self._context
        record_key = row.foreign if self._is_keyed_by else key
        context.turn_to(
            state, key, time, row.after, out, sent_key=record_key, time_before=row.before
        )  # fmt: skip
        context.keep_changes()
        out.hold()
        try:
            headers = Headers.of_json(row.headers)
            record = Record(record_key, None if value is None else self._decode(value), time, headers)
            if (result := self._process_record(record)) is not None:
                require_run(result)
        except BaseException as error:
            context.undo_changes()
            out.reject(error, record_key, value, time)
        else:
            out.release()
        if key is not None and state.event and self.fires_with_rows:
            self._fire(state, key, row.after, out)

    def process_columns(self, states: Sequence[KeyState], rows: KeyedRows) -> Results | None:
        """Process all rows together, if the processor sets no timers.

        Returns None, without a change of any state, if the author's code fails for a record or
        forwards very many records. These rows and all later rows are then processed one by one.
        """
        if self._goes_by_row:
            return None
        self._context.keep_changes()
        try:
            forwarded = self._process_all(states, rows)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # Only if the rows are processed one by one is it known for which record the code fails.
            forwarded = None
        if forwarded is None:
            self._context.undo_changes()
            # What has happened to one of many records probably happens to others, too, so all later
            # rows are processed one by one.
            self._goes_by_row = True
            return None
        return forwarded.results()

    def _process_all(self, states: Sequence[KeyState], rows: KeyedRows) -> _Forwarded | None:
        """Process all rows. Returns None if too many results would be in memory together."""
        context, process, decode, forwarded = self._context, self._process_record, self._decode, _Forwarded()
        values, times = rows.columns["value"].to_pylist(), rows.times.tolist()
        before, after = (rows.stream_times[name].tolist() for name in ("before", "after"))
        headers, own_keys = (_texts(rows.columns[name]) for name in ("headers", "foreign"))
        starts = rows.starts.tolist()
        for number, key in enumerate(rows.keys):
            context.turn_to_key(states[number], key, forwarded)
            for row in range(starts[number], starts[number + 1]):
                value, text = values[row], headers[row]
                sent_key = own_keys[row] if self._is_keyed_by else key
                context.turn_to_record(times[row], after[row], sent_key=sent_key, time_before=before[row])
                forwarded.row, forwarded.headers = row, text
                record = Record(
                    sent_key,
                    None if value is None else decode(value),
                    times[row],
                    NO_HEADERS if text is None else Headers.of_json(text),
                )
                if (result := process(record)) is not None:
                    require_run(result)
                if len(forwarded.sent) > _MOST_RESULTS:
                    return None
        return forwarded

    def release_due(self, state: KeyState) -> int | None:
        """Time of the earliest event timer."""
        return min(schedule.time for schedule in state.event.values()) if state.event else None

    def due(self, state: KeyState) -> int | None:
        """Time of the earliest event timer or expiry of an entry."""
        if not (state.event or self._ttls):
            return None
        times = [schedule.time for schedule in state.event.values()]
        for field, ttl in self._ttls:
            times += [written + ttl + 1 for written, _ in getattr(state.stores, field).values()]
        return min(times) if times else None

    def close(
        self,
        state: KeyState,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Fire event timers and remove expired entries."""
        if key is not None:
            self.release(state, key, closed, closed, out)

    def release(self, state: KeyState, key: str, due: int, reached: int, out: Output) -> None:
        """Fire the event timers that are due at the time `due`, and remove the entries that have expired by then.

        `reached` is the stream time, which may have jumped over several due times.
        """
        self._fire(state, key, due, out, reached)
        self._context.turn_to(state, key, due, due, out, sent_key=key, time_before=reached)
        self._context.expire()

    def wall_due(self, state: KeyState) -> int | None:
        """Time of the earliest wall-clock timer, epoch ms."""
        return min(timer.time for timer in state.wall.values()) if state.wall else None

    def tick(
        self, state: KeyState, key: str, now: int, stream_time: int, out: Output,
        before_timer: Callable[[Timer, int], None] = lambda _, __: None,
    ) -> None:  # fmt: skip
        """Fire, once, each wall-clock timer that is due at `now`. Called in every batch.

        Before each timer fires, calls `before_timer` with the timer and the number of the record or
        timer that set it.
        """
        for name, schedule in sorted(state.wall.items(), key=_by_time):
            # A timer that has just fired may have set or cancelled this timer.
            if schedule.time > now or state.wall.get(name) is not schedule:
                continue
            # As in Kafka Streams, a timer fires once for all periods that have passed.
            _reschedule(state.wall, name, schedule.after(now, once=True))
            timer = Timer(key, name, "wall", schedule.time, now)
            before_timer(timer, schedule.cause)
            self._call(state, timer, stream_time, out)

    def is_empty(self, state: KeyState) -> bool:
        if state.event or state.wall:
            return False
        return not any(getattr(state.stores, field) for field in state.stores.__struct_fields__)

    def entries_as_json(self, state: KeyState) -> list[str | None]:
        """Each store's entries of a key as a JSON object, for queries; None for an empty store."""
        stores = [getattr(state.stores, field) for field in state.stores.__struct_fields__]
        return [_object(entries) if entries else None for entries in stores]

    def _fire(
        self,
        state: KeyState,
        key: str,
        until: int,
        out: Output,
        reached: int | None = None,
    ) -> None:
        """Fire the event timers that are due at `until`.

        `reached` is the stream time, which may be later than `until`; its default is `until`.
        """
        now = until if reached is None else reached
        while state.event:
            name, schedule = min(state.event.items(), key=_by_time)
            if schedule.time > until:
                return
            _reschedule(state.event, name, schedule.after(now, once=schedule.once))
            timer = Timer(key, name, "event", schedule.time, now)
            self._call(state, timer, now if schedule.once else schedule.time, out)

    def _call(self, state: KeyState, timer: Timer, stream_time: int, out: Output) -> None:
        """Call the author's `on_timer`. If it fails, the key's stores and timers are restored.

        As in Kafka Streams, the results of a timer have no headers.
        """
        out.headers = None
        context = self._context
        context.turn_to(
            state, timer.key, timer.time, stream_time, out, sent_key=timer.key, time_before=timer.now
        )  # fmt: skip
        context.keep_changes()
        out.hold()
        try:
            if (result := self._processor.on_timer(timer)) is not None:  # type: ignore[union-attr]
                require_run(result)
        except BaseException as error:
            context.undo_changes()
            out.reject(error, timer.key, None, timer.time, timer.name)
        else:
            out.release()


_MOST_RESULTS = 200_000
"""If rows that are processed together have more results, the rows are processed one by one instead,
which needs less memory."""


class _Forwarded:
    """What a processor has forwarded for the rows that it processes together."""

    cause = 0
    """The cause of a row is needed only to set a timer, and a processor with timers gets its rows
    one by one."""

    def __init__(self) -> None:
        self.row = 0
        """The index of the current row."""
        self.headers: str | None = None
        self.sent: list[tuple[int, str | None, str | None, int, str, str | None]] = []
        """The row, key, value, time, output and headers of each result."""

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        to: str = DEFAULT_OUTPUT,
    ) -> None:
        self.sent.append((self.row, key, value, time, to, self.headers))

    def results(self) -> Results:
        rows, keys, values, times, outputs, headers = zip(*self.sent, strict=True) if self.sent else ((),) * 6
        return Results(
            np.array(rows, np.intp),
            pa.array(values, pa.string()),
            np.array(times, np.int64),
            keys=pa.array(keys, pa.string()),
            outputs=pa.array(outputs, pa.string()),
            headers=pa.array(headers, pa.string()),
        )


def _texts(column: pa.Array) -> Sequence[str | None]:
    """The column's texts. Most batches have no headers, so a column of nulls is not converted."""
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def _reschedule(timers: dict[str, Schedule], name: str, schedule: Schedule | None) -> None:
    if schedule is None:
        del timers[name]
    else:
        timers[name] = schedule


def _by_time(entry: tuple[str, Schedule]) -> tuple[int, str]:
    name, schedule = entry
    return schedule.time, name


def _object(entries: dict[str, tuple[int, Any]]) -> str:
    return to_json({name: value for name, (_, value) in sorted(entries.items())})


def _state_type(stores: Mapping[str, StoreOptions]) -> Any:
    """A struct with a field for each store.

    It is encoded with the names of the stores, so that the author can add and remove stores.
    """
    entries: list[Any] = []
    for number, options in enumerate(stores.values()):
        kind: Any = tuple[int, state_type(options.value_type)]  # type: ignore[misc]
        entries.append((field_of(number), dict[str, kind], msgspec.field(default_factory=dict)))
    names = {field_of(number): name for number, name in enumerate(stores)}
    held = msgspec.defstruct("Stores", entries, rename=names)
    timers = dict[str, Schedule]
    return msgspec.defstruct(
        "KeyState",
        [
            ("stores", held, msgspec.field(default_factory=held)),
            ("event", timers, msgspec.field(default_factory=dict)),
            ("wall", timers, msgspec.field(default_factory=dict)),
        ],
    )
