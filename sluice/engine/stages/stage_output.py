"""Collects a stage's results, each with the position of the row or the timer that caused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.record_outcomes import PASSED_OVER, Outcome, PassedOver
from sluice.engine.batch.rejections import (
    Rejected,
    describe_error,
    run_ending_error,
    step_error,
    subject_of,
)
from sluice.engine.batch.row_schemas import (
    LAST,
    OFFSET_BITS,
    REJECTED,
    SCHEMA,
    SORT_KEY,
    Position,
    has_origin,
    partition_of,
    position_keys,
    ranks,
    rows,
)
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.stages.operator_rows import OperatorRows
from sluice.engine.stages.result_paths import result_paths
from sluice.operators.base import DEFAULT_OUTPUT, Row, rejects_record
from sluice.operators.columns import KeyedRows, Results
from sluice.operators.operator import Operator
from sluice.plan import PlannedOperator
from sluice.plan import operator_parameters as plan
from sluice.state.model import NO_WINDOW
from sluice.support.arrays import Indices
from sluice.values import row_order
from sluice.values.row_order import hash_of
from sluice.values.windows import Bounds


@dataclass(frozen=True)
class StageOperator:
    """An operator of a stage. `make` creates it on the executor."""

    plan: PlannedOperator
    make: Callable[[], Operator[Any]]
    only_last: bool = False
    """Whether only the last result of each key and window in a batch matters."""
    has_listeners: bool = False
    """Whether another operator of the stage gets the results directly."""

    @cached_property
    def number(self) -> int:
        return self.plan.number

    @property
    def late_sink(self) -> int | None:
        """The number of the sink for records that are late for every window, if any."""
        if self.plan.late is None:
            return None
        return self.plan.late.number

    @property
    def chained_to(self) -> int | None:
        """The operator of this stage that passes its results directly to this operator, if any."""
        return self.plan.chained_to

    @cached_property
    def rekeys_results(self) -> bool:
        """Whether results have another key than their row, as in a foreign-key join."""
        action = self.plan.action
        return isinstance(action, plan.TableJoinParameters) and action.kind == "foreign-key"

    @cached_property
    def has_states_in_store(self) -> bool:
        """Whether the operator is a table whose states are the rows of its store.

        A windowed table has separate states, because the store forgets windows after the retention.
        """
        return (
            self.plan.action == plan.LatestParameters()
            and self.plan.store is not None
            and not self.plan.by_window
        )

    @cached_property
    def queryable_stores(self) -> tuple[int, ...]:
        """The group numbers of a processor's stores that can be queried."""
        groups: list[int] = []
        for store in self.plan.stores.values():
            if store.group_id is not None:
                groups.append(store.group_id)
        return tuple(groups)


class Released(NamedTuple):
    """The cause of results that are sent because stream time or the wall clock has advanced."""

    due: int
    """The time at which the results were due."""
    key: str
    before_row: bool
    """Whether the results sort before the results of the row that advances stream time."""
    turn: bytes = b""
    """See `row_order.release_path`."""
    timer: str = ""
    """The name of the wall-clock timer that sends the results; empty if stream time sends them."""
    cause: int = 0
    """The number of the record or timer that set this timer. It distinguishes timers with the same
    name and time."""


class Listener(Protocol):
    """An operator that gets another operator's results directly."""

    def process(self, row: Row, output: StageOutput) -> None: ...


