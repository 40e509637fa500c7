"""The topics that a job's generation reads: Kafka's topic ids, and the first offset of each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.leases import LeaseRow, require_epoch
from sluice.state.ledger.part import LedgerPart
from sluice.state.ledger.tables import SOURCES, of_ref
from sluice.state.model import JobRef


class SourcePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a topic that a job reads."""

    topic: str
    partition: int
    topic_id: str
    """Kafka's id of the topic. A topic that is deleted and created again has a new id."""
    first: int
    """The offset at which the job began to read."""


class Sources(LedgerPart):
    """The partitions that jobs read."""

    def get(self, ref: JobRef) -> list[SourcePartition]:
        """The partitions of a generation, sorted by topic and partition."""
        columns = [SOURCES.c[name] for name in SourcePartition.__struct_fields__]
        statement = select(*columns).where(of_ref(SOURCES, ref)).order_by(SOURCES.c.topic, SOURCES.c.partition)
        return [SourcePartition(**dict(row)) for row in self._read(statement)]

    def add(self, ref: JobRef, partitions: Iterable[SourcePartition]) -> None:
        """Add partitions that the generation begins to read."""
        if rows := _rows(ref, partitions):
            with database_errors("Writing the sources"), transaction(self._engine) as connection:
                connection.execute(insert(SOURCES), rows)

    def replace(self, ref: JobRef, partitions: Iterable[SourcePartition], lease: LeaseRow) -> None:
        """Set where a generation begins to read. It must not have read anything yet.

        `lease` is that of the current generation. Raises LeaseError if it is no longer held: another command may use
        the new generation's number by now.
        """
        with database_errors("Writing the sources"), transaction(self._engine) as connection:
            require_epoch(connection, lease.ref, lease.epoch)
            connection.execute(delete(SOURCES).where(of_ref(SOURCES, ref)))
            if rows := _rows(ref, partitions):
                connection.execute(insert(SOURCES), rows)


def _rows(ref: JobRef, partitions: Iterable[SourcePartition]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(ref) | msgspec.structs.asdict(partition) for partition in partitions]
