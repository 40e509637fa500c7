"""Add up batches and runs in equal parts of a time, for charts.

A week gives as many numbers as an hour.
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
"""How many batches are read at most. A pipeline that lingers publishes 60,000 a day."""

_MOST_WRONG = 10

Batch = answers.BatchHistory


def history(
    ledger: Ledger, info: GenerationInfo, since: datetime, until: datetime, columns: int
) -> answers.History:
    """Return the current generation's batches and the runs of a time, added up in columns."""
    newest = batches(ledger, info, MOST_BATCHES, since=since)
    published = [batch for batch in newest if batch.published_at <= until]
    runs = ledger.finished_runs.between(info.pipeline, since, until, MOST_RUNS)

    def column_of(at: datetime) -> int:
        share = (at - since) / (until - since)
        return min(int(share * columns), columns - 1)

    batches_of: dict[int, list[Batch]] = {}
    for batch in reversed(published):
        batches_of.setdefault(column_of(batch.published_at), []).append(batch)
    runs_of: dict[int, list[FinishedRun]] = {}
    for run in reversed(runs):
        runs_of.setdefault(column_of(run.ended_at), []).append(run)
    wrong = [f"{batch.snapshot}: {'; '.join(batch.wrong)}" for batch in published if batch.wrong]
    added_up: list[answers.HistoryColumn] = []
    for number in sorted({*batches_of, *runs_of}):
        added_up.append(_column(number, batches_of.get(number, ()), runs_of.get(number, ())))
    return answers.History(
        since=since,
        until=until,
        batches=len(published),
        wrong=wrong[:_MOST_WRONG],
        complete=len(newest) < MOST_BATCHES,
        columns=added_up,
        steps=_steps(published),
        received=_sums(published, lambda batch: batch.received),
        results=_sums(published, lambda batch: batch.results),
        marks=marks(ledger, info.pipeline, since, until, runs),
    )


def _steps(published: Sequence[Batch]) -> dict[str, dict[str, int]]:
    steps: dict[str, Counter[str]] = {}
    for batch in published:
        for step, count in batch.failed.items():
            steps.setdefault(step, Counter())["failed"] += count
        for step, count in batch.late.items():
            steps.setdefault(step, Counter())["late"] += count
        for name, count in batch.passed_over.items():
            what, _, step = name.partition("/")
            steps.setdefault(step, Counter())[what] += count
    return {step: dict(counts) for step, counts in steps.items()}


def _column(
    number: int, own: Sequence[Batch], runs: Sequence[FinishedRun]
) -> answers.HistoryColumn:
    timed = [batch for batch in own if batch.seconds is not None]
    phases: dict[str, float] = {}
    for batch in timed:
        for phase, seconds in batch.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    waits: list[float] = []
    for batch in own:
        if batch.newest_event is not None:
            waits.append(max((batch.published_at - batch.newest_event).total_seconds(), 0.0))
    memory = [run.memory_bytes for run in runs if run.memory_bytes is not None]
    sizes = [run.state_bytes for run in runs if run.state_bytes is not None]
    return answers.HistoryColumn(
        column=number,
        batches=len(own),
        records=sum(batch.records for batch in own),
        most_records=max((batch.records for batch in own), default=0),
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
        runs=len(runs),
        failed_runs=sum(run.outcome == "failed" for run in runs),
        cpu_seconds=round(sum(run.cpu_seconds or 0.0 for run in runs), 2),
        memory_bytes=max(memory, default=None),
        state_bytes=sizes[-1] if sizes else None,
    )


def marks(
    ledger: Ledger,
    pipeline: str,
    since: datetime,
    until: datetime,
    newest_first: Sequence[FinishedRun],
) -> list[answers.Mark]:
    """Return what happened to a pipeline in a time: changes between its runs, and notes."""
    marks: list[answers.Mark] = []
    before = ledger.finished_runs.newest_before(pipeline, since)
    for run in reversed(newest_first):
        changes = [] if before is None else _changes(before, run)
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
