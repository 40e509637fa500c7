"""A topology as text, and as an SVG drawing."""

from __future__ import annotations

import re
from html import escape

from sluice.topology import nodes
from sluice.topology.pipeline import Pipeline
from sluice.values.function_wrappers import NoTopic
from sluice.values.phrases import counted, duration_text
from sluice.values.topic_patterns import is_pattern

# Characters that XML does not allow even when escaped.
_NO_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_BOX, _GAP, _ROW, _HEIGHT = 270, 60, 62, 44
_FILL = {"Source": "#dbeafe", "Aggregate": "#dcfce7", "Cogroup": "#dcfce7", "Sink": "#fef3c7"}


def title(node: nodes.Node) -> str:
    match node:
        case nodes.Source(kind=kind):
            return f"{kind.replace('_', ' ')} {node.topic}"
        case nodes.Aggregate() | nodes.ToTable(store=str()):
            return f"store {node.store}"
        case nodes.ToTable():
            return "table of results"
        case nodes.Sink(table=table) if table is not None:
            return f"table {table.name} {table.place}"
        case nodes.Sink():
            return f"topic {node.topic}"
        case nodes.Join():
            return f"{node.how} join with {_input_title(node.right)}"
        case nodes.Lookup(table=table):
            return f"look-up in table {table.table} of {table.connection}"
        case nodes.Suppress():
            return _suppress_title(node)
        case nodes.Apply(function=NoTopic()):
            return "route"
        case nodes.Apply(gives="nothing"):
            return "peek"
        case nodes.Apply(gives=gives, batch=batch):
            return f"Python function for {gives if batch is None else 'many values'}"
        case nodes.SetMetadata(time=time, headers=headers):
            return "set " + " and ".join(
                filter(None, ["time" if time else "", "headers" if headers else ""])
            )
        case nodes.ChangedRows():
            return "apply changes"
        case nodes.Process():
            return f"process {'values ' if node.keeps_key else ''}{node.processor.__name__}"
        case _:
            return re.sub("(?<!^)(?=[A-Z])", " ", type(node).__name__).lower()


def _suppress_title(node: nodes.Suppress) -> str:
    if node.early_ms is not None:
        return f"emit {duration_text(node.early_ms)} after a change and on window close"
    return (
        "emit on window close"
        if node.until == "window_final"
        else f"suppress until {node.until.replace('_', ' ')}"
    )


def _input_title(node: nodes.Node) -> str:
    name = nodes.known_name(node)
    if name == node.name:
        return name
    return f"{'join' if isinstance(node, nodes.Join) else title(node)} of {name}"


def detail(node: nodes.Node) -> str:
    """The node's expressions, on one line."""
    return re.sub(_NO_XML, "\N{REPLACEMENT CHARACTER}", " ".join(_detail(node).split()))


def _detail(node: nodes.Node) -> str:
    match node:
        case nodes.Source():
            return _source_detail(node)
        case nodes.Filter() if not isinstance(node, nodes.Repartition):
            return node.where
        case nodes.SelectKey():
            return node.key
        case nodes.MapValues():
            return node.value
        case nodes.FlatMapValues():
            return node.items
        case nodes.Apply() | nodes.Transform():
            return getattr(node.function, "__name__", "")
        case nodes.Select():
            columns = node.columns.items()
            return ", ".join([name if name == sql else f"{name} = {sql}" for name, sql in columns])
        case nodes.Aggregate():
            return _aggregate_detail(node)
        case nodes.Join():
            grace = (
                ""
                if node.grace_ms is None
                else f"as of each record's time, grace {duration_text(node.grace_ms)}"
            )
            return " ".join([str(node.window or ""), f"on {node.on}" if node.on else "", grace])
        case nodes.ToTable():
            return _table_detail(node)
        case nodes.Sink():
            return _sink_detail(node)
        case nodes.Process(by=by, tables=tables):
            key = f"by {by}" if by else "by key and window" if nodes.window_of_store(node) else ""
            read = f"reads {', '.join(tables)}" if tables else ""
            return " ".join([key, read])
        case nodes.StreamOperator():
            return _operator_detail(node)
        case _:
            return ""


def _operator_detail(node: nodes.StreamOperator) -> str:
    match node:
        case nodes.SetMetadata(time=time, headers=headers):
            texts = headers if time is None else {"_timestamp": time, **headers}
            return ", ".join(f"{name} = {sql}" for name, sql in texts.items())
        case nodes.ChangedRows(check_old=str(check_old)):
            return f"old rows checked: {check_old}"
        case nodes.Deduplicate():
            return f"{node.by} within {duration_text(node.within_ms)}"
        case nodes.Call(function=function):
            return getattr(function, "__name__", "") + _recorded(node)
        case nodes.Lookup(table=table):
            return f"{table.column} = {node.by}, {', '.join(table.columns)}" + _recorded(node)
        case _:
            return ""


def _recorded(node: nodes.Call | nodes.Lookup) -> str:
    """The name under which a step's answers are recorded; empty if they are not recorded.

    With another name, the step gets new answers. So the name belongs to the step's definition: if
    it changes, the state must be computed again.
    """
    return "" if node.policy.keep_ms is None else f", recorded as {node.answers}"


