"""Reads from the ledger what pipelines have done: batches with their audits, dead letters, generations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import quote

from sluice import answers
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger, positions_in
from sluice.state.ledger.measurements import Measurement
from sluice.state.ledger.snapshots import KeptBatches
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot

DAY = timedelta(hours=24)
UNWRITTEN = "unwritten"
"""The reason of output records that the encoder rejected or the topic does not accept; audits count
both together."""


@dataclass(frozen=True)
class LedgerFigures:
    """The ledger's figures about all pipelines.

    Reading them takes as many statements for sixty pipelines as for one.
    """

    generations: Mapping[str, GenerationInfo]
    """Pipeline → its current generation."""
    snapshots: Mapping[str, Snapshot]
    """Pipeline → its newest snapshot."""
    audits: Mapping[GenerationRef, Audit]
    """Generation → its newest audit."""
    running: frozenset[str]
    """The pipelines whose lease a driver holds."""
    failures: Mapping[str, Sequence[Failure]]
    dead_letters: Mapping[str, Mapping[str, int]]
    """Pipeline → reason → number of dead letters in the last day, the most frequent reason
    first."""
    measurements: Mapping[str, Sequence[Measurement]]
    """Pipeline → its totals, and the newest values of its other measurements."""
    retired: frozenset[str]
    """The pipelines that are no longer run."""
    kept_batches: Mapping[GenerationRef, KeptBatches]
    """Current generation → the oldest and the newest of its batches that retention has not removed."""

    @classmethod
    def read(cls, ledger: Ledger, now: datetime | None = None) -> Self:
        """Read the figures. Dead letters are counted over the day that ends now."""
        generations = {info.pipeline: info for info in ledger.generations.all_current()}
        failures: dict[str, list[Failure]] = {}
        for failure in ledger.failures.all():
            failures.setdefault(failure.pipeline, []).append(failure)
        return cls(
            generations=generations,
            snapshots={
                snapshot.pipeline: snapshot for snapshot in ledger.snapshots.of_all_pipelines()
            },
            audits=ledger.audits.newest_of_all([info.ref for info in generations.values()]),
            running=frozenset(
                lease.pipeline for lease in ledger.leases.of_all_pipelines() if lease.held
            ),
            failures=failures,
            dead_letters=_dead_letters(ledger, (now or datetime.now(UTC)) - DAY),
            measurements=ledger.measurements.of_all_pipelines(),
            retired=ledger.generations.retired(),
            kept_batches=ledger.snapshots.kept_of_all_pipelines(),
        )

    @property
    def pipelines(self) -> list[str]:
        """The pipelines that have run or that have an unresolved failure."""
        return sorted({*self.generations, *self.failures})

    @property
    def positions(self) -> dict[str, dict[str, dict[int, int]]]:
        """Pipeline → topic → partition → the next offset, as in `Ledger.positions`."""
        positions: dict[str, dict[str, dict[int, int]]] = {}
        for pipeline, info in self.generations.items():
            snapshot = self.snapshots.get(pipeline)
            positions[pipeline] = positions_in(info.topics, snapshot)
        return positions

    def newest_batch(self, pipeline: str) -> answers.BatchHistory | None:
        """The newest published batch of a pipeline."""
        snapshot = self.snapshots.get(pipeline)
        if snapshot is None:
            return None
        audit = self.audits.get(snapshot.ref)
        return _batch(
            snapshot, audit if audit is not None and audit.batch == snapshot.batch else None, ""
        )


def batches(
    ledger: Ledger,
    info: GenerationInfo,
    limit: int,
    airflow: str = "",
) -> list[answers.BatchHistory]:
    """The newest batches of a pipeline's current generation, newest first.

    `airflow` is Airflow's root path.
    """
    snapshots = ledger.snapshots.recent(info.pipeline, limit)
    audits = {audit.batch: audit for audit in ledger.audits.recent(info.ref, limit)}
    return [_batch(snapshot, audits.get(snapshot.batch), airflow) for snapshot in snapshots]


def _dead_letters(ledger: Ledger, since: datetime) -> dict[str, dict[str, int]]:
    """Pipeline → reason → number of dead letters in the snapshots published since a time, most frequent first."""
    counted: dict[str, Counter[str]] = {}
    # A pipeline that lingers publishes 60,000 snapshots a day, but few of them have dead letters.
    # So only snapshots with a count of dead letters are read.
    for snapshot in ledger.snapshots.since(since, ("dead_letter", f"{UNWRITTEN}/")):
        counted.setdefault(snapshot.pipeline, Counter()).update(_dead_letters_of(snapshot))
    return {pipeline: dict(reasons.most_common()) for pipeline, reasons in counted.items()}


def _dead_letters_of(snapshot: Snapshot) -> dict[str, int]:
    """Reason → number of dead letters of one batch."""
    counts = snapshot.counts
    reasons = _counts_with("dead_letter/", counts)
    unwritten = sum(_counts_with("unwritten/", counts).values())
    if unwritten:
        reasons[UNWRITTEN] = unwritten
    # Operators count failures by step, not by reason. All records of the dead-letter topic that are
    # not counted by reason are therefore dead letters of operators.
    rest = counts.get(f"output/{snapshot.pipeline}_dead_letters", 0) - sum(reasons.values())
    if rest > 0:
        reasons["processing"] = reasons.get("processing", 0) + rest
    return {reason: count for reason, count in reasons.items() if count}


def generations(
    ledger: Ledger,
    pipeline: str,
    now: datetime | None = None,
) -> list[answers.Generation]:
    """All generations of a pipeline: the current generation, and the generations of unfinished rebuilds and replays."""
    current, now = ledger.generations.current(pipeline), now or datetime.now(UTC)
    return [_generation(ledger, info, current, now) for info in ledger.generations.all(pipeline)]


def run_figures(ledger: Ledger, pipeline: str, run: str) -> dict[str, Any]:
    """The snapshots that a run published, and the sums of its batches' counts, for programs that wait for the run."""
    counts: Counter[str] = Counter()
    snapshots: list[str] = []
    current = ledger.generations.current(pipeline)
    audits = (
        {}
        if current is None
        else {audit.batch: audit for audit in ledger.audits.of_run(current.ref, run)}
    )
    for snapshot in ledger.snapshots.all_of_run(pipeline, run):
        batch = _batch(snapshot, audits.get(snapshot.batch), "")
        snapshots.append(batch.snapshot)
        # `Counter.update` adds, unlike `dict.update`.
        counts.update(
            {"records": batch.records, "applied": batch.applied, "late": sum(batch.late.values())}
        )
        counts.update({"dead_letters": sum(batch.dead_letters.values())})
    names = ("records", "applied", "late", "dead_letters")
    return {"run": run, "snapshots": sorted(snapshots), **{name: counts[name] for name in names}}


