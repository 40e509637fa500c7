"""Decides each record's outcome: applied if the record has any effect, or else the first reason.

The task that reads a record knows the outcome of most records. But only the task of an operator
knows whether the operator uses a record: the record may be late for a session, or repeat an id.
Therefore, a record that gives rows only for operators counts as applied at first. Each of these
rows has a number, `undecided`. It encodes how many rows for operators the record has, and the
record's outcome if no operator uses any of them. An operator reports the rows that it does not use.
If such a row is its record's only row, the operator's task corrects the counts. Otherwise, the
driver corrects the counts if no operator, on any worker, has used a row of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np
import pyarrow as pa

from sluice.engine.batch.row_schemas import OFFSET_BITS, partition_of
from sluice.engine.batch.side_outputs import BatchStats
from sluice.support.arrays import Indices, Integers, Mask


class Outcome(IntEnum):
    """The outcome of a record.

    If several outcomes apply to its rows, the one listed first counts.
    """

    APPLIED = 0
    LATE = 1
    NULL_KEY = 2
    NULL_VALUE = 3
    NO_WINDOW = 4
    DUPLICATE = 5
    REJECTED = 6
    SKIPPED = 7
    FILTERED = 8

    @property
    def count(self) -> str:
        """Return the name of the count of records with this outcome."""
        return _COUNTS[self]


_COUNTS = (
    "applied",
    "late_everywhere",
    "dropped/null_key",
    "dropped/null_value",
    "dropped/no_window",
    "dropped/duplicate",
    "dead_letter/processing",
    "dropped/processing",
    "filtered",
)
PASSED_OVER: Mapping[str, Outcome] = {
    "null_key": Outcome.NULL_KEY,
    "null_value": Outcome.NULL_VALUE,
    "no_window": Outcome.NO_WINDOW,
    "duplicate": Outcome.DUPLICATE,
}
"""Reason why operators have not used any row of a record → the record's outcome.

Late rows are reported separately, because a row may be late for some windows only.
"""

_SCALE = 16
"""`undecided` is the number of a record's rows times this factor, plus the record's outcome if no
operator uses any of these rows."""
UNDECIDED = pa.schema([("origin", pa.int64()), ("rows", pa.int32()), ("outcome", pa.int8())])
"""The schema of reports of rows that no operator has used. The record of such a row has several
rows."""


class RecordOutcome:
    """The outcome of each row of a batch, as masks. A record with any effect counts as applied."""

    def __init__(
        self,
        records: Integers | None,
        applied: Mask,
        for_operators: Integers,
        rejected: Mask,
        skipped: Mask,
    ) -> None:
        # Count a record once, even if it has several rows. Its rows have the same offset.
        self.records = records
        """The offset of each row's record; None if every record has one row."""
        self.applied, self.rejected, self.skipped = applied, rejected, skipped
        self.for_operators = for_operators
        """The number of operators that get each row."""
        self.late = np.zeros_like(applied)
        self.dropped = {"null_key": np.zeros_like(applied), "null_value": np.zeros_like(applied)}

    def decided(self) -> tuple[Integers, Integers]:
        """Return each row's outcome if operators use all of their rows, and its `undecided`."""
        masks = [self.applied, self.late, *self.dropped.values(), self.rejected, self.skipped]
        dropped = [PASSED_OVER[reason] for reason in self.dropped]
        outcomes = [Outcome.APPLIED, Outcome.LATE, *dropped, Outcome.REJECTED, Outcome.SKIPPED]
        otherwise = np.select(masks, outcomes, default=Outcome.FILTERED)
        outcome = np.where(self.for_operators > 0, Outcome.APPLIED, otherwise)
        return outcome, self._undecided(otherwise)

    def _undecided(self, otherwise: Integers) -> Integers:
        rows = self.for_operators
        if self.records is None:
            return np.zeros_like(rows)
        first = np.flatnonzero(np.diff(self.records, prepend=-1) != 0)
        if len(first) < len(rows):
            lengths = np.diff(first, append=len(rows))
            rows = np.repeat(np.add.reduceat(rows, first), lengths)
            otherwise = np.repeat(np.minimum.reduceat(otherwise, first), lengths)
        return np.where(otherwise == Outcome.APPLIED, 0, rows * _SCALE + otherwise)


class PassedOver:
    """The outcomes of rows that operators of a stage have not used, such as late rows.

    The records of these rows have had no other effect.
    """

    def __init__(self) -> None:
        self.corrections: dict[tuple[int, int], Counter[str]] = {}
        """Source and partition → numbers to add to the counts of its records."""
        self._reports: list[pa.RecordBatch] = []

    def add(self, origins: Integers, undecided: Integers, outcomes: Integers) -> None:
        """Add rows that operators have not used.

        `undecided` is 0 for a row whose record has another effect, or that comes from no record.
        """
        rows, otherwise = np.divmod(undecided, _SCALE)
        outcomes = np.minimum(outcomes, otherwise)
        is_only = rows == 1
        self._correct(origins[is_only], outcomes[is_only])
        has_others = rows > 1
        if has_others.any():
            report = {
                "origin": origins[has_others],
                "rows": rows[has_others],
                "outcome": outcomes[has_others],
            }
            self._reports.append(pa.RecordBatch.from_pydict(report, UNDECIDED))

    def _correct(self, origins: Integers, outcomes: Integers) -> None:
        for partition, counts in corrections(origins, outcomes).items():
            self.corrections.setdefault(partition, Counter()).update(counts)

    def reports(self) -> pa.Table:
        """Return the reports for the driver, with the columns of `UNDECIDED`."""
        return pa.Table.from_batches(self._reports, UNDECIDED)


def corrections(origins: Integers, outcomes: Integers) -> dict[tuple[int, int], Counter[str]]:
    """Return the corrections of each source's and partition's counts.

    `origins` are records that were counted as applied, and `outcomes` are their actual outcomes.
    """
    by_partition: dict[tuple[int, int], Counter[str]] = {}
    # Records of the same source, partition and outcome get the same number.
    numbers, counts = np.unique((origins >> OFFSET_BITS) * _SCALE + outcomes, return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        partition = partition_of((number // _SCALE) << OFFSET_BITS)
        of_partition = by_partition.setdefault(partition, Counter())
        of_partition[Outcome.APPLIED.count] -= count
        of_partition[Outcome(number % _SCALE).count] += count
    return by_partition


def corrected_counts(reports: Iterable[pa.Table], topics: Mapping[int, str]) -> BatchStats:
    """Return the corrections of a batch's counts, given the reports of all its stages.

    `topics` maps a source's number to its topic.
    """
    table = pa.concat_tables([UNDECIDED.empty_table(), *reports])
    origins = np.asarray(table.column("origin"))
    records, first, of_records, reported = np.unique(
        origins, return_index=True, return_inverse=True, return_counts=True
    )
    outcomes = np.full(len(records), Outcome.FILTERED, np.int64)
    np.minimum.at(outcomes, of_records, np.asarray(table.column("outcome")))
    is_unused: Mask = reported == np.asarray(table.column("rows"))[first]
    unused: Indices = np.flatnonzero(is_unused)
    counts: Counter[str] = Counter()
    by_partition: dict[str, dict[str, int]] = {}
    of_partitions = corrections(records[unused], outcomes[unused])
    for (source, partition), of_partition in of_partitions.items():
        counts.update(of_partition)
        by_partition[f"{topics[source]}-{partition}"] = dict(of_partition)
    return BatchStats(dict(counts), by_partition=by_partition)
