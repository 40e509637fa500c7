"""What was compared with what must be, and what both pipelines' comparisons need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.remote.opening import open_shard
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot
from sluice.state.shard.protocol import Checksums


@dataclass(frozen=True)
class Found:
    """What was compared, for the line that tells of it."""

    read: int
    letters: int
    late: int
    keys: int
    records: int
    snapshots: int

    def __str__(self) -> str:
        return (
            f"{self.read:,} records, {self.keys:,} keys and windows and {self.records:,} output records equal, "
            f"{self.letters:,} dead letters, {self.late:,} late, {self.snapshots} audits balance"
        )


def difference(found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    """The first keys whose values differ."""
    wrong = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    shown = [f"{key}: {str(found.get(key))[-200:]}, not {str(expected.get(key))[-200:]}" for key in wrong[:3]]
    return f"{len(wrong)} differ: {'; '.join(shown)}"


def gapless(audits: Iterable[Audit], topics: Iterable[str]) -> int:
    """How many records the audits say were read; AssertionError if one is wrong, or does not follow on the last."""
    ends: dict[tuple[str, int], int] = {}
    read = 0
    for audit in audits:
        assert not audit.wrong
        for source in audit.sources:
            if source.topic in topics:
                place = source.topic, source.partition
                assert source.start == ends.get(place, 0), f"{source} does not follow on {ends}"
                ends[place] = source.end
                read += source.read
    return read


def verify_shards(ledger: Ledger, snapshot: Snapshot) -> None:
    """AssertionError or StateError unless each shard holds what the ledger says was written."""
    audit = ledger.audits.newest(snapshot.ref)
    assert audit is not None
    for worker in ledger.jobs.workers(snapshot.pipeline, snapshot.job):
        published = Checksums(*(sums[str(worker.number)] for sums in (audit.checksums, audit.states)))
        with open_shard(worker.location) as shard:
            shard.verify(snapshot.batch, published)
            shard.verify_states(snapshot.batch, published)


def batches(earlier: Sequence[Snapshot], now: Sequence[Snapshot]) -> list[Snapshot]:
    """The batches in which output was written: those of an earlier generation, then those that go on from it."""
    if not earlier:
        return list(now)
    reached = earlier[-1].positions
    return [
        *earlier,
        *(snapshot for snapshot in now if any(_beyond(snapshot.positions[topic], reached[topic]) for topic in reached)),
    ]


def _beyond(ends: dict[str, int], reached: dict[str, int]) -> bool:
    return any(end > reached.get(partition, 0) for partition, end in ends.items())
