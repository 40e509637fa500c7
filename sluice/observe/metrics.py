"""Metrics of pipelines, as Airflow's metrics and in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from sluice.answers import BatchHistory, FailureKind
from sluice.kafka.unread_records import Lag
from sluice.observe.health import failures_of, trouble_of
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.failures import KINDS, WAITING_KINDS, Failure
from sluice.state.ledger.measurements import BUCKET, SECONDS, SUM, UNBOUNDED, Labels, Measurement
from sluice.state.model import WorkerInfo
from sluice.state.shard.sizes import sizes_of
from sluice.values.record_places import Partition

WorkerOf = tuple[str, int]
"""A pipeline and the number of one of its workers."""

PREFIX = "sluice_"
COUNT = "_count"


class Metric(NamedTuple):
    """The type and the description of a metric, as Prometheus gets them."""

    kind: Literal["gauge", "counter", "histogram"]
    help: str


METRICS: Mapping[str, Metric] = {
    "lag_records": Metric("gauge", "Records of a partition that the pipeline has not read."),
    "held_records": Metric(
        "gauge", "Records of a partition that an open transaction of a producer holds back."
    ),
    "oldest_unread_seconds": Metric(
        "gauge", "Age of the oldest record of a topic that the pipeline has not read."
    ),
    "snapshot_age_seconds": Metric("gauge", "Age of the newest snapshot."),
    "snapshots_kept": Metric(
        "gauge", "Snapshots of the current generation that retention has not removed."
    ),
    "batch_records": Metric("gauge", "Records that the newest batch read."),
    "batch_late": Metric(
        "gauge", "Records of the newest batch that were too late for a store, once for each window."
    ),
    "batch_rejected": Metric("gauge", "Records of the newest batch that were rejected, by reason."),
    "batch_seconds": Metric("gauge", "Duration of the newest batch, the sum of its phases."),
    "batch_phase_seconds": Metric("gauge", "Duration of a phase of the newest batch."),
    "state_rows_written": Metric("gauge", "State rows that the newest batch wrote."),
    "state_bytes": Metric("gauge", "Size of a worker's shard, on its host or in PostgreSQL."),
    "dead_letters_24h": Metric("gauge", "Dead letters of the last 24 hours, by reason."),
    "source_up": Metric(
        "gauge",
        "1 if a topic that the pipeline reads is there, 0 if it is missing or no broker answers.",
    ),
    "paused": Metric("gauge", "1 if somebody has paused the pipeline; then no run starts."),
    "failed": Metric(
        "gauge", "1 if the last run failed or the pipeline's file cannot be loaded, else 0."
    ),
    "overdue": Metric(
        "gauge", "1 if the data have become older than the pipeline's deadline, else 0."
    ),
    "waiting": Metric(
        "gauge", "1 if the pipeline waits for its input, a slot, a lease or a transaction, else 0."
    ),
    "degraded": Metric("gauge", "1 if the pipeline runs although something is wrong, else 0."),
    "condition": Metric("gauge", "1 if something of this kind is wrong with the pipeline, else 0."),
    "condition_age_seconds": Metric("gauge", "For how long something of this kind has been wrong."),
    "disk_free_bytes": Metric(
        "gauge", "Free space of the disk with this server's ledger or shards."
    ),
    "disk_size_bytes": Metric("gauge", "Size of the disk with this server's ledger or shards."),
    "run_memory_bytes": Metric(
        "gauge", "Most memory of the newest run's processes on the driver's host."
    ),
    "batches_total": Metric("counter", "Published batches."),
    "records_total": Metric(
        "counter", "Records read, by topic, by outcome, and by the reason of a rejection."
    ),
    "written_records_total": Metric("counter", "Records written to a topic or a table."),
    "late_records_total": Metric(
        "counter", "Records that were too late for a store, once for each window."
    ),
    "expected_records_total": Metric("counter", "Records that were checked by an expectation."),
    "unexpected_records_total": Metric("counter", "Records that broke an expectation."),
    "state_rows_written_total": Metric("counter", "State rows written."),
    "batch_phase_seconds_total": Metric("counter", "Time that batches spent in a phase."),
    "announced_until_seconds": Metric(
        "gauge", "End of the newest window that Airflow has an event for, in epoch seconds."
    ),
    "runs_total": Metric("counter", "Runs that have ended, by outcome."),
    "run_retries_total": Metric("counter", "Airflow's retries of failed runs."),
    "run_cpu_seconds_total": Metric("counter", "CPU time of runs on the driver's host."),
    "batch_duration_seconds": Metric(
        "histogram", "Duration of batches, from their start until they were visible."
    ),
    "run_duration_seconds": Metric(
        "histogram", "Duration of runs, from the start of spark-submit."
    ),
    "run_start_seconds": Metric(
        "histogram", "Time from the start of spark-submit until Spark was ready."
    ),
    "request_duration_seconds": Metric(
        "histogram",
        "Time from a request to this state server until its answer began, by kind of request.",
    ),
}
"""Name of each metric, without the prefix `sluice_`, and its meaning."""


def gauges(
    figures: LedgerFigures,
    pipeline: str,
    lag: Lag | None = None,
    now: datetime | None = None,
    *,
    lag_error: str = "No broker answers.",
    held_since: datetime | None = None,
    sizes: Mapping[WorkerOf, int] | None = None,
    oldest_unread: Mapping[tuple[Partition, int], datetime] | None = None,
) -> Iterator[Measurement]:
    """Yield a pipeline's gauges.

    Pass None as the `lag`, and the reason as `lag_error`, if no broker answers.

    `sizes` is the result of `shard_sizes`, and `oldest_unread` the result of `OldestUnread.of`.
    """
    now = now or datetime.now(UTC)
    # Nobody waits for the results of a retired or paused pipeline, so its unread records must cause
    # no alert.
    is_awaited = pipeline not in figures.retired and pipeline not in figures.pauses
    yield Measurement("paused", pipeline in figures.pauses)
    if lag is not None and is_awaited:
        yield from _of_lag(lag, oldest_unread or {}, now)
    current = figures.generations.get(pipeline)
    if current is not None:
        if is_awaited:
            for topic in current.topics:
                is_there = lag is not None and not lag.missing([topic])
                yield Measurement("source_up", is_there, (("topic", topic),))
        batch = figures.newest_batch(pipeline)
        if batch is not None:
            yield from _of_batch(batch, now)
        # If another generation became current while the figures were read, the figures lack that
        # generation's batches.
        kept = figures.kept_batches.get(current.ref)
        if kept is not None:
            yield Measurement("snapshots_kept", kept.newest - kept.oldest + 1)
        for worker in current.workers:
            size = (sizes or {}).get((pipeline, worker.number))
            if size is not None:
                yield Measurement("state_bytes", size, (("worker", str(worker.number)),))
    for reason, count in figures.dead_letters.get(pipeline, {}).items():
        yield Measurement("dead_letters_24h", count, (("reason", reason),))
    yield from _of_failures(failures_of(figures, pipeline, lag, lag_error, held_since), now)


def _of_failures(failures: Sequence[Failure], now: datetime) -> Iterator[Measurement]:
    """Yield the gauges of the pipeline's health."""
    since: dict[FailureKind, datetime] = {}
    for failure in failures:
        since[failure.kind] = min(failure.at, since.get(failure.kind, failure.at))
    trouble = trouble_of(since)
    yield Measurement("failed", bool(since.keys() & {"run", "file"}))
    yield Measurement("overdue", "overdue" in since)
    yield Measurement("waiting", bool(WAITING_KINDS & since.keys()) or trouble == "held")
    yield Measurement("degraded", trouble == "degraded")
    for kind in KINDS:
        yield Measurement("condition", kind in since, (("kind", kind),))
        if kind in since:
            yield Measurement("condition_age_seconds", _age(since[kind], now), (("kind", kind),))


