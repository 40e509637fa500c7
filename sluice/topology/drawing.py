"""A topology as text, and as an SVG drawing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

from sluice.topology import nodes
from sluice.values.phrases import counted, duration_text

_BOX, _GAP, _ROW, _HEIGHT = 270, 60, 62, 44
_FILL = {"Source": "#dbeafe", "Aggregate": "#dcfce7", "Cogroup": "#dcfce7", "Sink": "#fef3c7"}


class Drawn(Protocol):
    """The parts of a pipeline that a drawing needs."""

    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> Sequence[nodes.Node]: ...
    @property
    def workers(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int | None: ...
    @property
    def advance_when_idle_ms(self) -> int | None: ...


def text(pipeline: Drawn) -> str:
    """Return the topology as indented text, each step below its input."""
    workers = counted(pipeline.workers, "worker")
    settings = [f"pipeline {pipeline.name}", workers, *_idle_settings(pipeline)]
    lines = [", ".join(settings)]

    def show(node: nodes.Node, depth: int) -> None:
        expressions = node.detail
        line = "  " * depth + node.title
        lines.append(f"{line}: {expressions}" if expressions else line)
        for child in _successors(pipeline, node):
            show(child, depth + 1)

    for node in pipeline.nodes:
        if not node.parents:
            show(node, 1)
    return "\n".join(lines)


def _idle_settings(pipeline: Drawn) -> list[str]:
    """Describe the settings for stream time while topics have no new records."""
    settings = []
    if pipeline.idle_timeout_ms is not None:
        settings.append(
            f"ignores partitions that are idle for {duration_text(pipeline.idle_timeout_ms)}"
        )
    if pipeline.advance_when_idle_ms is not None:
        silence = duration_text(pipeline.advance_when_idle_ms)
        settings.append(f"stream time advances with the clock after {silence} without records")
    return settings


def _successors(pipeline: Drawn, node: nodes.Node) -> list[nodes.Node]:
    """Return the nodes whose first input is this node. A join is below its left side only."""
    return [child for child in pipeline.nodes if child.parents[:1] == (node,)]


def svg(pipeline: Drawn) -> str:
    """Return the topology as an SVG, with sources on the left and each step right of its input.

    The group of each node has the node's number, the numbers of its inputs, its name and its place
    in the author's file. From this data, other programs can draw the topology themselves.
    """
    place = _layout(pipeline)
    width = max(x for x, _ in place.values()) + _BOX + 20
    height = max(y for _, y in place.values()) + _HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="topology of {escape(pipeline.name)}">'
    ]
    for node in pipeline.nodes:
        for parent in node.parents:
            parts.append(_arrow(place[parent.number], place[node.number]))
    parts += [_box(node, *place[node.number]) for node in pipeline.nodes]
    return "\n".join([*parts, "</svg>"])


def _layout(pipeline: Drawn) -> dict[int, tuple[int, int]]:
    """Return the top left corner of each node's box.

    A node is in the column to the right of its first input. The first node after an input is in the
    input's row, the other nodes after the same input are in the rows below. Tables are placed last,
    to the left of the joins that look them up.
    """
    place: dict[int, tuple[int, int]] = {}

    def put(node: nodes.Node, column: int, row: int) -> int:
        """Place a node and all nodes after it; return the next free row."""
        place[node.number] = (20 + column * (_BOX + _GAP), 20 + row * _ROW)
        free = row
        for child in _successors(pipeline, node):
            free = put(child, column + 1, free)
        return max(free, row + 1)

    tables: list[nodes.Node] = []
    next_row = 0
    for node in pipeline.nodes:
        if node.parents:
            continue
        if node.is_table:
            tables.append(node)
        else:
            next_row = put(node, 0, next_row)
    # A table that only joins look up is placed to the left of these joins. Such a join may itself
    # follow another table, so place the tables that steps follow first.
    tables.sort(key=lambda table: not _successors(pipeline, table))
    for table in tables:
        left_edges: list[int] = []
        for node in pipeline.nodes:
            if table in node.parents[1:] and node.number in place:
                left_edges.append(place[node.number][0])
        left_edge = min(left_edges, default=20)
        next_row = put(table, max(left_edge // (_BOX + _GAP) - 1, 0), next_row)
    return place


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX, start[1] + _HEIGHT // 2, end[0], end[1] + _HEIGHT // 2
    bend = max(24, (x2 - x1) // 2)
    curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{curve}" fill="none" stroke="#94a3b8" stroke-width="1.5"/>'


def _box(node: nodes.Node, x: int, y: int) -> str:
    fill = _FILL.get(type(node).__name__, "#f1f5f9")
    inputs = " ".join([str(parent.number) for parent in node.parents])
    first_line = escape(_short(node.title, 34))
    second_line = escape(_short(node.detail, 38))
    return (
        f'<g data-number="{node.number}" data-inputs="{inputs}" data-name="{escape(node.name)}" '
        f'data-at="{escape(node.at)}">'
        f"<title>{escape(node.title)}: {escape(node.detail)}</title>"
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="8" '
        f'fill="{fill}" stroke="#64748b"/>'
        f'<text x="{x + 10}" y="{y + 18}" fill="#0f172a" font-weight="600">{first_line}</text>'
        f'<text x="{x + 10}" y="{y + 34}" fill="#475569">{second_line}</text></g>'
    )


def _short(label: str, length: int) -> str:
    if len(label) <= length:
        return label
    return label[: length - 1] + "…"