def _table_detail(node: nodes.ToTable) -> str:
    if node.history_ms is not None:
        return f"with versions of {duration_text(node.history_ms)}"
    return "" if node.expiry is None else str(node.expiry)


def _source_detail(node: nodes.Source) -> str:
    read = f"{node.serde.name}, event time {node.event_time or 'of the record'}"
    return (
        f"{read}, at most {counted(node.most_topics, 'topic')}" if is_pattern(node.topic) else read
    )


def _sink_detail(node: nodes.Sink) -> str:
    if node.table is not None:
        return f"a row per {node.table.key}" if node.table.key else "a row per record"
    latest = "the latest change of each key and batch" if node.emit == "latest" else ""
    return ", ".join(filter(None, [latest, "read again by a later batch" if node.cycle else ""]))


def _aggregate_detail(node: nodes.Aggregate) -> str:
    if isinstance(node, nodes.Cogroup):
        parts = [
            f"{_added(part)} of {nodes.known_name(part.parent)} by {part.key}"
            for part in node.parts
        ]
        what = "; ".join(parts)
    else:
        added = ", ".join(node.columns.values()) or "Python functions"
        what = f"{added} by {'key and window' if node.by_window else node.key}"
    window = f", {node.window}" if node.window else ""
    history = (
        "" if node.history_ms is None else f", with versions of {duration_text(node.history_ms)}"
    )
    return what + window + history


def _added(part: nodes.CogroupedStream) -> str:
    return ", ".join(part.columns.values()) or getattr(part.adder, "__name__", "Python function")


def text(pipeline: Pipeline) -> str:
    """The topology as indented text, each step below its input."""
    lines = [
        ", ".join(
            [
                f"pipeline {pipeline.name}",
                counted(pipeline.workers, "worker"),
                *_idle_settings(pipeline),
            ]
        )
    ]

    def show(node: nodes.Node, depth: int) -> None:
        expressions = detail(node)
        lines.append("  " * depth + title(node) + (f": {expressions}" if expressions else ""))
        for child in _successors(pipeline, node):
            show(child, depth + 1)

    for node in pipeline.nodes:
        if isinstance(node, nodes.Source):
            show(node, 1)
    return "\n".join(lines)


def _idle_settings(pipeline: Pipeline) -> list[str]:
    """What happens to stream time while topics are silent."""
    settings = []
    if pipeline.idle_timeout_ms is not None:
        settings.append(
            f"ignores partitions that are idle for {duration_text(pipeline.idle_timeout_ms)}"
        )
    if pipeline.advance_when_idle_ms is not None:
        silence = duration_text(pipeline.advance_when_idle_ms)
        settings.append(f"stream time goes on by the clock after {silence} without records")
    return settings


def _successors(pipeline: Pipeline, node: nodes.Node) -> list[nodes.Node]:
    """The nodes whose first input is this node. A join is below its left side only."""
    return [child for child in pipeline.nodes if nodes.parents(child)[:1] == (node,)]


def svg(pipeline: Pipeline) -> str:
    """The topology as an SVG, with sources on the left and each step to the right of its input."""
    place = _layout(pipeline)
    width = max(x for x, _ in place.values()) + _BOX + 20
    height = max(y for _, y in place.values()) + _HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="topology of {escape(pipeline.name)}">'
    ]
    for node in pipeline.nodes:
        parts += [
            _arrow(place[parent.number], place[node.number]) for parent in nodes.parents(node)
        ]
    parts += [_box(node, *place[node.number]) for node in pipeline.nodes]
    return "\n".join([*parts, "</svg>"])


def _layout(pipeline: Pipeline) -> dict[int, tuple[int, int]]:
    """The top left corner of each node's box.

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

    sources = [node for node in pipeline.nodes if isinstance(node, nodes.Source)]
    tables = [source for source in sources if source.kind != "stream"]
    next_row = 0
    for source in sources:
        if source.kind == "stream":
            next_row = put(source, 0, next_row)
    # A table without steps of its own is placed to the left of the joins that look it up. These
    # joins may follow another table, so the tables with steps are placed before it.
    tables.sort(key=lambda table: not _successors(pipeline, table))
    for table in tables:
        joins = [node for node in pipeline.nodes if table in nodes.parents(node)[1:]]
        joins = [join for join in joins if join.number in place]
        left_edge = min((place[join.number][0] for join in joins), default=20)
        next_row = put(table, max(left_edge // (_BOX + _GAP) - 1, 0), next_row)
    return place


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX, start[1] + _HEIGHT // 2, end[0], end[1] + _HEIGHT // 2
    bend = max(24, (x2 - x1) // 2)
    curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{curve}" fill="none" stroke="#94a3b8" stroke-width="1.5"/>'


def _box(node: nodes.Node, x: int, y: int) -> str:
    fill = _FILL.get(type(node).__name__, "#f1f5f9")
    first_line, second_line = escape(_short(title(node), 34)), escape(_short(detail(node), 38))
    return (
        f"<g><title>{escape(title(node))}: {escape(detail(node))}</title>"
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="8" '
        f'fill="{fill}" stroke="#64748b"/>'
        f'<text x="{x + 10}" y="{y + 18}" fill="#0f172a" font-weight="600">{first_line}</text>'
        f'<text x="{x + 10}" y="{y + 34}" fill="#475569">{second_line}</text></g>'
    )


def _short(label: str, length: int) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"