@dataclass
class StageOutput:
    """The results of a stage's operators. A result has the position of the row that caused it."""

    counts: Counter[str] = field(default_factory=Counter)
    results: Counter[int] = field(default_factory=Counter)
    """Operator → the number of its results that were taken so far, without old values."""
    by_partition: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    """Source and partition → the counts of its records."""
    operator: StageOperator | None = None
    position: Position = (LAST, 0, b"")
    stream_time: int = BEFORE_ALL
    """Stream time after the current row."""
    listeners: Mapping[int, Sequence[Listener]] = field(default_factory=dict)
    """Operator → the operators that get its results directly."""
    only_stored: frozenset[int] = frozenset()
    """The operators for which only a key's last result matters."""
    row: Row | None = None
    """The current row."""
    headers: str | None = None
    """The headers of the next results, as JSON."""
    released: Released | None = None
    """The cause of the current results if they are sent because time has advanced; None while a row
    is processed."""
    _results: int = 0
    """Number of results of the current row."""
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows, as tuples of the values of `_COLUMNS`."""
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    """Batches of rows that were made as columns."""
    _held: list[tuple[Any, ...]] | None = None
    """Results since `hold`. Listeners get them when `release` is called."""
    _rows_before_hold: int = 0
    passed_over: PassedOver = field(default_factory=PassedOver)
    """The outcomes of rows that operators have not used."""
    _passed_over: list[tuple[int, int, bytes, int, Outcome]] = field(default_factory=list)
    """For each row that an operator has not used since `settle`: operator, origin, path, side, and
    outcome."""

    @property
    def cause(self) -> int:
        """A number that identifies the record or timer that caused the current row.

        Does not depend on the batch.
        """
        sequence, origin, path = self.position
        if self.released is None and has_origin(sequence):
            return origin
        return hash_of(repr((path, self.released)).encode())

    @property
    def has_many_rows(self) -> bool:
        """Whether to take the results before all rows are processed, because there are many.

        False if only a key's last result matters, because it is known only after all rows.
        """
        return len(self._rows) > _MANY_ROWS and not self.only_stored

    def start_row(
        self,
        position: Position,
        stream_time: int,
        released: Released | None = None,
    ) -> None:
        """Start the results of the next row, or of a key whose results are due (`released`)."""
        self.position = position
        self.stream_time = stream_time
        self.released = released
        self._results = 0

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
        self._append(self.operator.number, key, value, time, window, old, to, rank, emitted=True)
        if self.listeners:
            self._pass_to_listeners(key, value, time, window, old)

    def _pass_to_listeners(
        self,
        key: str | None,
        value: str | None,
        time: int,
        window: Bounds | None,
        old: bool,
    ) -> None:
        # As in Kafka Streams, listeners process a result and send their own results
        # before the operator's next result.
        operator, headers = self.operator, self.headers
        assert operator is not None
        for listener in self.listeners.get(operator.number, ()):
            row = Row(
                key,
                value,
                time,
                BEFORE_ALL,
                BEFORE_ALL,
                old=old,
                window=window,
                headers=headers,
            )
            listener.process(row, self)
            # The listener has set the operator and the headers for its own results, so restore
            # them.
            self.operator, self.headers = operator, headers

    def _append(
        self,
        target: int,
        key: str | None,
        value: str | None,
        time: int,
        window: Bounds | None,
        old: bool = False,
        to: str | None = None,
        rank: int | None = None,
        *,
        emitted: bool,
    ) -> None:
        """Add a row at the current position.

        If an operator has `emitted` the row as its result, `target` is the number of this operator.
        For any other row, `target` is the number of a sink or of a store's group, or REJECTED.
        """
        assert self.operator is not None
        sequence, origin, cause_path = self.position
        if self.released is not None:
            cause_path = self._release_path(self.released, rank)
        # Kafka Streams sends the results of a foreign-key join back through a topic. So they come
        # after the other results of the same record.
        if self.operator.rekeys_results:
            cause_path = row_order.after_rekeying(cause_path)
        start, end = window or _NO_BOUNDS
        # A row is a plain tuple of the values of `_COLUMNS`. A NamedTuple would take 0.5 µs more
        # per result, in addition to 0.7 µs.
        self._rows.append(
            (
                target,
                emitted,
                old,
                to,
                key,
                value,
                self.headers,
                time,
                start,
                end,
                sequence,
                origin,
                cause_path,
                self._results,
            )
        )
        self._results += 1

    def _release_path(self, released: Released, rank: int | None) -> bytes:
        """Return the path of results that are sent because time has advanced.

        If given, `rank` replaces the time at which the results were due.
        """
        assert self.operator is not None
        sequence, _, row_path = self.position
        if rank is None:
            rank = released.due
        path = row_order.release_path(
            row_path, rank, released.key, before=released.before_row, turn=released.turn
        )
        if has_origin(sequence):
            return path
        # No record causes a result at the end of a batch. Such a result is identified by the
        # operator, the timer, and the number of the record or timer that set the timer.
        return row_order.event_path(path, self.operator.plan.name, released.timer, released.cause)

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add a batch of results that were made as columns.

        The columns include the results' positions.
        """
        self._batches.append(batch)

    def put_state_rows(
        self,
        group_id: int,
        keys: Sequence[str],
        values: Sequence[str | None],
        windows: Sequence[Bounds] | None = None,
    ) -> None:
        """Add changes to the state rows of different keys, at the current position.

        `windows` are the keys' windows.
        """
        columns = {
            "target": group_id,
            "key": pa.array(keys, pa.string()),
            "value": pa.array(values, pa.string()),
            "time": self.stream_time,
            "before": BEFORE_ALL,
            "after": BEFORE_ALL,
        }
        if windows is not None:
            starts, ends = zip(*windows, strict=True)
            columns |= {
                "window_start": pa.array(starts, pa.int64()),
                "window_end": pa.array(ends, pa.int64()),
            }
        self._batches.append(
            rows(len(keys), columns | dict(zip(SORT_KEY, self.position, strict=True)))
        )

    def hold(self) -> None:
        self._rows_before_hold = len(self._rows)
        # `reject` can remove results from the rows, but not from listeners. So listeners get the
        # results only when `release` is called.
        if self.listeners and self.operator is not None and self.operator.number in self.listeners:
            self._held = []

    def release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            for key, value, time, window, old, to, rank in held:
                self.emit(key, value, time, window=window, old=old, to=to, rank=rank)

    def reject(
        self,
        error: BaseException,
        key: str | None,
        value: str | None,
        time: int,
        timer: str = "",
        window: Bounds | None = None,
    ) -> None:
        assert self.operator is not None
        # A rejected row has no results, not even results that were sent before the row failed.
        del self._rows[self._rows_before_hold :]
        self._held = None
        if not rejects_record(error):
            raise run_ending_error(
                str(self.operator.plan.step),
                error,
                subject_of(key, timer),
            ) from error
        detail = describe_error(error)
        if self.operator.plan.step.on_error == "fail":
            raise step_error(str(self.operator.plan.step), key, detail, timer) from error
        rejected = Rejected(self.operator.number, detail, value, timer or None)
        if not timer and self.row is not None:
            window = self.row.window
            outcome = Outcome.REJECTED
            if self.operator.plan.step.on_error == "skip":
                outcome = Outcome.SKIPPED
            self._pass_over(outcome)
        self._append(
            REJECTED,
            key,
            msgspec.json.encode(rejected).decode(),
            time,
            window,
            emitted=False,
        )

    def count(self, reason: str, number: int = 1) -> None:
        assert self.operator is not None
        name = f"{reason}/{self.operator.plan.name}"
        self.counts[name] += number
        sequence, origin, _ = self.position
        if has_origin(sequence):
            self.by_partition.setdefault(partition_of(origin), Counter())[name] += number
        if reason in PASSED_OVER:
            self._pass_over(PASSED_OVER[reason])

    def _pass_over(self, outcome: Outcome) -> None:
        """Note that the current row has no effect, because the operator does not use it."""
        sequence, origin, path = self.position
        if self.released is not None or not has_origin(sequence):
            return
        assert self.operator is not None
        if self.row is not None:
            noted = self.operator.number, origin, path, self.row.side, outcome
            self._passed_over.append(noted)

    def settle(self, operator: StageOperator, rows: OperatorRows) -> None:
        """Determine the outcomes of the records whose rows the operator has not used.

        `rows` are the rows that the operator has processed one by one.
        """
        noted, self._passed_over = self._passed_over, []
        outcomes: dict[tuple[int, bytes, int], Outcome] = {}
        for target, origin, path, side, outcome in noted:
            # Skip chained operators: their rows are results, so the records have had an effect.
            if target == operator.number:
                outcomes.setdefault((origin, path, side), outcome)
        if not outcomes:
            return
        origins = [origin for origin, _, _ in outcomes]
        indices = np.flatnonzero(np.isin(np.asarray(rows.columns["origin"]), origins))
        of_rows: list[list[Any]] = []
        for name in ("origin", "path", "side", "undecided"):
            of_rows.append(rows.values_at(name, indices).to_pylist())
        decided: list[tuple[int, int, int]] = []
        for origin, path, side, undecided in zip(*of_rows, strict=True):
            passed_over = outcomes.get((origin, path, side))
            if undecided and passed_over is not None:
                decided.append((origin, undecided, passed_over))
        if decided:
            self.passed_over.add(*np.array(decided, np.int64).T)

    def send_late(self) -> None:
        self._pass_over(Outcome.LATE)
        assert self.operator is not None
        if self.operator.late_sink is not None and self.row is not None:
            row = self.row
            self._append(
                self.operator.late_sink,
                row.key,
                row.foreign,
                row.time,
                None,
                emitted=False,
            )

    def add_columns(
        self, operator: StageOperator, results: Results, keyed: KeyedRows, rows_of: OperatorRows
    ) -> pa.RecordBatch | None:
        """Add the results that an operator has computed as columns, and return them as rows.

        `rows_of` has the same rows as `keyed`. Returns None if there are no results.
        """
        self._note_dropped_and_late(operator, results, rows_of)
        if not len(results.rows):
            return None
        chosen = np.arange(len(results.rows))
        # If results have their rows' keys, the last result of a key is the result of its last row.
        if operator.number in self.only_stored and results.keys is None and results.windows is None:
            chosen = np.flatnonzero(np.diff(keyed.key_numbers[results.rows], append=-1))
        batch = rows(len(chosen), _result_columns(operator, results, rows_of, chosen))
        self._batches.append(batch)
        return batch

    def _note_dropped_and_late(
        self, operator: StageOperator, results: Results, rows_of: OperatorRows
    ) -> None:
        for reason, dropped in results.dropped.items():
            self._count_rows(f"{reason}/{operator.plan.name}", rows_of.values_at("origin", dropped))
            if reason in PASSED_OVER:
                self._pass_over_rows(rows_of, dropped, PASSED_OVER[reason])
        self._pass_over_rows(rows_of, results.late, Outcome.LATE)
        if operator.late_sink is not None and len(results.late):
            self._send_late_rows(operator.late_sink, rows_of, results.late)

    def _pass_over_rows(self, rows_of: OperatorRows, indices: Indices, outcome: Outcome) -> None:
        if len(indices):
            origins = np.asarray(rows_of.values_at("origin", indices))
            undecided = pc.fill_null(rows_of.values_at("undecided", indices), 0)
            outcomes = np.full(len(indices), outcome)
            self.passed_over.add(origins, np.asarray(undecided, np.int64), outcomes)

    def _send_late_rows(self, sink: int, rows_of: OperatorRows, late: Indices) -> None:
        """Send the original values of rows to the topic for late records."""
        columns: dict[str, pa.Array] = {}
        for name in ("key", "time", "headers", "sequence", "origin"):
            columns[name] = rows_of.values_at(name, late)
        columns["value"] = rows_of.values_at("foreign", late)
        columns["path"] = result_paths(
            rows_of.values_at("path", late), np.zeros(len(late), np.intp)
        )
        self._batches.append(
            rows(len(late), columns | {"target": sink, "before": BEFORE_ALL, "after": BEFORE_ALL})
        )

    def _count_rows(self, name: str, origins: pa.Array) -> None:
        if not len(origins):
            return
        self.counts[name] += len(origins)
        for origin, number in zip(
            *np.unique(np.asarray(origins) >> OFFSET_BITS, return_counts=True), strict=True
        ):
            part = partition_of(int(origin) << OFFSET_BITS)
            self.by_partition.setdefault(part, Counter())[name] += int(number)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all results so far, as Arrow batches.

        If an operator's results go only to a store, only the last result for each row of the store
        is included.
        """
        batches, self._batches = self._batches, []
        for batch in batches:
            self._count_results(batch)
            # Later tasks copy the rows several times, so pass only few rows at once.
            for begin in range(0, batch.num_rows, _MANY_ROWS):
                yield batch.slice(begin, _MANY_ROWS)
        if self._rows:
            taken, self._rows = self._rows, []
            batch = self._batch(taken)
            if self.only_stored:
                batch = self._without_replaced(batch)
            self._count_results(batch)
            yield batch

    def _count_results(self, batch: pa.RecordBatch) -> None:
        is_result = pc.and_(batch.column("emitted"), pc.invert(batch.column("old")))
        for counted in pc.value_counts(batch.column("target").filter(is_result)).to_pylist():
            self.results[counted["values"]] += counted["counts"]

    def _batch(self, taken: list[tuple[Any, ...]]) -> pa.RecordBatch:
        count = len(taken)
        columns = dict(zip(_COLUMNS, zip(*taken, strict=True), strict=True))
        del taken
        arrays: dict[str, pa.Array | int] = {"before": BEFORE_ALL, "after": BEFORE_ALL}
        for name in _COLUMNS:
            if name != _NUMBER:
                arrays[name] = pa.array(columns.pop(name), SCHEMA.field(name).type)
        arrays["path"] = result_paths(arrays["path"], np.array(columns[_NUMBER], np.intp))
        return rows(count, arrays)

    def _without_replaced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows, without results that a later result of their key replaces in a store."""
        of_stores = pc.is_in(batch.column("target"), pa.array(self.only_stored, pa.int32()))
        is_kept = boolean_mask(pc.invert(pc.and_(batch.column("emitted"), of_stores)))
        stored = np.flatnonzero(~is_kept)
        table = pa.Table.from_batches([batch]).take(pa.array(stored))
        state_row: list[Indices] = []
        for name in ("window_end", "window_start", "key", "target"):
            state_row.append(ranks(table.column(name)))
        order = np.lexsort([*position_keys(table), *state_row])
        differs = np.zeros(len(order), bool)
        for numbers in state_row:
            differs |= np.diff(numbers[order], append=-1) != 0
        is_kept[stored[order[differs]]] = True
        return batch.filter(pa.array(is_kept))


