"""The audit of a batch: the outcomes of its records.

A batch whose audit does not balance is not published.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from sluice.engine.batch.side_outputs import Collected, LastRecord
from sluice.engine.batch.storage import Storage
from sluice.engine.read.source_identity import Positions
from sluice.errors import EngineError
from sluice.state.ledger.audits import Audit, SourceAudit, split_checksums
from sluice.state.ledger.plans import PlannedBatch


@dataclass
class Auditor:
    """Audits a run's batches."""

    storage: Storage
    run: str
    epoch: int
    newest: Audit | None = None
    """The audit of the newest published batch; None if no batch has been published."""

    def audit(self, plan: PlannedBatch, before: Positions, collected: Collected) -> Audit:
        """Audit a batch whose shards are written.

        `before` are the offsets at which the batch begins. Raise EngineError if the audit does not
        balance, and DamagedState if a shard has lost commits since the previous batch was
        published.
        """
        batch = plan.number
        published = {} if self.newest is None else self.newest.all_checksums
        checksums, states = split_checksums(self.storage.checksums(batch, published))
        job = self.storage.job
        audit = Audit(
            pipeline=job.pipeline.name,
            generation=self.storage.generation,
            batch=batch,
            run=self.run,
            epoch=self.epoch,
            sources=_sources(before, plan.ends, collected),
            outputs={},
            checksums=checksums,
            states=states,
            step_rows=collected.step_rows,
        )
        if audit.wrong:
            raise EngineError(
                f"The audit of batch {batch} of {job.pipeline.name} does not balance: "
                f"{'; '.join(audit.wrong)}.",
                next_step="Nothing from the batch was published. This is a bug in Sluice: "
                "report it.",
            )
        return audit


def _sources(before: Positions, after: Positions, collected: Collected) -> tuple[SourceAudit, ...]:
    counts, last = collected.counts_by_partition, collected.last_records
    partitions = set(counts)
    for topic, ends in after.items():
        for number in ends:
            partitions.add((topic, int(number)))
    audits: list[SourceAudit] = []
    for topic, partition in sorted(partitions):
        end = after.get(topic, {}).get(str(partition), 0)
        start = before.get(topic, {}).get(str(partition), 0)
        of_partition = counts.get((topic, partition), Counter())
        if end > start or of_partition:
            source = _source(topic, partition, start, end, of_partition)
            if (topic, partition) in last:
                source = _with_last_record(source, last[topic, partition])
            audits.append(source)
    return tuple(audits)


def _with_last_record(source: SourceAudit, last: LastRecord) -> SourceAudit:
    return msgspec.structs.replace(
        source,
        last=last.offset,
        fingerprint=last.fingerprint,
        leader_epoch=last.leader_epoch,
        first_leader_epoch=last.first_leader_epoch,
    )


def _source(topic: str, partition: int, start: int, end: int, counts: Counter[str]) -> SourceAudit:
    passed_over: dict[str, int] = {}
    for name, number in counts.items():
        if name.startswith(_PASSED_OVER):
            passed_over[name] = number
    return SourceAudit(
        topic=topic,
        partition=partition,
        start=start,
        end=end,
        read=counts["read"],
        applied=counts["applied"],
        filtered=counts["filtered"],
        late=counts["late_everywhere"],
        passed_over=passed_over,
        dropped=_counts_under("dropped/", counts),
        dead_letters=_counts_under("dead_letter/", counts),
    )


_PASSED_OVER = (
    "late/",
    "no_window/",
    "null_key/",
    "null_value/",
    "duplicate/",
    "missing/",
    "failed/",
)


def _counts_under(prefix: str, counts: Counter[str]) -> dict[str, int]:
    """Return name without the prefix → count, for the counts whose names begin with the prefix."""
    under: dict[str, int] = {}
    for name, number in counts.items():
        if name.startswith(prefix):
            under[name.removeprefix(prefix)] = number
    return under
