"""Reads from the ledger what pipelines have done: batches, audits, dead letters, generations."""

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
from sluice.state.ledger.pauses import Pause
from sluice.state.ledger.snapshots import KeptBatches
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot
from sluice.values.utc_times import AFTER_LAST, utc_datetime

DAY = timedelta(hours=24)
UNWRITTEN = "unwritten"
"""The reason under which output records are counted that the encoder rejected, or that their topic
does not accept. An audit has one count for both cases."""


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
    pauses: Mapping[str, Pause]
    """Paused pipeline → its pause."""
    kept_batches: Mapping[GenerationRef, KeptBatches]
    """Current generation → the oldest and the newest of its batches that retention has not
    removed."""

    @classmethod
    def read(cls, ledger: Ledger, now: datetime | None = None) -> Self:
        """Read the figures. Dead letters are counted over the day that ends now."""
        generations: dict[str, GenerationInfo] = {}
        refs: list[GenerationRef] = []
        for info in ledger.generations.all_current():
            generations[info.pipeline] = info
            refs.append(info.ref)
        snapshots = ledger.snapshots.of_all_pipelines()
        leases = ledger.leases.of_all_pipelines()
        failures: dict[str, list[Failure]] = {}
        for failure in ledger.failures.all():
            failures.setdefault(failure.pipeline, []).append(failure)
        return cls(
            generations=generations,
            snapshots={snapshot.pipeline: snapshot for snapshot in snapshots},
            audits=ledger.audits.newest_of_all(refs),
            running=frozenset(lease.pipeline for lease in leases if lease.held),
            failures=failures,
            dead_letters=_dead_letters(ledger, (now or datetime.now(UTC)) - DAY),
            measurements=ledger.measurements.of_all_pipelines(),
            retired=ledger.generations.retired(),
            pauses=ledger.pauses.all(),
            kept_batches=ledger.snapshots.kept_of_all_pipelines(),
        )

    @property
    def pipelines(self) -> list[str]:
        """The pipelines that have run, have an unresolved failure, or are paused."""
        return sorted({*self.generations, *self.failures, *self.pauses})

    @property
    def positions(self) -> dict[str, dict[str, dict[int, int]]]:
        """Pipeline → topic → partition → the next offset, as in `Ledger.positions`."""
        positions: dict[str, dict[str, dict[int, int]]] = {}
        for pipeline, info in self.generations.items():
            snapshot = self.snapshots.get(pipeline)
            positions[pipeline] = positions_in(info.topics, snapshot)
        return positions

    def newest_batch(self, pipeline: str) -> answers.BatchHistory | None:
        """Return the newest published batch of a pipeline."""
        snapshot = self.snapshots.get(pipeline)
        if snapshot is None:
            return None
        audit = self.audits.get(snapshot.ref)
        if audit is not None and audit.batch != snapshot.batch:
            audit = None
        return _batch(snapshot, audit, "")


def batches(
    ledger: Ledger,
    info: GenerationInfo,
    limit: int,
    airflow: str = "",
    since: datetime | None = None,
) -> list[answers.BatchHistory]:
    """Return the newest batches of a pipeline's current generation, newest first.

    `airflow` is Airflow's root path. If `since` is given, return only batches published at this
    time or later.
    """
    snapshots = ledger.snapshots.recent(info.pipeline, limit, since)
    audits = {audit.batch: audit for audit in ledger.audits.recent(info.ref, len(snapshots) or 1)}
    return [_batch(snapshot, audits.get(snapshot.batch), airflow) for snapshot in snapshots]


def _dead_letters(ledger: Ledger, since: datetime) -> dict[str, dict[str, int]]:
    """Return each pipeline's number of dead letters by reason, the most frequent reason first.

    Only dead letters of snapshots published since `since` are counted.
    """
    counted: dict[str, Counter[str]] = {}
    # A pipeline that lingers publishes 60,000 snapshots a day, but few of them have dead letters.
    # So only snapshots with a count of dead letters are read.
    for snapshot in ledger.snapshots.since(since, ("dead_letter", f"{UNWRITTEN}/")):
        counted.setdefault(snapshot.pipeline, Counter()).update(_dead_letters_of(snapshot))
    most_frequent_first: dict[str, dict[str, int]] = {}
    for pipeline, reasons in counted.items():
        most_frequent_first[pipeline] = dict(reasons.most_common())
    return most_frequent_first


def _dead_letters_of(snapshot: Snapshot) -> dict[str, int]:
    """Return the number of dead letters of one batch, by reason."""
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
    return reasons


def generations(
    ledger: Ledger,
    pipeline: str,
    now: datetime | None = None,
) -> list[answers.Generation]:
    """Return the current generation, and the generations of unfinished rebuilds and replays."""
    current = ledger.generations.current(pipeline)
    now = now or datetime.now(UTC)
    return [_generation(ledger, info, current, now) for info in ledger.generations.all(pipeline)]


