"""What the engine requires of a database to which it writes a batch's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from sluice.sinks.columns import TableColumn

Row = tuple[str | None, ...]
"""The columns of a row as text."""


@dataclass(frozen=True)
class Rows:
    """The rows of a batch for one table, at most one per identity."""

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
    """Identifies a batch of a job. A batch that is repeated after a crash has the same id, and the same records."""

    generation: int
    number: int
    begun: int
    """When Spark logged the batch, in epoch ms, so that a batch with other records has another id."""


class DatabaseSink(Protocol):
    """Writes the rows of batches to the tables of one database, each batch exactly once.

    **Visibility.** `write` makes all rows of a batch visible in one transaction, in all tables of the database. The
    publisher calls it after the shards are written, and before the Kafka transaction with the batch's marker and before
    the snapshot. The tables may therefore be one batch ahead of the output topics and of queries, and never behind.

    **Repetition.** The transaction also stores the batch's id. If the driver is killed at any moment between `write`
    and the snapshot, the next run repeats the batch, and `write` returns the counts that are stored with the id,
    without writing. Tables that were added to the pipeline in the meantime get their rows.

    **Rebuilds.** A rebuild, a restore and a replay write nothing. If a driver is killed between `write` and the marker,
    and the state is then rebuilt instead of the batch being repeated, the batch's records are written again in a batch
    with another id. Each row then replaces itself, because its identity is its key, or its record's position.

    **One writer.** `begin` gives the writer an epoch above all earlier ones. A writer with an older epoch cannot commit
    afterwards: its transaction locks the stored epoch, compares it, and raises LeaseError.
    """

    @property
    def columns(self) -> Mapping[str, tuple[TableColumn, ...]]:
        """Output → the columns of its table, of which the first ones identify a row."""

    def begin(self, generation: int, published: int | None, outputs: Set[str]) -> None:
        """Create or check the tables, and fence off earlier writers.

        `published` is the ledger's last batch, and `outputs` are the outputs that it wrote.

        Raises EngineError if a table does not fit the pipeline, or if it lacks published batches.
        """

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        """Write a batch's rows per output. Returns the number of rows written and deleted per output."""
