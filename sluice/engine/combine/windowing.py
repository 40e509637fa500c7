"""Assigns each record to its windows, per aggregation group, and finds the records that are late.

Each group has a stream time for each partition of its source: the largest event time of the records
so far, including late records. `sluice/operators/lateness.py` decides by stream time which records
are late. A task reads a partition in offset order, so stream time is a running maximum, which
continues from the last batch. Results therefore do not depend on where batches end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sluice.engine.batch.accounting import PartitionResults, boolean_mask
from sluice.engine.batch.record_headers import headers_of_records, with_headers
from sluice.engine.batch.record_outcomes import RecordOutcome
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes, after_each
from sluice.operators.aggregation.window_bounds import bounds_of_all
from sluice.operators.lateness import WindowLateness
from sluice.plan import AggregationGroup
from sluice.plan.step_counts import received_by_group
from sluice.state.model import NO_WINDOW
from sluice.support.arrays import Indices, Times
from sluice.values.record_places import Partition
from sluice.values.windows import TimeWindow


@dataclass(frozen=True)
class Windowed:
    rows: Indices
    """Indices of records. A record's index occurs once for each window that the record belongs
    to."""
    starts: Times
    """The window's start for each element of `rows`."""
    ends: Times
    """The window's end for each element of `rows`."""
    late: int
    """Number of (record, window) pairs in which the record is late for the window."""
    stream_time: int
    """Stream time after the records."""


def assign_windows(
    times: Times,
    window: TimeWindow,
    stream_time: int,
    closed: int = BEFORE_ALL,
) -> Windowed:
    """Assign windows to event times (ms, in offset order).

    `stream_time` is the stream time before the first record. `closed` is the stream time up to
    which all windows are closed. A window that closes at or before this time accepts no records,
    even if this partition's own stream time is earlier.
    """
    if not len(times):
        return Windowed(np.empty(0, np.intp), times, times, 0, stream_time)
    stream_times = after_each(times, np.ones(len(times), bool), stream_time)
    starts, ends, contain = bounds_of_all(window, times)
    times_reached = np.maximum(stream_times, closed)[:, None]
    late = contain & WindowLateness(window).is_late(ends, times_reached)
    rows, columns = np.nonzero(contain & ~late)
    counted = rows, columns
    return Windowed(rows, starts[counted], ends[counted], int(late.sum()), int(stream_times[-1]))


def closed(groups: Iterable[AggregationGroup], times: StreamTimes) -> int:
    """Return the stream time up to which windows are closed.

    All groups have reached it in all partitions. The result is never smaller than in the previous
    batch. So closed windows stay closed, even if a partition that was empty gets a record of an
    earlier time.
    """
    reached: list[int] = []
    for group in groups:
        if group.window:
            reached.append(times.closed(group.name, group.topics))
    return max(min(reached, default=BEFORE_ALL), times.times.get(CLOSED, BEFORE_ALL))


@dataclass
class Windowing:
    """Assigns the records of one task to the windows of the groups."""

    groups: Sequence[AggregationGroup]
    before: StreamTimes
    """The stream times at the start of the batch."""
    closed: int = field(init=False)
    """The stream time up to which all windows were closed before the batch."""

    def __post_init__(self) -> None:
        self.closed = closed(self.groups, self.before)

    def windowed(
        self,
        batch: pa.RecordBatch,
        partition: Partition,
        results: PartitionResults,
        outcome: RecordOutcome,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each group's number, with its records of one partition.

        A record occurs once for each window that counts it. Counts, stream times and late records
        are added to `results`, and the outcome of each record is marked in `outcome`.
        """
        # Keep `closed` from batch to batch. If each batch computed it anew, it would decrease when
        # an idle partition gets records again.
        if self.closed > BEFORE_ALL:
            results.times[CLOSED] = self.closed
        for group in self.groups:
            if partition[0] in group.topics:
                yield group.number, self._of_group(batch, group, partition, results, outcome)

    def _of_group(
        self,
        batch: pa.RecordBatch,
        group: AggregationGroup,
        partition: Partition,
        results: PartitionResults,
        outcome: RecordOutcome,
    ) -> pa.RecordBatch:
        passed = boolean_mask(batch.column(group.passed))
        received = int(np.count_nonzero(passed))
        for name in received_by_group(group):
            results.step_rows[name] += received
        has_key = passed & boolean_mask(batch.column(group.key).is_valid())
        without_key = passed & ~has_key
        outcome.dropped["null_key"] |= without_key
        _count(results, "null_key", group, int(without_key.sum()))
        if group.window is None:
            # Kafka Streams drops records without a value if there are no windows. Otherwise, it
            # counts them.
            counted = has_key
            if group.null:
                counted = has_key & ~boolean_mask(batch.column(group.null))
            without_value = has_key & ~counted
            outcome.dropped["null_value"] |= without_value
            _count(results, "null_value", group, int(without_value.sum()))
            outcome.applied |= counted
            return _records(batch, group, np.flatnonzero(counted), None)
        rows = np.flatnonzero(has_key)
        topic, number = partition
        name = f"{group.name}/{topic}/{number}"
        times = batch.column("_time").to_numpy()[rows]
        stream_time = results.times.get(name, self.before.of(group.name, topic, number))
        windowed = assign_windows(times, group.window, stream_time, self.closed)
        if len(rows):
            results.times[name] = windowed.stream_time
        outcome.applied[rows[windowed.rows]] = True
        # Mark all records with a key as late. `applied` takes precedence, so a record counts as
        # late only if no window or store has counted it.
        outcome.late[rows] = True
        _count(results, "late", group, windowed.late)
        # Only records that are late for all of their windows go to the topic of late records.
        if group.late is not None:
            late_for_all = np.setdiff1d(rows, rows[windowed.rows])
            if len(late_for_all):
                late_records = _late_records(batch.take(pa.array(late_for_all)), group)
                results.outputs.setdefault(group.late.topic, []).append(late_records)
        return _records(batch, group, rows[windowed.rows], (windowed.starts, windowed.ends))


def _count(results: PartitionResults, reason: str, group: AggregationGroup, number: int) -> None:
    if number:
        for store_column in group.store_columns:
            results.counts[f"{reason}/{store_column.store}"] += number


def _late_records(late: pa.RecordBatch, group: AggregationGroup) -> pa.Table:
    """Return the output records for the group's topic of late records."""
    columns = {
        "key": late.column(group.late_key),
        "value": late.column(group.late_value),
        "timestamp": late.column("_time"),
    }
    return with_headers(pa.table(columns), headers_of_records(late))


def _records(
    batch: pa.RecordBatch,
    group: AggregationGroup,
    rows: Indices,
    windows: tuple[Times, Times] | None,
) -> pa.RecordBatch:
    """Return the columns `WINDOWED` and the group's input columns for `rows`.

    `windows` has the starts and ends of the rows' windows.
    """
    chosen = pa.array(rows)
    if windows is None:
        starts = ends = pa.repeat(pa.scalar(NO_WINDOW, pa.int64()), len(rows))
    else:
        starts, ends = pa.array(windows[0]), pa.array(windows[1])
    columns = {
        "key": batch.column(group.key).take(chosen),
        "window_start": starts,
        "window_end": ends,
        "time": batch.column("_time").take(chosen),
    }
    for name in group.inputs:
        columns[name] = batch.column(name).take(chosen)
    return pa.RecordBatch.from_pydict(columns)