def _of_lag(
    lag: Lag,
    oldest_unread: Mapping[tuple[Partition, int], datetime],
    now: datetime,
) -> Iterator[Measurement]:
    """Yield the gauges of unread records."""
    for topic, partition in sorted(lag.partitions()):
        labels = (("topic", topic), ("partition", str(partition)))
        yield Measurement("lag_records", lag.unread_in(topic, partition), labels)
        yield Measurement("held_records", lag.held_in(topic, partition), labels)
    times: dict[str, list[datetime]] = {topic: [] for topic in lag.ends}
    for place in lag.first_unread():
        (topic, _), _ = place
        # If one partition's timestamp is missing, the age of the topic's oldest record is unknown.
        if place in oldest_unread and topic in times:
            times[topic].append(oldest_unread[place])
        else:
            times.pop(topic, None)
    for topic, timestamps in times.items():
        oldest = min(timestamps, default=now)
        yield Measurement("oldest_unread_seconds", _age(oldest, now), (("topic", topic),))


def _age(since: datetime, now: datetime) -> float:
    # The clock of a producer or a driver may be ahead of this machine's clock.
    return max((now - since).total_seconds(), 0.0)


def _of_batch(batch: BatchHistory, now: datetime) -> Iterator[Measurement]:
    """Yield the gauges of the newest batch."""
    yield Measurement("snapshot_age_seconds", _age(batch.published_at, now))
    yield Measurement("batch_records", batch.records)
    for store, count in batch.late.items():
        yield Measurement("batch_late", count, (("store", store),))
    for reason, count in (batch.dead_letters | batch.dropped).items():
        yield Measurement("batch_rejected", count, (("reason", reason),))
    if batch.seconds is not None:
        yield Measurement("batch_seconds", batch.seconds)
    for name, seconds in batch.phases.items():
        yield Measurement("batch_phase_seconds", seconds, (("phase", name),))
    yield Measurement("state_rows_written", batch.rows)


