"""Finds all results of an outer join of two streams at once: matching pairs and unmatched records.

A record that waits for a match is sent unmatched by the first of these events, unless it is matched
before:

- a row of its key, if the stream time of the row's own partition is late enough;
- the advance of stream time with which all partitions have reached the record's due time.

A record that has been sent unmatched is not matched afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.operators.base import LEFT, RIGHT
from sluice.operators.columns import KeyedRows, KeyStates, ReleasedResults, Results
from sluice.operators.joins.stored_records import Sides
from sluice.operators.joins.stream_pairs import (
    JoinRecords,
    MatchingPairs,
    falls,
    last_expired_of_sides,
)
from sluice.operators.lateness import JoinLateness
from sluice.support.arrays import Indices, Mask, Times

NEVER = 1 << 62
"""The number of a row, or of an advance of stream time, that does not exist."""
_BEFORE_ALL = -1
"""The stream time before the first record."""


@dataclass(frozen=True)
class OuterJoined:
    """The effects of the rows of many keys in an outer join."""

    results: Results
    """The results that the rows send."""
    released: ReleasedResults
    """The records that are sent unmatched when stream time advances, in the order of their results
    for each key."""
    records: JoinRecords
    waits: Mask
    """Mask of the records that still wait for a match after the batch."""
    sent: Mask
    """Mask of the records that are sent unmatched."""


def keys_in_order(lateness: JoinLateness, rows: KeyedRows) -> Mask:
    """Return a mask of the keys for whose rows no stream time decreases.

    Rows of several partitions have different stream times. If a later row has an earlier stream
    time, more records have expired, or were sent unmatched, than the later row's times show. A
    partition that was idle may have a record that is already due, although its partition's stream
    time has not passed the record's grace.
    """
    valid = np.flatnonzero(rows.has_value)
    in_order = np.ones(len(rows.keys), np.bool_)
    keys, reached = rows.key_numbers[valid], _reached(rows)
    for times in (rows.stream_times["left"], rows.stream_times["right"], reached):
        in_order[keys[falls(times[valid], keys)]] = False
    is_due = _due(lateness, rows.sides, rows.times) <= reached
    in_order[rows.key_numbers[is_due & ~_is_past(lateness, rows)]] = False
    return in_order


def _reached(rows: KeyedRows) -> Times:
    """Return the stream time up to which each row sends records of its key unmatched."""
    before, after = rows.stream_times["before"], rows.stream_times["after"]
    # A record that is out of order sends only the records that were due before it.
    reached: Times = np.where(rows.times == after, np.maximum(before, after), before)
    return reached


def _is_past(lateness: JoinLateness, rows: KeyedRows) -> Mask:
    """Return a mask of the rows whose window and grace have already passed when they arrive."""
    after = rows.stream_times["after"]
    is_past_left = lateness.is_past(LEFT, rows.times, after)
    is_past_right = lateness.is_past(RIGHT, rows.times, after)
    return np.where(rows.sides == LEFT, is_past_left, is_past_right)


def _due(lateness: JoinLateness, sides: npt.NDArray[np.integer[Any]], times: Times) -> Times:
    """Return the stream time at which each record is sent unmatched if it waits for a match."""
    due_left = lateness.sent_unmatched_at(LEFT, times)
    due_right = lateness.sent_unmatched_at(RIGHT, times)
    return np.where(sides == LEFT, due_left, due_right)


def join_outer(
    lateness: JoinLateness,
    outer: tuple[bool, bool],
    states: KeyStates[Sides],
    rows: KeyedRows,
    advances_until: Callable[[Times], Times],
) -> OuterJoined | None:
    """Return the results of a left or outer join. Changes no state.

    Returns None if the rows have to be processed one by one. `keys_in_order` must be true for all
    keys. `advances_until` takes stream times, and returns for each the number of advances of stream
    time until all partitions have reached it; NEVER if they do not reach it in this batch.
    """
    records = JoinRecords.of(states, rows)
    matches = MatchingPairs.of(lateness, records, rows)
    if matches is None:
        return None
    departures = _Departures.of(lateness, outer, records, rows, advances_until)
    matches = departures.without_departed(matches)
    outcomes = _Outcomes.of(departures, records, matches)
    return OuterJoined(
        _results(records, matches, outcomes, rows),
        _released(records, outcomes, rows.keys),
        records,
        outcomes.waits,
        outcomes.at_once | outcomes.by_row | outcomes.by_release,
    )


@dataclass(frozen=True)
class _Departures:
    """The time at which each record is sent unmatched, unless it is matched before."""

    is_outer: Mask
    """Mask of the records that are sent unmatched if nothing matches them."""
    is_past: Mask
    """Mask of the records that do not wait for a match: their window and grace have passed."""
    due: Times
    """The stream time at which each record is sent unmatched if it waits."""
    sender: Indices
    """For each record, the first row that would send it unmatched; NEVER if no row would."""
    released: Times
    """For each record, the number of the advance of stream time that would send it unmatched; NEVER
    if none would."""
    advances: Times
    """For each row, the number of advances of stream time before the row. The last element is
    NEVER."""

    @classmethod
    def of(
        cls,
        lateness: JoinLateness,
        outer: tuple[bool, bool],
        records: JoinRecords,
        rows: KeyedRows,
        advances_until: Callable[[Times], Times],
    ) -> _Departures:
        count = len(rows)
        is_outer = np.array(outer)[records.sides] & records.has_value
        is_outer[count:] = [record.waits_for_match for record in records.stored]
        is_past = np.zeros(len(records.keys), np.bool_)
        is_past[:count] = _is_past(lateness, rows)
        due = _due(lateness, records.sides, records.times)
        advances = np.append(rows.stream_times["advances"], NEVER)
        return cls(
            is_outer, is_past, due, _senders(records, due, rows), advances_until(due), advances
        )

    def before(self, records: Indices, rows: Indices) -> Mask:
        """Return a mask of the records that are sent unmatched before these later rows arrive.

        A later row can match a record only if the record has not been sent before.
        """
        is_released = self.released[records] <= self.advances[rows]
        is_before: Mask = self.is_past[records] | (self.sender[records] <= rows) | is_released
        return is_before & self.is_outer[records]

    def without_departed(self, matches: MatchingPairs) -> MatchingPairs:
        """Return the matches, without matches of records that were already sent unmatched."""
        is_late = self.before(matches.other, matches.cause)
        if not is_late.any():
            return matches
        is_matched = np.zeros(len(self.due), np.bool_)
        is_matched[matches.other[~is_late]] = True
        is_matched[matches.cause[~is_late]] = True
        is_match = ~is_late
        # Whether a record has been sent depends on earlier matches. The matches are sorted by their
        # causes, so the loop decides the earlier matches first.
        late = np.flatnonzero(is_late)
        for place, cause, other in zip(late, matches.cause[late], matches.other[late], strict=True):
            if is_matched[other]:
                is_match[place] = is_matched[cause] = True
        return MatchingPairs(matches.cause[is_match], matches.other[is_match])


@dataclass(frozen=True)
class _Outcomes:
    """The outcomes of the records that have no match when they arrive."""

    due: Times
    sender: Indices
    """See `_Departures`."""
    at_once: Mask
    """Mask of the records that are sent unmatched as soon as they arrive."""
    by_row: Mask
    """Mask of the records that `sender` sends unmatched."""
    by_release: Mask
    """Mask of the records that are sent unmatched when stream time advances."""
    waits: Mask
    """Mask of the records that still wait after the batch."""

    @classmethod
    def of(cls, departures: _Departures, records: JoinRecords, matches: MatchingPairs) -> _Outcomes:
        is_lone = departures.is_outer.copy()
        is_lone[matches.cause] = False
        at_once, waited = is_lone & departures.is_past, is_lone & ~departures.is_past
        # The matches are sorted by their causes. Write them in reverse order, so that each record's
        # first match is written last and remains.
        first_match = np.full(len(records.keys), NEVER)
        first_match[matches.other[::-1]] = matches.cause[::-1]
        sender, released, advances = departures.sender, departures.released, departures.advances
        last_advance = len(advances) - 1
        until_sender = advances[np.minimum(sender, last_advance)]
        until_match = advances[np.minimum(first_match, last_advance)]
        by_release = (
            waited & (released < NEVER) & (released <= until_sender) & (released <= until_match)
        )
        # A row first sends unmatched records, and is only then matched.
        by_row = waited & ~by_release & (sender < NEVER) & (sender <= first_match)
        waits = waited & ~by_release & ~by_row & (first_match == NEVER)
        return cls(departures.due, sender, at_once, by_row, by_release, waits)


def _senders(records: JoinRecords, due: Times, rows: KeyedRows) -> Indices:
    """Return, for each record, the first row of its key whose stream time has reached `due`."""
    valid = np.flatnonzero(rows.has_value)
    reached, keys = _reached(rows)[valid], rows.key_numbers[valid]
    first, last = 0, 0
    if len(valid):
        first, last = int(reached.min()), int(reached.max())
    # Shift the times of each key to a separate range: one search then finds the rows of all keys.
    stretch = last - first + 2
    places = keys * stretch + (reached - first)
    found = np.searchsorted(
        places, records.keys * stretch + np.clip(due - first, 0, last - first + 1)
    )
    senders = np.append(valid, NEVER)[found]
    senders[np.append(keys, -1)[found] != records.keys] = NEVER
    return senders


def _results(
    records: JoinRecords, matches: MatchingPairs, outcomes: _Outcomes, rows: KeyedRows
) -> Results:
    """Return each row's results: first the records that it sends unmatched, then its own."""
    by_row, at_once = np.flatnonzero(outcomes.by_row), np.flatnonzero(outcomes.at_once)
    left, right = matches.left_and_right(records)
    alone = np.concatenate((by_row, at_once))
    is_left = records.sides[alone] == LEFT
    left = np.concatenate((np.where(is_left, alone, -1), left))
    right = np.concatenate((np.where(is_left, -1, alone), right))
    causes = np.concatenate((outcomes.sender[by_row], at_once, matches.cause))
    # A row first sends the records that were due before it, then those that are due with it.
    is_due_with_row = outcomes.due[by_row] > rows.stream_times["before"][outcomes.sender[by_row]]
    turns = np.concatenate((is_due_with_row.astype(np.intp), np.full(len(causes) - len(by_row), 2)))
    # Sort the unmatched records of a row by time, the right side first. The matches are already
    # sorted.
    own = np.zeros(len(causes) - len(by_row), np.int64)
    times_of_due = np.concatenate((records.times[by_row], own))
    sides_of_due = np.concatenate((records.sides[by_row], own))
    numbers = np.concatenate((records.order[by_row], np.arange(len(own))))
    order = np.lexsort((numbers, -sides_of_due, times_of_due, turns, causes))
    left_times = np.where(left >= 0, records.times[left], -1)
    right_times = np.where(right >= 0, records.times[right], -1)
    times = np.maximum(left_times, right_times)
    return Results(
        causes[order],
        records.texts(left[order], right[order]),
        times[order],
        dropped={"null_value": np.flatnonzero(~rows.has_value)},
    )