def run_figures(ledger: Ledger, pipeline: str, run: str) -> dict[str, Any]:
    """Return the snapshots that a run published, and the sums of its batches' counts.

    Programs that wait for a run read this result.
    """
    counts: Counter[str] = Counter()
    snapshots: list[str] = []
    audits: dict[int, Audit] = {}
    current = ledger.generations.current(pipeline)
    if current is not None:
        for audit in ledger.audits.of_run(current.ref, run):
            audits[audit.batch] = audit
    for snapshot in ledger.snapshots.all_of_run(pipeline, run):
        batch = _batch(snapshot, audits.get(snapshot.batch), "")
        snapshots.append(batch.snapshot)
        counts["records"] += batch.records
        counts["applied"] += batch.applied
        counts["late"] += sum(batch.late.values())
        counts["dead_letters"] += sum(batch.dead_letters.values())
    figures: dict[str, Any] = {"run": run, "snapshots": sorted(snapshots)}
    for name in ("records", "applied", "late", "dead_letters"):
        figures[name] = counts[name]
    return figures


def run_audits(ledger: Ledger, pipeline: str, run: str) -> list[Audit]:
    """Return the audits of a run's batches, oldest first.

    The audits belong to the newest generation that the run has published. This need not be the
    current generation: a replay publishes a generation beside it. A run that restores damaged state
    publishes a new generation, which becomes current.
    """
    for info in reversed(ledger.generations.all(pipeline)):
        audits = ledger.audits.of_run(info.ref, run)
        if audits:
            return audits
    return []


def log_path(run: str, airflow: str = "") -> str:
    """Return the path of a task's log in Airflow, from the run's name in the ledger.

    In Airflow, this name is DAG/RUN/TASK. Returns an empty text for other names.
    """
    dag, _, rest = run.partition("/")
    name, _, task = rest.rpartition("/")
    if not (dag and name and task):
        return ""
    dag, name, task = quote(dag, safe=""), quote(name, safe=""), quote(task, safe="")
    return f"{airflow}/dags/{dag}/runs/{name}/tasks/{task}"


def snapshot_answer(snapshot: Snapshot, now: datetime) -> answers.Snapshot:
    """Return a snapshot with its age."""
    age = age_seconds(snapshot.published_at, now)
    return answers.Snapshot(snapshot.id, snapshot.published_at, age, snapshot.positions)


def age_seconds(since: datetime, now: datetime) -> float:
    """Return the seconds from a time until `now`: at least zero, because clocks differ."""
    return round(max((now - since).total_seconds(), 0.0), 3)


def _batch(snapshot: Snapshot, audit: Audit | None, airflow: str) -> answers.BatchHistory:
    counts = snapshot.counts
    phases: dict[str, float] = {}
    read: Counter[str] = Counter()
    step_rows: Mapping[str, int] = {}
    if audit is not None:
        step_rows = audit.step_rows
        for name, milliseconds in audit.phases.items():
            phases[name] = milliseconds / 1_000
        for source in audit.sources:
            read[source.topic] += source.read
    # A batch that a rebuild has repeated has no phase `start`, so its duration is unknown.
    seconds = None
    if "start" in phases:
        seconds = round(max(sum(phases.values()), 0.001), 3)
    records = counts.get("read", 0)
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
        passed_over=_passed_over(counts),
        dead_letters=_dead_letters_of(snapshot),
        read=dict(read),
        written=_counts_with("output/", counts),
        received=_counts_with("received/", step_rows),
        results=_counts_with("results/", step_rows),
        rows=counts.get("rows", 0),
        run=snapshot.run,
        log=log_path(snapshot.run, airflow),
        wrong=audit.wrong if audit else [],
        newest_event=newest_event(snapshot),
    )


_PASSED_OVER = (
    "no_window/",
    "null_key/",
    "null_value/",
    "duplicate/",
    "missing/",
    "otherwise/",
    "expired/",
    "old_differs/",
    "unwritten/",
)


def _passed_over(counts: Mapping[str, int]) -> dict[str, int]:
    passed_over: dict[str, int] = {}
    for name, count in counts.items():
        if count and name.startswith(_PASSED_OVER):
            passed_over[name] = count
    return passed_over


def newest_event(snapshot: Snapshot) -> datetime | None:
    """Return the largest event time up to a snapshot.

    Return None if no record had an event time, or if Python's calendar does not include it.
    """
    newest = max(snapshot.stream_times.values(), default=None)
    if newest is None or not 0 <= newest < AFTER_LAST:
        return None
    return utc_datetime(newest)


def _generation(
    ledger: Ledger, info: GenerationInfo, current: GenerationInfo | None, now: datetime
) -> answers.Generation:
    snapshot = _newest(ledger, info.ref)
    return answers.Generation(
        generation=info.generation,
        current=current is not None and current.generation == info.generation,
        snapshot=None if snapshot is None else snapshot_answer(snapshot, now),
        batches=0 if snapshot is None else snapshot.batch + 1,
        stores=[*info.stores_by_name],
        same_topology=current is not None and current.description == info.description,
    )


def _newest(ledger: Ledger, ref: GenerationRef) -> Snapshot | None:
    batch = ledger.snapshots.last_batch(ref)
    if batch is None:
        return None
    return ledger.snapshots.get(ref, batch)


def _counts_with(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts above zero whose names begin with `prefix`, by name without the prefix."""
    with_prefix: dict[str, int] = {}
    for name, count in counts.items():
        if count and name.startswith(prefix):
            with_prefix[name.removeprefix(prefix)] = count
    return with_prefix
