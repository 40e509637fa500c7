"""Add up batches and runs in equal parts of a period, for charts.

A week has as many parts as an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from sluice import answers
from sluice.observe.monitoring import batches
from sluice.state.ledger.finished_runs import MOST_RUNS, FinishedRun
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo

MOST_BATCHES = 5_000
"""How many batches are read at most. A pipeline that lingers publishes 60,000 batches a day."""

_MOST_WRONG = 10

Batch = answers.BatchHistory


def history(
    ledger: Ledger, info: GenerationInfo, since: datetime, until: datetime, columns: int
) -> answers.History:
    """Return the current generation's batches and the runs of a period, added up in columns."""
    newest = batches(ledger, info, MOST_BATCHES, since=since)
    runs = ledger.finished_runs.between(info.pipeline, since, until, MOST_RUNS)

    def column_of(at: datetime) -> int:
        share = (at - since) / (until - since)
        return min(int(share * columns), columns - 1)

    batches_of: dict[int, list[Batch]] = {}
    published: list[Batch] = []
    wrong: list[str] = []
    for batch in newest:
        if batch.published_at > until:
            continue
        published.append(batch)
        if batch.wrong and len(wrong) < _MOST_WRONG:
            wrong.append(f"{batch.snapshot}: {'; '.join(batch.wrong)}")
    for batch in reversed(published):
        batches_of.setdefault(column_of(batch.published_at), []).append(batch)
    runs_of: dict[int, list[FinishedRun]] = {}
    for run in reversed(runs):
        runs_of.setdefault(column_of(run.ended_at), []).append(run)

    added_up: list[answers.HistoryColumn] = []
    for number in sorted({*batches_of, *runs_of}):
        added_up.append(_column(number, batches_of.get(number, ()), runs_of.get(number, ())))
    return answers.History(
        since=since,
        until=until,
        batches=len(published),
        wrong=wrong,
        complete=len(newest) < MOST_BATCHES,
        columns=added_up,
        steps=_steps(published),
        received=_sums(published, lambda batch: batch.received),
        results=_sums(published, lambda batch: batch.results),
        marks=marks(ledger, info.pipeline, since, until, runs),
    )


def _steps(published: Sequence[Batch]) -> dict[str, dict[str, int]]:
    steps: dict[str, dict[str, int]] = {}

    def add(step: str, what: str, count: int) -> None:
        counts = steps.setdefault(step, {})
        counts[what] = counts.get(what, 0) + count

    for batch in published:
        for step, count in batch.failed.items():
            add(step, "failed", count)
        for step, count in batch.late.items():
            add(step, "late", count)
        for name, count in batch.passed_over.items():
            what, _, step = name.partition("/")
            add(step, what, count)
    return steps


def _column(
    number: int, own: Sequence[Batch], runs: Sequence[FinishedRun]
) -> answers.HistoryColumn:
    records: list[int] = []
    waits: list[float] = []
    for batch in own:
        records.append(batch.records)
        if batch.newest_event is not None:
            waits.append(max((batch.published_at - batch.newest_event).total_seconds(), 0.0))
    seconds, phases = _mean_times(own)
    cpu_seconds = 0.0
    failed_runs = 0
    most_memory = state_bytes = None
    for run in runs:
        cpu_seconds += run.cpu_seconds or 0.0
        failed_runs += run.outcome == "failed"
        if run.memory_bytes is not None:
            most_memory = max(most_memory or 0, run.memory_bytes)
        if run.state_bytes is not None:
            state_bytes = run.state_bytes
    return answers.HistoryColumn(
        column=number,
        batches=len(own),
        records=sum(records),
        most_records=max(records, default=0),
        rows=sum(batch.rows for batch in own),
        seconds=seconds,
        phases=phases,
        freshness_seconds=max(waits, default=None),
        read=_sums(own, lambda batch: batch.read),
        written=_sums(own, lambda batch: batch.written),
        late=_sums(own, lambda batch: batch.late),
        dropped=_sums(own, lambda batch: batch.dropped),
        failed=_sums(own, lambda batch: batch.failed),
        dead_letters=_sums(own, lambda batch: batch.dead_letters),
        runs=len(runs),
        failed_runs=failed_runs,
        cpu_seconds=round(cpu_seconds, 2),
        memory_bytes=most_memory,
        state_bytes=state_bytes,
    )


def _mean_times(own: Sequence[Batch]) -> tuple[float | None, dict[str, float]]:
    """Return the mean seconds of the batches whose times are known, and of each phase."""
    count = 0
    total = 0.0
    phases: Counter[str] = Counter()
    for batch in own:
        if batch.seconds is not None:
            count += 1
            total += batch.seconds
            phases.update(batch.phases)
    if not count:
        return None, {}
    means: dict[str, float] = {}
    for phase, seconds in phases.items():
        means[phase] = round(seconds / count, 4)
    return total / count, means


def marks(
    ledger: Ledger,
    pipeline: str,
    since: datetime,
    until: datetime,
    newest_first: Sequence[FinishedRun],
) -> list[answers.Mark]:
    """Return what happened to a pipeline in a period: changes between its runs, and notes."""
    marks: list[answers.Mark] = []
    before = ledger.finished_runs.newest_before(pipeline, since)
    for run in reversed(newest_first):
        if before is not None:
            changes = _changes(before, run)
            if changes:
                marks.append(answers.Mark(at=run.began_at, text=" and ".join(changes)))
        before = run
    for note in ledger.notes.all(pipeline):
        at = datetime.fromisoformat(note.noted_at)
        if since <= at <= until:
            marks.append(answers.Mark(at=at, text=note.text))
    return sorted(marks, key=lambda mark: mark.at)


def _changes(before: FinishedRun, run: FinishedRun) -> list[str]:
    changes: list[str] = []
    # A run that failed before its first batch may not know the topology.
    if before.topology and run.topology and before.topology != run.topology:
        changes.append("changed topology")
    if before.version != run.version:
        changes.append(f"Sluice {run.version}")
    return changes


def _sums(own: Sequence[Batch], counts: Callable[[Batch], Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for batch in own:
        sums.update(counts(batch))
    return dict(sums)
