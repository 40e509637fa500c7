"""Asset events for windows that have closed: one for each window of an announced store.

Airflow registers the events of a task in the transaction in which the task succeeds. So events say
which windows have been announced. Besides the events of windows, a run adds one event to the
store's *mark*, a separate asset. This event has the end of the newest window that the run has
announced (`until`).
A run announces the windows that end after `until`, up to the time that the ledger has for the
newest snapshot (`engine/publish/closed_windows.py`). Nothing else decides, so a window has one
event even
if

- a driver is killed and its batch is repeated, or the task is repeated: a task that has not
  succeeded has announced nothing;
- a task is cleared after it has succeeded: its events are there, so it announces nothing again;
- a task is marked as successful, or a run has been started outside Airflow: its windows have no
  event yet, so the next run announces them;
- the state is rebuilt or replayed: the windows have been announced already.

Airflow may delete old events (`airflow db clean`). Each run therefore keeps the end that the mark
has confirmed as a measurement in the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import Asset

from sluice.airflow_releases import HAS_PARTITIONS, newest_events
from sluice.errors import StateError
from sluice.orchestration.dag_facts import AnnouncedStore
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.measurements import Measurement
from sluice.state.model import Snapshot
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.closed_windows import ANNOUNCED, ANNOUNCED_FROM, windows_ending
from sluice.values.utc_times import utc_datetime
from sluice.values.windows import Bounds, TimeWindow

if TYPE_CHECKING:
    from airflow.sdk import Context

MOST_WINDOWS = 1_000
"""The maximum number of a store's windows that a run announces. Later runs announce the rest."""
_FOREIGN_EVENTS = 20
"""The largest number of events created by people, for example on Airflow's page, that may follow a
run's event."""
_MEASUREMENT = "announced_until_seconds"


def window_asset(pipeline: str, store: str) -> Asset:
    """Return the asset whose events announce the closed windows of a store."""
    return Asset(f"{pipeline}.closed.{store}")


def mark_of(pipeline: str, store: str) -> Asset:
    """Return the asset whose newest event says up to which end windows have been announced.

    No DAG has it as its schedule: while a run that an event has started is queued, Airflow 3.3
    fails to read the event.
    """
    return Asset(f"{pipeline}.announced.{store}")


def assets_of(pipeline: str, stores: Sequence[AnnouncedStore]) -> list[Asset]:
    """Return the assets to which a run adds events for the windows of these stores."""
    assets: list[Asset] = []
    for announced in stores:
        assets += [window_asset(pipeline, announced.store), mark_of(pipeline, announced.store)]
    return assets


@dataclass(frozen=True)
class ClosedWindow:
    """A closed window, as a DAG that runs after the pipeline sees it."""

    pipeline: str
    store: str
    key: str
    """The start of the window on the clocks of its zone, such as `2026-11-21T08:00:00`."""
    start: datetime
    """The start of the window, in the zone of its calendar, otherwise in UTC."""
    snapshot: str
    """A snapshot with the window's final results. Pass it to queries as `as_of`."""


def each_closed_window(pipeline: str, store: str) -> Any:
    """Return the schedule of a DAG that runs for the closed windows of a store.

    With Airflow 3.3, the DAG runs once for each window. With earlier releases, a run can be for
    several windows that have closed at the same time.
    """
    asset = window_asset(pipeline, store)
    if HAS_PARTITIONS:
        from airflow.sdk import PartitionedAssetTimetable

        return PartitionedAssetTimetable(assets=asset)
    return [asset]


def closed_windows(context: Mapping[str, Any]) -> list[ClosedWindow]:
    """Return the windows for which a DAG with the schedule `each_closed_window` runs.

    The list is empty if the run was not started by a closed window.
    """
    partition = getattr(context["dag_run"], "partition_key", None)
    windows: dict[ClosedWindow, None] = {}
    for events in context["triggering_asset_events"].values():
        for event in events:
            extra: Any = event.extra or {}
            if "until" not in extra:
                continue
            for key in extra.get("partitions") or [partition]:
                start = datetime.fromisoformat(key).replace(tzinfo=ZoneInfo(extra["zone"]))
                window = ClosedWindow(
                    extra["pipeline"], extra["store"], key, start, extra["snapshot"]
                )
                windows[window] = None
    return list(windows)


@dataclass(frozen=True)
class _Announcement:
    """The windows of a store that a run announces, sorted by their ends."""

    windows: Sequence[Bounds]
    snapshot: Snapshot


