"""An operator's stream time at every position of a batch.

An *advance* is a row that may advance the operator's stream time. The tasks that made the rows have
reported the advances (see `advances.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import BEGIN, END, SORT_KEY, Position, position_numbers
from sluice.engine.batch.side_outputs import open_table
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes
from sluice.engine.stages.advances import ADVANCES, partition_numbers
from sluice.operators.base import LEFT, RIGHT
from sluice.operators.joins.unmatched import NEVER
from sluice.plan import PlannedOperator
from sluice.support.arrays import Indices, Mask, Times
from sluice.values.row_order import END_OF_RECORD, START


@dataclass(frozen=True)
class _Clock:
    """A stream time of a partition."""

    after: Times
    """The stream time before the batch, and then after each of the partition's advances."""

    @classmethod
    def of(cls, before: int, times: Times, advancing: Mask | bool = True) -> Self:
        """Return a partition's clock. Only the `advancing` times advance this clock."""
        return cls(
            np.maximum.accumulate(
                np.concatenate(([before], np.where(advancing, times, BEFORE_ALL)))
            )
        )

    @property
    def last(self) -> int:
        return int(self.after[-1])


@dataclass(frozen=True)
class _PartitionClocks:
    """The stream times of one partition number, which co-partitioned topics share.

    A join of two streams has four different clocks, and a join with a versioned table has three.
    Any other operator has a single clock, under all four names.
    """

    counts: Indices
    """At index n: how many of the first n advances of all partitions are advances of this
    partition."""
    all_rows: _Clock
    closed: _Clock
    """The time up to which windows are closed, and records are sent unmatched."""
    left: _Clock
    right: _Clock
    of_sides: Mapping[int, _Clock] = field(default_factory=dict)
    """The clocks of the sides that have separate clocks (`PlannedOperator.timed_sides`)."""


def _earliest(times: Iterable[int]) -> int:
    """Return the earliest time other than BEFORE_ALL; BEFORE_ALL if there is no other time."""
    return min((time for time in times if time != BEFORE_ALL), default=BEFORE_ALL)


_SUFFIXES = {"all_rows": ".any", "closed": "", "left": ".0", "right": ".1"}
"""Clock → the suffix of its name among the stored stream times."""


