"""Decides when an operator sends results that wait for stream time.

Such results are the final results of windows, the results of timers, and unmatched records. Sending
them when stream time reaches the time at which they are due is called a *release*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from sluice.engine.batch.row_schemas import BEGIN, END, Position, has_origin
from sluice.engine.stages.timeline import Timeline
from sluice.operators.operator import Searches
from sluice.values.row_order import end_path, release


class DueKey(NamedTuple):
    """A key whose results are due."""

    position: Position
    """The position of the row that advances stream time far enough."""
    due: int
    """The stream time at which the results were due."""
    key: str


class MomentOfTimeline(NamedTuple):
    """A `Moment` that is given by a position in a timeline."""

    timeline: Timeline
    position: Position

    @property
    def stream_time(self) -> int:
        return self.timeline.closed_at(self.position)

    @property
    def latest_of_sides(self) -> tuple[int, int]:
        return self.timeline.latest_of_sides_at(self.position)


class ClockTime:
    """The timeline of results that wait for the wall clock, which has one time in a batch."""

    def __init__(self, now: int) -> None:
        self.closed_after = now
        self.headers: Mapping[Position, str] = {}

    def closing_position(self, due: int) -> Position:
        """Return the position of a result: before all rows if it is due, otherwise after them."""
        if due <= self.closed_after:
            return BEGIN
        return END


class Releases:
    """The keys with results that wait for stream time, ordered by due time.

    When a row advances stream time, the results that become due are sent

    - before this row is processed, if `before_row` is true;
    - after all rows of the same record that were re-keyed as often as this row, if there is a
      `turn` (see `row_order.turn_of_timers`);
    - after this row otherwise.
    """

    def __init__(
        self,
        timeline: Timeline | ClockTime,
        *,
        before_row: bool,
        turn: bytes = b"",
    ) -> None:
        self.timeline = timeline
        self.before_row = before_row
        self.turn = turn
        self._heap: list[tuple[int, str]] = []
        """Due time and key. Entries that differ from `_due` are outdated, and are skipped."""
        self._due: dict[str, tuple[int, Position]] = {}
        """Key → when its next results are due, and the earliest position at which to send them."""

    def schedule(self, key: str, due: int | None, position: Position) -> None:
        """Set the time at which the key's next result is due.

        The result is sent at `position` at the earliest.

        Results that are due after the batch are ignored.
        """
        if due is None or due > self.timeline.closed_after:
            self._due.pop(key, None)
        # The heap keeps the earlier entry, which `_head` skips: a heap cannot
        # remove an entry cheaply.
        elif key not in self._due or self._due[key][0] != due:
            self._due[key] = due, position
            heappush(self._heap, (due, key))

    def scheduled(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have scheduled results."""
        if not self._due:
            return []
        return [key for key in keys if key in self._due]

    def next(self, position: Position, *, inclusive: bool) -> DueKey | None:
        """Return the next key whose results are due before a position, or at it if `inclusive`."""
        head = self._head()
        if head is None:
            return None
        due, key = head
        # A result that becomes due while a row is processed comes after that row.
        due_position = turn = max(self.timeline.closing_position(due), self._due[key][1])
        if self.turn and has_origin(due_position[0]):
            sequence, origin, path = due_position
            due_position = sequence, origin, end_path(path)
            # Several processors of a chain may have timers that are due after the same record. As
            # in Kafka Streams, the earliest of them fires first.
            turn = sequence, origin, end_path(path) + release(due, before=False)
        if turn < position or (inclusive and turn == position):
            return self._pop(due_position)
        return None

    def _head(self) -> tuple[int, str] | None:
        """Return the earliest due time and its key. Does not remove them from the heap."""
        while self._heap:
            due, key = self._heap[0]
            if key in self._due and self._due[key][0] == due:
                return due, key
            heappop(self._heap)
        return None

    def _pop(self, position: Position) -> DueKey:
        due, key = heappop(self._heap)
        del self._due[key]
        return DueKey(position, due, key)


class UnmatchedSearches(Releases):
    """A join's searches for unmatched records, at the same times as in a Kafka Streams task."""

    def __init__(self, timeline: Timeline, searches: Searches) -> None:
        super().__init__(timeline, before_row=True)
        self.timeline: Timeline = timeline
        self._searches = searches
        self._current: tuple[Position, int] | None = None
        """Position and stream time of the current search."""
        self._next_advance = 0
        """The number of the next advance of stream time to be processed."""
        # Kafka Streams searches for due keys only when it processes a record. Here, stream time may
        # also have advanced without records, so a search must come before the first record.
        self._begins_with_search = timeline.went_on_when_idle

    def next(self, position: Position, *, inclusive: bool) -> DueKey | None:
        while True:
            head = self._head()
            if self._current is not None and head is not None and head[0] <= self._current[1]:
                return self._pop(self._current[0])
            # The current search has found its last key. Continue with the next search, if it comes
            # before `position`.
            self._current = None
            if self._begins_with_search:
                self._begins_with_search = False
                self._searches.look(self.timeline.closed_before)
                self._current = BEGIN, self.timeline.closed_before
                continue
            search = self._next_search()
            if search is None:
                return None
            advance, stream_time = search
            search_position = self.timeline.position(advance)
            if not (search_position < position or (inclusive and search_position == position)):
                return None
            self._next_advance = advance + 1
            self._searches.look(stream_time)
            self._current = search_position, stream_time

    def _next_search(self) -> tuple[int, int] | None:
        """Return the next advance of stream time at which the join looks for unmatched records."""
        searches: list[tuple[int, int]] = []
        for side, (advances, times) in enumerate(self.timeline.searches):
            late_enough = np.searchsorted(times, self._searches.looks_after(side), "right")
            first = max(late_enough, np.searchsorted(advances, self._next_advance))
            if first < len(times):
                searches.append((int(advances[first]), int(times[first])))
        return min(searches, default=None)
