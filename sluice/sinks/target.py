"""The interface of tables outside Kafka to which the engine writes a batch's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import msgspec
import pyarrow as pa

from sluice.values.phrases import counted
from sluice.values.sink_tables import OutputTable

Row = tuple[Any, ...]
"""The values of a row's columns, as encoded by `Column.encode`."""


class Column(Protocol):
    """A column of a table."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str:
        """The column's type, for messages."""

    @property
    def is_text(self) -> bool:
        """Whether this is a text column.

        A key that is a number is written to this column as text.
        """

    def encode(self, json: bytes) -> Any:
        """Return the column's value for a JSON value.

        Raises ValueError, which names the column, if the value does not fit.
        """


@dataclass(frozen=True)
class Target:
    """A table to which a pipeline writes: its output name, and its columns with Spark SQL types."""

    output: str
    at: str
    """The place in the author's code that declares the output, as `file:line`."""
    table: OutputTable
    is_windowed: bool
    fields: tuple[tuple[str, str], ...]

    @property
    def identity(self) -> dict[str, str]:
        """The columns that identify a row, with their Spark SQL types.

        The type of the key's column is an empty text, because it depends on the value's fields.
        """
        return self.table.identity_columns(is_windowed=self.is_windowed)

    @property
    def wanted(self) -> dict[str, str]:
        """The columns with their Spark SQL types. An unknown type is an empty text.

        Columns that identify a row come first. If the key is not a field of the value, the type of
        its column is unknown, because the key's text may be a number.
        """
        fields = dict(self.fields)
        columns: dict[str, str] = {}
        for name, kind in self.identity.items():
            columns[name] = kind or fields.get(name, "")
        for name, kind in self.fields:
            columns.setdefault(name, kind)
        return columns


@dataclass(frozen=True)
class Rows:
    """The rows of a batch for one table, at most one row for each identity."""

    written: Sequence[Row]
    deleted: Sequence[Row]
    """The identities of the rows to delete."""
    records: pa.Table
    """The records of these rows, with `key` and `value` as for a topic."""

    @property
    def count(self) -> int:
        """The number of rows to write or delete."""
        return len(self.written) + len(self.deleted)


class BatchId(NamedTuple):
    """Identifies a pipeline's batch.

    A batch that is repeated after a crash has the same id, and the same records.
    """

    generation: int
    number: int
    begun: int
    """When the batch was planned, epoch ms. A batch with other records therefore has another id."""

    @property
    def snapshot(self) -> str:
        """The id of the snapshot with which the batch is published."""
        return f"{self.generation}.{self.number}"


@dataclass(frozen=True)
class Published:
    """The ledger's last batch when a run begins."""

    batch: BatchId
    outputs: AbstractSet[str]
    """The outputs of the batch, including those to which it wrote no records."""
    positions: Mapping[str, Mapping[str, int]]
    """Topic → partition as text → offset after the last record."""
    is_written: bool = True
    """Whether a run has written the batch's output. A rebuild publishes batches, but writes no
    output."""


class Written(msgspec.Struct, frozen=True):
    """The number and the checksum of a batch's records in a table or a topic.

    When a batch is repeated, both are compared with the records that the repeated batch would
    write.
    """

    count: int
    checksum: str = ""
    """The sum of the records' checksums, which does not depend on their order; an empty text if it
    is unknown."""

    def difference(self, output: str, now: Written) -> str:
        """Describe how a repeated batch differs. Return an empty text if it does not differ."""
        if self.count != now.count:
            return f"{output} got {counted(self.count, 'record')}, and would get {now.count:,} now"
        if self.checksum and now.checksum and self.checksum != now.checksum:
            return f"the {counted(self.count, 'record')} for {output} have other contents"
        return ""


def written_rows(rows: Rows) -> Written:
    """Return the number and the checksum of the rows that a batch writes to a table."""
    total = 0
    for row in rows.written:
        total += crc32(repr(row).encode())
    for row in rows.deleted:
        # Because of the start value 1, a deleted row has another checksum than a written row with
        # the same values.
        total += crc32(repr(row).encode(), 1)
    return Written(rows.count, f"{total:x}")


class TableSink(Protocol):
    """Writes the rows of batches to tables that one transaction can cover, each batch exactly once.

    **Visibility.** `write` makes all rows of a batch visible in one transaction: in all tables of a
    database, or in one Delta table. The publisher calls `write` after the shards are written, and
    before the Kafka transaction with the batch's marker and before the snapshot. The tables may
    therefore be one batch ahead of the output topics and of queries, but always have every batch
    that these have.

    **Repetition.** The transaction also stores the batch's id. If the driver is killed at any
    moment between `write` and the snapshot, the next run repeats the batch, and `write` returns the
    counts that are stored with the id, without writing. `write` raises BatchDiffers if the rows
    differ from the written rows. Tables that were added to the pipeline in the meantime get their
    rows.

    **Rebuilds.** A rebuild, a restore and a replay write nothing. Suppose that a driver is killed
    between `write` and the marker, and that the state is then rebuilt, rather than the batch
    repeated. The batch's records are then written again in a batch with another id. Each row
    replaces itself or is left out, because its identity is its key, or its record's position.

    **One writer.** `begin` gives the writer an epoch above all earlier epochs. A writer with an
    older epoch cannot commit afterwards: its transaction compares the stored epoch, and `write`
    raises LeaseError.
    """

    @property
    def columns(self) -> Mapping[str, Sequence[Column]]:
        """The columns of each output's table. The first columns identify a row."""

    def begin(self, published: Published | None) -> None:
        """Create or check the tables, and fence off earlier writers.

        `published` is the last batch of the ledger's current generation; None if it has none.

        Raises EngineError if a table does not fit the pipeline, or if it lacks published batches.
        """

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        """Write a batch's rows. `rows`: output → its rows.

        Returns the number of rows written and deleted per output. Raises EngineError if the tables
        have lost a batch since this writer began.
        """