class Timeline:
    """An operator's stream time at every position of a batch.

    Partitions of several topics with the same number share a stream time. The closed time, up to
    which all windows are closed, is the smallest stream time of all partition numbers that are not
    idle.
    """

    def __init__(
        self,
        operator: PlannedOperator,
        reports: Iterable[bytes],
        before: StreamTimes,
    ) -> None:
        self._operator = operator
        self._before = before
        tables: list[pa.Table] = []
        for report in reports:
            tables.append(open_table(pa.py_buffer(report)).read_all())
        self._reported = pa.concat_tables([*tables, ADVANCES.empty_table()])
        self._order = np.argsort(position_numbers(self._reported), kind="stable")
        """The indices that sort the advances by position. The columns are sorted when they are
        first read."""
        self._times = self._reported.column("time").to_numpy()[self._order]
        self._sides = self._reported.column("side").to_numpy()[self._order]
        self._complete = boolean_mask(self._reported.column("complete"))[self._order]
        numbers = partition_numbers(self._reported)[self._order]
        closed_so_far = before.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
        self.closed_before = max(closed_so_far, before.closed(operator.clock, operator.topics))
        """The closed time before the batch. It never decreases, even if an idle partition has
        records again."""
        self._closing_positions: dict[int, Position] = {}
        """Time → the position at which the closed time reaches it. Many results share a due time,
        so each position is computed once."""
        self._partitions: dict[int, _PartitionClocks] = {}
        self._active: list[_PartitionClocks] = []
        """The partitions that windows wait for."""
        for number in range(max(before.partitions[topic] for topic in operator.topics)):
            clocks = self._partitions[number] = self._clocks(number, numbers == number)
            if clocks.counts[-1] or not before.is_idle(operator.topics, number):
                self._active.append(clocks)
        last = min((clocks.closed.last for clocks in self._active), default=BEFORE_ALL)
        if len(self._times):
            self.closed_after = max(last, self.closed_before)
        else:
            self.closed_after = self.closed_before

    @cached_property
    def _table(self) -> pa.Table:
        """The advances, sorted by position."""
        return self._reported.take(pa.array(self._order)).combine_chunks()

    @cached_property
    def _positions(self) -> tuple[Times, Times, pa.ChunkedArray]:
        """The sequences, origins and paths of the advances."""
        sequences, origins, paths = self._table.select(SORT_KEY).columns
        return sequences.to_numpy(), origins.to_numpy(), paths

    @property
    def went_on_when_idle(self) -> bool:
        """Whether the batch has no records, but the operator's stream time has advanced."""
        return self._before.went_on_when_idle(self._operator.clock)

    @cached_property
    def _closings(self) -> tuple[Indices, Times]:
        """The advances that increase the closed time, and the closed time after each of them."""
        # The operator's closed time is the smallest closed time of its active partitions.
        closed = np.full(len(self._times) + 1, BEFORE_ALL)
        if self._active:
            closed_by_partition = [clocks.closed.after[clocks.counts] for clocks in self._active]
            closed = np.minimum.reduce(closed_by_partition)
        closed = np.maximum(closed, self.closed_before)
        closed[0] = self.closed_before
        closings = np.flatnonzero(np.diff(closed) > 0)
        return closings, closed[closings + 1]

    def _clocks(self, number: int, of_number: Mask) -> _PartitionClocks:
        """Return the clocks of the partitions with this number.

        `of_number`: mask of their advances.
        """
        counts = np.concatenate(([0], np.cumsum(of_number)))
        # Selecting elements by indices takes NumPy a fraction of the time of selecting by a mask.
        indices = np.flatnonzero(of_number)
        times, sides, complete = self._times[indices], self._sides[indices], self._complete[indices]
        before: dict[str, int] = {}
        for name, suffix in _SUFFIXES.items():
            before[name] = self._stored_time(suffix, number)
        # While a partition was idle, the closed time may have passed the partition's stream time.
        before["closed"] = max(before["closed"], self.closed_before)
        if not self._operator.is_stream_join:
            clock = _Clock.of(before["closed"], times)
            of_sides: dict[int, _Clock] = {}
            for side in self._operator.timed_sides:
                of_sides[side] = _Clock.of(
                    self._stored_time(f".{side}", number), times, sides == side
                )
            if self._operator.joins_versions:
                # In a join with a versioned table, the stream's records wait for the stream time of
                # the stream, not of the table.
                of_stream, of_table = of_sides[LEFT], of_sides[RIGHT]
                waits_for = _Clock(np.maximum(of_stream.after, before["closed"]))
                return _PartitionClocks(counts, waits_for, waits_for, of_stream, of_table, of_sides)
            return _PartitionClocks(counts, clock, clock, clock, clock, of_sides)
        all_rows = _Clock.of(before["all_rows"], times)
        # Only rows that are complete and not out of order advance the closed time.
        closed = _Clock.of(before["closed"], times, complete & (times == all_rows.after[1:]))
        left = _Clock.of(before["left"], times, complete & (sides == LEFT))
        right = _Clock.of(before["right"], times, complete & (sides == RIGHT))
        return _PartitionClocks(counts, all_rows, closed, left, right)

    def _stored_time(self, suffix: str, number: int) -> int:
        """Return the stored stream time that the topics' partitions with this number share."""
        operator = self._operator
        return max(
            self._before.of(f"{operator.clock}{suffix}", topic, number) for topic in operator.topics
        )

    @cached_property
    def searches(self) -> tuple[tuple[Indices, Times], ...]:
        """By side, the advances at which a join may search for unmatched records, with their times.

        Each advance of a side is a row of this side, with the stream time after this row.
        Call this only for topics with one partition.
        """
        # Kafka Streams searches for unmatched records only when it processes a record that is in
        # order.
        is_in_order = self._complete & (self._times == self._partitions[0].all_rows.after[1:])
        searches: list[tuple[Indices, Times]] = []
        for side in (LEFT, RIGHT):
            of_side = np.flatnonzero(is_in_order & (self._sides == side))
            searches.append((of_side, self._times[of_side]))
        return tuple(searches)

    @property
    def after(self) -> dict[str, int]:
        """The stream times that the batch has advanced, by name."""
        operator, times = self._operator, {}
        names = ["closed"]
        if operator.is_stream_join:
            names = list(_SUFFIXES)
        for number, clocks in self._partitions.items():
            if not clocks.counts[-1]:
                continue
            # Co-partitioned topics share the stream time. Store it once, under the first topic with
            # this partition.
            topic = self._first_topic_with(number)
            for name in names:
                clock: _Clock = getattr(clocks, name)
                times[f"{operator.clock}{_SUFFIXES[name]}/{topic}/{number}"] = clock.last
            for side, clock in clocks.of_sides.items():
                times[f"{operator.clock}.{side}/{topic}/{number}"] = clock.last
        return times

    def _first_topic_with(self, number: int) -> str:
        """Return the operator's first topic that has a partition with this number."""
        for topic in self._operator.topics:
            if self._before.partitions[topic] > number:
                return topic
        raise AssertionError(f"no topic has a partition {number}")

    @property
    def passed_by_all_sides(self) -> int:
        """The stream time that all sides have reached in all partitions that are not idle.

        If the operator's sides have no separate stream times, this is the closed time.
        """
        if not self._operator.timed_sides or self._operator.joins_versions:
            return self.closed_after
        last: list[int] = []
        for clocks in self._active:
            last += [clock.last for clock in clocks.of_sides.values()]
        return min(last, default=BEFORE_ALL)

    @property
    def latest_of_sides(self) -> tuple[int, int]:
        """The stream times of a join's two sides that all partitions have reached after the batch.

        The smallest time counts, because a side may lag behind in one partition, and that
        partition's later records can still match earlier records. Idle partitions, and partitions
        without any record of a side, are ignored.
        """
        left: list[int] = []
        right: list[int] = []
        for clocks in self._active:
            left.append(clocks.left.last)
            right.append(clocks.right.last)
        return _earliest(left), _earliest(right)

    def latest_of_sides_at(self, position: Position) -> tuple[int, int]:
        """Like `latest_of_sides`, but up to and including a position of this batch."""
        count = bisect_right(range(len(self._times)), position, key=self.position)
        left: list[int] = []
        right: list[int] = []
        for clocks in self._active:
            place = clocks.counts[count]
            left.append(int(clocks.left.after[place]))
            right.append(int(clocks.right.after[place]))
        return _earliest(left), _earliest(right)

    def closing_position(self, due: int) -> Position:
        """Return the first position at which the closed time has reached `due`."""
        if due <= self.closed_before:
            return BEGIN
        position = self._closing_positions.get(due)
        if position is None:
            closings, closed = self._closings
            closing = int(np.searchsorted(closed, due))
            if closing < len(closings):
                position = self.position(int(closings[closing]))
            else:
                position = END
            self._closing_positions[due] = position
        return position

    def closed_at(self, position: Position) -> int:
        """Return the closed time at a position, after the advance at this position, if any."""
        closings, closed = self._closings
        count = bisect_right(
            range(len(closings)), position, key=lambda number: self.position(int(closings[number]))
        )
        if count:
            return int(closed[count - 1])
        return self.closed_before

    def advances_until(self, due: Times) -> Times:
        """Count the advances until the closed time reaches each time in `due`.

        The count is NEVER if the closed time does not reach the time in this batch.
        """
        closings, closed = self._closings
        numbers = np.append(closings + 1, NEVER)
        until: Times = numbers[np.searchsorted(closed, due)]
        return until

    def closings(self, due: Times) -> dict[str, pa.Array]:
        """For each time in `due`, find the row of this batch with which the closed time reaches it.

        Returns the columns of the rows' positions, and the headers of their records.
        """
        encoded = pa.array(due).dictionary_encode()
        closings, closed = self._closings
        places = closings[np.searchsorted(closed, np.asarray(encoded.dictionary))]
        # Many results share a due time, so look up each distinct time only once.
        rows = self._table.select([*SORT_KEY, "headers"]).take(pa.array(places)).combine_chunks()
        columns: dict[str, pa.Array] = {}
        for name in rows.column_names:
            columns[name] = rows.column(name).combine_chunks().take(encoded.indices)
        return columns

    def position(self, advance: int) -> Position:
        """Return the position of an advance."""
        sequences, origins, paths = self._positions
        return int(sequences[advance]), int(origins[advance]), paths[advance].as_py()

    @cached_property
    def headers(self) -> Mapping[Position, str]:
        """The headers of the records whose rows advance stream time, by their positions."""
        headers = self._table.column("headers")
        with_headers = np.flatnonzero(boolean_mask(headers.is_valid()))
        by_position: dict[Position, str] = {}
        for index in with_headers.tolist():
            by_position[self.position(index)] = headers[index].as_py()
        return by_position

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
        columns = {name: np.full(len(rows), BEFORE_ALL) for name in names}
        if is_stream_join:
            columns["advances"] = counts_after
        for number, clocks in self._partitions.items():
            of_number = np.flatnonzero(numbers == number)
            before, after = (
                clocks.counts[counts_before[of_number]],
                clocks.counts[counts_after[of_number]],
            )
            columns["before"][of_number] = clocks.closed.after[before]
            if is_stream_join:
                columns["after"][of_number] = clocks.all_rows.after[after]
            else:
                columns["after"][of_number] = clocks.closed.after[after]
            if is_stream_join or self._operator.joins_versions:
                columns["left"][of_number] = clocks.left.after[after]
                columns["right"][of_number] = clocks.right.after[after]
                continue
            for side, clock in clocks.of_sides.items():
                of_side = of_number[sides[of_number] == side]
                before, after = (
                    clocks.counts[counts_before[of_side]],
                    clocks.counts[counts_after[of_side]],
                )
                columns["before"][of_side] = clock.after[before]
                columns["after"][of_side] = clock.after[after]
                columns["left"][of_side] = clocks.closed.after[before]
        return columns

    def _counts_of_advances(self, positions: pa.Table) -> tuple[Indices, Indices]:
        """Return the numbers of advances before, and up to and including, each row's position."""
        together = pa.concat_tables([self._reported.select(SORT_KEY), positions.select(SORT_KEY)])
        of_advances, of_rows = np.split(position_numbers(together), [len(self._times)])
        of_advances = of_advances[self._order]
        # Finding the places takes a fraction of the time if the numbers are sorted.
        order = np.argsort(of_rows, kind="stable")
        counts_before, counts_after = np.empty_like(order), np.empty_like(order)
        in_order = of_rows[order]
        counts_before[order] = np.searchsorted(of_advances, in_order, "left")
        counts_after[order] = np.searchsorted(of_advances, in_order, "right")
        if self._operator.timed_by_topics:
            counts_before -= self._follow_their_record(positions, counts_before)
        return counts_before, counts_after

    def _follow_their_record(self, positions: pa.Table, counts: Indices) -> Mask:
        """Return a mask of the rows for which no advance follows the start of their own record.

        `counts`: for each row, the number of advances before it.
        """
        last = np.maximum(counts - 1, 0)
        is_same = counts > 0
        sequences, origins, all_paths = self._positions
        for name, of_advances in (("sequence", sequences), ("origin", origins)):
            is_same[is_same] = (
                of_advances[last[is_same]] == positions.column(name).to_numpy()[is_same]
            )
        is_beginning = boolean_mask(pc.equal(all_paths, START))
        is_same[is_same] = is_beginning[last[is_same]]
        # The results of timers come after their record. Rows that were re-keyed also come after it,
        # as if from a repartition topic.
        paths = positions.column("path").filter(pa.array(is_same)).to_pylist()
        is_same[is_same] = [START <= path < END_OF_RECORD for path in paths]
        return is_same
