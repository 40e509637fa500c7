"""Quarantine: workers whose damaged shards must not be read until they are rebuilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, delete, insert, select

from sluice.errors import Refused
from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import QUARANTINE, of_ref, of_refs
from sluice.state.ledger.placement import epochs_of
from sluice.state.model import GenerationRef


class Inspection(msgspec.Struct, frozen=True):
    """A generation's quarantine, and its workers' placements, noted before the shards are read."""

    ref: GenerationRef
    since: Mapping[int, str]
    """Worker → when its quarantine began."""
    places: Mapping[int, int]
    """Worker → the epoch of its placement."""


class Quarantine(LedgerPart):
    def get(self, ref: GenerationRef) -> dict[int, str]:
        """Return worker → the reason why its shard must not be read."""
        reasons: dict[int, str] = {}
        for (_, worker), reason in self.reasons([ref]).items():
            reasons[worker] = reason
        return reasons

    def reasons(self, refs: Sequence[GenerationRef]) -> dict[tuple[GenerationRef, int], str]:
        """Return why shards must not be read: generation and worker → reason."""
        reasons: dict[tuple[GenerationRef, int], str] = {}
        for row in self._read(select(QUARANTINE).where(of_refs(QUARANTINE, refs))):
            ref = GenerationRef(row["pipeline"], row["generation"])
            reasons[ref, row["worker"]] = row["reason"]
        return reasons

    def add(self, ref: GenerationRef, worker: int, reason: str) -> None:
        """Stop readers and writers from opening the worker's shard."""
        with database_errors("Quarantining the shard"), transaction(self._engine) as connection:
            replace_quarantine(connection, ref, worker, reason)

    def inspect(self, ref: GenerationRef) -> Inspection:
        """Return the quarantine and placements of a generation before its shards are read.

        After the reading, `conclude` checks that quarantine and placements are still the same.
        """
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return Inspection(ref, _since(connection, ref), epochs_of(connection, ref.pipeline))

    def conclude(self, before: Inspection, worker: int, reason: str = "") -> None:
        """Keep readers and writers from opening the worker's shard, and store the reason.

        If the reason is empty, let readers and writers open the shard.

        Raise Refused and change nothing if the worker's quarantine or placement is not the same
        as in `before`.
        """
        ref = before.ref
        with database_errors("Changing the quarantine"), transaction(self._engine) as connection:
            since, places = _since(connection, ref), epochs_of(connection, ref.pipeline)
            # The caller has read one shard. If another shard has replaced that shard meanwhile, the
            # caller's result says nothing about the other shard.
            if (since.get(worker), places.get(worker)) != (
                before.since.get(worker),
                before.places.get(worker),
            ):
                raise Refused(
                    f"The shard of worker {worker} of {ref.pipeline!r} was moved, or its "
                    "quarantine has changed, while it was read. Its quarantine is left as it is.",
                    next_step=f"Read the shard again: sluice audit {ref.pipeline} --verify.",
                )
            replace_quarantine(connection, ref, worker, reason)


def _since(connection: Connection, ref: GenerationRef) -> dict[int, str]:
    rows = connection.execute(
        select(QUARANTINE.c.worker, QUARANTINE.c.since).where(of_ref(QUARANTINE, ref))
    )
    return {row.worker: row.since for row in rows}


def replace_quarantine(
    connection: Connection,
    ref: GenerationRef,
    worker: int,
    reason: str,
) -> None:
    """Begin the quarantine of a shard, or end it if `reason` is empty, within a transaction."""
    connection.execute(
        delete(QUARANTINE).where(of_ref(QUARANTINE, ref), QUARANTINE.c.worker == worker)
    )
    if reason:
        since = datetime.now(UTC).isoformat(timespec="microseconds")
        values = msgspec.structs.asdict(ref) | {"worker": worker, "reason": reason, "since": since}
        connection.execute(insert(QUARANTINE), values)
