"""Gauges of pipelines for monitoring systems, through Airflow's metrics and in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sluice.answers import BatchHistory
from sluice.kafka.unread_records import Lag
from sluice.observe.monitoring import LedgerFigures
from sluice.state.model import WorkerInfo
from sluice.state.shard.sizes import size_of

_Labels = tuple[tuple[str, str], ...]

HELP = {
    "lag_records": "Records of a partition that the pipeline has not read.",
    "held_records": "Records of a partition that an open transaction of a producer holds back.",
    "snapshot_age_seconds": "Age of the newest snapshot.",
    "batch_records": "Records that the newest batch read.",
    "batch_late": "Records of the newest batch that were too late for a store, once for each window.",
    "batch_rejected": "Records of the newest batch that were rejected, by reason.",
    "batch_seconds": "Duration of the newest batch, the sum of its phases.",
    "batch_phase_seconds": "Duration of a phase of the newest batch.",
    "state_rows_written": "State rows that the newest batch wrote.",
    "state_bytes": "Size of a worker's shard on this machine.",
    "dead_letters_24h": "Dead letters of the last 24 hours, by reason.",
    "source_up": "1 if a topic that the pipeline reads is there, 0 if it is missing or no broker answers.",
    "failed": "1 if the last run failed or the pipeline's file cannot be loaded, else 0.",
    "overdue": "1 if the data have become older than the pipeline's deadline, else 0.",
    "waiting": "1 if the pipeline waits for brokers or topics that are away, else 0.",
    "degraded": "1 if many records of the newest batch were rejected, else 0.",
}
"""Name of each gauge, without the prefix `sluice_`, and its meaning."""


@dataclass(frozen=True)
class Gauge:
    """A value of a gauge."""

    name: str
    value: float
    labels: _Labels = ()


def gauges(
    figures: LedgerFigures,
    pipeline: str,
    lag: Lag | None = None,
    now: datetime | None = None,
    location: Callable[[WorkerInfo], str | None] = lambda worker: worker.location,
) -> Iterator[Gauge]:
    """A pipeline's gauges. Pass None as the `lag` if no broker answers.

    `location` returns the address of a worker's shard; None if this process does not open the
    shard.
    """
    if lag is not None:
        for topic, partition in sorted(lag.partitions()):
            labels = (("topic", topic), ("partition", str(partition)))
            yield Gauge("lag_records", lag.unread_in(topic, partition), labels)
            yield Gauge("held_records", lag.held_in(topic, partition), labels)
    is_away = False
    current = figures.generations.get(pipeline)
    if current is not None:
        for topic in current.topics:
            is_there = lag is not None and topic in lag.ends
            is_away |= not is_there
            yield Gauge("source_up", is_there, (("topic", topic),))
        batch = figures.newest_batch(pipeline)
        if batch is not None:
            yield from _of_batch(batch, now or datetime.now(UTC))
        for worker in current.workers:
            address = location(worker)
            size = None if address is None else size_of(address)
            if size is not None:
                yield Gauge("state_bytes", size, (("worker", str(worker.number)),))
    for reason, count in figures.dead_letters.get(pipeline, {}).items():
        yield Gauge("dead_letters_24h", count, (("reason", reason),))
    kinds = {failure.kind for failure in figures.failures.get(pipeline, ())}
    yield Gauge("failed", bool(kinds & {"run", "file"}))
    yield Gauge("overdue", "overdue" in kinds)
    yield Gauge("waiting", is_away or "input" in kinds)
    yield Gauge("degraded", "rejections" in kinds)


def _of_batch(batch: BatchHistory, now: datetime) -> Iterator[Gauge]:
    """The gauges of the newest batch."""
    yield Gauge("snapshot_age_seconds", max((now - batch.published_at).total_seconds(), 0.0))
    yield Gauge("batch_records", batch.records)
    for store, count in batch.late.items():
        yield Gauge("batch_late", count, (("store", store),))
    for reason, count in (batch.dead_letters | batch.dropped).items():
        yield Gauge("batch_rejected", count, (("reason", reason),))
    if batch.seconds is not None:
        yield Gauge("batch_seconds", batch.seconds)
    for name, seconds in batch.phases.items():
        yield Gauge("batch_phase_seconds", seconds, (("phase", name),))
    yield Gauge("state_rows_written", batch.rows)


def prometheus(by_pipeline: Mapping[str, Iterable[Gauge]]) -> str:
    """The gauges of pipelines (pipeline → its gauges) in Prometheus' text format."""
    lines: dict[str, list[str]] = {}
    for pipeline, pipeline_gauges in by_pipeline.items():
        for gauge in pipeline_gauges:
            labels = (("pipeline", pipeline), *gauge.labels)
            text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
            lines.setdefault(gauge.name, []).append(f"sluice_{gauge.name}{{{text}}} {float(gauge.value):g}")
    # All samples of a gauge must follow its description.
    page: list[str] = []
    for name, samples in sorted(lines.items()):
        page += [f"# HELP sluice_{name} {HELP[name]}", f"# TYPE sluice_{name} gauge", *samples]
    return "\n".join([*page, ""])


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
