"""The batches of a generation as they were run: what a rebuild needs to run them again with the same results.

Where the input was cut into batches, when each batch was begun and how many partitions the topics had then decide which
records are from the future, which partitions are idle, and in which order the records of several topics come. The rows
are small, and stay when retention removes the snapshots.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Engine, RowMapping, select

from sluice.state.database import as_json, speaking_to
from sluice.state.ledger.tables import HISTORY, is_of

_TEXTS = ("partitions", "ends")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch as it was run."""

    number: int
    begun: int
    """When it was first begun, epoch ms: the clock of everything in it that goes by the time of processing."""
    partitions: dict[str, int]
    """Topic → how many partitions the batch's tasks knew it to have."""
    ends: dict[str, dict[str, int]]
    """Topic → partition as text → offset after the batch's last record; only what the batch has changed."""
    by_clock: bool = False
    """A record was refused or dated by the time of processing."""


class History:
    """The ledger's memory of batches. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self, pipeline: str, job: str, generation: int) -> list[Batch]:
        """The batches of a generation, oldest first."""
        statement = select(HISTORY).where(is_of(HISTORY, pipeline, job, generation)).order_by(HISTORY.c.number)
        with speaking_to("Reading the history"), self._engine.connect() as connection:
            return [_batch(row) for row in connection.execute(statement).mappings()]


def history_row(batch: Batch) -> dict[str, Any]:
    """The batch as a row of its table, without whose it is."""
    return msgspec.structs.asdict(batch) | {name: as_json(getattr(batch, name)) for name in _TEXTS}


def _batch(row: RowMapping) -> Batch:
    known = {name: row[name] for name in ("number", "begun", "by_clock")}
    return Batch(**known, **{name: msgspec.json.decode(row[name]) for name in _TEXTS})
