"""Sample visits to pages, and the expected windows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from sluice.examples.example import Example, Results, Sample, Window, json_bytes

Visit = tuple[str, int]
"""A page and the time of the visit, epoch ms."""

_TOPICS = ("visits", "visits_recorded", "visits_processed")
_OUTPUTS = (
    "session_changes",
    "sessions_closed",
    "minutes_closed",
    "visits_late",
    "visits_total_per_minute",
    "visits_total_when_full",
)
_PAGES = ("cart", "help", "home", "news")
_BAD_EVERY = 100
_DISORDER_MS = 10_000
"""The timestamp of an on-time visit is at most this far behind the timestamps of the visits sent
before it. This is less than the windows' grace."""
_LATE_MS = 600_000
"""The timestamp of a late visit is this far behind the timestamps of the visits sent before it. So
the visit is late for every window."""
_SIZE_MS, _ADVANCE_MS, _GRACE_MS, _GAP_MS = 60_000, 30_000, 15_000, 30_000
_HOUR_MS = 3_600_000


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """Yield visits to four pages in three topics, one every few seconds.

    A few are out of order, late or invalid.
    """
    random = Random(seed)
    time_ms = start_ms + _LATE_MS
    for number in range(count // len(_TOPICS)):
        time_ms += random.randint(1_000, 20_000)
        luck = random.random()
        at = time_ms
        if luck < 0.02:
            at -= _LATE_MS
        elif luck < 0.2:
            at -= random.randrange(_DISORDER_MS)
        # The time is written in UTC, to the second, as most producers write it.
        text = datetime.fromtimestamp(at // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        page = random.choice(_PAGES)
        visit: dict[str, Any] = {"page": page, "at": text}
        if number % _BAD_EVERY == _BAD_EVERY - 1:
            visit["page"] = number
        value = json_bytes(visit)
        # No two samples have the same timestamp, so that their timestamps put them in order.
        for place, topic in enumerate(_TOPICS):
            yield Sample(topic, page, value, time_ms + place)


def expected(records: Iterable[Sample]) -> Results:
    """Return the windows by visit times and by record timestamps, and the total of each page."""
    results = Results()
    visits, timely = list[Visit](), list[Visit]()
    by_clock = Counter[str]()
    recorded = Counter[Window]()
    stream_time = 0
    for record in records:
        visit = json.loads(record.value or b"{}")
        if type(visit["page"]) is not str:
            results.dead_letters["contract"] += 1
            continue
        page = visit["page"]
        if record.topic == "visits_recorded":
            recorded[_minute(page, record.timestamp_ms)] += 1
        elif record.topic == "visits_processed":
            # The windows depend on the time of the run, so only the sum of their counts is
            # compared, for each page.
            by_clock[page] += 1
        else:
            time_ms = int(_utc(visit["at"]).timestamp() * 1_000)
            visits.append((page, time_ms))
            stream_time = max(stream_time, time_ms)
            # A late visit is ten minutes old, and a visit out of order is at most ten seconds old.
            # Every limit in between tells these two kinds apart.
            if time_ms > stream_time - _LATE_MS // 2:
                timely.append((page, time_ms))
            else:
                results.write("visits_late", page, _in_utc(visit))
    by_minute, by_session = minutes(timely), sessions(timely)
    results.stores = {
        "minutes": by_minute,
        "overlapping_minutes": overlapping_minutes(timely),
        "bursts": bursts(timely),
        "sessions": by_session,
        "minutes_recorded": dict(recorded),
        "minutes_processed": dict(by_clock),
        # A total without windows counts late visits, too.
        "visits_total": dict(Counter(page for page, _ in visits)),
    }
    # The result of a window is final when stream time has passed the window's end plus grace.
    closed = stream_time - _GRACE_MS
    for _, page, total in totals_once_per(_SIZE_MS, visits, max_records=len(_PAGES)):
        results.write("visits_total_per_minute", page, total)
    for _, page, total in totals_once_per(_HOUR_MS, visits, max_records=2):
        results.write("visits_total_when_full", page, total)
    results.tables = {
        "minutes_closed": _ended_by(closed, by_minute),
        # Another visit can extend a session until the gap after the session's last visit is over.
        "sessions_closed": _ended_by(closed - _GAP_MS, by_session),
        "session_changes": by_session,
    }
    return results


def _ended_by(time_ms: int, counts: dict[Window, int]) -> dict[Window, int]:
    ended: dict[Window, int] = {}
    for (page, start, end), count in counts.items():
        if end <= time_ms:
            ended[page, start, end] = count
    return ended


def minutes(visits: Iterable[Visit]) -> dict[Window, int]:
    """Return the number of visits in each tumbling window."""
    return dict(Counter(_minute(*visit) for visit in visits))


def overlapping_minutes(visits: Iterable[Visit]) -> dict[Window, int]:
    """Return the number of visits in each hopping window."""
    counts = Counter[Window]()
    for page, time_ms in visits:
        # As in Kafka Streams, windows begin at multiples of the advance since 1970.
        for start in range(time_ms - time_ms % _ADVANCE_MS, time_ms - _SIZE_MS, -_ADVANCE_MS):
            counts[page, start, start + _SIZE_MS] += 1
    return dict(counts)


def bursts(visits: Iterable[Visit]) -> dict[Window, int]:
    """Return the number of visits in each sliding window.

    For each visit, one window ends at the visit. Another window begins right after the visit,
    unless it would contain no visits.
    """
    windows: dict[Window, int] = {}
    for page, times in _by_page(visits).items():
        starts: set[int] = set()
        for time_ms in times:
            starts |= {time_ms - _GAP_MS, time_ms + 1}
        for start in starts:
            end = start + _GAP_MS
            count = sum(start <= time_ms <= end for time_ms in times)
            if count:
                windows[page, start, end] = count
    return windows


def sessions(visits: Iterable[Visit]) -> dict[Window, int]:
    """Return the number of visits in each session."""
    windows: dict[Window, int] = {}
    for page, times in _by_page(visits).items():
        start, end, count = times[0], times[0], 0
        for time_ms in times:
            if time_ms - end > _GAP_MS:
                windows[page, start, end] = count
                start, count = time_ms, 0
            end = time_ms
            count += 1
        windows[page, start, end] = count
    return windows


def totals_once_per(
    limit_ms: int,
    visits: Iterable[Visit],
    max_records: int,
) -> list[tuple[int, str, int]]:
    """Return the results of a suppress step for the totals of pages: stream time, page and total.

    The step holds back the totals of at most `max_records` pages. A total has the time of the
    page's newest visit. The step sends a page's newest total when stream time is `limit_ms` after
    the time of the first total that it holds back for the page.
    """
    totals = Counter[str]()
    newest: dict[str, int] = {}
    held: dict[str, int] = {}
    results = []
    stream_time = 0
    for page, time_ms in visits:
        totals[page] += 1
        stream_time = max(stream_time, time_ms)
        newest[page] = max(newest.get(page, 0), time_ms)
        # If a page is held back already, its time stays, and only its total changes.
        held.setdefault(page, newest[page])
        while held and (min(held.values()) <= stream_time - limit_ms or len(held) > max_records):
            oldest = min(held, key=lambda page: (held[page], page))
            del held[oldest]
            results.append((stream_time, oldest, totals[oldest]))
    return results


def _minute(page: str, time_ms: int) -> Window:
    start = time_ms - time_ms % _SIZE_MS
    return page, start, start + _SIZE_MS


def _by_page(visits: Iterable[Visit]) -> dict[str, list[int]]:
    times = defaultdict[str, list[int]](list)
    for page, time_ms in visits:
        times[page].append(time_ms)
    return {page: sorted(of_page) for page, of_page in times.items()}


def _in_utc(value: Any) -> Any:
    """Return a visit with its time in the format that all visits get here.

    Programs write times differently. Counts are unchanged.
    """
    if not isinstance(value, dict):
        return value
    return value | {"at": _utc(value["at"]).isoformat()}


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


EXAMPLE = Example(
    name="windows",
    # Each topic has one partition, because lateness depends on the other records of a partition.
    topics=dict.fromkeys(_TOPICS, 1),
    outputs=dict.fromkeys(_OUTPUTS, 1),
    count=900,
    samples=samples,
    expected=expected,
    paths=(
        "/sluice/v1/stores/minutes/keys/home?from=2025-03-03T08:11:00&to=2025-03-03T08:12:00",
        "/sluice/v1/stores/sessions/keys/cart?to=2025-03-03T08:15:00",
    ),
    normal=_in_utc,
    by_clock=frozenset({"minutes_processed"}),
)
