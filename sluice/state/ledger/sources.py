"""The topics that a generation reads: Kafka's topic ids, and the first offset of each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.leases import LeaseRow, require_epoch
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import SOURCES, of_ref
from sluice.state.model import GenerationRef
from sluice.values.record_places import Partition


class SourcePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a topic that a pipeline reads."""

    topic: str
    partition: int
    topic_id: str
    """Kafka's id of the topic. A topic that is deleted and created again has a new id."""
    first: int
    """The offset at which the generation began to read."""
    last: int = -1
    """The offset of the last record that the pipeline has read; -1 if it has read none."""
    fingerprint: str = ""
    """The fingerprint of the record at offset `last`."""
    leader_epoch: int = -1
    """Kafka's leader epoch of the record at offset `last`; -1 if it is unknown."""

    @property
    def place(self) -> Partition:
        """The topic and the number of the partition."""
        return self.topic, self.partition

    def after(self, read: SourceAudit) -> SourcePartition:
        """Return the partition as it is after a batch that has read records from it."""
        return msgspec.structs.replace(
            self, last=read.last, fingerprint=read.fingerprint, leader_epoch=read.leader_epoch
        )


class Sources(LedgerPart):
    """The partitions that pipelines read."""

    def get(self, ref: GenerationRef) -> list[SourcePartition]:
        """Return the partitions of a generation, sorted by topic and partition."""
        columns = [SOURCES.c[name] for name in SourcePartition.__struct_fields__]
        statement = (
            select(*columns)
            .where(of_ref(SOURCES, ref))
            .order_by(SOURCES.c.topic, SOURCES.c.partition)
        )
        return [SourcePartition(**dict(row)) for row in self._read(statement)]

    def add(self, ref: GenerationRef, partitions: Iterable[SourcePartition]) -> None:
        """Add partitions that the generation begins to read."""
        rows = _rows(ref, partitions)
        if rows:
            with database_errors("Writing the sources"), transaction(self._engine) as connection:
                connection.execute(insert(SOURCES), rows)

    def replace(
        self,
        ref: GenerationRef,
        partitions: Iterable[SourcePartition],
        lease: LeaseRow,
    ) -> None:
        """Set where a generation begins to read. The generation must not have read anything yet.

        `lease` is the lease of the current generation. Raise LeaseError if it is no longer held:
        another command may have given the number of `ref` to its own generation in the meantime.
        """
        with database_errors("Writing the sources"), transaction(self._engine) as connection:
            require_epoch(connection, lease.ref, lease.epoch)
            connection.execute(delete(SOURCES).where(of_ref(SOURCES, ref)))
            unread: list[SourcePartition] = []
            for partition in partitions:
                unread.append(
                    msgspec.structs.replace(partition, last=-1, fingerprint="", leader_epoch=-1)
                )
            if unread:
                connection.execute(insert(SOURCES), _rows(ref, unread))


def note_last_records(
    connection: Connection,
    ref: GenerationRef,
    audits: Iterable[SourceAudit],
) -> None:
    """Store, within a transaction, the last records that a batch has read."""
    for source in audits:
        if source.fingerprint:
            of_partition = SOURCES.c.topic == source.topic, SOURCES.c.partition == source.partition
            values = {
                "last": source.last,
                "fingerprint": source.fingerprint,
                "leader_epoch": source.leader_epoch,
            }
            connection.execute(
                update(SOURCES).where(of_ref(SOURCES, ref), *of_partition).values(**values)
            )


def _rows(ref: GenerationRef, partitions: Iterable[SourcePartition]) -> list[dict[str, Any]]:
    of_ref = msgspec.structs.asdict(ref)
    return [of_ref | msgspec.structs.asdict(partition) for partition in partitions]
