"""Asset events for closed windows: each window has one, whatever happens to runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from sluice.orchestration import window_events
from sluice.orchestration.dag_facts import AnnouncedStore
from sluice.orchestration.window_events import (
    announce_windows,
    closed_windows,
    mark_of,
    window_asset,
)
from sluice.values.calendar_windows import CalendarWindow, Period
from sluice.values.closed_windows import ANNOUNCED, ANNOUNCED_FROM
from sluice.values.windows import TimeWindow, Window
from tests.support.states import States

HOUR = 3_600_000
EIGHT = 1_795_248_000_000
"""2026-11-21T08:00:00Z in epoch ms."""


class Events(list[Any]):
    """The events of an asset, as Airflow's accessor returns them."""

    def ascending(self, *, ascending: bool) -> Events:
        return Events(sorted(self, key=lambda event: event.id, reverse=not ascending))

    def limit(self, count: int) -> Events:
        return Events(self[:count])


@dataclass
class FakeAirflow:
    """Registers the events of tasks that succeed, as Airflow's API server does."""

    events: list[Any] = field(default_factory=list)
    """The events of the asset of closed windows."""
    marks: Events = field(default_factory=Events)

    def run(
        self, states: States, stores: Sequence[AnnouncedStore], *, succeeds: bool = True
    ) -> list[str]:
        """Run a task. Return the keys for which it has announced windows."""
        asset = window_asset(states.pipeline, stores[0].store)
        mark = mark_of(states.pipeline, stores[0].store)
        outlet_events: Any = OutletEventAccessors()
        context: Any = {"inlet_events": {mark: self.marks}, "outlet_events": outlet_events}
        silent = announce_windows(context, states.ledger, states.pipeline, stores)
        if silent:
            assert silent == [asset, mark]
            return []
        accessor = outlet_events[asset]
        keys = sorted(accessor.partition_keys)
        if succeeds:
            for key in keys:
                self.events.append(SimpleNamespace(partition_key=key, extra=accessor.extra))
            self.mark(outlet_events[mark].extra)
        return keys

    def mark(self, extra: dict[str, Any] | None) -> None:
        self.marks.append(SimpleNamespace(id=len(self.marks), extra=extra))


def announced(window: TimeWindow | None = None) -> list[AnnouncedStore]:
    # The facts of a DAG are read from a file.
    text = msgspec.json.encode(AnnouncedStore.of("windows", window or Window(HOUR)))
    return [msgspec.json.decode(text, type=AnnouncedStore)]


@pytest.fixture
def states(tmp_path: Path) -> States:
    return States(f"sqlite:///{tmp_path}")


def publish(states: States, closed: int, *starts: int, since: int = -1) -> None:
    """Publish a batch after which windows are closed up to a time, with rows in some windows."""
    rows = [(1, f"key-{start}", start, start + HOUR, "[1]") for start in starts]
    times = {f"{ANNOUNCED}/windows": closed, f"{ANNOUNCED_FROM}/windows": since}
    states.publish(rows, stream_times=times)


def key(hour: int) -> str:
    return f"2026-11-21T{hour:02}:00:00"


def test_each_closed_window_from_the_first_with_a_row_is_announced_once(states: States) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + HOUR - 1, EIGHT)
    assert airflow.run(states, announced()) == []
    publish(states, EIGHT + 3 * HOUR, EIGHT + 2 * HOUR)
    # The hour without records is complete, too.
    assert airflow.run(states, announced()) == [key(8), key(9), key(10)]
    assert airflow.run(states, announced()) == []
    publish(states, EIGHT + 4 * HOUR + 5)
    assert airflow.run(states, announced()) == [key(11)]


def test_an_event_names_the_snapshot_and_the_end_of_the_newest_window(states: States) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + HOUR, EIGHT)
    airflow.run(states, announced())
    (event,) = airflow.events
    assert event.extra == {
        "pipeline": "orders",
        "store": "windows",
        "snapshot": "1.0",
        "until": "2026-11-21T09:00:00+00:00",
        "zone": "UTC",
    }


def test_the_windows_of_a_task_that_fails_are_announced_by_the_next(states: States) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + HOUR, EIGHT)
    assert airflow.run(states, announced(), succeeds=False) == [key(8)]
    publish(states, EIGHT + 2 * HOUR)
    assert airflow.run(states, announced()) == [key(8), key(9)]


