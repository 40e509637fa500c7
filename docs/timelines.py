"""The timelines of docs/examples/windows.md, as SVG. `make docs` writes them."""

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
    """The windows of four visits, by kind."""
    visits = [("home", time) for time in VISITS]
    rows: dict[str, list[tuple[int, int, str]]] = {
        "tumbling": _bars(windows_example.minutes(visits)),
        "hopping": _bars(windows_example.overlapping_minutes(visits)),
        "sliding": _bars(windows_example.bursts(visits)),
        "session": _bars(windows_example.sessions(visits)),
    }
    return _timeline("Windows of four visits, with their counts", (-30_000, 150_000), VISITS, rows)


def extractors() -> str:
    """The minute of one visit, by timestamp extractor."""
    times = {"the field at": 20_000, "the record": 75_000, "the wall clock": 190_000}
    rows = {
        name: [(time - time % _MINUTE, time - time % _MINUTE + _MINUTE, "1")]
        for name, time in times.items()
    }
    return _timeline(
        "The minute of one visit, by timestamp extractor", (0, 240_000), tuple(times.values()), rows
    )


def grace() -> str:
    """A minute's window until it is closed."""
    rows = {
        "window": [(0, _MINUTE, "08:00 to 08:01")],
        "grace": [(_MINUTE, _MINUTE + 15_000, "15 s")],
        "closed": [(_MINUTE + 15_000, 120_000, "final; later visits of that minute are late")],
    }
    return _timeline("A window by stream time", (0, 120_000), (), rows)


def suppress() -> str:
    """The newest result about a page, by the time at which it is sent."""
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


def _bars(counts: Mapping[Window, int]) -> list[tuple[int, int, str]]:
    return [(start, end, str(count)) for (_, start, end), count in sorted(counts.items())]


def _timeline(
    title: str, span: tuple[int, int], dots: Iterable[int], rows: Mapping[str, Bars]
) -> str:
    first, last = span

    def x(time: int) -> float:
        return round(_LEFT + (time - first) / (last - first) * _WIDTH, 1)

    lanes = {name: _lanes(bars) for name, bars in rows.items()}
    height = 70 + sum(len(of_row) * _ROW + 10 for of_row in lanes.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-weight="600">{escape(title)}</text>',
    ]
    for time in range(first, last + 1, 30_000):
        clock = 8 * 3_600 + time // 1_000
        label = f"{clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"
        parts.append(
            f'<text x="{x(time)}" y="40" fill="#64748b" text-anchor="middle" font-size="10">{label}</text>'
        )
        parts.append(
            f'<line x1="{x(time)}" y1="46" x2="{x(time)}" y2="{height - 10}" stroke="#e2e8f0"/>'
        )
    y = 60
    for name, of_row in lanes.items():
        parts.append(f'<text x="10" y="{y + 12}">{escape(name)}</text>')
        for lane in of_row:
            for start, end, label in lane:
                width = max(x(end) - x(start), 6)
                parts.append(
                    f'<rect x="{x(start)}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="3" fill="#dcfce7" '
                    f'stroke="#16a34a"/><text x="{x(start) + width / 2:.1f}" y="{y + 12}" text-anchor="middle" '
                    f'font-size="10">{escape(label)}</text>'
                )
            y += _ROW
        y += 10
    for place in map(x, dots):
        parts += [
            f'<line x1="{place}" y1="46" x2="{place}" y2="{height - 10}" stroke="#2563eb" stroke-dasharray="2 3"/>',
            f'<circle cx="{place}" cy="50" r="4" fill="#2563eb"/>',
        ]
    return "\n".join([*parts, "</svg>"])


def _lanes(bars: Bars) -> list[list[tuple[int, int, str]]]:
    """The bars in as few lines as possible without overlaps."""
    lanes: list[list[tuple[int, int, str]]] = []
    for bar in sorted(bars):
        lane = next((lane for lane in lanes if lane[-1][1] <= bar[0]), None)
        if lane is None:
            lanes.append([bar])
        else:
            lane.append(bar)
    return lanes


PICTURES = (kinds, grace, suppress, extractors)
