"""Finds all matching pairs of an inner join of two streams at once, with a sorted merge.

Both sides are sorted by key and time. The matches of a left record are then adjacent. As in
`StreamJoin.process`, the later record of a pair causes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.operators.base import LEFT, RIGHT
from sluice.operators.columns import NO_ROWS, KeyedRows, KeyStates, Results, pairs_of_ranges
from sluice.operators.joins.by_key import joined_texts
from sluice.operators.joins.stored_records import Sides, StoredRecord
from sluice.operators.lateness import JoinLateness
from sluice.support.arrays import Indices, Mask, Times


@dataclass(frozen=True)
class JoinRecords:
    """The records of both sides: first the rows' records, in order, then the stored records."""

    keys: Indices
    """The number of each record's key."""
    times: Times
    sides: Indices
    order: Indices
    """The order in which the records arrived. Stored records arrived in earlier batches, so they
    have negative numbers."""
    values: pa.Array
    has_value: Mask
    stored: Sequence[StoredRecord]

    @classmethod
    def of(cls, states: KeyStates[Sides], rows: KeyedRows) -> JoinRecords:
        keys, sides, stored = [], [], []
        for number, state in states.existing():
            for side, kept in enumerate((state.left, state.right)):
                for record in kept.records:
                    keys.append(number)
                    sides.append(side)
                    stored.append(record)
        times = np.array([record.time for record in stored], np.int64)
        values = pa.array([record.value for record in stored], rows.columns["value"].type)
        return cls(
            np.concatenate((rows.key_numbers, np.array(keys, np.intp))),
            np.concatenate((rows.times, times)),
            np.concatenate((rows.sides, np.array(sides, np.intp))),
            np.concatenate((np.arange(len(rows)), np.arange(-len(keys), 0))),
            pa.concat_arrays([rows.columns["value"], values]),
            np.append(rows.has_value, np.ones(len(keys), bool)),
            stored,
        )

    def texts(self, left: Indices, right: Indices) -> pa.Array:
        """Return the results for pairs of records. The index -1 stands for a missing record."""
        values: list[pa.Array] = []
        for side in (left, right):
            values.append(self.values.take(pa.array(side, mask=side < 0)))
        return joined_texts(*values)


@dataclass(frozen=True)
class MatchingPairs:
    """The pairs of records that match, in the order of their results.

    None of them was sent in an earlier batch.
    """

    cause: Indices
    """The later record of each pair, whose row sends the result."""
    other: Indices
    """The earlier record of each pair."""

    @classmethod
    def of(
        cls, lateness: JoinLateness, records: JoinRecords, rows: KeyedRows
    ) -> MatchingPairs | None:
        """Return the matches of the rows' records; None if `_pairs` returns None."""
        pairs = _pairs(lateness, records)
        if pairs is None:
            return None
        left, right = pairs
        of_right = records.order[right] > records.order[left]
        cause, other = np.where(of_right, right, left), np.where(of_right, left, right)
        # If both records come from states, the pair was sent in an earlier batch. Give such a pair
        # the row -1, so that it is left out below.
        row = records.order[cause].clip(-1)
        left_time = rows.stream_times["left"][row]
        right_time = rows.stream_times["right"][row]
        last_expired = last_expired_of_sides(lateness, records.sides[other], left_time, right_time)
        is_match = (row >= 0) & (records.times[other] > last_expired)
        matching = np.flatnonzero(is_match)
        order = np.lexsort(
            (records.order[other[matching]], records.times[other[matching]], cause[matching])
        )
        return cls(cause[matching[order]], other[matching[order]])

    def left_and_right(self, records: JoinRecords) -> tuple[Indices, Indices]:
        """Return the left and the right record of each pair."""
        is_left = records.sides[self.cause] == LEFT
        return np.where(is_left, self.cause, self.other), np.where(is_left, self.other, self.cause)


