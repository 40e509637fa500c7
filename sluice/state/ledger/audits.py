"""Audits account for every record that a published batch read.

An audit is kept as long as its snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import RowMapping, Select, func, select, tuple_

from sluice.state.ledger.ledger_part import LedgerPart, decode_columns, json_texts
from sluice.state.ledger.ledger_tables import AUDITS, of_ref, of_refs
from sluice.state.model import GenerationRef, OfGeneration
from sluice.state.shard.checksums import NO_CHECKSUM
from sluice.state.shard.shard import Checksums

_JSON_COLUMNS = ("sources", "outputs", "checksums", "states", "phases", "step_rows")


class SourceAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the records that a batch has read from one partition.

    Each record in `read` is counted exactly once in `applied`, `filtered`, `late`, `dropped` or
    `dead_letters`.
    """

    topic: str
    partition: int
    start: int
    """The first offset. Transaction markers and aborted records have offsets too but are not
    read."""
    end: int
    """The offset after the last record."""
    read: int = 0
    applied: int = 0
    """Records that changed a store or a table, or were written to a topic."""
    filtered: int = 0
    """Records that were filtered out on every path."""
    late: int = 0
    """Records that were late for all their windows and had no other effect."""
    passed_over: dict[str, int] = {}
    """`REASON/STEP` → how often a step skipped a record: `late` (once per window), `null_key`,
    `null_value`, `duplicate`, `missing`, `failed`. Other steps may still process the record, so
    these counts are not part of the balance. A record that reaches an operator counts as applied,
    even if the operator skips it."""
    dropped: dict[str, int] = {}
    """Reason → number of unusable records that were discarded, such as records with a null key."""
    dead_letters: dict[str, int] = {}
    """Reason → number of records written to the dead-letter topic."""
    last: int = -1
    """The offset of the last record read; -1 if no record was read."""
    fingerprint: str = ""
    """The fingerprint of the record at offset `last`."""
    leader_epoch: int = -1
    """Kafka's leader epoch of the record at offset `last`; -1 if it is unknown."""
    first_leader_epoch: int = -1
    """The leader epoch of the first record read."""

    @property
    def accounted(self) -> int:
        """The sum of the outcomes."""
        rejected = sum(self.dropped.values()) + sum(self.dead_letters.values())
        return self.applied + self.filtered + self.late + rejected

    @property
    def wrong(self) -> str:
        """A description of why the counts do not balance; empty if they do."""
        partition = f"{self.topic}/{self.partition}"
        if self.read != self.accounted:
            return (
                f"{partition}: {self.read} records were read, "
                f"but {self.accounted} are accounted for"
            )
        # Fewer records than offsets are normal: transaction markers and aborted records have
        # offsets too.
        if self.read > self.end - self.start:
            offsets = f"offsets {self.start} to {self.end}"
            return f"{partition}: {self.read} records were read from {offsets}"
        return ""


class Audit(OfGeneration, frozen=True, kw_only=True):
    """The audit of one batch, published with its snapshot."""

    batch: int
    run: str
    """The Airflow run; empty for a run without Airflow."""
    epoch: int
    """The epoch of the lease that the driver held when it published the batch."""
    sources: tuple[SourceAudit, ...]
    outputs: dict[str, int]
    """Topic → number of records written."""
    checksums: dict[str, str]
    """Worker number as text → checksum of its state rows at this snapshot."""
    states: dict[str, str] = msgspec.field(default_factory=dict)
    """Worker number as text → checksum of its operator states."""
    phases: dict[str, int] = msgspec.field(default_factory=dict)
    """Phase of the batch → its duration in ms in the driver that published it. The phases are
    `start`, until Spark has planned the batch; `state`, until the records are processed and all
    shards are written; `audit`; and `output`. A replayed batch has no `start`, and a batch that was
    copied from another generation has no phases."""
    step_rows: dict[str, int] = msgspec.field(default_factory=dict)
    """`received/STEP/INPUT` → the number of rows that a step got from its input with this index.
    `results/STEP` → the number of rows that the step passed on. There are no counts for steps whose
    rows cannot be counted exactly, or for batches of earlier versions of Sluice."""

    @property
    def is_written(self) -> bool:
        """Whether a run has written the batch's output, with a marker of this generation.

        A replay writes no output and no marker.
        """
        return "start" in self.phases

    @property
    def wrong(self) -> list[str]:
        """Descriptions of why the counts do not balance, one per affected partition."""
        return [source.wrong for source in self.sources if source.wrong]

    @property
    def all_checksums(self) -> dict[str, Checksums]:
        """Return the checksums of all workers' shards, by the worker's number as text."""
        checksums: dict[str, Checksums] = {}
        for worker, state_rows in self.checksums.items():
            checksums[worker] = Checksums(state_rows, self.states.get(worker, NO_CHECKSUM))
        return checksums

    def published_checksums(self, worker: int) -> Checksums | None:
        """Return the checksums of a worker's shard; None if the worker had no shard."""
        return self.all_checksums.get(str(worker))


