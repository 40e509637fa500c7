"""An operator's stream time at every position of a batch.

An *advance* is a row that may advance the operator's stream time, as the tasks that made the rows
have reported it (see `advances.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import BEGIN, END, SORT_KEY, Position, position_keys
from sluice.engine.batch.side_outputs import open_table
from sluice.engine.batch.stream_time import (
    BEFORE_ALL,
    CLOSED,
    Mask,
    StreamTimes,
    Times,
    advance_joint,
    after_each,
)
from sluice.engine.stages.advances import ADVANCES, in_position_order, partition_numbers
from sluice.operators.base import LEFT, RIGHT
from sluice.operators.joins.unmatched import NEVER
from sluice.plan import PlannedOperator
from sluice.values.row_order import END_OF_RECORD, START

_Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Clock:
    """A stream time of a partition: before the batch, and after each row that may advance it."""

    before: int
    after_each: Times

    def after(self, counts: _Indices) -> Times:
        """For each number in `counts`, the stream time after so many of the rows that may advance it."""
        return np.concatenate(([self.before], self.after_each))[counts]

    @property
    def last(self) -> int:
        return int(self.after_each[-1]) if len(self.after_each) else self.before


@dataclass(frozen=True)
class _PartitionClocks:
    """The stream times of one partition number, across co-partitioned topics.

    A join of two streams has four different clocks, and a join with a versioned table has three.
    Any other operator has a single clock, under all four names.
    """

    all_rows: _Clock
    closed: _Clock
    """The time up to which windows are closed, and records are sent unmatched."""
    left: _Clock
    right: _Clock
    of_sides: Mapping[int, _Clock] = field(default_factory=dict)
    """The clocks of the sides that have a clock of their own (`PlannedOperator.timed_sides`)."""


_SUFFIXES = {"all_rows": ".any", "closed": "", "left": ".0", "right": ".1"}
"""Clock → the suffix of its name among the stored stream times."""


class Timeline:
    """An operator's stream time at every position of a batch.

    Partitions of several topics with the same number share a stream time. The closed time, up to which all windows are
    closed, is the smallest stream time of all partition numbers that are not idle.
    """

    def __init__(
        self,
        operator: PlannedOperator,
        reports: Iterable[bytes],
        before: StreamTimes,
    ) -> None:
        self._operator = operator
        self._before = before
        tables = [open_table(pa.py_buffer(report)).read_all() for report in reports]
        self._table = in_position_order(pa.concat_tables([*tables, ADVANCES.empty_table()]))
        self._times = self._table.column("time").to_numpy()
        self._numbers = partition_numbers(self._table)
        self._sequences, self._origins = (self._table.column(name).to_numpy() for name in SORT_KEY[:2])
        self._paths = self._table.column("path")
        sides = self._table.column("side").to_numpy()
        complete = boolean_mask(self._table.column("complete"))
        closed_so_far = before.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
        self.closed_before = max(closed_so_far, before.closed(operator.clock, operator.topics))
        """The closed time before the batch. It never decreases, even if an idle partition has records again."""
        self._closing_positions: dict[int, Position] = {}
        """Time → the position at which the closed time reaches it. Many results are due at the same time."""
        self._partitions: dict[int, _PartitionClocks] = {}
        self._active: list[_PartitionClocks] = []
        """The partitions that windows wait for."""
        for number in range(max(before.partitions[topic] for topic in operator.topics)):
            clocks = self._partitions[number] = self._clocks(number, sides, complete)
            if self._has_advances(number) or not before.is_idle(operator.topics, number):
                self._active.append(clocks)
        closed = self._closed_after_each()
        before_each = np.concatenate(([self.closed_before], closed[:-1])) if len(closed) else closed
        self._closings = np.flatnonzero(closed > before_each)
        """The advances that increase the closed time."""
        self._closed = closed[self._closings]
        """The closed time after each advance in `_closings`."""
        self.closed_after = int(closed[-1]) if len(closed) else self.closed_before
        self.searches = self._searches(sides, complete) if operator.is_stream_join else ()
        """For each side of a join, the advances at which the join may search for unmatched records of this side, and
        the stream time of each advance."""

    @property
    def went_on_when_idle(self) -> bool:
        """Whether the batch has no records, and the operator's stream time has gone on."""
        return self._before.went_on_when_idle(self._operator.clock)

    def _has_advances(self, number: int) -> bool:
        return bool((self._numbers == number).any())

    def _closed_after_each(self) -> Times:
        """The closed time after each advance: the smallest closed time of the active partitions."""
        of_partitions = [clocks.closed.after_each for clocks in self._active]
        closed = np.full(len(self._times), BEFORE_ALL)
        if of_partitions:
            closed = np.minimum.reduce(of_partitions)
        not_decreasing: Times = np.maximum(closed, self.closed_before)
        return not_decreasing

    def _clocks(self, number: int, sides: npt.NDArray[np.int8], complete: Mask) -> _PartitionClocks:
        """The clocks of the partitions with this number."""
        times, of_number = self._times, self._numbers == number
        before = {name: self._stored_time(suffix, number) for name, suffix in _SUFFIXES.items()}
        # While a partition was idle, the closed time may have passed the partition's stream time.
        before["closed"] = max(before["closed"], self.closed_before)
        if not self._operator.is_stream_join:
            clock = _Clock(before["closed"], after_each(times, of_number, before["closed"]))
            of_sides: dict[int, _Clock] = {}
            for side in self._operator.timed_sides:
                before_side = self._stored_time(f".{side}", number)
                after_side = after_each(times, of_number & (sides == side), before_side)
                of_sides[side] = _Clock(before_side, after_side)
            if self._operator.joins_versions:
                # In a join with a versioned table, the stream's records wait for the stream time of
                # their own stream, not of the table.
                of_stream, of_table = of_sides[LEFT], of_sides[RIGHT]
                passed = np.maximum(of_stream.after_each, before["closed"])
                waits_for = _Clock(before["closed"], passed)
                return _PartitionClocks(waits_for, waits_for, of_stream, of_table, of_sides)
            return _PartitionClocks(clock, clock, clock, clock, of_sides)
        counted = of_number & complete
        _, all_rows, closed = advance_joint(
            times,
            of_number,
            counted,
            before["all_rows"],
            before["closed"],
        )
        left = after_each(times, counted & (sides == LEFT), before["left"])
        right = after_each(times, counted & (sides == RIGHT), before["right"])
        after = {"all_rows": all_rows, "closed": closed, "left": left, "right": right}
        made = {name: _Clock(before[name], after[name]) for name in _SUFFIXES}
        return _PartitionClocks(made["all_rows"], made["closed"], made["left"], made["right"])

    def _stored_time(self, suffix: str, number: int) -> int:
        """The stream time before the batch, of all topics' partitions with this number."""
        operator = self._operator
        return max(self._before.of(f"{operator.clock}{suffix}", topic, number) for topic in operator.topics)

    def _searches(
        self,
        sides: npt.NDArray[np.int8],
        complete: Mask,
    ) -> tuple[tuple[_Indices, Times], ...]:
        # Kafka Streams searches for unmatched records only when it processes a record that is not
        # out of order.
        is_in_order = complete & (self._times == self._partitions[0].all_rows.after_each)
        indices = [np.flatnonzero(is_in_order & (sides == side)) for side in (LEFT, RIGHT)]
        return tuple((of_side, self._times[of_side]) for of_side in indices)

    @property
    def after(self) -> dict[str, int]:
        """The stream times that the batch has advanced, by name."""
        operator, times = self._operator, {}
        names = _SUFFIXES if operator.is_stream_join else ["closed"]
        for number, clocks in self._partitions.items():
            if not self._has_advances(number):
                continue
            # Co-partitioned topics share the time, so it is stored once, under the first topic with
            # this partition.
            topic = next(topic for topic in operator.topics if self._before.partitions[topic] > number)
            for name in names:
                clock: _Clock = getattr(clocks, name)
                times[f"{operator.clock}{_SUFFIXES[name]}/{topic}/{number}"] = clock.last
            for side, clock in clocks.of_sides.items():
                times[f"{operator.clock}.{side}/{topic}/{number}"] = clock.last
        return times

    @property
    def passed_by_all_sides(self) -> int:
        """The stream time that every side has reached in every partition that is not idle.

        If the operator's sides have no stream times of their own, this is the closed time.
        """
        if not self._operator.timed_sides or self._operator.joins_versions:
            return self.closed_after
        last: list[int] = []
        for clocks in self._active:
            last += [clock.last for clock in clocks.of_sides.values()]
        return min(last, default=BEFORE_ALL)

    @property
    def latest_of_sides(self) -> tuple[int, int]:
        """The stream times that both sides of a join have reached after the batch in every partition.

        The smallest time counts, because a side may lag behind in one partition, and that partition's later records can
        still match earlier records. Idle partitions, and partitions without any record of a side, are ignored.
        """
        left = [clocks.left.last for clocks in self._active if clocks.left.last != BEFORE_ALL]
        right = [clocks.right.last for clocks in self._active if clocks.right.last != BEFORE_ALL]
        return min(left, default=BEFORE_ALL), min(right, default=BEFORE_ALL)

    def latest_of_sides_at(self, position: Position) -> tuple[int, int]:
        """Like `latest_of_sides`, but up to and including a position of this batch."""
        count = np.array([bisect_right(range(len(self._times)), position, key=self.position)])
        left = [int(clocks.left.after(count)[0]) for clocks in self._active]
        right = [int(clocks.right.after(count)[0]) for clocks in self._active]
        return (
            min((time for time in left if time != BEFORE_ALL), default=BEFORE_ALL),
            min((time for time in right if time != BEFORE_ALL), default=BEFORE_ALL),
        )

    def closing_position(self, due: int) -> Position:
        """The first position at which the closed time has reached `due`."""
        if due <= self.closed_before:
            return BEGIN
        position = self._closing_positions.get(due)
        if position is None:
            closing = int(np.searchsorted(self._closed, due))
            position = self.position(int(self._closings[closing])) if closing < len(self._closings) else END
            self._closing_positions[due] = position
        return position

    def closed_at(self, position: Position) -> int:
        """The closed time at a position, after the advance at this position, if any."""
        closings = range(len(self._closings))
        count = bisect_right(closings, position, key=lambda number: self.position(int(self._closings[number])))
        return int(self._closed[count - 1]) if count else self.closed_before

    def advances_until(self, due: Times) -> Times:
        """For each time in `due`, the number of advances up to the advance with which the closed time reaches it.

        It is NEVER if the closed time does not reach the time in this batch.
        """
        numbers = np.append(self._closings + 1, NEVER)
        until: Times = numbers[np.searchsorted(self._closed, due)]
        return until

    def closings(self, due: Times) -> dict[str, pa.Array]:
        """For each time in `due`, the row of this batch with which the closed time reaches this time.

        Returns the columns of the rows' positions, and the headers of their records.
        """
        encoded = pa.array(due).dictionary_encode()
        places = self._closings[np.searchsorted(self._closed, np.asarray(encoded.dictionary))]
        # Many results are due at the same time.
        rows = self._table.select([*SORT_KEY, "headers"]).take(pa.array(places)).combine_chunks()
        return {name: rows.column(name).combine_chunks().take(encoded.indices) for name in rows.column_names}

    def position(self, advance: int) -> Position:
        """The position of an advance."""
        return (
            int(self._sequences[advance]),
            int(self._origins[advance]),
            self._paths[advance].as_py(),
        )

    @cached_property
    def headers(self) -> Mapping[Position, str]:
        """The headers of the records whose rows advance stream time, by their positions."""
        headers = self._table.column("headers")
        with_headers = np.flatnonzero(boolean_mask(headers.is_valid()))
        return {self.position(index): headers[index].as_py() for index in with_headers.tolist()}

    def stream_times(self, rows: pa.Table) -> dict[str, Times]:
        """Stream times before and after each of the operator's rows.

        For a join also the stream times of both sides, and the number of advances up to each row.
        """
        counts_before, counts_after = self._counts_of_advances(rows)
        is_stream_join = self._operator.is_stream_join
        numbers, sides = partition_numbers(rows), rows.column("side").to_numpy()
        has_two_times = is_stream_join or bool(self._operator.timed_sides)
        names = ["before", "after"]
        if has_two_times:
            names += ["left", "right"]
        if is_stream_join:
            names.append("advances")
        columns = {name: np.full(len(rows), BEFORE_ALL) for name in names}
        for number, clocks in self._partitions.items():
            of_number = numbers == number
            before, after = counts_before[of_number], counts_after[of_number]
            columns["before"][of_number] = clocks.closed.after(before)
            columns["after"][of_number] = (clocks.all_rows if is_stream_join else clocks.closed).after(after)
            if is_stream_join:
                columns["advances"][of_number] = after
            if is_stream_join or self._operator.joins_versions:
                columns["left"][of_number] = clocks.left.after(after)
                columns["right"][of_number] = clocks.right.after(after)
                continue
            for side, clock in clocks.of_sides.items():
                of_side = of_number & (sides == side)
                columns["before"][of_side] = clock.after(counts_before[of_side])
                columns["after"][of_side] = clock.after(counts_after[of_side])
                columns["left"][of_side] = clocks.closed.after(counts_before[of_side])
        return columns

    def _counts_of_advances(self, positions: pa.Table) -> tuple[_Indices, _Indices]:
        """For each row, the number of advances before its position, and up to and including its position."""
        keys = position_keys(pa.concat_tables([self._table.select(SORT_KEY), positions.select(SORT_KEY)]))
        # In most batches, all paths are equal. A column of equal values does not change the order.
        keys = [key for key in keys if len(key) and (key != key[0]).any()] or keys[:1]
        order = np.lexsort(keys)
        differs = np.zeros(len(order), np.bool_)
        for key in keys:
            differs[1:] |= np.diff(key[order]) != 0
        # Equal positions have the same place.
        places = np.empty(len(order), np.intp)
        places[order] = np.cumsum(differs)
        of_advances, of_rows = np.split(places, [len(self._times)])
        advances_at = np.bincount(of_advances, minlength=len(order))
        counts_after = np.cumsum(advances_at)[of_rows]
        counts_before = counts_after - advances_at[of_rows]
        if self._operator.timed_by_topics:
            counts_before -= self._follow_their_record(positions, counts_before)
        return counts_before, counts_after

    def _follow_their_record(self, positions: pa.Table, counts: _Indices) -> Mask:
        """Mask of the rows whose last advance before them is the beginning of their own record.

        `counts`: for each row, the number of advances before it.
        """
        last = np.maximum(counts - 1, 0)
        is_same = counts > 0
        for name, of_advances in zip(SORT_KEY, (self._sequences, self._origins), strict=False):
            is_same[is_same] = of_advances[last[is_same]] == positions.column(name).to_numpy()[is_same]
        is_beginning = boolean_mask(pc.equal(self._paths, START))
        is_same[is_same] = is_beginning[last[is_same]]
        # The results of timers come after their record, and so do rows that were re-keyed, as if
        # from a repartition topic.
        paths = positions.column("path").filter(pa.array(is_same)).to_pylist()
        is_same[is_same] = [START <= path < END_OF_RECORD for path in paths]
        return is_same
