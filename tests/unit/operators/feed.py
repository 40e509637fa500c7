"""Run an operator like the engine's runner: rows in order, each key's state stored as bytes between batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sluice.engine.batch.stream_time import BEFORE_ALL, advance, after_each
from sluice.operators.base import DEFAULT_OUTPUT, LEFT, RIGHT, Row
from sluice.operators.columns import KeyedRows, KeyStates, Results, RowFailedError
from sluice.operators.encoding import encode_state, state_decoder
from sluice.operators.joins.stream_join import StreamJoin
from sluice.operators.operator import Operator
from sluice.operators.suppress import Suppress
from sluice.state.model import NO_WINDOW
from sluice.support.arrays import Mask, Times
from sluice.values.windows import Bounds


class Given(NamedTuple):
    """An input row; `value` is encoded as JSON."""

    key: str | None
    value: Any
    time: int
    side: int = LEFT
    old: bool = False
    foreign: str | None = None
    window: Bounds | None = None
    headers: str | None = None


class Result(NamedTuple):
    key: str | None
    value: Any
    time: int
    window: Bounds | None = None
    old: bool = False


def right(key: str | None, value: Any, time: int) -> Given:
    return Given(key, value, time, RIGHT)


class Rejection(NamedTuple):
    why: str
    key: str | None
    value: Any
    time: int
    timer: str = ""


@dataclass
class Ran:
    """The emitted rows."""

    results: list[Result] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)
    headers_of_results: list[str | None] = field(default_factory=list)
    states: dict[str, bytes] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)
    headers: str | None = None
    late: list[str | None] = field(default_factory=list)
    """The headers of the late records."""
    _held: int = 0
    cause: int = 0

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        old: bool = False,
        to: str = "output",
        rank: int | None = None,
    ) -> None:
        self.results.append(
            Result(key, None if value is None else json.loads(value), time, window, old)
        )
        self.outputs[to] += 1
        self.headers_of_results.append(self.headers)

    def count(self, reason: str, number: int = 1) -> None:
        self.dropped[reason] += number

    def send_late(self) -> None:
        self.late.append(self.headers)

    def hold(self) -> None:
        self._held = len(self.results)

    def release(self) -> None:
        pass

    def reject(
        self,
        error: BaseException,
        key: str | None,
        value: str | None,
        time: int,
        timer: str = "",
        window: Bounds | None = None,
    ) -> None:
        del self.results[self._held :], self.headers_of_results[self._held :]
        given = None if value is None else json.loads(value)
        self.rejected.append(Rejection(f"{type(error).__name__}: {error}", key, given, time, timer))

    @property
    def values(self) -> list[Any]:
        return [result.value for result in self.results]

    @property
    def windows(self) -> dict[tuple[str | None, Bounds | None], Any]:
        """The last value of each key and window, without deleted ones."""
        last = {
            (result.key, result.window): result.value for result in self.results if not result.old
        }
        return {at: value for at, value in last.items() if value is not None}


def run(
    operator: Operator[Any],
    rows: Sequence[Given],
    cuts: Collection[int] = (),
    *,
    drops_null_values: bool = False,
) -> Ran:
    """Process the rows.

    A batch ends after each row whose number is in `cuts`, and after the last row.

    `drops_null_values`: rows without a value do not advance stream time.
    """
    ran = Ran()
    before, after, closed, latest_of_sides = stream_times(operator, rows, drops_null_values)
    decode = state_decoder(operator.state_type)
    states: dict[str | None, Any] = {}
    for number, given in enumerate(rows):
        value = None if given.value is None else json.dumps(given.value)
        if given.key is None:
            state = operator.new_state()
        elif given.key in states:
            state = states[given.key]
        else:
            state = (
                decode(ran.states[given.key]) if given.key in ran.states else operator.new_state()
            )
        times = (
            before[number],
            after[number],
            given.side,
            given.old,
            given.window,
            latest_of_sides[number],
            given.foreign,
        )
        if isinstance(operator, StreamJoin) and given.key is not None and given.value is not None:
            _look(operator, given, after[number])
        ran.headers = given.headers
        operator.process(
            state, Row(given.key, value, given.time, *times, headers=given.headers), ran
        )
        if given.key is not None:
            states[given.key] = state
        if number + 1 in cuts or number + 1 == len(rows):
            ran.states |= {
                key: encode_state(state) for key, state in states.items() if key is not None
            }
            ran.headers = None
            operator.end_keys({key: state for key, state in states.items() if key is not None}, ran)
            states = {}
            _close(operator, ran, closed[number], latest_of_sides[number])
    return ran


def run_in_columns(
    operator: Operator[Any], rows: Sequence[Given], cuts: Collection[int] = ()
) -> Ran:
    """Like `run`, but the rows of each batch are processed at once, apart from those without a key."""
    ran = Ran()
    before, after, closed, latest_of_sides = stream_times(operator, rows, False)
    times = {"before": before, "after": after}
    latest = {
        "left": [left for left, _ in latest_of_sides],
        "right": [right for _, right in latest_of_sides],
    }
    first = 0
    for end in sorted({*cuts, len(rows)} & {*range(1, len(rows) + 1)}):
        for number in range(first, end):
            if rows[number].key is None:
                _process(operator, operator.new_state(), rows[number], number, times | latest, ran)
        keyed = sorted(
            (each.key, number)
            for number, each in enumerate(rows[first:end], first)
            if each.key is not None
        )
        numbers = [number for _, number in keyed]
        keys = sorted({key for key, _ in keyed})
        states = _states(operator, keys, ran)
        of_keys = KeyStates(keys, states, operator.new_state)
        if keys:
            try:
                of_columns = times
                if isinstance(operator, StreamJoin):
                    of_columns = times | latest
                    operator.end_batch_at(closed[end - 1], latest_of_sides[end - 1])
                results = operator.process_columns(
                    of_keys, _keyed_rows(rows, numbers, keys, of_columns), None
                )
            except RowFailedError:
                states, results = _states(operator, keys, ran), None
                of_keys = KeyStates(keys, states, operator.new_state)
            if results is None:
                for key, number in keyed:
                    _process(
                        operator,
                        of_keys[keys.index(key)],
                        rows[number],
                        number,
                        times | latest,
                        ran,
                    )
            else:
                _add(results, [rows[number] for number in numbers], ran)
        ran.states |= {key: encode_state(state) for key, state in states.items()}
        ran.headers = None
        operator.end_keys(states, ran)
        _close(operator, ran, closed[end - 1], latest_of_sides[end - 1])
        first = end
    return ran


def _states(operator: Operator[Any], keys: Sequence[str], ran: Ran) -> dict[str, Any]:
    """The states of the keys that have one as of the batches so far."""
    decode = state_decoder(operator.state_type)
    return {key: decode(ran.states[key]) for key in keys if key in ran.states}


def _process(
    operator: Operator[Any],
    state: Any,
    given: Given,
    number: int,
    times: Mapping[str, Sequence[int]],
    ran: Ran,
) -> None:
    before, after, *latest = (times[name][number] for name in ("before", "after", "left", "right"))
    row = Row(given.key, _text(given), given.time, before, after, given.side, given.old)
    row.latest_of_sides, row.foreign = (latest[0], latest[1]), given.foreign
    row.headers = ran.headers = given.headers
    operator.process(state, row, ran)


def _text(given: Given) -> str | None:
    return None if given.value is None else json.dumps(given.value)


def _keyed_rows(
    rows: Sequence[Given],
    numbers: Sequence[int],
    keys: Sequence[str],
    times: Mapping[str, Sequence[int]],
) -> KeyedRows:
    chosen = [rows[number] for number in numbers]
    text = pa.string()
    columns = {
        "key": pa.array([each.key for each in chosen], text),
        "value": pa.array([_text(each) for each in chosen], text),
        "foreign": pa.array([each.foreign for each in chosen], text),
        "time": pa.array([each.time for each in chosen], pa.int64()),
        "side": pa.array([each.side for each in chosen], pa.int32()),
        "old": pa.array([each.old for each in chosen], pa.bool_()),
        "headers": pa.array([each.headers for each in chosen], text),
        "window_start": pa.array([NO_WINDOW] * len(chosen), pa.int64()),
        "window_end": pa.array([NO_WINDOW] * len(chosen), pa.int64()),
    }
    counts = Counter(each.key for each in chosen)
    starts = np.cumsum([0, *(counts[key] for key in keys)])
    return KeyedRows(
        keys,
        starts,
        columns,
        {name: np.array(all_times)[numbers] for name, all_times in times.items()},
    )


def _add(results: Results, rows: Sequence[Given], ran: Ran) -> None:
    assert (np.diff(results.rows) >= 0).all()
    keys = (
        [rows[row].key for row in results.rows.tolist()]
        if results.keys is None
        else results.keys.to_pylist()
    )
    olds = [False] * len(keys) if results.old is None else results.old.tolist()
    outputs = (
        [DEFAULT_OUTPUT] * len(keys) if results.outputs is None else results.outputs.to_pylist()
    )
    headers = [rows[row].headers for row in results.rows.tolist()]
    if results.headers is not None:
        headers = results.headers.to_pylist()
    values, times = results.values.to_pylist(), results.times.tolist()
    windows: list[Bounds | None] = [None] * len(keys)
    if results.windows is not None:
        bounds = zip(*(column.tolist() for column in results.windows), strict=True)
        windows = [None if start == NO_WINDOW else (start, end) for start, end in bounds]
    columns = zip(keys, values, times, windows, olds, outputs, headers, strict=True)
    for key, value, time, window, old, to, ran.headers in columns:
        ran.emit(key, value, time, window=window, old=old, to=to)
    ran.late += [rows[row].headers for row in results.late.tolist()]
    for reason, dropped in results.dropped.items():
        ran.count(reason, len(dropped))


def _look(join: StreamJoin, given: Given, stream_time: int) -> None:
    if given.time == stream_time and join.looks_after(given.side) < stream_time:
        join.look(stream_time)


def stream_times(
    operator: Operator[Any], rows: Sequence[Given], drops_null_values: bool
) -> tuple[list[int], list[int], list[int], list[tuple[int, int]]]:
    """The stream time before and with each row, and the time up to which all windows, or a join's sides, are closed."""
    times = np.array([given.time for given in rows], np.int64)
    keyed = np.array([given.key is not None for given in rows], bool)
    whole = keyed & np.array([given.value is not None for given in rows], bool)
    if not isinstance(operator, StreamJoin):
        before, after = advance(times, whole if drops_null_values else keyed, BEFORE_ALL)
        return (
            before.tolist(),
            after.tolist(),
            after.tolist(),
            [(BEFORE_ALL, BEFORE_ALL)] * len(rows),
        )
    before, after, closed = _advance_joint(
        times, np.ones(len(rows), bool), whole, BEFORE_ALL, BEFORE_ALL
    )
    is_left = np.array([given.side == LEFT for given in rows], bool)
    left, right = (
        advance(times, whole & side, BEFORE_ALL)[1].tolist() for side in (is_left, ~is_left)
    )
    return before.tolist(), after.tolist(), closed.tolist(), list(zip(left, right, strict=True))


def _advance_joint(
    times: Times,
    passed: Mask,
    complete: Mask,
    begin: int,
    closed: int,
) -> tuple[Times, Times, Times]:
    """The times before and after each row of two joined streams, which share a stream time.

    Every row that has `passed` advances stream time. The closed time, up to which unmatched records
    have been sent, advances only at rows that are `complete` (have a key and a value) and not out
    of order. Returns the closed time before each row, stream time after it, and the closed time
    after it.
    """
    after = after_each(times, passed, begin)
    before, closed_after = advance(times, complete & (times == after), closed)
    return before, after, closed_after


def _close(
    operator: Operator[Any], ran: Ran, closed: int, latest_of_sides: tuple[int, int]
) -> None:
    for key, kept in list(ran.states.items()):
        state = state_decoder(operator.state_type)(kept)
        due = operator.due(state)
        called = isinstance(operator, Suppress) and key in operator.sent_early
        if called or (due is not None and due <= closed):
            operator.close(state, key, closed, ran, latest_of_sides)
        if operator.is_empty(state):
            del ran.states[key]
        else:
            ran.states[key] = encode_state(state)
