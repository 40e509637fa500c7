"""Quarantine: workers whose damaged shards must not be read until they are rebuilt."""

from __future__ import annotations

import msgspec
from sqlalchemy import delete, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.part import LedgerPart
from sluice.state.ledger.tables import QUARANTINE, of_ref
from sluice.state.model import JobRef


class Quarantine(LedgerPart):
    def get(self, ref: JobRef) -> dict[int, str]:
        """Worker → the reason why its shard must not be read."""
        statement = select(QUARANTINE.c.worker, QUARANTINE.c.reason).where(of_ref(QUARANTINE, ref))
        return {row["worker"]: row["reason"] for row in self._read(statement)}

    def add(self, ref: JobRef, worker: int, reason: str) -> None:
        """Stop readers and writers from opening the worker's shard."""
        values = msgspec.structs.asdict(ref) | {"worker": worker, "reason": reason}
        with database_errors("Quarantining the shard"), transaction(self._engine) as connection:
            connection.execute(delete(QUARANTINE).where(of_ref(QUARANTINE, ref), QUARANTINE.c.worker == worker))
            connection.execute(insert(QUARANTINE), values)

    def remove(self, ref: JobRef, worker: int) -> None:
        """Allow readers and writers to open the worker's shard again."""
        with database_errors("Ending the quarantine"), transaction(self._engine) as connection:
            connection.execute(delete(QUARANTINE).where(of_ref(QUARANTINE, ref), QUARANTINE.c.worker == worker))
