"""Totals of pipelines count each batch once, and outlive the batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from sluice.errors import EngineError
from sluice.observe.run_measurements import measured_run
from sluice.operations.snapshot_retention import retain
from sluice.settings import Settings
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.measurements import Measurement
from sluice.state.ledger.run_ends import note_killed
from tests.support.states import NOON, States, ledger_url, make_audit, make_snapshot

pytestmark = pytest.mark.unit

PHASES = {"start": 500, "state": 2_500, "audit": 250, "output": 600}
SOURCES = (
    SourceAudit(
        topic="orders",
        partition=0,
        start=0,
        end=6,
        read=6,
        applied=4,
        late=1,
        dropped={"null_key": 1},
    ),
    SourceAudit(
        topic="orders", partition=1, start=0, end=4, read=4, applied=1, dead_letters={"contract": 3}
    ),
)


def by_label(measurements: Sequence[Measurement]) -> dict[tuple[str, ...], float]:
    """Name and labels' values → value."""
    return {(name, *(text for _, text in labels)): value for name, value, labels in measurements}


def totals(states: States) -> dict[tuple[str, ...], float]:
    return by_label(states.ledger.measurements.of_all_pipelines().get("orders", ()))


def test_a_batch_counts_once_and_for_ever(database: str) -> None:
    states = States(database)
    ledger = states.ledger
    lease = ledger.leases.take(states.ref, Holder(host="h", pid=1, process="p"), None)
    assert lease is not None
    for batch in (0, 1):
        audit = msgspec.structs.replace(make_audit(batch, lease.epoch, *SOURCES), phases=PHASES)
        at = NOON + timedelta(hours=batch)
        snapshot = make_snapshot(
            batch, published_at=at, counts={"read": 10, "late/totals": 2, "rows": 7}
        )
        assert ledger.snapshots.publish(snapshot, audit)
        # A driver whose connection broke during the commit publishes the batch again.
        assert not ledger.snapshots.publish(snapshot, audit)
    # A replay repeats a batch without output.
    replayed = msgspec.structs.replace(make_audit(2, lease.epoch, *SOURCES), phases={"state": 9})
    assert ledger.snapshots.publish(
        make_snapshot(2, published_at=NOON + timedelta(hours=2)), replayed
    )
    retain(ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON + timedelta(hours=3))
    assert [audit.batch for audit in ledger.audits.all(states.ref)] == [2]
    assert totals(states) == {
        ("batches_total",): 2,
        ("records_total", "orders", "applied", ""): 10,
        ("records_total", "orders", "late", ""): 2,
        ("records_total", "orders", "dropped", "null_key"): 2,
        ("records_total", "orders", "dead_letter", "contract"): 6,
        ("late_records_total", "totals"): 4,
        ("written_records_total", "out"): 6,
        ("state_rows_written_total",): 14,
        ("batch_phase_seconds_total", "start"): 1.0,
        ("batch_phase_seconds_total", "state"): 5.0,
        ("batch_phase_seconds_total", "audit"): 0.5,
        ("batch_phase_seconds_total", "output"): 1.2,
        ("batch_duration_seconds_bucket", "5"): 2,
        ("batch_duration_seconds_sum",): pytest.approx(7.7),
    }


def test_a_run_counts_whether_it_succeeds_fails_or_is_killed(states: States) -> None:
    configuration = Settings.read({"SLUICE_LEDGER": ledger_url(states.database)})
    with measured_run(configuration, "orders") as note_ready:
        note_ready()
    with pytest.raises(EngineError), measured_run(configuration, "orders"):
        raise EngineError("no")
    note_killed(configuration, "orders", "", None, EngineError("killed"))
    measured = totals(states)
    assert measured["runs_total", "succeeded"] == 1
    assert measured["runs_total", "failed"] == 2
    assert measured["run_cpu_seconds_total",] > 0
    assert measured["run_memory_bytes",] > 10 * 2**20
    started = [value for name, value in measured.items() if name[0] == "run_start_seconds_bucket"]
    assert sum(started) == 1, "the run that failed was never ready"


def test_two_pipelines_and_the_newest_value(database: str) -> None:
    measurements = States(database).ledger.measurements
    for pipeline in ("orders", "pages"):
        for memory in (5, 3):
            measurements.replace(pipeline, [Measurement("run_memory_bytes", memory)])
            measurements.add(pipeline, [Measurement("run_retries_total", 1)])
    own = {("run_memory_bytes",): 3, ("run_retries_total",): 2}
    read = {
        pipeline: by_label(all_of) for pipeline, all_of in measurements.of_all_pipelines().items()
    }
    assert read == {"orders": own, "pages": own}