def _released(
    records: JoinRecords, outcomes: _Outcomes, key_texts: Sequence[str]
) -> ReleasedResults:
    released = np.flatnonzero(outcomes.by_release)
    order = np.lexsort(
        (
            records.order[released],
            -records.sides[released],
            records.times[released],
            outcomes.due[released],
            records.keys[released],
        )
    )
    chosen = released[order]
    keys, due = records.keys[chosen], outcomes.due[chosen]
    times, sides = records.times[chosen], records.sides[chosen]
    begins = np.ones(len(chosen), np.bool_)
    begins[1:] = (np.diff(keys) != 0) | (np.diff(due) != 0)
    indices = np.arange(len(chosen))
    numbers = indices - np.maximum.accumulate(np.where(begins, indices, 0))
    is_left = sides == LEFT
    values = records.texts(np.where(is_left, chosen, -1), np.where(is_left, -1, chosen))
    ranks = 2 * times + is_left
    return ReleasedResults(
        pa.array(key_texts, pa.string()), keys, due, ranks, numbers, times, values
    )


def can_match(
    lateness: JoinLateness, records: JoinRecords, rows: KeyedRows, passed: tuple[int, int]
) -> Mask:
    """Return a mask of the records that can still be matched after the batch.

    `passed`: for each side, the stream time that all keys have passed by the end of the batch.
    """
    last = rows.last_of_keys(rows.has_value)
    latest: list[Times] = []
    for name, of_all in zip(("left", "right"), passed, strict=True):
        # Rows without a value do not count. A key with only such rows gets no stream time from
        # them.
        of_keys = np.where(last >= 0, rows.stream_times[name][last], _BEFORE_ALL)
        latest.append(np.maximum(of_keys, of_all)[records.keys])
    last_expired = last_expired_of_sides(lateness, records.sides, *latest)
    can_match: Mask = records.has_value & (records.times > last_expired)
    return can_match
