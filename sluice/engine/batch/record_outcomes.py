"""What becomes of each record: a record with any effect is applied, and every other record has one other outcome.

A task that reads records decides the outcome of most records. But whether an operator uses a
record, only the operator's task knows: the record may be late for a session, or repeat an id. So if
all that may come of a record are its rows for operators, the record counts as applied at first, and
each of these rows has a number, `undecided`: how many such rows the record has, and its outcome if
no operator uses any of them. An operator that passes over a row reports it. If the row is its
record's only one, the operator's task corrects the counts. Otherwise, the driver does, once it knows
that all rows of the record were passed over, perhaps by operators of different workers.
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
    """The outcome of a record. If several apply to its rows, the first of them counts."""

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
        """The name of the count of records with this outcome."""
        return _COUNTS[self]


_COUNTS = (
    "applied", "late_everywhere", "dropped/null_key", "dropped/null_value", "dropped/no_window", "dropped/duplicate",
    "dead_letter/processing", "dropped/processing", "filtered",
)  # fmt: skip
PASSED_OVER: Mapping[str, Outcome] = {
    "null_key": Outcome.NULL_KEY,
    "null_value": Outcome.NULL_VALUE,
    "no_window": Outcome.NO_WINDOW,
    "duplicate": Outcome.DUPLICATE,
}
"""Why an operator has passed over a row → the outcome of a record all of whose rows were passed over for this reason.
An operator reports late rows in another way, because a row may be late for some windows only."""

_SCALE = 16
"""A number `undecided` is the number of a record's rows times this, plus the outcome without them."""
UNDECIDED = pa.schema([("origin", pa.int64()), ("rows", pa.int32()), ("outcome", pa.int8())])
"""The schema of reports of rows that were passed over, and whose records have several rows."""


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
        # A record is counted once, however many rows it has. Rows of the same record have the same offset.
        self.records = records
        """The offset of each row's record; None unless steps may have turned one record into several rows."""
        self.applied, self.rejected, self.skipped = applied, rejected, skipped
        self.for_operators = for_operators
        """The number of operators that get each row."""
        self.late = np.zeros_like(applied)
        self.dropped = {"null_key": np.zeros_like(applied), "null_value": np.zeros_like(applied)}

    def decided(self) -> tuple[Integers, Integers]:
        """Return the outcome of each row if the operators use what they get, and its number `undecided`."""
        masks = [self.applied, self.late, *self.dropped.values(), self.rejected, self.skipped]
        outcomes = [
            Outcome.APPLIED, Outcome.LATE, *(PASSED_OVER[reason] for reason in self.dropped), Outcome.REJECTED,
            Outcome.SKIPPED,
        ]  # fmt: skip
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
    """The rows that the operators of a stage have passed over, of records without another effect."""

    def __init__(self) -> None:
        self.corrections: dict[tuple[int, int], Counter[str]] = {}
        """Source and partition → what to add to the counts of its records."""
        self._reports: list[pa.RecordBatch] = []

    def add(self, origins: Integers, undecided: Integers, outcomes: Integers) -> None:
        """Add rows that operators have passed over. `undecided` is 0 for a row that decides nothing."""
        rows, otherwise = np.divmod(undecided, _SCALE)
        outcomes = np.minimum(outcomes, otherwise)
        is_only = rows == 1
        self._correct(origins[is_only], outcomes[is_only])
        has_others = rows > 1
        if has_others.any():
            columns = origins[has_others], rows[has_others], outcomes[has_others]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, UNDECIDED, strict=True)]
            self._reports.append(pa.RecordBatch.from_arrays(arrays, schema=UNDECIDED))

    def _correct(self, origins: Integers, outcomes: Integers) -> None:
        for part, counts in corrections(origins, outcomes).items():
            self.corrections.setdefault(part, Counter()).update(counts)

    def reports(self) -> pa.Table:
        """The reports for the driver, with the columns of `UNDECIDED`."""
        return pa.Table.from_batches(self._reports, UNDECIDED)


def corrections(origins: Integers, outcomes: Integers) -> dict[tuple[int, int], Counter[str]]:
    """Source and partition → what to add to its counts, given the records that were counted as applied and were not."""
    by_part: dict[tuple[int, int], Counter[str]] = {}
    # All records of a partition with the same outcome get the same number.
    numbers, counts = np.unique((origins >> OFFSET_BITS) * _SCALE + outcomes, return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        part = partition_of((number // _SCALE) << OFFSET_BITS)
        of_part = by_part.setdefault(part, Counter())
        of_part[Outcome.APPLIED.count] -= count
        of_part[Outcome(number % _SCALE).count] += count
    return by_part


def corrected_counts(reports: Iterable[pa.Table], topics: Mapping[int, str]) -> BatchStats:
    """What to add to the counts of a batch, given the reports of all its stages. `topics`: source number → topic."""
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
    for (source, partition), of_part in corrections(records[unused], outcomes[unused]).items():
        counts.update(of_part)
        by_partition[f"{topics[source]}-{partition}"] = dict(of_part)
    return BatchStats(dict(counts), by_partition=by_partition)
