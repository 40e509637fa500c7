"""Timelines of the topic pages and of docs/examples/windows.md, as SVG; `make docs` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

from sluice.examples import windows_example
from sluice.examples.example import Window

_LEFT, _WIDTH, _ROW, _BAR = 150, 620, 24, 16
_MINUTE = 60_000
Bars = Sequence[tuple[int, int, str]]
"""Start, end and label."""

VISITS = (10_000, 25_000, 50_000, 100_000)
"""Times of the visits of the picture, in ms after 08:00."""


def kinds() -> str:
    """Return the windows of four visits, by kind."""
    visits = [("home", time) for time in VISITS]
    rows: dict[str, list[tuple[int, int, str]]] = {
        "tumbling": _bars(windows_example.minutes(visits)),
        "hopping": _bars(windows_example.overlapping_minutes(visits)),
        "sliding": _bars(windows_example.bursts(visits)),
        "session": _bars(windows_example.sessions(visits)),
    }
    return _timeline("Windows of four visits, with their counts", (-30_000, 150_000), VISITS, rows)


def extractors() -> str:
    """Return the minute of one visit, by timestamp extractor."""
    times = {"the field at": 20_000, "the record": 75_000, "the wall clock": 190_000}
    rows = {
        name: [(time - time % _MINUTE, time - time % _MINUTE + _MINUTE, "1")]
        for name, time in times.items()
    }
    return _timeline(
        "The minute of one visit, by timestamp extractor", (0, 240_000), tuple(times.values()), rows
    )


def grace() -> str:
    """Return a minute's window until it is closed."""
    rows = {
        "window": [(0, _MINUTE, "08:00 to 08:01")],
        "grace": [(_MINUTE, _MINUTE + 15_000, "15 s")],
        "closed": [(_MINUTE + 15_000, 120_000, "final; later visits of that minute are late")],
    }
    return _timeline("A window by stream time", (0, 120_000), (), rows)


def suppress() -> str:
    """Return the newest result about a page, by the time at which it is sent."""
    visits = [("home", time) for time in VISITS]
    last = 150_000
    changes = [
        (time, until, str(number))
        for number, (time, until) in enumerate(pairwise((*VISITS, last)), start=1)
    ]
    limited = windows_example.totals_once_per(_MINUTE, visits, max_records=1)
    first_minute = sum(time < _MINUTE for time in VISITS)
    closed = next(time for time in VISITS if time >= _MINUTE + 15_000)
    rows = {
        "total, every change": changes,
        "total, time limit": [(time, last, str(total)) for time, _, total in limited],
        "minute 08:00, closed": [(closed, last, str(first_minute))],
    }
    return _timeline("The newest result of four visits in each topic", (0, last), VISITS, rows)


def silence() -> str:
    """Draw a window that closes although no record comes, with `advance_when_idle="30 seconds"`."""
    last_record, window_end, grace_end = 50_000, _MINUTE, _MINUTE + 15_000
    closed = grace_end + 30_000
    rows = {
        "records": _points((10_000, "a"), (30_000, "b"), (last_record, "c")),
        "window": [(0, window_end, "08:00 to 08:01")],
        "stream time": [
            (last_record, last_record + 30_000, "stands still"),
            (80_000, 150_000, "follows the clock"),
        ],
        "window closes": [(closed, 150_000, "the final result is sent")],
    }
    return _timeline("Time without records, by the clock", (0, 150_000), (), rows)


def within() -> str:
    """Draw the records of two streams that a join with `within("10 seconds")` combines."""
    sale, near = 30_000, 10_000
    notes = {12_000: "n1", 24_000: "n2", 37_000: "n3"}
    joined = [(time, label) for time, label in notes.items() if abs(time - sale) <= near]
    results = [(max(time, sale), f"s, {label}") for time, label in joined]
    rows = {
        "sales": _points((sale, "s")),
        "within 10 s of s": [(sale - near, sale + near, "")],
        "notes": _points(*notes.items()),
        "results": _points(*results),
    }
    return _timeline("A join of two streams", (0, 60_000), (), rows, tick=10_000)