def announce_windows(
    context: Context, ledger: Ledger, pipeline: str, stores: Sequence[AnnouncedStore]
) -> list[Asset]:
    """Add the events of newly closed windows to the task's events.

    Return the assets without a new event. The caller removes them from the task's outlets, because
    Airflow would register an event without a window for them.
    """
    silent: list[Asset] = []
    for announced in stores:
        until = _announced_until(context, ledger, pipeline, announced.store)
        announcement = _announcement(ledger, pipeline, announced, until)
        if announcement is None:
            silent += assets_of(pipeline, [announced])
            continue
        for asset in assets_of(pipeline, [announced]):
            context["outlet_events"][asset].extra.update(_extra(pipeline, announced, announcement))
        if HAS_PARTITIONS:
            events = context["outlet_events"][window_asset(pipeline, announced.store)]
            events.add_partitions(_keys(announced.window, announcement.windows))
    return silent


def _announcement(
    ledger: Ledger, pipeline: str, announced: AnnouncedStore, until: int | None
) -> _Announcement | None:
    """Return the windows of a store to announce. The windows up to `until` have been announced.

    None if there is nothing new.
    """
    # Imported only here, because the module imports NumPy, which slows down the parsing of DAGs.
    from sluice.operators.lateness import WindowLateness

    snapshot = ledger.snapshots.latest(pipeline)
    if snapshot is None:
        return None
    times = ledger.snapshots.times_before(snapshot.ref, snapshot.batch + 1)
    closed = times.get(f"{ANNOUNCED}/{announced.store}", -1)
    if closed < 0:
        return None
    window = announced.window
    lateness = WindowLateness(window)
    if until is None:
        since = times.get(f"{ANNOUNCED_FROM}/{announced.store}", -1)
        if since >= 0:
            # The pipeline had read records before the store was announced. Windows that were closed
            # by then get no events.
            until = lateness.last_closed_end(since)
        else:
            first = _first_start(ledger, snapshot, announced.store)
            if first is None:
                return None
            until = window.end_of(first) - 1
    newest = lateness.last_closed_end(closed)
    windows = list(islice(windows_ending(window, until, newest), MOST_WINDOWS))
    return _Announcement(windows, snapshot) if windows else None


def _announced_until(context: Context, ledger: Ledger, pipeline: str, store: str) -> int | None:
    """Return the end of the newest announced window, epoch ms; None if none was announced."""
    ends: list[int] = []
    for event in newest_events(context, mark_of(pipeline, store), _FOREIGN_EVENTS):
        text = (event.extra or {}).get("until")
        if isinstance(text, str):
            ends.append(round(datetime.fromisoformat(text).timestamp() * 1_000))
    labels = (("store", store),)
    for measurement in ledger.measurements.of_all_pipelines().get(pipeline, ()):
        if (measurement.name, measurement.labels) == (_MEASUREMENT, labels):
            ends.append(round(measurement.value * 1_000))
    if not ends:
        return None
    ledger.measurements.replace(pipeline, [Measurement(_MEASUREMENT, max(ends) / 1_000, labels)])
    return max(ends)


def _first_start(ledger: Ledger, snapshot: Snapshot, store: str) -> int | None:
    """Return the start of the earliest window in a store; None if the store is empty.

    Raise StateError if a worker is not available.
    """
    # Imported only here, because only the first announcement of a store needs the modules.
    from sluice.query.reader import Reader

    async def read() -> int | None:
        reader = Reader(ledger)
        try:
            for info in await reader.catalogue.stores_named(store):
                if info.pipeline == snapshot.pipeline:
                    pin = await reader.catalogue.pin(info)
                    groups = await reader.combine(pin, group_by="_start", limit=1)
                    if groups.partial:
                        raise StateError(f"Not all workers of {store!r} are available.")
                    for group in groups.groups:
                        return int(bytes(group.group))
            return None
        finally:
            await reader.workers.close()

    return asyncio.run(read())


def _extra(pipeline: str, announced: AnnouncedStore, announcement: _Announcement) -> dict[str, Any]:
    _, until = announcement.windows[-1]
    extra: dict[str, Any] = {
        "pipeline": pipeline,
        "store": announced.store,
        "snapshot": announcement.snapshot.id,
        "until": utc_datetime(until).isoformat(),
        "zone": _zone(announced.window),
    }
    if not HAS_PARTITIONS:
        extra["partitions"] = _keys(announced.window, announcement.windows)
    return extra


def _zone(window: TimeWindow) -> str:
    return window.zone if isinstance(window, CalendarWindow) else "UTC"


def _keys(window: TimeWindow, windows: Sequence[Bounds]) -> list[str]:
    """Return the keys of the windows' partitions: their starts, such as `2026-11-21T08:00:00`."""
    zone = ZoneInfo(_zone(window))
    keys: list[str] = []
    for start, _ in windows:
        keys.append(utc_datetime(start).astimezone(zone).replace(tzinfo=None).isoformat())
    return keys
