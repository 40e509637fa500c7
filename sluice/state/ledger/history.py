"""The history of a generation's batches. A rebuild repeats the batches to get the same results.

The results depend on where batches end, when they begin, and how many partitions there are then,
because these facts determine which records are rejected as too far in the future, which partitions
count as idle, and how the records of several topics are interleaved. The rows are small; retention
does not remove them with the snapshots.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import RowMapping, Select, and_, delete, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart, decode_columns, json_texts
from sluice.state.ledger.ledger_tables import HISTORY, of_ref
from sluice.state.model import GenerationRef

_JSON_COLUMNS = ("partitions", "ends")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one batch."""

    number: int
    begun: int
    """Epoch ms at which the batch first began; the processing time of all its records."""
    partitions: dict[str, int]
    """Topic → number of partitions when the batch ran."""
    ends: dict[str, dict[str, int]]
    """Topic → partition as text → offset after the batch's last record. Only partitions with new
    records."""
    by_clock: bool = False
    """Whether processing time affected a record: it was rejected as too far in the future, or had
    no timestamp."""
    boundaries_lost: bool = False
    """Whether the batch also has the records of earlier batches, whose ends were lost with a
    ledger."""


class History(LedgerPart):
    """The published batches of all pipelines."""

    def all(self, ref: GenerationRef) -> list[Batch]:
        """Return the batches of a generation, oldest first."""
        statement = select(HISTORY).where(of_ref(HISTORY, ref)).order_by(HISTORY.c.number)
        return self._batches(statement)

    def recent(self, ref: GenerationRef, limit: int) -> list[Batch]:
        """Return the newest batches of a generation, newest first."""
        statement = (
            select(HISTORY)
            .where(of_ref(HISTORY, ref))
            .order_by(HISTORY.c.number.desc())
            .limit(limit)
        )
        return self._batches(statement)

    def get(self, ref: GenerationRef, number: int) -> Batch | None:
        """Return one batch of a generation; None if it has not been published."""
        statement = select(HISTORY).where(of_ref(HISTORY, ref), HISTORY.c.number == number)
        batches = self._batches(statement)
        return batches[0] if batches else None

    def merge(self, ref: GenerationRef, last: int) -> int:
        """Merge the batches up to the number `last` into one batch with that number.

        Return the number of batches that were removed.

        The later batches begin where they began before. Merge only batches whose records the topics
        no longer have: a rebuild cannot repeat them, so their ends and clocks do not matter.
        """
        with (
            database_errors("Merging old batches", seconds=None),
            transaction(self._engine) as connection,
        ):
            of_batches = and_(of_ref(HISTORY, ref), HISTORY.c.number <= last)
            rows = (
                connection.execute(select(HISTORY).where(of_batches).order_by(HISTORY.c.number))
                .mappings()
                .all()
            )
            batches = [_batch(row) for row in rows]
            if len(batches) < 2:
                return 0
            ends: dict[str, dict[str, int]] = {}
            for batch in batches:
                for topic, partitions in batch.ends.items():
                    ends.setdefault(topic, {}).update(partitions)
            by_clock = any(batch.by_clock for batch in batches)
            merged = msgspec.structs.replace(batches[-1], ends=ends, by_clock=by_clock)
            connection.execute(delete(HISTORY).where(of_batches))
            connection.execute(insert(HISTORY), history_row(ref, merged))
        return len(batches) - 1

    def _batches(self, statement: Select[Any]) -> list[Batch]:
        return [_batch(row) for row in self._read(statement)]


def history_row(ref: GenerationRef, batch: Batch) -> dict[str, Any]:
    texts = json_texts(batch, _JSON_COLUMNS)
    return msgspec.structs.asdict(ref) | msgspec.structs.asdict(batch) | texts


def _batch(row: RowMapping) -> Batch:
    return Batch(
        number=row["number"],
        begun=row["begun"],
        by_clock=row["by_clock"],
        boundaries_lost=row["boundaries_lost"],
        **decode_columns(row, _JSON_COLUMNS),
    )
