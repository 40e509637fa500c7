"""The figures of pipelines for monitoring systems."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from sluice.errors import EngineError
from sluice.kafka.unread_records import Lag
from sluice.observe.metrics import (
    METRICS,
    gauges,
    histogram_samples,
    of_pipeline,
    prometheus,
    shard_sizes,
)
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.measurements import Labels, Measurement, duration
from tests.support.postgres import database_with_ledger
from tests.support.prometheus import promtool
from tests.support.states import NOON, States

pytestmark = pytest.mark.unit

COUNTS = {
    "read": 10,
    "late/windows": 2,
    "dead_letter/contract": 3,
    "dropped/null_key": 1,
    "rows": 7,
}


@pytest.fixture
def states(tmp_path: Path) -> States:
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"a": "[1,2]"}, published_at=NOON, counts=COUNTS)
    return states


def found(states: States, lag: Lag | None = None) -> dict[tuple[str, ...], float]:
    """Name and labels' values → figure, a minute after the snapshot."""
    now = NOON + timedelta(minutes=1)
    figures = LedgerFigures.read(states.ledger, now)
    of_now = gauges(figures, "orders", lag, now, sizes=shard_sizes(figures))
    return {(name, *(value for _, value in labels)): value for name, value, labels in of_now}


def test_the_newest_batch_the_state_and_a_day_of_dead_letters(states: States) -> None:
    figures = {name: value for name, value in found(states).items() if name[0] != "condition"}
    assert figures.pop(("condition_age_seconds", "input")) <= 0, "no broker is known since now"
    sizes = [figures.pop(("state_bytes", worker)) for worker in ("0", "1")]
    assert all(size > 0 for size in sizes)
    assert figures == {
        ("snapshot_age_seconds",): 60.0,
        ("snapshots_kept",): 1,
        ("batch_records",): 10,
        ("batch_late", "windows"): 2,
        ("batch_rejected", "contract"): 3,
        ("batch_rejected", "null_key"): 1,
        ("state_rows_written",): 7,
        ("dead_letters_24h", "contract"): 3,
        ("source_up", "orders"): False,
        ("paused",): False,
        ("failed",): False,
        ("overdue",): False,
        ("waiting",): True,
        ("degraded",): False,
    }
    assert {name for name, *_ in figures} < METRICS.keys()


def test_the_lag_of_each_partition(states: States) -> None:
    lag = Lag({"orders": {0: 17, 1: 5}}, {"orders": {0: 10, 1: 5}}, {}, {"orders": {0: 20, 1: 5}})
    figures = found(states, lag)
    assert (figures["lag_records", "orders", "0"], figures["lag_records", "orders", "1"]) == (10, 0)
    assert (figures["held_records", "orders", "0"], figures["held_records", "orders", "1"]) == (
        3,
        0,
    )


def test_a_topic_that_is_away_makes_its_pipeline_wait(states: States) -> None:
    there = Lag({"orders": {0: 10}}, {"orders": {0: 10}}, {})
    deleted = Lag({}, {"orders": {0: 10}}, {})
    for lag, is_there in ((there, True), (deleted, False)):
        figures = found(states, lag)
        assert (figures["source_up", "orders"], figures["waiting",]) == (is_there, not is_there)


def test_a_retired_pipeline_causes_no_alert(states: States) -> None:
    states.publish({"a": "[1,2]"})
    lag = Lag({"orders": {0: 17}}, {"orders": {0: 10}}, {})
    assert ("lag_records", "orders", "0") in found(states, lag)
    states.ledger.generations.retire("orders")
    for measured in (found(states, lag), found(states)):
        assert {name for name, *_ in measured}.isdisjoint({"lag_records", "source_up"})
        assert [
            name for (name, *_), value in measured.items() if name == "condition" and value
        ] == []


def test_a_failure_is_one(states: States) -> None:
    states.ledger.failures.keep(Failure.of(EngineError("x"), "orders"))
    assert found(states)["failed",] == 1


def test_a_shard_that_is_not_here_has_no_size(states: States) -> None:
    for file in Path(states.database.removeprefix("sqlite:///")).rglob("worker-0.sqlite"):
        file.unlink()
    assert ("state_bytes", "0") not in found(states)


