"""What became of every record: one audit for each published batch, kept as long as its snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Engine, RowMapping, and_, select
from sqlalchemy.sql import Select

from sluice.state.database import as_json, speaking_to
from sluice.state.ledger.tables import AUDITS

_TEXTS = ("sources", "outputs", "checksums", "states")


class SourceAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the records of one partition. Every record read is in exactly one of the other counts."""

    topic: str
    partition: int
    start: int
    """The first offset of the range; transactions' marks and aborted records have offsets too, and are not read."""
    end: int
    """The offset after the last one of the range."""
    read: int = 0
    applied: int = 0
    """Counted in a store or written to a topic, or a change of a table."""
    filtered: int = 0
    """Taken out by filters everywhere."""
    late: int = 0
    """Too late for every window that they would have counted in, and of no other effect."""
    passed_over: dict[str, int] = {}
    """`REASON/STEP` → how often a step could not take a record: `late` (once for each window), `null_key`,
    `null_value`, `duplicate`, `failed`. Elsewhere it may count; a step that sees records in order has it among those
    applied."""
    dropped: dict[str, int] = {}
    """Reason → records that could not be used, such as those with a null key, and are not kept."""
    dead_letters: dict[str, int] = {}
    """Reason → records set aside."""

    @property
    def accounted(self) -> int:
        """How many records are in one of the counts."""
        lost = sum(self.dropped.values()) + sum(self.dead_letters.values())
        return self.applied + self.filtered + self.late + lost

    @property
    def wrong(self) -> str:
        """What does not balance; empty if everything does."""
        place = f"{self.topic}/{self.partition}"
        if self.read != self.accounted:
            return f"{place}: {self.read} records were read, and {self.accounted} are accounted for"
        if self.read > self.end - self.start:
            return f"{place}: {self.read} records were read of offsets {self.start} to {self.end}"
        return ""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one batch, published with its snapshot."""

    pipeline: str
    job: str
    generation: int
    batch: int
    run: str
    """The run of Airflow; empty without one."""
    epoch: int
    """Of the lease under which the batch was published."""
    sources: tuple[SourceAudit, ...]
    outputs: dict[str, int]
    """Topic → records written."""
    checksums: dict[str, str]
    """Worker's number as text → the checksum of its state rows at this snapshot."""
    states: dict[str, str] = {}
    """Worker's number as text → the checksum of what its operators remember."""

    @property
    def wrong(self) -> list[str]:
        """What does not balance, a sentence for each partition."""
        return [source.wrong for source in self.sources if source.wrong]


class Audits:
    """The ledger's audits. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self, pipeline: str, job: str, generation: int) -> list[Audit]:
        """The audits of a job's generation that are kept, oldest first."""
        return self._read(_of(pipeline, job, generation).order_by(AUDITS.c.batch))

    def checksums(self, pipeline: str, job: str, generation: int) -> dict[str, str]:
        """Worker's number as text → the checksum of its state rows at the newest snapshot; empty before the first."""
        newest = self.newest(pipeline, job, generation)
        return newest.checksums if newest else {}

    def newest(self, pipeline: str, job: str, generation: int) -> Audit | None:
        """The audit of the newest snapshot; None before the first."""
        found = self._read(_of(pipeline, job, generation).order_by(AUDITS.c.batch.desc()).limit(1))
        return found[0] if found else None

    def _read(self, statement: Select[Any]) -> list[Audit]:
        with speaking_to("Reading the audits"), self._engine.connect() as connection:
            return [_audit(row) for row in connection.execute(statement).mappings()]


def _of(pipeline: str, job: str, generation: int) -> Select[Any]:
    of = and_(AUDITS.c.pipeline == pipeline, AUDITS.c.job == job, AUDITS.c.generation == generation)
    return select(AUDITS).where(of)


def total(audits: Iterable[Audit]) -> list[SourceAudit]:
    """What became of the records of all these batches, oldest first, by partition."""
    found: dict[tuple[str, int], list[SourceAudit]] = {}
    for audit in audits:
        for source in audit.sources:
            found.setdefault((source.topic, source.partition), []).append(source)
    return [_sum(found[place]) for place in sorted(found)]


def audit_row(audit: Audit) -> dict[str, Any]:
    """The audit as a row of its table."""
    texts = {name: as_json(getattr(audit, name)) for name in _TEXTS}
    return msgspec.structs.asdict(audit) | texts


def _audit(row: RowMapping) -> Audit:
    texts = {name: msgspec.json.decode(row[name]) for name in ("outputs", "checksums", "states")}
    texts["sources"] = msgspec.json.decode(row["sources"], type=tuple[SourceAudit, ...])
    return Audit(**(dict(row) | texts))


def _sum(parts: list[SourceAudit]) -> SourceAudit:
    first, last = parts[0], parts[-1]
    return SourceAudit(
        topic=first.topic,
        partition=first.partition,
        start=first.start,
        end=last.end,
        read=sum(part.read for part in parts),
        applied=sum(part.applied for part in parts),
        filtered=sum(part.filtered for part in parts),
        late=sum(part.late for part in parts),
        passed_over=_add(part.passed_over for part in parts),
        dropped=_add(part.dropped for part in parts),
        dead_letters=_add(part.dead_letters for part in parts),
    )


def _add(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for one in counts:
        added.update(one)
    return dict(added)