def join_columns(
    lateness: JoinLateness, states: KeyStates[Sides], rows: KeyedRows
) -> Results | None:
    """Return the results of an inner join; None if the rows have to be processed one by one.

    Changes no state.
    """
    # A key may have rows of several partitions, each with its own stream time. If stream time
    # is earlier in a row than in the preceding row, more records have expired than the later row's
    # times show. The columns cannot express this, so process the rows one by one.
    for name in ("left", "right"):
        if falls(rows.stream_times[name], rows.key_numbers).any():
            return None
    records = JoinRecords.of(states, rows)
    matches = MatchingPairs.of(lateness, records, rows)
    if matches is None:
        return None
    left, right = matches.left_and_right(records)
    return Results(
        matches.cause,
        records.texts(left, right),
        np.maximum(records.times[left], records.times[right]),
        dropped={"null_value": np.flatnonzero(~rows.has_value)},
    )


def unexpired_rows(lateness: JoinLateness, rows: KeyedRows, passed: tuple[int, int]) -> Indices:
    """Return the indices of the rows whose records can still be matched after the batch.

    `passed`: for each side, the stream time that has been passed for all keys when the batch ends.
    """
    last = np.repeat(rows.last_of_keys(rows.has_value), np.diff(rows.starts))
    passed_left, passed_right = passed
    left = np.maximum(rows.stream_times["left"][last], passed_left)
    right = np.maximum(rows.stream_times["right"][last], passed_right)
    last_expired = last_expired_of_sides(lateness, rows.sides, left, right)
    return np.flatnonzero(rows.has_value & (rows.times > last_expired))


def last_expired_of_sides(
    lateness: JoinLateness, sides: npt.NDArray[np.integer[Any]], left: Times, right: Times
) -> Times:
    """Return, for each record, the latest event time of expired records of the same side.

    `left` and `right`: the largest times of the left and of the right stream.
    """
    last = lateness.last_expired(LEFT, left), lateness.last_expired(RIGHT, right)
    of_sides: Times = np.where(sides == LEFT, *last)
    return of_sides


def falls(times: Times, keys: Indices) -> Mask:
    """Return a mask of the times that are smaller than the same key's preceding time."""
    is_smaller = np.zeros(len(times), np.bool_)
    is_smaller[1:] = (keys[1:] == keys[:-1]) & (times[1:] < times[:-1])
    return is_smaller


def _pairs(lateness: JoinLateness, records: JoinRecords) -> tuple[Indices, Indices] | None:
    """Return the left and the right record of each pair within the window.

    None if there are too many pairs, or if the times of the records are too far apart.
    """
    if not len(records.times):
        return NO_ROWS, NO_ROWS
    first_time, last_time = int(records.times.min()), int(records.times.max())
    # Combine key and time in one number, so that one comparison sorts and finds records. The last
    # number of each key belongs to no record.
    after_last = last_time - first_time + 1
    numbers_of_key = after_last + 1
    if (int(records.keys.max()) + 1) * numbers_of_key >= 1 << 63:
        return None
    first_of_key = records.keys * numbers_of_key
    places = first_of_key + (records.times - first_time)
    left = _sorted_side(records, LEFT, places)
    right = _sorted_side(records, RIGHT, places)
    earliest = records.times[left] - lateness.ahead[RIGHT] - first_time
    latest = records.times[left] + lateness.ahead[LEFT] - first_time
    places_of_right, first_of_left = places[right], first_of_key[left]
    first = np.searchsorted(places_of_right, first_of_left + earliest.clip(0, after_last))
    end = np.searchsorted(places_of_right, first_of_left + (latest + 1).clip(0, after_last))
    pairs = pairs_of_ranges(first, end)
    if pairs is None:
        return None
    return left[pairs[0]], right[pairs[1]]


def _sorted_side(records: JoinRecords, side: int, places: Indices) -> Indices:
    """Return a side's records with a value, sorted by place (key and time) and then by order."""
    of_side = np.flatnonzero((records.sides == side) & records.has_value)
    # The stored records arrived first, but are last in the columns.
    count_of_rows = np.searchsorted(of_side, len(records.times) - len(records.stored))
    in_order = np.roll(of_side, -count_of_rows)
    return in_order[np.argsort(places[in_order], kind="stable")]