def shard_sizes(
    figures: LedgerFigures,
    location: Callable[[WorkerInfo], str | None] = lambda worker: worker.location,
) -> dict[WorkerOf, int]:
    """Return the bytes of each worker's shard, for all pipelines.

    `location` returns the address of a worker's shard, or None if this process does not open it.
    """
    addresses: dict[WorkerOf, str] = {}
    for pipeline, info in figures.generations.items():
        for worker in info.workers:
            address = location(worker)
            if address is not None:
                addresses[pipeline, worker.number] = address
    size_by_address = sizes_of(addresses.values())
    sizes: dict[WorkerOf, int] = {}
    for worker_of, address in addresses.items():
        if address in size_by_address:
            sizes[worker_of] = size_by_address[address]
    return sizes


def histogram_samples(measurements: Iterable[Measurement]) -> Iterator[Measurement]:
    """Turn the buckets of histograms into Prometheus' samples: cumulative buckets and counts.

    Other measurements stay as they are.
    """
    buckets: dict[tuple[str, Labels], dict[str, float]] = {}
    for measurement in measurements:
        if not measurement.name.endswith(BUCKET):
            yield measurement
            continue
        labels = dict(measurement.labels)
        bound = labels.pop("le")
        histogram = measurement.name.removesuffix(BUCKET), tuple(labels.items())
        buckets.setdefault(histogram, {})[bound] = measurement.value
    bounds = [f"{seconds:g}" for seconds in SECONDS]
    bounds.append(UNBOUNDED)
    for (name, rest), counts in buckets.items():
        total = 0.0
        for bound in bounds:
            total += counts.get(bound, 0)
            yield Measurement(f"{name}{BUCKET}", total, (*rest, ("le", bound)))
        yield Measurement(f"{name}{COUNT}", total, rest)


def of_pipeline(pipeline: str, measurements: Iterable[Measurement]) -> Iterator[Measurement]:
    """Yield the measurements, each with the label `pipeline` added."""
    for name, value, labels in measurements:
        yield Measurement(name, value, (("pipeline", pipeline), *labels))


def prometheus(measurements: Iterable[Measurement]) -> str:
    """Write samples in Prometheus' text format, grouped by metric with its description."""
    lines: dict[str, list[str]] = {}
    for name, value, labels in measurements:
        label_texts = [f'{label}="{_escape(content)}"' for label, content in labels]
        sample = f"{PREFIX}{name}{{{','.join(label_texts)}}} {float(value):.15g}"
        lines.setdefault(_metric_of(name), []).append(sample)
    page: list[str] = []
    for name, samples in sorted(lines.items()):
        metric = METRICS[name]
        page += [
            f"# HELP {PREFIX}{name} {metric.help}",
            f"# TYPE {PREFIX}{name} {metric.kind}",
            *samples,
        ]
    return "\n".join([*page, ""])


def _metric_of(sample: str) -> str:
    """Return the metric to which a sample belongs.

    A histogram's samples have its name with one of three endings.
    """
    for ending in (BUCKET, SUM, COUNT):
        if sample.endswith(ending) and sample.removesuffix(ending) in METRICS:
            return sample.removesuffix(ending)
    return sample


def _escape(value: str) -> str:
    # Backslashes are replaced first, because the other replacements add backslashes.
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
