"""Drawings of boxes and arrows for the documentation, as SVG. `make docs` writes them.

The site may be read offline, so a page does not load a program that draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

_COLUMN, _ROW, _MARGIN = 190, 96, 16
_WIDTH, _LINE, _PADDING = 126, 15, 12
_FILLS = {"step": "#dbeafe", "topic": "#dcfce7", "database": "#fef3c7", "choice": "#f1f5f9"}


@dataclass(frozen=True)
class Box:
    """A box at a place of the grid. `text` can have several lines."""

    column: float
    row: float
    text: str
    kind: Literal["step", "topic", "database", "choice"] = "step"

    @property
    def center(self) -> tuple[float, float]:
        """The middle of the box, in pixels."""
        x = _MARGIN + self.column * _COLUMN + _WIDTH / 2
        return x, _MARGIN + self.row * _ROW + 36

    @property
    def height(self) -> float:
        """The height, which follows from the number of lines."""
        return len(self.text.splitlines()) * _LINE + _PADDING

    def edge_towards(self, other: Box) -> tuple[float, float]:
        """Return the point at which an arrow to the other box leaves this one."""
        (x, y), (to_x, to_y) = self.center, other.center
        across, down = to_x - x, to_y - y
        shares = [1.0]
        if across:
            shares.append(_WIDTH / 2 / abs(across))
        if down:
            shares.append(self.height / 2 / abs(down))
        share = min(shares)
        return x + across * share, y + down * share


Arrow = tuple[str, str, str]
"""Name of a box, name of the box to which the arrow points, and label. A label that begins with `~`
is dashed."""


def run() -> str:
    """Draw how a record gets from a topic to an answer."""
    boxes = {
        "topics": Box(0, 1, "Kafka topics", "topic"),
        "trigger": Box(1, 0, "trigger,\nin Airflow"),
        "run": Box(1, 1, "run: a driver,\nand Spark's tasks"),
        "outputs": Box(1, 2, "output topics,\ntables", "topic"),
        "shards": Box(2.2, 0.5, "shards: the rows\nof each worker", "database"),
        "ledger": Box(2.2, 1.5, "ledger: which\nsnapshots exist", "database"),
        "rest": Box(3.4, 1, "REST API, page,\nsluice query"),
    }
    arrows = [
        ("topics", "trigger", "~unread?"),
        ("trigger", "run", "~starts"),
        ("topics", "run", "records"),
        ("run", "shards", "changed rows"),
        ("run", "ledger", "publishes"),
        ("run", "outputs", "results,\ndead letters"),
        ("rest", "ledger", "which snapshot?"),
        ("rest", "shards", "which rows?"),
    ]
    return _flowchart("From a record to its answer", boxes, arrows)


def snapshots() -> str:
    """Draw which versions of rows two snapshots read."""
    boxes = {
        "s41": Box(0, 0.5, "snapshot 1.41", "choice"),
        "s42": Box(0, 1.8, "snapshot 1.42,\nthe newest", "choice"),
        "a40": Box(1.5, 0, "worker 0: a = 3,\nbatch 40", "database"),
        "a42": Box(1.5, 0.8, "worker 0: a = 4,\nbatch 42", "database"),
        "b41": Box(1.5, 1.6, "worker 1: b = 7,\nbatch 41", "database"),
        "b43": Box(1.5, 2.4, "worker 1: b = 9,\nbatch 43", "database"),
        "later": Box(2.7, 2.4, "not published yet:\nno query reads it", "choice"),
    }
    arrows = [
        ("s41", "a40", "reads"),
        ("s41", "b41", ""),
        ("s42", "a42", ""),
        ("s42", "b41", "reads"),
        ("later", "b43", "~"),
    ]
    return _flowchart("Each snapshot reads the newest rows up to its batch", boxes, arrows)


def errors() -> str:
    """Draw what happens to a record that fails."""
    boxes = {
        "record": Box(0, 0, "record", "topic"),
        "read": Box(1, 0, "read"),
        "steps": Box(2, 0, "steps and stores"),
        "write": Box(3, 0, "write"),
        "out": Box(4, 0, "output topic", "topic"),
        "policy": Box(2, 1, "on_error", "choice"),
        "dead": Box(1, 2, "PIPELINE_\ndead_letters", "topic"),
        "count": Box(2, 2, "only counted"),
        "end": Box(3, 2, "the run ends, and\npublishes nothing"),
    }
    arrows = [
        ("record", "read", ""),
        ("read", "steps", ""),
        ("steps", "write", ""),
        ("write", "out", ""),
        ("read", "policy", "fails"),
        ("steps", "policy", "fails"),
        ("write", "policy", "fails"),
        ("policy", "dead", "dead_letter\n(default)"),
        ("policy", "count", "skip"),
        ("policy", "end", "fail"),
    ]
    return _flowchart("A record that fails", boxes, arrows)


def topics() -> str:
    """Draw the ways from topics to topics, tables and steps with state."""
    boxes = {
        "topic": Box(0, 0.5, "topics", "topic"),
        "stream": Box(1.1, 0.5, "stream of\none type"),
        "steps": Box(2.2, 0.5, "stream"),
        "out": Box(3.3, 0, "topic", "topic"),
        "table": Box(3.3, 1, "table in PostgreSQL\nor Delta Lake", "database"),
        "state": Box(2.2, 1.5, "steps with state"),
    }
    arrows = [
        ("topic", "stream", "stream(...)"),
        ("stream", "steps", "filter, map"),
        ("steps", "out", "to(...)"),
        ("steps", "table", "to(...)"),
        ("steps", "state", "group_by, join"),
    ]
    return _flowchart("From topics to topics", boxes, arrows)


def capture() -> str:
    """Draw the way of a change from a database to queries."""
    boxes = {
        "database": Box(0, 0.5, "PostgreSQL,\nMySQL, ...", "database"),
        "debezium": Box(1, 0.5, "Debezium"),
        "topic": Box(2, 0.5, "topic of changes", "topic"),
        "apply": Box(3.1, 0.5, "table of the\nnewest rows"),
        "join": Box(4.1, 0, "joins,\naggregates"),
        "rest": Box(4.1, 1, "REST"),
    }
    arrows = [
        ("database", "debezium", "log"),
        ("debezium", "topic", ""),
        ("topic", "apply", "apply_changes"),
        ("apply", "join", ""),
        ("apply", "rest", ""),
    ]
    return _flowchart("Change data capture", boxes, arrows)


def _flowchart(title: str, boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> str:
    width = max(box.center[0] for box in boxes.values()) + _WIDTH / 2 + _MARGIN
    height = max(box.center[1] + box.height / 2 for box in boxes.values()) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" aria-label="{escape(title)}">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#64748b"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for start, end, label in arrows:
        parts += _arrow(boxes[start], boxes[end], label)
    for box in boxes.values():
        parts += _box(box)
    return "\n".join([*parts, "</svg>"])


def _arrow(start: Box, end: Box, label: str) -> list[str]:
    (x1, y1), (x2, y2) = start.edge_towards(end), end.edge_towards(start)
    dashes = ' stroke-dasharray="4 3"' if label.startswith("~") else ""
    line = f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="#64748b"{dashes}'
    return [
        f'{line} marker-end="url(#head)"/>',
        *_text(label.lstrip("~"), (x1 + x2) / 2, (y1 + y2) / 2, 10),
    ]


def _box(box: Box) -> list[str]:
    x, y = box.center
    radius = box.height / 2 if box.kind == "topic" else 4
    place = (
        f'x="{x - _WIDTH / 2:.0f}" y="{y - box.height / 2:.0f}" width="{_WIDTH}" '
        f'height="{box.height:.0f}"'
    )
    fill = _FILLS[box.kind]
    return [
        f'<rect {place} rx="{radius:.0f}" fill="{fill}" stroke="#64748b"/>',
        *_text(box.text, x, y, 12),
    ]


def _text(text: str, x: float, y: float, size: int) -> list[str]:
    """Return a text's lines, centred at a point; a white edge keeps them readable on lines."""
    lines = text.splitlines()
    top = y - (len(lines) - 1) * (size + 2) / 2 + size / 3
    style = f'text-anchor="middle" font-size="{size}" fill="#0f172a"'
    if size < 12:
        style += ' stroke="#ffffff" stroke-width="4" paint-order="stroke"'
    return [
        f'<text x="{x:.0f}" y="{top + number * (size + 2):.0f}" {style}>{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]


PICTURES = {
    "how-run": run,
    "how-snapshots": snapshots,
    "errors-policy": errors,
    "topics-steps": topics,
    "tables-capture": capture,
}
"""Name of the file, without its ending, and the function that draws it."""
