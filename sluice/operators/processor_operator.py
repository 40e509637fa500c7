"""Runs an author's Processor on one record at a time, with stores and timers for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import override

from sluice.operators.base import DEFAULT_OUTPUT, Output, Row, require_run
from sluice.operators.columns import (
    BatchTimeline,
    KeyedRows,
    KeyStates,
    Results,
    RowFailedError,
)
from sluice.operators.encoding import plain_texts, state_type, to_json
from sluice.operators.operator import BatchOfOperator, Moment, Operator, Releasing, WallTimer
from sluice.operators.plain_values import has_plain_values
from sluice.operators.processor import (
    Context,
    KeyState,
    Processor,
    Record,
    Schedule,
    StoreOptions,
    Timer,
    ValueContext,
    ValueProcessor,
    field_of,
)
from sluice.support.arrays import Indices, Times
from sluice.values.headers import NO_HEADERS, Headers
from sluice.values.kept_headers import headers_by_name_json
from sluice.values.stored_values import value_decoder
from sluice.values.windowed_keys import (
    Windowed,
    key_and_window,
    split_windowed_key,
    windowed_of_text,
)
from sluice.values.windows import Bounds


class Process(Operator[KeyState]):
    """Calls an author's processor with records and timers. `make` creates the processor.

    `keeps_key`: the processor is a `ValueProcessor`, whose results have the key of the record.
    `is_keyed_by`: the author has chosen the key of the stores with `by=`. The row's key is the
    chosen key, and the record's own key is in `foreign`. `has_windowed_keys`: the keys of the
    records are the texts of windowed keys. The author's code gets each of them as a `Windowed`.
    `tables`: the types of the values of the tables that the processor reads. Rows of these tables
    have a side of READ or higher. They are kept for look-ups and are not passed to the author's
    code.

    An event timer fires right after the record that advances stream time to the timer's time. This
    may be a record of any key. A processor that sets timers has a method `on_timer(timer)`. If the
    author's code fails for a record or a timer, this record or timer is rejected. A rejected timer
    counts as fired.
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
        has_windowed_keys: bool = False,
        tables: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(stores or {})
        self.state_type = _state_type(options)
        self._empty_state = self.new_state()
        self._has_plain_values = [has_plain_values(store.value_type) for store in options.values()]
        self._keeps_headers = [store.keeps_headers for store in options.values()]
        self._ttls: list[tuple[str, int]] = []
        for number, store in enumerate(options.values()):
            if store.ttl is not None:
                self._ttls.append((field_of(number), store.ttl))
        self._decode = value_decoder(argument_type)
        self._processor = make()
        self.sets_timers = hasattr(type(self._processor), "on_timer")
        self.has_wall_timers = self.sets_timers
        context_class = ValueContext if keeps_key else Context
        self._context = context_class(options, outputs, timers=self.sets_timers, tables=tables)
        self.reads_tables = bool(tables)
        self.fires_with_rows = self.sets_timers
        """Whether `process` fires event timers. If it does not, `release` fires them after all rows
        of a record."""
        self._processor.init(self._context)  # type: ignore[arg-type]  # the class fits the processor
        self._is_keyed_by = is_keyed_by
        self._has_windowed_keys = has_windowed_keys
        self._goes_by_row = self.sets_timers
        """Whether this and all later rows of the batch are processed one by one."""
        self._process_record: Callable[[Any], object] = self._processor.process

    @override
    def begin_batch(self, batch: BatchOfOperator) -> None:
        self._context.wall_clock = batch.now
        for table in self._context.tables.values():
            table.read_row = batch.read_table
        # In Kafka Streams, a task first processes all effects of a record, and then fires timers.
        self.fires_with_rows = self.sets_timers and not batch.fires_after_record

    @property
    @override
    def releasing(self) -> Releasing | None:
        if self.sets_timers:
            return Releasing(after_record=not self.fires_with_rows)
        return None

    def new_state(self) -> KeyState:
        return self.state_type()  # type: ignore[no-any-return]

    def process(self, state: KeyState, row: Row, out: Output) -> None:
        """Fire due timers, process the record, and fire the timers that the record makes due.

        If the author's code fails for the record, the key's stores and timers are restored.
        """
        key, value, time = row.key, row.value, row.time
        # Timers fire in the order of time, so timers that were due before the record fire first.
        if key is not None and state.event and self.fires_with_rows:
            self._fire(state, key, row.before, out)
            # Firing timers has reset the headers, because the results of a timer have no headers.
            out.headers = row.headers
        context = self._context
        key_text = row.foreign if self._is_keyed_by else key
        context.journal.keep_changes()
        out.hold()
        try:
            record_key = self._record_key(key_text)
            own_key = key if self._is_keyed_by else record_key
            context.turn_to(
                state, own_key, time, row.after, out, sent_key=record_key, time_before=row.before
            )  # fmt: skip
            headers = Headers.of_json(row.headers)
            decoded = None if value is None else self._decode(value)
            record = Record(record_key, decoded, time, headers)
            if (result := self._process_record(record)) is not None:
                require_run(result)
        except BaseException as error:
            context.journal.undo_changes()
            out.reject(error, self._plain_key(key_text), value, time)
        else:
            out.release()
        if key is not None and state.event and self.fires_with_rows:
            self._fire(state, key, row.after, out)

    def process_columns(
        self, states: KeyStates[KeyState], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        """Process all rows together, if the processor sets no timers.

        Raises RowFailedError if the author's code fails for a record or forwards very many records.
        These rows and all later rows are then processed one by one.
        """
        if self._goes_by_row:
            return None
        # If a row fails, the caller discards all changes, so there is nothing to undo.
        self._context.journal.stop()
        try:
            return self._process_all(states, rows)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Other records will probably fail in the same way, so process all later rows one by
            # one.
            self._goes_by_row = True
            raise RowFailedError from error

    def _process_all(self, states: Sequence[KeyState], rows: KeyedRows) -> Results:
        """Process all rows.

        Raises RowFailedError if there would be too many results in memory.
        """
        context, process = self._context, self._process_record
        forwarded = _Forwarded(
            has_windows=self._has_windowed_keys and isinstance(context, ValueContext)
        )
        causes: list[int] = []
        """The row of each result."""
        lengths = np.diff(rows.starts).tolist()
        # Each value is decoded, and becomes a record, right before the author's code gets it. This
        # is faster than making all records first.
        own_keys: Iterable[Windowed[str] | str | None] = rows.keys
        if self._is_keyed_by:
            keys: Iterable[Windowed[str] | str | None] = map(
                self._record_key, rows.columns["foreign"].to_pylist()
            )
        else:
            own_keys = [*map(self._record_key, rows.keys)]
            keys = chain.from_iterable(map(repeat, own_keys, lengths))
        headers = _texts(rows.columns["headers"])
        decoded_headers: Iterable[Headers] = repeat(NO_HEADERS)
        if headers is not None:
            decoded_headers = map(Headers.of_json, headers)
        values = self._decoded(rows.columns["value"])
        records = map(Record, keys, values, rows.times.tolist(), decoded_headers)
        each = zip(count(), records, rows.stream_times["after"].tolist(), headers or repeat(None))
        sent, known = forwarded.sent, 0
        for key, state, length in zip(own_keys, states, lengths, strict=True):
            context.turn_to_key(state, key, forwarded)
            for row, record, stream_time, text in islice(each, length):
                context.sent_key, context.time, context.stream_time = (
                    record.key,
                    record.time,
                    stream_time,
                )
                forwarded.headers = text
                if (result := process(record)) is not None:
                    require_run(result)
                if len(sent) > known:
                    causes += [row] * (len(sent) - known)
                    known = len(sent)
                    if known > _MOST_RESULTS:
                        raise RowFailedError
        return forwarded.results(np.array(causes, np.intp))

    def _decoded(self, values: pa.Array) -> Iterator[Any]:
        texts = values.to_pylist()
        if not values.null_count:
            return map(self._decode, texts)
        return (None if text is None else self._decode(text) for text in texts)

    def release_due(self, state: KeyState) -> int | None:
        """Return the time of the earliest event timer."""
        if state.event:
            return min(schedule.time for schedule in state.event.values())
        return None

    def due(self, state: KeyState) -> int | None:
        """Return the time of the earliest event timer or expiry of an entry."""
        if not (state.event or self._ttls):
            return None
        times = [schedule.time for schedule in state.event.values()]
        for field, ttl in self._ttls:
            times += [entry[0] + ttl + 1 for entry in getattr(state.stores, field).values()]
        if times:
            return min(times)
        return None

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
            self._release(state, key, closed, closed, out)

    @override
    def release(self, state: KeyState, key: str, due: int, moment: Moment, out: Output) -> None:
        self._release(state, key, due, max(due, moment.stream_time), out)

    def _release(self, state: KeyState, key: str, due: int, reached: int, out: Output) -> None:
        """Fire the event timers that are due at `due`, and remove entries expired by then.

        `reached` is the stream time, which may have jumped over several due times.
        """
        self._fire(state, key, due, out, reached)
        own_key = self._timer_key(key)
        self._context.turn_to(state, own_key, due, due, out, sent_key=own_key, time_before=reached)
        self._context.expire()

    def wall_due(self, state: KeyState) -> int | None:
        """Return the time of the earliest wall-clock timer, epoch ms."""
        if state.wall:
            return min(timer.time for timer in state.wall.values())
        return None

    def tick(
        self, state: KeyState, key: str, now: int, stream_time: int, out: Output,
        before_timer: Callable[[str, WallTimer, int], None] = lambda _, __, ___: None,
    ) -> None:  # fmt: skip
        """Fire, once, each wall-clock timer that is due at `now`. Called in every batch.

        Before each timer fires, calls `before_timer` with the key, the timer, and the number of the
        record or timer that set it.
        """
        for name, schedule in sorted(state.wall.items(), key=_by_time):
            # A timer that has just fired may have replaced or cancelled this timer.
            if schedule.time > now or state.wall.get(name) is not schedule:
                continue
            # As in Kafka Streams, a timer fires once for all periods that have passed.
            _reschedule(state.wall, name, schedule.after(now, once=True))
            timer = Timer(self._timer_key(key), name, "wall", schedule.time, now)
            before_timer(key, timer, schedule.cause)
            self._call(state, timer, stream_time, out)

    def is_empty(self, state: KeyState) -> bool:
        return state == self._empty_state

    def entries(self, state: KeyState) -> Sequence[dict[str, tuple[Any, ...]]]:
        """Return a key's entries in each store: name → time of `put`, value, perhaps headers."""
        return msgspec.structs.astuple(state.stores)

    def rows_of_entries(
        self, store: int, entries_of_keys: Sequence[dict[str, tuple[Any, ...]]]
    ) -> list[str | None]:
        """Return each key's state row in a store: an array with a JSON object of its entries.

        The rows are for queries. None if a key has no entries. If the store keeps headers, the
        array also has an object with their headers.
        """
        objects: list[dict[str, Any]] = []
        for entries in entries_of_keys:
            # Most keys have one entry, which needs no sorting.
            names = sorted(entries) if len(entries) > 1 else entries
            objects.append({name: entries[name][1] for name in names})
        texts = plain_texts(objects) if self._has_plain_values[store] else map(to_json, objects)
        rows: list[str | None] = []
        for text, entries in zip(texts, entries_of_keys, strict=True):
            if not entries:
                rows.append(None)
            elif self._keeps_headers[store]:
                headers = {name: entry[2] for name, entry in sorted(entries.items())}
                rows.append(f"[{text},{headers_by_name_json(headers)}]")
            else:
                rows.append(f"[{text}]")
        return rows

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
            timer = Timer(self._timer_key(key), name, "event", schedule.time, now)
            self._call(state, timer, now if schedule.once else schedule.time, out)

    def _record_key(self, text: str | None) -> Windowed[str] | str | None:
        """Return the key of a record in the form for the author's code.

        Raises OverflowError for a window after the year 9999.
        """
        if self._has_windowed_keys and text is not None:
            return windowed_of_text(text)
        return text

    def _plain_key(self, text: str | None) -> str | None:
        """Return the key of a record without its window."""
        if self._has_windowed_keys and text is not None:
            return split_windowed_key(text)[0]
        return text

    def _timer_key(self, text: str) -> Windowed[str] | str:
        """Return the key of stores and timers in the form for the author's code."""
        if self._has_windowed_keys and not self._is_keyed_by:
            return windowed_of_text(text)
        return text

    def _call(
        self, state: KeyState, timer: Timer[Windowed[str] | str], stream_time: int, out: Output
    ) -> None:
        """Call the author's `on_timer`. If it fails, the key's stores and timers are restored.

        As in Kafka Streams, the results of a timer have no headers.
        """
        out.headers = None
        context = self._context
        context.turn_to(
            state, timer.key, timer.time, stream_time, out, sent_key=timer.key,
            time_before=timer.now,
        )  # fmt: skip
        context.journal.keep_changes()
        out.hold()
        try:
            if (result := self._processor.on_timer(timer)) is not None:  # type: ignore[union-attr]
                require_run(result)
        except BaseException as error:
            context.journal.undo_changes()
            key, window = key_and_window(timer.key)
            out.reject(error, key, None, timer.time, timer.name, window)
        else:
            out.release()


_MOST_RESULTS = 200_000
"""The maximum number of results of rows that are processed at once. If there are more, the rows are
processed one by one, which needs less memory."""


class _Forwarded:
    """The results that a processor has forwarded for rows that it processes together."""

    cause = 0
    """Only setting a timer reads this number. A processor with timers gets its rows one by one,
    without this class."""

    def __init__(self, *, has_windows: bool) -> None:
        self.headers: str | None = None
        self.sent: list[tuple[str | None, str | None, int, str, str | None, Bounds | None]] = []
        """The key, value, time, output, headers and window of each result."""
        self._has_windows = has_windows

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        to: str = DEFAULT_OUTPUT,
    ) -> None:
        self.sent.append((key, value, time, to, self.headers, window))

    def results(self, causes: Indices) -> Results:
        """Return the results. `causes` are the rows that have caused the results."""
        columns: Iterable[Sequence[Any]] = ((),) * 6
        if self.sent:
            columns = zip(*self.sent, strict=True)
        keys, values, times, outputs, headers, windows = columns
        bounds: tuple[Times, Times] | None = None
        if self._has_windows:
            starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
            bounds = starts, ends
        names_of_outputs = None
        if not {*outputs} <= {DEFAULT_OUTPUT}:
            names_of_outputs = pa.array(outputs, pa.string())
        return Results(
            causes,
            pa.array(values, pa.string()),
            np.array(times, np.int64),
            keys=pa.array(keys, pa.string()),
            outputs=names_of_outputs,
            headers=pa.array(headers, pa.string()),
            windows=bounds,
        )


def _texts(column: pa.Array) -> list[str | None] | None:
    """Return the column's texts.

    Return None if all of them are null, as the headers are in most batches.
    """
    texts: list[str | None] | None = None
    if column.null_count < len(column):
        texts = column.to_pylist()
    return texts


def _reschedule(timers: dict[str, Schedule], name: str, schedule: Schedule | None) -> None:
    if schedule is None:
        del timers[name]
    else:
        timers[name] = schedule


def _by_time(entry: tuple[str, Schedule]) -> tuple[int, str]:
    name, schedule = entry
    return schedule.time, name


def _state_type(stores: Mapping[str, StoreOptions]) -> Any:
    """Return a struct with a field for each store.

    The struct is encoded with the names of the stores, because the author may add and remove
    stores.
    """
    entries: list[Any] = []
    for number, options in enumerate(stores.values()):
        value_type = state_type(options.value_type)
        kind: Any = tuple[int, value_type]  # type: ignore[valid-type]
        if options.keeps_headers:
            kind = tuple[int, value_type, str | None]  # type: ignore[valid-type]
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