def test_shards_in_postgresql_have_a_size(postgres: str) -> None:
    in_postgres = States(database_with_ledger(postgres))
    in_postgres.publish({f"key {number}": "1" for number in range(100)})
    sizes = shard_sizes(LedgerFigures.read(in_postgres.ledger))
    assert {worker: size > 8_192 for worker, size in sizes.items()} == {
        ("orders", 0): True,
        ("orders", 1): True,
    }


def test_the_text_for_prometheus_has_each_metric_once_and_escapes_labels() -> None:
    rejected = Measurement("batch_rejected", 3, (("reason", 'a "b"\\c\n'),))
    orders = of_pipeline("orders", [Measurement("failed", True), rejected])
    pages = of_pipeline(
        "pages", [Measurement("failed", False), Measurement("batches_total", 1_234_567_890)]
    )
    assert prometheus([*orders, *pages]) == (
        "# HELP sluice_batch_rejected Records of the newest batch that were rejected, by reason.\n"
        "# TYPE sluice_batch_rejected gauge\n"
        'sluice_batch_rejected{pipeline="orders",reason="a \\"b\\"\\\\c\\n"} 3\n'
        "# HELP sluice_batches_total Published batches.\n"
        "# TYPE sluice_batches_total counter\n"
        'sluice_batches_total{pipeline="pages"} 1234567890\n'
        "# HELP sluice_failed 1 if the last run failed or the pipeline's file cannot be loaded, else 0.\n"
        "# TYPE sluice_failed gauge\n"
        'sluice_failed{pipeline="orders"} 1\n'
        'sluice_failed{pipeline="pages"} 0\n'
    )


def test_a_histogram_counts_each_duration_in_its_bucket_and_all_above() -> None:
    durations = [
        measured
        for seconds in (0.2, 0.2, 4, 9_000)
        for measured in duration("run_start_seconds", seconds)
    ]
    summed: dict[tuple[str, Labels], float] = {}
    for name, value, labels in durations:
        summed[name, labels] = summed.get((name, labels), 0) + value
    samples = histogram_samples(
        Measurement(name, value, labels) for (name, labels), value in summed.items()
    )
    by_bound = {dict(labels).get("le", name): value for name, value, labels in samples}
    assert (by_bound["0.1"], by_bound["0.25"], by_bound["2.5"], by_bound["5"]) == (0, 2, 2, 3)
    assert (by_bound["1800"], by_bound["+Inf"], by_bound["run_start_seconds_count"]) == (3, 4, 4)
    assert by_bound["run_start_seconds_sum"] == pytest.approx(9_004.4)


def test_the_oldest_unread_record_of_a_topic_has_an_age_unless_a_partition_is_unknown() -> None:
    lag = Lag(
        {"orders": {0: 17, 1: 5}, "pages": {0: 3}}, {"orders": {0: 10, 1: 2}, "pages": {0: 3}}, {}
    )
    places = dict(lag.first_unread())
    assert places == {("orders", 0): 10, ("orders", 1): 2}
    ages = {}
    known = {
        (("orders", 0), 10): NOON - timedelta(seconds=90),
        (("orders", 1), 2): NOON - timedelta(seconds=30),
    }
    for times in (known, {(("orders", 0), 10): NOON}):
        empty = LedgerFigures({}, {}, {}, frozenset(), {}, {}, {}, frozenset(), {}, {})
        of_now = gauges(empty, "orders", lag, NOON, oldest_unread=times)
        ages[len(times)] = {
            labels[0][1]: value for name, value, labels in of_now if name == "oldest_unread_seconds"
        }
    assert ages == {2: {"orders": 90, "pages": 0}, 1: {"pages": 0}}


def test_names_and_units_follow_the_conventions_of_prometheus() -> None:
    samples: list[Measurement] = []
    for name, metric in METRICS.items():
        samples += duration(name, 1) if metric.kind == "histogram" else [Measurement(name, 1)]
    page = prometheus(histogram_samples(samples))
    assert page.count("# HELP") == len(METRICS)
    assert promtool("check", "metrics", text=page) == ""
