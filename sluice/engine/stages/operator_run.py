"""Runs an operator for a batch: loads states of keys, passes rows in order, sends due results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import BEGIN, END, LAST, Position, has_origin
from sluice.engine.batch.stream_time import BEFORE_ALL, due_name, wall_name
from sluice.engine.stages.batch_states import BatchStates
from sluice.engine.stages.copied_rows import CopiedRows
from sluice.engine.stages.operator_rows import OperatorRows
from sluice.engine.stages.released_rows import released_rows
from sluice.engine.stages.releases import (
    ClockTime,
    DueKey,
    MomentOfTimeline,
    Releases,
    UnmatchedSearches,
)
from sluice.engine.stages.stage_output import Released, StageOperator, StageOutput
from sluice.engine.stages.timeline import Timeline
from sluice.operators.base import LEFT, Row
from sluice.operators.columns import (
    KeyedRows,
    KeyStates,
    ReleasedResults,
    RowFailedError,
    replaced_values,
)
from sluice.operators.encoding import encode_state, state_decoder
from sluice.operators.latest_value import LatestValue
from sluice.operators.operator import BatchOfOperator, WallTimer
from sluice.state.shard.operator_states import Replaced, State
from sluice.values.row_order import turn_of_timers
from sluice.values.windowed_keys import split_windowed_key

_NUMBER = "number"
"""The name of a column with the numbers of rows."""
_ROWS_UNCHECKED = 100
"""Each time that a task has processed this many rows, it checks whether it holds too many results
and must pass them on."""


class OperatorRun:
    """One operator in one batch, with the states of its keys."""

    def __init__(self, spec: StageOperator, stored: BatchStates, timeline: Timeline | None) -> None:
        self.spec = spec
        self.operator = spec.make()
        self.copied_rows = CopiedRows(spec.number, stored)
        self._process = self.operator.process
        self._processes_due = self.operator.processes_due
        self.timeline = timeline
        if timeline is None:
            self.closed = BEFORE_ALL
        else:
            self.closed = self._closed_time(timeline)
        self._stored = stored
        self.operator.begin_batch(self._batch_of_operator())
        self._decode = state_decoder(self.operator.state_type)
        self.states: dict[str, Any] = {}
        """The states of those loaded keys that have a state. Operators change the states in
        place."""
        self._loaded: set[str] = set()
        """The loaded keys. If a key has no state, a state is made when a row or a result first
        needs it."""
        self._versions: dict[str, Replaced] = {}
        """The versions of the states that were loaded. The shard stores only the states that have
        changed since then."""
        self._shared_version: Replaced | None = None
        self._entries_before: dict[str, Sequence[dict[str, tuple[Any, ...]]]] = {}
        """Key → the entries of a processor's stores before the batch."""
        self.changed: list[State] = []
        """The states of the finished keys, for the shard. A key is finished after its last row."""
        self._finished: set[str] = set()
        """The finished keys, if the operator has a stream time."""
        self._unscheduled: dict[str, None] = {}
        """The keys processed since the last call of `release`. Their due times may have changed."""
        self._load_shared()
        self._releasing = self.operator.releasing
        self.releases = self._create_releases()

    def _batch_of_operator(self) -> BatchOfOperator:
        plan, partitions = self.spec.plan, self._stored.before.partitions
        # A processor that uses the stream time of topics may get several rows of one record, or
        # none.
        fires_after_record = False
        latest_of_sides = BEFORE_ALL, BEFORE_ALL
        if self.timeline is not None:
            counts_every_record = any(edge.counts_every_record for edge in plan.edges)
            fires_after_record = bool(plan.timed_by_topics) or counts_every_record
            latest_of_sides = self.timeline.latest_of_sides
        return BatchOfOperator(
            now=self._stored.before.now,
            closed=self.closed,
            latest_of_sides=latest_of_sides,
            is_one_task=all(partitions[topic] == 1 for topic in plan.topics),
            fires_after_record=fires_after_record,
            only_last=self.spec.only_last,
            has_listeners=self.spec.has_listeners,
            read_table=self.copied_rows.read,
        )

    def _load_shared(self) -> None:
        """Load the state that all keys of the worker share."""
        empty = self.operator.shared
        if empty is None:
            stored = None
        else:
            stored = self._stored.shared(self.spec.number)
        if stored is not None:
            assert stored.data is not None
            self.operator.shared = msgspec.msgpack.decode(stored.data, type=type(empty))
            self._shared_version = stored.version

    def _closed_time(self, timeline: Timeline) -> int:
        """Return the stream time at which the operator drops state that can no longer change."""
        # As in Kafka Streams, the stream time of a record's own cogrouped stream decides whether
        # the record is late. So an aggregate must keep a window until all of the streams have
        # passed it. But a suppress step that is chained to the aggregate sends the window's result
        # according to the largest stream time.
        if self.spec.chained_to is None:
            return timeline.passed_by_all_sides
        return timeline.closed_after

    @property
    def timeline_of_rows(self) -> Timeline | None:
        """The timeline with the stream times of the operator's rows; None if the rows have them."""
        plan = self.spec.plan
        if plan.has_own_stream_time and not plan.is_timed_by_source:
            return self.timeline
        return None

    def _create_releases(self) -> Releases | None:
        """Return the results that the operator sends as stream time advances.

        Return None if it sends none.
        """
        releasing, timeline = self._releasing, self.timeline
        if releasing is None or timeline is None:
            return None
        if releasing.searches is not None:
            releases: Releases = UnmatchedSearches(timeline, releasing.searches)
        else:
            plan = self.spec.plan
            turn = b""
            if releasing.after_record:
                turn = turn_of_timers(plan.stage, plan.number)
            time: Timeline | ClockTime = timeline
            if releasing.by_clock:
                time = ClockTime(self._stored.before.now)
            releases = Releases(time, before_row=releasing.before_row, turn=turn)
        self._schedule_due(releases)
        return releases

    def _schedule_due(self, releases: Releases) -> None:
        """Schedule the results of earlier batches that are due in this batch."""
        due = self._due_until(releases.timeline.closed_after)
        self.load(due)
        for key in due:
            releases.schedule(key, self._release_due(key), BEGIN)

    @property
    def _number_of_states(self) -> int:
        """The number of the operator whose states tell when this operator's results are due."""
        return self.spec.number

    def _due_until(self, until: int) -> list[str]:
        """Return the keys with results that are due at `until`.

        `until` is a stream time, or a clock time for a table that expires by the clock.
        """
        if self._releasing is not None and self._releasing.by_clock:
            return self._stored.wall_due(self.spec.number, until)
        return self._stored.due(self._number_of_states, until)

    def _release_due(self, key: str) -> int | None:
        return self.operator.release_due(self.states[key])

    def release(self, output: StageOutput, position: Position, *, with_row: bool) -> None:
        """Send the results that are due before the row at `position`.

        If `with_row`, also send the results that become due with this row.
        """
        releases = self.releases
        assert releases is not None
        if self._unscheduled:
            for key in self._unscheduled:
                releases.schedule(key, self._release_due(key), position)
            self._unscheduled.clear()
        for key in self.operator.keys_sent_early():
            self._release_key(output, DueKey(position, BEFORE_ALL, key))
        if with_row and releases.before_row and position != END:
            return
        while (
            due_key := releases.next(position, inclusive=with_row or releases.before_row)
        ) is not None:
            self._release_key(output, due_key)
        self.operator.require_room()

    def _release_key(self, output: StageOutput, due_key: DueKey) -> None:
        assert self.releases is not None
        position, due, key = due_key
        # As in Kafka Streams, the results have the headers of the
        # record that has advanced stream time.
        output.operator = self.spec
        output.row = None
        output.headers = self.releases.timeline.headers.get(position)
        if has_origin(position[0]):
            turn = self.releases.turn
        else:
            turn = b""
        output.start_row(position, due, Released(due, key, self.releases.before_row, turn))
        self._send_due(key, due, position, output)
        self.releases.schedule(key, self._release_due(key), position)

    def _send_due(self, key: str, due: int, position: Position, output: StageOutput) -> None:
        """Send the results of a key that are due at `due`."""
        assert self.timeline is not None
        moment = MomentOfTimeline(self.timeline, position)
        self.operator.release(self.state(key), key, due, moment, output)

    def load(self, keys: Sequence[str]) -> None:
        """Load the states of the keys that are not loaded, in one read."""
        keys = [key for key in keys if key not in self._loaded]
        self._loaded.update(keys)
        if self.spec.has_states_in_store:
            self.states |= self._states_in_store(keys)
        else:
            self.states |= self._stored_states(keys)
        if self.spec.queryable_stores:
            for key in keys:
                # A processor replaces entries, and never changes them in place, so shallow copies
                # of the dictionaries still have the entries from before the batch.
                entries_of_key = self.operator.entries(self.state(key))
                self._entries_before[key] = [entries.copy() for entries in entries_of_key]

    def _stored_states(self, keys: Sequence[str]) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for key, stored in self._stored.read(self.spec.number, keys).items():
            self._versions[key] = stored.version
            if stored.data is not None:
                states[key] = self._decode(stored.data)
        return states

    def _states_in_store(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the states of a table's keys, made from the rows of its store.

        Empty if no result depends on these states.
        """
        if not self.spec.plan.sends_old_values:
            return {}
        values = self._stored.read_store(
            self.spec.number, keys, with_headers=self.spec.plan.keeps_headers
        )
        return {key: LatestValue(value) for key, value in values.items()}

    @property
    def is_independent(self) -> bool:
        """Return whether the results of a key depend on no other key.

        Otherwise, results wait for stream time, or depend on tables' rows, which have other keys.
        """
        return self.releases is None and not self.operator.reads_tables

    def process_by_key(self, rows: OperatorRows, output: StageOutput) -> Iterator[pa.RecordBatch]:
        """Process all rows of the batch key by key. Yields the results.

        Call this only for an operator that is `is_independent` and has no listeners. When a key's
        rows have been processed, its states and results are forgotten, to free their memory.
        """
        for keyed, part in rows.by_key():
            if keyed is None:
                yield from self._process_each(part, output)
                continue
            self.load(keyed.keys)
            left = self._process_columns(keyed, part, output)
            if left is not None:
                yield from self._process_each(left, output)
            if self.timeline is not None:
                self._finished.update(keyed.keys)
            self.finish_keys(output)
            yield from output.take()

    def process_columns(
        self, rows: OperatorRows, output: StageOutput, listeners: Sequence[OperatorRun]
    ) -> OperatorRows:
        """Process rows as columns, and pass their results to listeners.

        Returns the rows that must still be processed one by one.
        """
        is_left = np.zeros(len(rows), np.bool_)
        numbered = OperatorRows(
            {**rows.columns, _NUMBER: pa.array(np.arange(len(rows)))}, rows.stream_times
        )
        for keyed, part in numbered.by_key():
            left: OperatorRows | None = part
            if keyed is not None:
                for run in (self, *listeners):
                    run.load(keyed.keys)
                left = self._process_columns(keyed, part, output, listeners)
            if left is not None:
                is_left[left.columns[_NUMBER].to_numpy()] = True
        if is_left.all():
            return rows
        return rows.where(is_left)

    def _process_columns(
        self,
        keyed: KeyedRows,
        part: OperatorRows,
        output: StageOutput,
        listeners: Sequence[OperatorRun] = (),
    ) -> OperatorRows | None:
        """Process all rows at once if the operator can.

        Return rows that must still be processed one by one. `part` has the same rows as `keyed`.
        """
        states = KeyStates(keyed.keys, self.states, self.operator.new_state)
        try:
            results = self.operator.process_columns(states, keyed, self.timeline)
        except RowFailedError:
            self._forget_states(keyed.keys)
            self.load(keyed.keys)
            return part
        if results is None:
            return part
        emitted = output.add_columns(self.spec, results, keyed, part)
        if results.released is not None:
            self.add_released(results.released, output)
        if self.releases is not None:
            self._schedule_again(self.releases, keyed.keys)
        if emitted is not None:
            for listener in listeners:
                listener._process_results(emitted, output)
        if results.left_over is None:
            return None
        return part.part_where(results.left_over)

    def _process_results(self, emitted: pa.RecordBatch, output: StageOutput) -> None:
        """Process the results of another operator, which are sorted by key."""
        part = OperatorRows.of_results(emitted)
        left = self._process_columns(part.keyed(part.starts_of_keys()), part, output)
        assert left is None, f"{self.spec.plan.name} would have to process results one by one"

    def add_released(self, released: ReleasedResults, output: StageOutput) -> None:
        """Send the results of an operator that become due in this batch."""
        if not len(released.keys):
            return
        assert self.timeline is not None
        assert self._releasing is not None
        output.add_rows(
            released_rows(
                self.spec.number, self.timeline, released, before=self._releasing.before_row
            )
        )

    def _schedule_again(self, releases: Releases, keys: Sequence[str]) -> None:
        """Schedule the results of keys whose rows have been processed as columns."""
        for key in releases.scheduled(keys):
            releases.schedule(key, self._release_due(key), BEGIN)

    def _process_each(self, part: OperatorRows, output: StageOutput) -> Iterator[pa.RecordBatch]:
        """Process the rows one by one. Whenever there are many results, yields them."""
        old_row: Row | None = None
        replaced = self.replaced_rows(part)
        start_row, process = output.start_row, self.process
        for number, (position, row) in enumerate(part.rows()):
            start_row(position, row.after)
            # The old and the new value of a table's row in the same group are one update.
            if number in replaced:
                old_row = row
            elif old_row is not None:
                self.change(old_row, row, output)
                old_row = None
            else:
                process(row, output)
            # Checking `has_many_rows` after each row would take longer than it saves.
            if number % _ROWS_UNCHECKED == 0 and output.has_many_rows:
                yield from output.take()

    def replaced_rows(self, rows: OperatorRows) -> frozenset[int]:
        """Return the indices of a table's old values that the next row replaces in the same group.

        As in Kafka Streams, such a change is one update of the group. A change of group is two
        updates.
        """
        if not self.operator.takes_changes:
            return frozenset()
        # One record may change several rows of a group. `foreign`, the key of the changed row,
        # tells these changes apart.
        keys = rows.columns["key"]
        same_key = boolean_mask(pc.equal(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1)))
        replaced = replaced_values(rows.columns, boolean_mask(rows.columns["old"]))[:-1] & same_key
        return frozenset(np.flatnonzero(replaced).tolist())

    def load_copied_rows(self, rows: OperatorRows) -> None:
        """Load the rows of tables that change."""
        names: list[str] = []
        for side in rows.sides:
            if side != LEFT:
                names += [f"{side}:{key}" for key in rows.keys(side)]
        self.copied_rows.load(names)

    def process(self, row: Row, output: StageOutput) -> None:
        """Process one row.

        A result that becomes due with the row is sent by `release`, not here.
        """
        if self.operator.reads_tables and row.side != LEFT:
            if row.key is not None:
                self.copied_rows.put(row.side, row.key, row.value)
            return
        output.operator, output.row, output.headers = self.spec, row, row.headers
        key = row.key
        if self.releases is not None and key is not None:
            self._unscheduled[key] = None
        # The operator must not send due results itself, so it sees no advance of stream time. After
        # the row, `release` sends the due results of all keys.
        if self._processes_due:
            row.before = row.after = BEFORE_ALL
        state = self.states.get(key)  # type: ignore[arg-type]  # the key may be None
        if state is None:
            state = self.state(key)
        self._process(state, row, output)

    def change(self, old: Row, new: Row, output: StageOutput) -> None:
        """Process the old and the new value of a table's change as a unit."""
        output.operator, output.row, output.headers = self.spec, new, new.headers
        self.operator.change(self.state(new.key), old, new, output)

    def state(self, key: str | None) -> Any:
        """Return the state of a key; a new state if the key has none yet."""
        # A row without a key belongs to no state. The operator drops it, or sends it on.
        if key is None:
            return self.operator.new_state()
        if key not in self._loaded:
            self.load([key])
        if key not in self.states:
            self.states[key] = self.operator.new_state()
        return self.states[key]

    def expect_rows(self, keys: Iterable[str]) -> None:
        """Prepare for results of these keys, which the previous operator now sends one by one."""

    def send_before_close(self, output: StageOutput) -> None:
        """Send all due results of an operator that reads the previous operator's states.

        Called before the previous operator forgets its states.
        """

    def close(self, output: StageOutput) -> None:
        """End the batch: send due results, and finish the loaded keys and the keys that are due."""
        if self.releases is not None:
            self.release(output, END, with_row=True)
        if self.timeline is not None:
            self._load_due()
        self.finish_keys(output)

    def _load_due(self) -> None:
        """Load the keys that are not loaded yet and have a due timer or other state that is due."""
        due = self._stored.due(self.spec.number, self.closed)
        now, timer_before = self._stored.before.now, self._timer_before()
        if self.operator.has_wall_timers and (
            timer_before is None or BEFORE_ALL < timer_before <= now
        ):
            due = [*due, *self._stored.wall_due(self.spec.number, now)]
        self.load([key for key in dict.fromkeys(due) if key not in self._finished])

    def finish_keys(self, output: StageOutput) -> None:
        """Finish the loaded keys after their last row.

        This drops expired state, fires wall-clock timers, and collects states.
        """
        # Results at the end of the batch come from no record, so they have no headers.
        output.operator, output.row, output.headers = self.spec, None, None
        output.start_row((LAST, self.spec.number, b""), self.closed)
        self.operator.end_keys(self.states, output)
        if self.timeline is not None:
            self._drop_expired(self.timeline.latest_of_sides, output)
            if self.operator.has_wall_timers:
                self._fire_wall_clock_timers(output)
        self._put_store_changes(output)
        self.changed += self._states_to_store()
        self._forget_all_states()

    def _forget_states(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._loaded.discard(key)
            for of_keys in (self.states, self._versions, self._entries_before):
                of_keys.pop(key, None)

    def _forget_all_states(self) -> None:
        for of_keys in (self.states, self._loaded, self._versions, self._entries_before):
            of_keys.clear()

    def _drop_expired(self, latest_of_sides: tuple[int, int], output: StageOutput) -> None:
        operator, closed = self.operator, self.closed
        for key, state in self.states.items():
            due = operator.due(state)
            if due is not None and due <= closed:
                operator.close(state, key, closed, output, latest_of_sides)

    def _fire_wall_clock_timers(self, output: StageOutput) -> None:
        operator = self.operator
        now, position, closed = self._stored.before.now, output.position, self.closed

        def start_timer(key: str, timer: WallTimer, cause: int) -> None:
            released = Released(
                timer.time,
                key,
                before_row=False,
                timer=timer.name,
                cause=cause,
            )
            output.start_row(position, closed, released)

        for key, state in self.states.items():
            due = operator.wall_due(state)
            if due is not None and due <= now:
                output.operator = self.spec
                operator.tick(state, key, now, closed, output, start_timer)

    def _timer_before(self) -> int | None:
        """Return when the worker's earliest wall-clock timer is due, as known before the batch.

        Return -1 if there is no timer, and None if this is unknown.
        """
        return self._stored.before.timer_due(self.spec.plan.name, self._stored.worker)

    def timer_after(self) -> dict[str, int]:
        """Return `wall_name` → the time at which the worker's earliest wall-clock timer is due.

        The result is empty if the worker had no such timer before the batch, and the batch has set
        none.
        """
        if not self._waits_for_clock:
            return {}
        has_none = self._timer_before() == BEFORE_ALL
        if has_none and all(state.wall is None for state in self.changed):
            return {}
        name = wall_name(self.spec.plan.name, self._stored.worker)
        return {name: self._stored.earliest_timer(self.spec.number)}

    def result_after(self) -> dict[str, int]:
        """Return `due_name` → the time at which the worker's earliest held-back result is due."""
        if (
            self.timeline is None
            or not self._stored.before.goes_on_when_idle
            or not self._waits_for_time
        ):
            return {}
        name = due_name(self.spec.plan.name, self._stored.worker)
        after = self.timeline.closed_after
        sent_until = self.operator.sent_until(after)
        return {name: self._stored.earliest_result(self._number_of_states, sent_until)}

    @property
    def _waits_for_time(self) -> bool:
        """Whether results of the operator may wait for stream time."""
        return self._releasing is not None and not self._releasing.by_clock

    @property
    def _waits_for_clock(self) -> bool:
        """Whether results of the operator may wait for the wall clock."""
        is_released = self._releasing is not None and self._releasing.by_clock
        return is_released or self.operator.has_wall_timers

    def _put_store_changes(self, output: StageOutput) -> None:
        """Add the changes of a processor's queryable stores."""
        if not self.spec.queryable_stores:
            return
        entries_after = [*map(self.operator.entries, self.states.values())]
        entries_before = [self._entries_before[key] for key in self.states]
        for number, group_id in enumerate(self.spec.queryable_stores):
            entries_of_store = itemgetter(number)
            before = self.operator.rows_of_entries(number, [*map(entries_of_store, entries_before)])
            after = self.operator.rows_of_entries(number, [*map(entries_of_store, entries_after)])
            keys: list[str] = []
            values: list[str | None] = []
            for key, text_before, text in zip(self.states, before, after, strict=True):
                if text != text_before:
                    keys.append(key)
                    values.append(text)
            if keys and self.spec.plan.by_window:
                plain_keys, windows = zip(*map(split_windowed_key, keys), strict=True)
                output.put_state_rows(group_id, plain_keys, values, windows)
            elif keys:
                output.put_state_rows(group_id, keys, values)

    def _states_to_store(self) -> Iterator[State]:
        """Yield the states of the loaded keys, and tombstones for states that have become empty."""
        if self.spec.has_states_in_store:
            return
        operator, number = self.operator, self.spec.number
        waits_for_clock = self._waits_for_clock
        for key, state in self.states.items():
            replaced = self._versions.get(key)
            if not operator.is_empty(state):
                wall = None
                if waits_for_clock:
                    wall = operator.wall_due(state)
                yield State(
                    number, key, encode_state(state), operator.due(state), wall, replaces=replaced
                )
            elif replaced is not None:
                # Without this tombstone, a later batch would find the state of an earlier batch.
                yield State(number, key, None, replaces=replaced)

    def shared_states(self) -> Iterator[State]:
        """Yield the states that belong to no key: tables' copied rows, and shared state."""
        yield from self.copied_rows.states_to_store()
        if (shared := self.operator.shared) is not None:
            yield State(
                self.spec.number,
                "",
                encode_state(shared),
                shared=True,
                replaces=self._shared_version,
            )