class Audits(LedgerPart):
    """The audits of all generations."""

    def all(self, ref: GenerationRef) -> list[Audit]:
        """Return the retained audits of a generation, oldest first."""
        statement = select(AUDITS).where(of_ref(AUDITS, ref)).order_by(AUDITS.c.batch)
        return self._audits(statement)

    def recent(self, ref: GenerationRef, limit: int) -> list[Audit]:
        """Return the newest audits of a generation, newest first."""
        statement = (
            select(AUDITS).where(of_ref(AUDITS, ref)).order_by(AUDITS.c.batch.desc()).limit(limit)
        )
        return self._audits(statement)

    def newest_of_all(self, refs: Sequence[GenerationRef]) -> dict[GenerationRef, Audit]:
        """Return the newest audit of each generation."""
        newest = select(AUDITS.c.pipeline, AUDITS.c.generation, func.max(AUDITS.c.batch)).where(
            of_refs(AUDITS, refs)
        )
        newest = newest.group_by(AUDITS.c.pipeline, AUDITS.c.generation)
        statement = select(AUDITS).where(
            tuple_(AUDITS.c.pipeline, AUDITS.c.generation, AUDITS.c.batch).in_(newest)
        )
        return {audit.ref: audit for audit in self._audits(statement)}

    def of_run(self, ref: GenerationRef, run: str) -> list[Audit]:
        """Return all retained audits of the batches that a run published, oldest first."""
        statement = (
            select(AUDITS).where(of_ref(AUDITS, ref), AUDITS.c.run == run).order_by(AUDITS.c.batch)
        )
        return self._audits(statement)

    def newest(self, ref: GenerationRef) -> Audit | None:
        """Return the audit of the newest snapshot; None if there is no snapshot yet."""
        newest = self.recent(ref, limit=1)
        return newest[0] if newest else None

    def newest_checksums(self, ref: GenerationRef, worker: int) -> Checksums | None:
        """Return a worker's checksums in the newest snapshot; None if none are published."""
        audit = self.newest(ref)
        return None if audit is None else audit.published_checksums(worker)

    def checksum(self, ref: GenerationRef, worker: int, since: int) -> tuple[int, str] | None:
        """Return the oldest retained batch from `since` on, and the checksum of the worker's rows.

        Return None if there is no such batch, or the worker had no shard.
        """
        c = AUDITS.c
        statement = (
            select(c.batch, c.checksums)
            .where(of_ref(AUDITS, ref), c.batch >= since)
            .order_by(c.batch)
        )
        rows = self._read(statement.limit(1))
        if not rows:
            return None
        checksum = msgspec.json.decode(rows[0]["checksums"]).get(str(worker))
        return None if checksum is None else (rows[0]["batch"], checksum)

    def _audits(self, statement: Select[Any]) -> list[Audit]:
        return [_audit(row) for row in self._read(statement)]


def split_checksums(checksums: Mapping[str, Checksums]) -> tuple[dict[str, str], dict[str, str]]:
    """Return `Audit.checksums` and `Audit.states` for the checksums of all workers' shards."""
    state_rows: dict[str, str] = {}
    states: dict[str, str] = {}
    for worker, of_shard in checksums.items():
        state_rows[worker], states[worker] = of_shard.state_rows, of_shard.states
    return state_rows, states


def total(audits: Iterable[Audit]) -> list[SourceAudit]:
    """Return the summed counts of several batches per partition.

    The audits must be sorted, oldest first.
    """
    by_partition: dict[tuple[str, int], list[SourceAudit]] = {}
    for audit in audits:
        for source in audit.sources:
            by_partition.setdefault((source.topic, source.partition), []).append(source)
    return [_sum(by_partition[partition]) for partition in sorted(by_partition)]


def audit_row(audit: Audit) -> dict[str, Any]:
    return msgspec.structs.asdict(audit) | json_texts(audit, _JSON_COLUMNS)


def _audit(row: RowMapping) -> Audit:
    texts = decode_columns(row, _JSON_COLUMNS[1:])
    texts["sources"] = msgspec.json.decode(row["sources"], type=tuple[SourceAudit, ...])
    return Audit(**(dict(row) | texts))


def _sum(parts: list[SourceAudit]) -> SourceAudit:
    first, last = parts[0], parts[-1]
    # `last` is -1 in a batch without records of the partition, and grows from batch to batch.
    newest = max(parts, key=lambda part: part.last)
    counts: Counter[str] = Counter()
    passed_over: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    dead_letters: Counter[str] = Counter()
    for part in parts:
        counts.update(read=part.read, applied=part.applied, filtered=part.filtered, late=part.late)
        passed_over.update(part.passed_over)
        dropped.update(part.dropped)
        dead_letters.update(part.dead_letters)
    return SourceAudit(
        topic=first.topic,
        partition=first.partition,
        start=first.start,
        end=last.end,
        read=counts["read"],
        applied=counts["applied"],
        filtered=counts["filtered"],
        late=counts["late"],
        passed_over=dict(passed_over),
        dropped=dict(dropped),
        dead_letters=dict(dead_letters),
        last=newest.last,
        fingerprint=newest.fingerprint,
        leader_epoch=newest.leader_epoch,
        first_leader_epoch=first.first_leader_epoch,
    )
