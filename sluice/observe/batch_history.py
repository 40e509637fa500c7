"""Add up batches in equal parts of a time, for charts: a week gives as many numbers as an hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from sluice import answers
from sluice.observe.monitoring import batches
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo

MOST_BATCHES = 5_000
"""How many batches are read at most. A pipeline that lingers publishes 60,000 a day."""
_MOST_WRONG = 10

Batch = answers.BatchHistory


def history(
    ledger: Ledger, info: GenerationInfo, since: datetime, until: datetime, columns: int
) -> answers.History:
    """Return the batches of the current generation that were published in a time, in columns."""
    newest = batches(ledger, info, MOST_BATCHES, since=since)
    published = [batch for batch in newest if batch.published_at <= until]
    by_column: dict[int, list[Batch]] = {}
    for batch in reversed(published):
        share = (batch.published_at - since) / (until - since)
        column = min(int(share * columns), columns - 1)
        by_column.setdefault(column, []).append(batch)
    wrong = [f"{batch.snapshot}: {'; '.join(batch.wrong)}" for batch in published if batch.wrong]
    return answers.History(
        since=since,
        until=until,
        batches=len(published),
        wrong=wrong[:_MOST_WRONG],
        complete=len(newest) < MOST_BATCHES,
        columns=[_column(number, own) for number, own in by_column.items()],
    )


def _column(number: int, own: Sequence[Batch]) -> answers.HistoryColumn:
    timed = [batch for batch in own if batch.seconds is not None]
    phases: dict[str, float] = {}
    for batch in timed:
        for phase, seconds in batch.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    waits: list[float] = []
    for batch in own:
        if batch.newest_event is not None:
            waits.append(max((batch.published_at - batch.newest_event).total_seconds(), 0.0))
    return answers.HistoryColumn(
        column=number,
        batches=len(own),
        records=sum(batch.records for batch in own),
        most_records=max(batch.records for batch in own),
        rows=sum(batch.rows for batch in own),
        seconds=sum(batch.seconds or 0 for batch in timed) / len(timed) if timed else None,
        phases={phase: round(seconds / len(timed), 4) for phase, seconds in phases.items()},
        freshness_seconds=max(waits, default=None),
        read=_sums(own, lambda batch: batch.read),
        written=_sums(own, lambda batch: batch.written),
        late=_sums(own, lambda batch: batch.late),
        dropped=_sums(own, lambda batch: batch.dropped),
        failed=_sums(own, lambda batch: batch.failed),
        dead_letters=_sums(own, lambda batch: batch.dead_letters),
    )


def _sums(own: Sequence[Batch], counts: Callable[[Batch], Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for batch in own:
        sums.update(counts(batch))
    return dict(sums)
