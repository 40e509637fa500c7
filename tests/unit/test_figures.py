"""The figures of pipelines for monitoring systems."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from sluice.errors import EngineError
from sluice.kafka.unread_records import Lag
from sluice.observe.metrics import HELP, Gauge, gauges, prometheus
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.failures import Failure
from tests.support.states import NOON, States

pytestmark = pytest.mark.unit

COUNTS = {"read": 10, "late/windows": 2, "dead_letter/contract": 3, "dropped/null_key": 1, "rows": 7}


@pytest.fixture
def states(tmp_path: Path) -> States:
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"a": "[1,2]"}, published_at=NOON, counts=COUNTS)
    return states


def found(states: States, lag: Lag | None = None) -> dict[tuple[str, ...], float]:
    """Name and labels' values → figure, a minute after the snapshot."""
    now = NOON + timedelta(minutes=1)
    return {
        (gauge.name, *(value for _, value in gauge.labels)): gauge.value
        for gauge in gauges(LedgerFigures.read(states.ledger, now), "orders", lag, now)
    }


def test_the_newest_batch_the_state_and_a_day_of_dead_letters(states: States) -> None:
    figures = found(states)
    sizes = [figures.pop(("state_bytes", worker)) for worker in ("0", "1")]
    assert all(size > 0 for size in sizes)
    assert figures == {
        ("snapshot_age_seconds",): 60.0,
        ("batch_records",): 10,
        ("batch_late", "windows"): 2,
        ("batch_rejected", "contract"): 3,
        ("batch_rejected", "null_key"): 1,
        ("state_rows_written",): 7,
        ("dead_letters_24h", "contract"): 3,
        ("source_up", "orders"): False,
        ("failed",): False,
        ("overdue",): False,
        ("waiting",): True,
        ("degraded",): False,
    }
    assert {name for name, *_ in figures} < HELP.keys()


def test_the_lag_of_each_partition(states: States) -> None:
    lag = Lag({"orders": {0: 17, 1: 5}}, {"orders": {0: 10, 1: 5}}, {}, {"orders": {0: 20, 1: 5}})
    figures = found(states, lag)
    assert (figures["lag_records", "orders", "0"], figures["lag_records", "orders", "1"]) == (10, 0)
    assert (figures["held_records", "orders", "0"], figures["held_records", "orders", "1"]) == (3, 0)


def test_a_topic_that_is_away_makes_its_pipeline_wait(states: States) -> None:
    there = Lag({"orders": {0: 10}}, {"orders": {0: 10}}, {})
    deleted = Lag({}, {"orders": {0: 10}}, {})
    for lag, is_there in ((there, True), (deleted, False)):
        figures = found(states, lag)
        assert (figures["source_up", "orders"], figures["waiting",]) == (is_there, not is_there)


def test_a_failure_is_one(states: States) -> None:
    states.ledger.failures.add(Failure.of(EngineError("x"), "orders"))
    assert found(states)["failed",] == 1


def test_a_shard_that_is_not_here_has_no_size(states: States) -> None:
    for file in Path(states.database.removeprefix("sqlite:///")).rglob("worker-0.sqlite"):
        file.unlink()
    assert ("state_bytes", "0") not in found(states)


def test_the_text_for_prometheus_has_each_gauge_once_and_escapes_labels() -> None:
    text = prometheus(
        {
            "orders": [Gauge("failed", True), Gauge("batch_rejected", 3, (("reason", 'a "b"\\c\n'),))],
            "pages": [Gauge("failed", False)],
        }
    )
    assert text == (
        "# HELP sluice_batch_rejected Records of the newest batch that were rejected, by reason.\n"
        "# TYPE sluice_batch_rejected gauge\n"
        'sluice_batch_rejected{pipeline="orders",reason="a \\"b\\"\\\\c\\n"} 3\n'
        "# HELP sluice_failed 1 if the last run failed or the pipeline's file cannot be loaded, else 0.\n"
        "# TYPE sluice_failed gauge\n"
        'sluice_failed{pipeline="orders"} 1\n'
        'sluice_failed{pipeline="pages"} 0\n'
    )
