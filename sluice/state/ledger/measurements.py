"""Measurements of pipelines: totals, which only grow, and the newest values of other measurements.

They outlive the snapshots and audits that retention removes. The totals of a batch are added in the
transaction that publishes the batch, so a batch that is repeated after a crash counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from sluice.state.database import as_json, database_errors, insert_of, transaction
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import MEASUREMENTS
from sluice.state.model import Snapshot

Labels = tuple[tuple[str, str], ...]

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""The upper bounds, in seconds, of the buckets in which histograms count durations."""
BUCKET, SUM = "_bucket", "_sum"
"""The suffixes that distinguish the names of a histogram's measurements."""
UNBOUNDED = "+Inf"
"""The upper bound of the last bucket."""


class Measurement(NamedTuple):
    """A number, named as in Prometheus but without the prefix `sluice_`."""

    name: str
    value: float
    labels: Labels = ()


def duration(name: str, seconds: float) -> Iterator[Measurement]:
    """Yield the numbers that a duration adds to the histogram `name`.

    It adds 1 to the duration's bucket, and the seconds to the sum.

    In the ledger, a bucket does not count the durations in the buckets below it; in Prometheus, it
    does.
    """
    bound = UNBOUNDED
    for limit in SECONDS:
        if seconds <= limit:
            bound = f"{limit:g}"
            break
    yield Measurement(f"{name}{BUCKET}", 1, (("le", bound),))
    yield Measurement(f"{name}{SUM}", seconds)


def totals_of_batch(snapshot: Snapshot, audit: Audit) -> Iterator[Measurement]:
    """Yield the numbers that a published batch adds to its pipeline's totals."""
    yield Measurement("batches_total", 1)
    for source in audit.sources:
        fates = {"applied": source.applied, "filtered": source.filtered, "late": source.late}
        for fate, number in fates.items():
            yield _records(source.topic, fate, "", number)
        for reason, number in source.dropped.items():
            yield _records(source.topic, "dropped", reason, number)
        for reason, number in source.dead_letters.items():
            yield _records(source.topic, "dead_letter", reason, number)
    for topic, number in audit.outputs.items():
        yield Measurement("written_records_total", number, (("topic", topic),))
    for name, number in snapshot.counts.items():
        kind, _, store = name.partition("/")
        if kind == "late":
            yield Measurement("late_records_total", number, (("store", store),))
        elif kind in ("expected", "unexpected"):
            _, _, expectation = name.partition("/")
            yield Measurement(f"{kind}_records_total", number, (("expectation", expectation),))
    yield Measurement("state_rows_written_total", snapshot.counts.get("rows", 0))
    for phase, milliseconds in audit.phases.items():
        yield Measurement("batch_phase_seconds_total", milliseconds / 1_000, (("phase", phase),))
    yield from duration("batch_duration_seconds", sum(audit.phases.values()) / 1_000)


def _records(topic: str, fate: str, reason: str, number: int) -> Measurement:
    return Measurement(
        "records_total", number, (("topic", topic), ("fate", fate), ("reason", reason))
    )


class Measurements(LedgerPart):
    """The measurements of all pipelines."""

    def of_all_pipelines(self) -> dict[str, list[Measurement]]:
        """Return pipeline → its measurements, sorted by name and labels."""
        c = MEASUREMENTS.c
        measurements: dict[str, list[Measurement]] = {}
        for row in self._read(select(MEASUREMENTS).order_by(c.pipeline, c.name, c.labels)):
            labels = tuple(msgspec.json.decode(row["labels"], type=dict[str, str]).items())
            measurement = Measurement(row["name"], row["value"], labels)
            measurements.setdefault(row["pipeline"], []).append(measurement)
        return measurements

    def add(self, pipeline: str, measurements: Iterable[Measurement]) -> None:
        """Add measurements to a pipeline's totals."""
        with database_errors("Adding measurements"), transaction(self._engine) as connection:
            add_measurements(connection, pipeline, measurements)

    def replace(self, pipeline: str, measurements: Iterable[Measurement]) -> None:
        """Store measurements.

        They replace the pipeline's measurements with the same names and labels.
        """
        with database_errors("Writing measurements"), transaction(self._engine) as connection:
            _write(connection, pipeline, measurements, is_adding=False)


def add_measurements(
    connection: Connection,
    pipeline: str,
    measurements: Iterable[Measurement],
) -> None:
    """Add measurements to a pipeline's totals, within a transaction."""
    _write(connection, pipeline, measurements, is_adding=True)


def _write(
    connection: Connection,
    pipeline: str,
    measurements: Iterable[Measurement],
    *,
    is_adding: bool,
) -> None:
    values: Counter[tuple[str, str]] = Counter()
    for name, value, labels in measurements:
        if value:
            values[name, as_json(dict(labels))] += value  # type: ignore[assignment]
    # The rows are sorted, because two transactions that lock the same rows in different orders
    # could wait for each other forever.
    rows: list[dict[str, Any]] = []
    for (name, text), value in sorted(values.items()):
        rows.append({"pipeline": pipeline, "name": name, "labels": text, "value": value})
    if rows:
        connection.execute(_upsert(connection.dialect.name, is_adding=is_adding), rows)


@cache
def _upsert(dialect: str, *, is_adding: bool) -> Any:
    statement = insert_of(dialect)(MEASUREMENTS)
    value = statement.excluded.value
    if is_adding:
        value = MEASUREMENTS.c.value + value
    return statement.on_conflict_do_update(
        index_elements=[*MEASUREMENTS.primary_key], set_={"value": value}
    )
