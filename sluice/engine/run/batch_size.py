"""Computes the number of records in a batch from the memory that a run may use.

The rows of a batch are in the tasks' memory; its output records are in the memory of the tasks, the
JVM and the driver. The sizes of a record's rows and output depend on the record and on the steps.
Therefore, each batch's size is computed from the sizes measured in an earlier batch. The first
batch of a run has a moderate number of records, or fewer if the first unread records are large.

A repeated batch keeps its size, because the plan of the batch is in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.engine.batch.side_outputs import DataSize
from sluice.values.run_memory import FIXED_MB, GROWN_MB, heap_mb

_ROW_COPIES = 4
"""The memory that tasks need for each byte of their rows, as a multiple: rows as received, as
sorted, and their results."""
_PLAIN_COPIES, _COMPRESSED_COPIES = 2, 4
"""The memory for each byte of the records and rows that the driver gets, as multiples. They are
uncompressed in a task, in the driver and in its Kafka client. They are compressed in a task, in the
driver, and several times in the JVM."""
_HEAP_COPIES, _USED_HEAP_MB = 4, 160
"""The JVM's heap for each compressed byte, as a multiple, and its heap without any task's
results."""
ROW_BYTES = 95
"""The bytes of a row in addition to its record's key and value."""
SAFE_RECORDS = 100
"""A batch may always have this many records."""
_UNKNOWN_RECORDS, _FIRST_RECORDS, _MOST_RECORDS = 600_000, 1_200_000, 2_000_000
_FIRST_TO_ADD_UP = 1_000_000
"""The maximum number of records in each of the first batches if tasks add up records. Each record
may be the first of its key and window, and so become a row."""
_ENOUGH_RECORDS = 10_000
"""A batch with fewer records does not show how large the rows of a large batch would be. This does
not matter if batches are small."""


@dataclass
class BatchSize:
    """The maximum number of records in a run's next batch."""

    memory_mb: int
    given: int | None = None
    """The number that the user has set; None if the number follows from the memory."""
    _memory_per_record: float | None = None
    """The memory that the rows and the output of a record need, in bytes."""
    _compressed_per_record: float = 0
    """The bytes of a record's compressed output."""
    _is_measured: bool = False
    _first_records: int = _FIRST_RECORDS

    @property
    def is_unknown(self) -> bool:
        """Whether the size of batches depends on the size of rows, which is not known yet."""
        return self.given is None and self._memory_per_record is None

    def expect(self, record: DataSize, rows: int) -> None:
        """Estimate the memory per record, for some rows and one output record each.

        `record` is the mean size of a record's key and value. If tasks add records up while they
        read them, the records do not become rows.
        """
        # Most output records contain only a part of their record. Dead letters contain the whole
        # record, but few records become dead letters.
        output = DataSize(record.plain / 2, record.compressed)
        self._memory_per_record = max(
            (record.plain + ROW_BYTES) * rows * _ROW_COPIES, _memory(output)
        )
        self._compressed_per_record = record.compressed
        self._first_records = _FIRST_RECORDS if rows else _FIRST_TO_ADD_UP

    def measure(self, records: int, row_bytes: int, output: DataSize) -> None:
        """Compute the memory per record from the sizes of a batch's rows and output."""
        if records >= min(_ENOUGH_RECORDS, self.most_records() / 2):
            memory = max(row_bytes * _ROW_COPIES, _memory(output))
            self._memory_per_record, self._is_measured = memory / records, True
            self._compressed_per_record = output.compressed / records

    def most_records(self) -> int:
        if self.given is not None:
            return self.given
        if self._memory_per_record is None:
            return _UNKNOWN_RECORDS
        most, fixed_mb = self._first_records, FIXED_MB
        if self._is_measured:
            most, fixed_mb = _MOST_RECORDS, FIXED_MB + GROWN_MB
        memory = (self.memory_mb - fixed_mb) * 1e6
        heap = (heap_mb(self.memory_mb) - _USED_HEAP_MB) * 1e6 / _HEAP_COPIES
        fitting = min(
            memory / max(self._memory_per_record, 1), heap / max(self._compressed_per_record, 1)
        )
        return int(min(max(fitting, SAFE_RECORDS), most))


def _memory(output: DataSize) -> float:
    return output.plain * _PLAIN_COPIES + output.compressed * _COMPRESSED_COPIES