_MANY_ROWS = 50_000
_NO_BOUNDS = NO_WINDOW, NO_WINDOW
_NUMBER = "number"
"""The name of the column that numbers the results of the same cause."""
_COLUMNS = (
    "target", "emitted", "old", "output", "key", "value", "headers", "time", "window_start",
    "window_end", *SORT_KEY, _NUMBER,
)  # fmt: skip


def _result_columns(
    operator: StageOperator, results: Results, rows_of: OperatorRows, chosen: Indices
) -> dict[str, pa.Array | int | bool | str]:
    """Return the columns of the chosen results, with the positions of the rows that caused them."""
    causes, taken = results.rows[chosen], pa.array(chosen)
    numbers = _numbers_within(results.rows)[chosen]
    columns: dict[str, pa.Array | int | bool | str] = {
        "target": operator.number,
        "emitted": True,
        "old": False,
        "output": DEFAULT_OUTPUT,
        "value": results.values.take(taken),
        "time": pa.array(results.times[chosen]),
        "path": result_paths(
            rows_of.values_at("path", causes), numbers, rekeyed=operator.rekeys_results
        ),
        "before": BEFORE_ALL,
        "after": BEFORE_ALL,
    }
    if results.keys is None:
        columns["key"] = rows_of.values_at("key", causes)
    else:
        columns["key"] = results.keys.take(taken)
    for name in ("headers", "sequence", "origin"):
        columns[name] = rows_of.values_at(name, causes)
    if results.old is not None:
        columns["old"] = pa.array(results.old[chosen])
    if results.outputs is not None:
        columns["output"] = results.outputs.take(taken)
    if results.headers is not None:
        columns["headers"] = results.headers.take(taken)
    if results.windows is not None:
        starts, ends = results.windows
        columns["window_start"] = pa.array(starts[chosen])
        columns["window_end"] = pa.array(ends[chosen])
    return columns


def _numbers_within(causes: Indices) -> Indices:
    """Return numbers from 0 for the results of each cause, which follow each other."""
    indices = np.arange(len(causes))
    is_first = np.diff(causes, prepend=-1) != 0
    return indices - np.maximum.accumulate(np.where(is_first, indices, 0))