def run_audits(ledger: Ledger, pipeline: str, run: str) -> list[Audit]:
    """The audits of a run's batches, oldest first, of the newest generation that the run has published.

    This need not be the current generation: a replay publishes a generation beside it. A run that
    restores damaged state publishes a new generation, which becomes current.
    """
    for info in reversed(ledger.generations.all(pipeline)):
        audits = ledger.audits.of_run(info.ref, run)
        if audits:
            return audits
    return []


def log_path(run: str, airflow: str = "") -> str:
    """The path of a task's log in Airflow, from the run's name DAG/RUN/TASK in the ledger; empty for other names."""
    dag, _, rest = run.partition("/")
    name, _, task = rest.rpartition("/")
    if not (dag and name and task):
        return ""
    return f"{airflow}/dags/{quote(dag, safe='')}/runs/{quote(name, safe='')}/tasks/{quote(task, safe='')}"


def snapshot_answer(snapshot: Snapshot, now: datetime) -> answers.Snapshot:
    """A snapshot with its age."""
    age = age_seconds(snapshot.published_at, now)
    return answers.Snapshot(snapshot.id, snapshot.published_at, age, snapshot.positions)


def age_seconds(since: datetime, now: datetime) -> float:
    """Seconds from a time until `now`; never below zero, as clocks of different machines differ."""
    return round(max((now - since).total_seconds(), 0.0), 3)


def _batch(snapshot: Snapshot, audit: Audit | None, airflow: str) -> answers.BatchHistory:
    counts, sources = snapshot.counts, audit.sources if audit else ()
    phases = {name: ms / 1_000 for name, ms in audit.phases.items()} if audit else {}
    # A batch that a rebuild has repeated has no phase `start`, so its duration is unknown.
    seconds = round(max(sum(phases.values()), 0.001), 3) if "start" in phases else None
    records = counts.get("read", 0)
    read: Counter[str] = Counter()
    for source in sources:
        read[source.topic] += source.read
    return answers.BatchHistory(
        snapshot=snapshot.id,
        published_at=snapshot.published_at,
        seconds=seconds,
        phases=phases,
        records=records,
        records_per_second=round(records / seconds, 1) if seconds else None,
        applied=counts.get("applied", 0),
        filtered=counts.get("filtered", 0),
        late=_counts_with("late/", counts),
        dropped=_counts_with("dropped/", counts),
        failed=_counts_with("failed/", counts),
        dead_letters=_dead_letters_of(snapshot),
        read=dict(read),
        written=_counts_with("output/", counts),
        rows=counts.get("rows", 0),
        run=snapshot.run,
        log=log_path(snapshot.run, airflow),
        wrong=audit.wrong if audit else [],
    )


def _generation(
    ledger: Ledger, info: GenerationInfo, current: GenerationInfo | None, now: datetime
) -> answers.Generation:
    snapshot = _newest(ledger, info.ref)
    return answers.Generation(
        generation=info.generation,
        current=current is not None and current.generation == info.generation,
        snapshot=None if snapshot is None else snapshot_answer(snapshot, now),
        batches=0 if snapshot is None else snapshot.batch + 1,
        stores=[store.name for store in info.stores],
        same_topology=current is not None and current.description == info.description,
    )


def _newest(ledger: Ledger, ref: GenerationRef) -> Snapshot | None:
    batch = ledger.snapshots.last_batch(ref)
    return None if batch is None else ledger.snapshots.get(ref, batch)


def _counts_with(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    """The counts above zero whose names begin with `prefix`: name without the prefix → count."""
    return {
        name.removeprefix(prefix): count
        for name, count in counts.items()
        if name.startswith(prefix) and count
    }
