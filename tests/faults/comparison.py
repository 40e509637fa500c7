"""The result of comparing a pipeline's state and output with the expected ones, and helpers of both comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot
from sluice.state.remote.opening import open_shard
from sluice.state.shard.shard import Checksums


@dataclass(frozen=True)
class Comparison:
    """What was compared, for the line of the scenario."""

    read: int
    dead_letters: int
    late: int
    keys: int
    records: int
    snapshots: int

    def __str__(self) -> str:
        return (
            f"{self.read:,} records, {self.keys:,} keys and windows and {self.records:,} output records equal, "
            f"{self.dead_letters:,} dead letters, {self.late:,} late, {self.snapshots} audits balance"
        )


def difference(actual: dict[Any, Any], expected: dict[Any, Any]) -> str:
    """The first keys whose values differ."""
    wrong = [key for key in actual.keys() | expected.keys() if actual.get(key) != expected.get(key)]
    shown = [
        f"{key}: {str(actual.get(key))[-200:]}, not {str(expected.get(key))[-200:]}"
        for key in wrong[:3]
    ]
    return f"{len(wrong)} differ: {'; '.join(shown)}"


def records_read(audits: Iterable[Audit], topics: Iterable[str]) -> int:
    """The number of records read. Raises AssertionError unless every audit balances and continues the one before."""
    ends: dict[tuple[str, int], int] = {}
    read = 0
    for audit in audits:
        assert not audit.wrong
        for source in audit.sources:
            if source.topic in topics:
                partition = source.topic, source.partition
                assert source.start == ends.get(partition, 0), f"{source} does not continue {ends}"
                ends[partition] = source.end
                read += source.read
    return read


def verify_shards(ledger: Ledger, snapshot: Snapshot) -> None:
    """Raise AssertionError or StateError unless the checksums of each shard equal those in the ledger."""
    audit = ledger.audits.newest(snapshot.ref)
    assert audit is not None
    for worker in ledger.generations.workers(snapshot.pipeline):
        published = Checksums(
            *(sums[str(worker.number)] for sums in (audit.checksums, audit.states))
        )
        with open_shard(worker.location) as shard:
            shard.verify_rows(snapshot.batch, published)
            shard.verify_states(snapshot.batch, published)


def batches(earlier: Sequence[Snapshot], now: Sequence[Snapshot]) -> list[Snapshot]:
    """The batches whose output was written: first those of an earlier generation, then those of the current
    generation."""
    if not earlier:
        return list(now)
    reached = earlier[-1].positions
    return [
        *earlier,
        *(
            snapshot
            for snapshot in now
            if any(_beyond(snapshot.positions[topic], reached[topic]) for topic in reached)
        ),
    ]


def _beyond(ends: dict[str, int], reached: dict[str, int]) -> bool:
    return any(end > reached.get(partition, 0) for partition, end in ends.items())