def table_rows() -> str:
    """Draw the row of a key, its changes, and the row that a sale is joined with."""
    rows = {
        "records, key s1": _points((5_000, "Pune"), (25_000, "Goa"), (45_000, "null")),
        "row of s1": [(5_000, 25_000, "Pune"), (25_000, 45_000, "Goa")],
        "changes()": _points((5_000, "insert"), (25_000, "update"), (45_000, "delete")),
        "sales, key s1": _points((15_000, "s"), (35_000, "s"), (55_000, "s")),
        "sales.left_join": _points((15_000, "s, Pune"), (35_000, "s, Goa"), (55_000, "s, null")),
    }
    return _timeline("The table shops and a stream of sales", (0, 60_000), (), rows, tick=10_000)


def updates() -> str:
    """Draw the updates of a count: after every record, or once per batch."""
    times = (5_000, 10_000, 25_000, 40_000, 50_000)
    every = [(time, str(number)) for number, time in enumerate(times, start=1)]
    rows = {
        "records": _points(*((time, "r") for time in times)),
        "batches": [(0, 30_000, "batch 1"), (30_000, 60_000, "batch 2")],
        "every update": _points(*every),
        "once per batch": _points((30_000, "3"), (60_000, "5")),
    }
    return _timeline("The updates of a count", (0, 65_000), (), rows, tick=10_000)


def _points(*labels: tuple[int, str]) -> Bars:
    """Return a bar for each point in time; `_timeline` makes it as wide as its label."""
    return [(time, time, label) for time, label in labels]


def _bars(counts: Mapping[Window, int]) -> list[tuple[int, int, str]]:
    return [(start, end, str(count)) for (_, start, end), count in sorted(counts.items())]


def _timeline(
    title: str,
    span: tuple[int, int],
    dots: Iterable[int],
    rows: Mapping[str, Bars],
    tick: int = 30_000,
) -> str:
    first, last = span

    def x(time: int) -> float:
        return round(_LEFT + (time - first) / (last - first) * _WIDTH, 1)

    lanes = {name: _lanes(bars) for name, bars in rows.items()}
    height = 70 + sum(len(of_row) * _ROW + 10 for of_row in lanes.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" '
        'role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-weight="600">{escape(title)}</text>',
    ]
    for time in range(first, last + 1, tick):
        clock = 8 * 3_600 + time // 1_000
        label = f"{clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"
        parts.append(
            f'<text x="{x(time)}" y="40" fill="#64748b" text-anchor="middle" '
            f'font-size="10">{label}</text>'
        )
        parts.append(
            f'<line x1="{x(time)}" y1="46" x2="{x(time)}" y2="{height - 10}" stroke="#e2e8f0"/>'
        )
    y = 60
    for name, of_row in lanes.items():
        parts.append(f'<text x="10" y="{y + 12}">{escape(name)}</text>')
        for lane in of_row:
            for start, end, label in lane:
                left, width = x(start), x(end) - x(start)
                if start == end:
                    width = 6 * len(label) + 8
                    left -= width / 2
                parts.append(
                    f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="3" '
                    'fill="#dcfce7" stroke="#16a34a"/>'
                    f'<text x="{left + width / 2:.1f}" y="{y + 12}" '
                    f'text-anchor="middle" font-size="10">{escape(label)}</text>'
                )
            y += _ROW
        y += 10
    for place in map(x, dots):
        parts += [
            f'<line x1="{place}" y1="46" x2="{place}" y2="{height - 10}" stroke="#2563eb" '
            'stroke-dasharray="2 3"/>',
            f'<circle cx="{place}" cy="50" r="4" fill="#2563eb"/>',
        ]
    return "\n".join([*parts, "</svg>"])


def _lanes(bars: Bars) -> list[list[tuple[int, int, str]]]:
    """Return the bars in as few lines as possible without overlaps."""
    lanes: list[list[tuple[int, int, str]]] = []
    for bar in sorted(bars):
        lane = next((lane for lane in lanes if lane[-1][1] <= bar[0]), None)
        if lane is None:
            lanes.append([bar])
        else:
            lane.append(bar)
    return lanes


PICTURES = {
    "windows-kinds": kinds,
    "windows-grace": grace,
    "windows-suppress": suppress,
    "windows-extractors": extractors,
    "time-silence": silence,
    "joins-within": within,
    "tables-rows": table_rows,
    "aggregations-updates": updates,
}
"""Name of the file, without its ending, and the function that draws it."""
