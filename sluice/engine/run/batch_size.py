"""The number of records in a batch, which follows from the memory that a run may use.

The tasks hold the rows of a batch in memory. How large the rows of a record are depends on the record, and on the steps
that make rows from it. Therefore, the size of each batch follows from the rows of an earlier batch. The first batch of
a run has a moderate number of records, or fewer if the first unread records are large.

A repeated batch keeps its size, because the plan of the batch is in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

FIXED_MB = 925
"""The memory of a run's processes without any rows: the JVM, the driver and two workers."""
_GROWN_MB = 50
"""So much more memory these processes need after their first batches."""
_COPIES = 4
"""The memory that tasks need for each byte of their rows: a row as received, as sorted, and its results."""
ROW_BYTES = 95
"""The bytes of a row besides those of its record's key and value."""
FEW_RECORDS = 50_000
"""So many records are not too many for any batch."""
_UNKNOWN_RECORDS, _FIRST_RECORDS, _MOST_RECORDS = 600_000, 1_200_000, 2_000_000
_FIRST_TO_ADD_UP = 1_000_000
"""The most records of the first batches if tasks add the records up: each may be the first of its key and window."""
_ENOUGH_RECORDS = 10_000
"""The rows of a batch with fewer records say little about the rows of a large batch."""


@dataclass
class BatchSize:
    """The most records of a run's next batch."""

    memory_mb: int
    given: int | None = None
    """The number that the user has set; None if it follows from the memory."""
    _bytes_per_record: float | None = None
    _is_measured: bool = False
    _first_records: int = _FIRST_RECORDS

    @property
    def is_unknown(self) -> bool:
        """Whether the size of a record's rows matters, and has been neither measured nor expected."""
        return self.given is None and self._bytes_per_record is None

    def expect(self, record_bytes: float, rows: int) -> None:
        """Expect some rows for each record. `record_bytes` are the bytes of its key and value.

        There are no rows of records if tasks add the records up while they read.
        """
        self._bytes_per_record = (record_bytes + ROW_BYTES) * rows
        self._first_records = _FIRST_RECORDS if rows else _FIRST_TO_ADD_UP

    def measure(self, records: int, row_bytes: int) -> None:
        """Note the rows that a batch of `records` records had."""
        if records >= _ENOUGH_RECORDS:
            self._bytes_per_record, self._is_measured = row_bytes / records, True

    def most_records(self) -> int:
        if self.given is not None:
            return self.given
        if self._bytes_per_record is None:
            return _UNKNOWN_RECORDS
        most, fixed_mb = self._first_records, FIXED_MB
        if self._is_measured:
            most, fixed_mb = _MOST_RECORDS, FIXED_MB + _GROWN_MB
        row_bytes = (self.memory_mb - fixed_mb) * 1e6 / _COPIES
        return int(min(max(row_bytes / max(self._bytes_per_record, 1), FEW_RECORDS), most))