def test_windows_accept_records_until_their_grace_has_passed(states: States) -> None:
    publish(states, EIGHT + HOUR + 999, EIGHT)
    graced = announced(Window(HOUR, grace_ms=1_000))
    assert FakeAirflow().run(states, graced) == []
    publish(states, EIGHT + HOUR + 1_000)
    assert FakeAirflow().run(states, graced) == [key(8)]


def test_a_store_that_is_announced_later_begins_with_the_next_window_to_close(
    states: States,
) -> None:
    publish(states, EIGHT + 2 * HOUR, EIGHT, since=EIGHT + HOUR)
    assert FakeAirflow().run(states, announced()) == [key(9)]


def test_a_rebuild_announces_nothing_again(states: States) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + HOUR, EIGHT)
    airflow.run(states, announced())
    rebuilt = replace(states, generation=2)
    publish(rebuilt, EIGHT + 2 * HOUR, EIGHT)
    rebuilt.ledger.generations.promote(rebuilt.ref, None)
    assert airflow.run(rebuilt, announced()) == [key(9)]


def test_events_that_airflow_has_deleted_are_not_repeated(states: States) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + HOUR, EIGHT)
    airflow.run(states, announced())
    assert airflow.run(states, announced()) == [], "this run keeps what the event says"
    airflow.marks.clear()
    publish(states, EIGHT + 2 * HOUR)
    assert airflow.run(states, announced()) == [key(9)]


def test_a_persons_event_does_not_hide_those_of_runs(states: States) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + HOUR, EIGHT)
    airflow.run(states, announced())
    airflow.mark({"note": "by hand"})
    airflow.mark(None)
    assert airflow.run(states, announced()) == []


def test_a_run_announces_at_most_a_thousand_windows_and_the_next_run_goes_on(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_events, "MOST_WINDOWS", 2)
    airflow = FakeAirflow()
    publish(states, EIGHT + 5 * HOUR, EIGHT)
    runs = [airflow.run(states, announced()) for _ in range(4)]
    assert runs == [[key(8), key(9)], [key(10), key(11)], [key(12)], []]


def test_a_day_of_a_zone_has_its_own_date_as_its_key(states: States) -> None:
    days = CalendarWindow(Period(24 * HOUR), "Europe/Berlin")
    midnight = EIGHT - 9 * HOUR
    states.publish(
        [(1, "a", midnight, midnight + 24 * HOUR, "[1]")],
        stream_times={f"{ANNOUNCED}/windows": midnight + 24 * HOUR},
    )
    assert FakeAirflow().run(states, announced(days)) == ["2026-11-21T00:00:00"]


def test_before_the_first_snapshot_nothing_is_announced(states: States) -> None:
    assert FakeAirflow().run(states, announced()) == []


def test_before_airflow_3_3_one_event_has_all_keys(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_events, "HAS_PARTITIONS", False)
    publish(states, EIGHT + 2 * HOUR, EIGHT)
    asset = Asset("orders.closed.windows")
    outlet_events: Any = OutletEventAccessors()
    context: Any = {
        "inlet_events": {mark_of("orders", "windows"): Events()},
        "outlet_events": outlet_events,
    }
    assert announce_windows(context, states.ledger, "orders", announced()) == []
    assert outlet_events[asset].extra["partitions"] == [key(8), key(9)]
    assert not outlet_events[asset].partition_keys


def test_a_dag_after_the_pipeline_sees_the_windows_of_its_run(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = FakeAirflow()
    publish(states, EIGHT + 2 * HOUR, EIGHT)
    airflow.run(states, announced())
    first, second = airflow.events
    asset = window_asset("orders", "windows")
    dag_run = SimpleNamespace(partition_key=key(9))
    context: Any = {"dag_run": dag_run, "triggering_asset_events": {asset: [second]}}
    (window,) = closed_windows(context)
    assert (window.pipeline, window.store, window.key) == ("orders", "windows", key(9))
    assert (window.start.isoformat(), window.snapshot) == (f"{key(9)}+00:00", "1.0")

    # Before Airflow 3.3, a run may have several events, each with several windows.
    old = SimpleNamespace(extra=first.extra | {"partitions": [key(8), key(9)]})
    foreign = SimpleNamespace(extra=None)
    run = SimpleNamespace()
    context = {"dag_run": run, "triggering_asset_events": {asset: [old, old, foreign]}}
    assert [window.key for window in closed_windows(context)] == [key(8), key(9)]
    nothing: Any = {"dag_run": run, "triggering_asset_events": {}}
    assert closed_windows(nothing) == []
