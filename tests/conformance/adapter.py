"""A conformance case as a pipeline: nodes in JSON become the author's own calls, many cases side by side in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from sluice import Pipeline, hopping, session, sliding, tumbling, within
from sluice.topology.dsl import GlobalTable, Stream, Table
from sluice.values.windows import AnyWindow

Expression = list[Any]
Case = dict[str, Any]
Row = tuple[str | None, tuple[int, int] | None, Any]
"""Key, window, value."""


class Value(Struct):
    """The values of the cases' topics."""

    n: int | None
    g: str | None


class NotMet(Exception):
    """A case asks for what there is not."""


_BINARY = {">", "<", ">=", "<=", "=", "+", "-", "*"}


def sql(expression: Expression) -> str:
    """An expression as Spark SQL."""
    operation, *arguments = expression
    if operation == "field":
        return ".".join(f"`{name}`" for name in arguments)
    if operation == "const":
        return "NULL" if arguments[0] is None else repr(arguments[0])
    if operation == "key":
        return "_key"
    if operation in _BINARY:
        left, right = map(sql, arguments)
        return f"({left} {operation} {right})"
    if operation == "upper":
        return f"upper({sql(arguments[0])})"
    if operation == "str":
        return f"CAST({sql(arguments[0])} AS STRING)"
    if operation == "concat":
        parts = (f"coalesce(CAST({sql(one)} AS STRING), 'null')" for one in arguments)
        return f"concat({', '.join(parts)})"
    if operation == "list":
        # Values of several types in one list: Spark's VARIANT holds any.
        return f"array({', '.join(f'CAST({sql(one)} AS VARIANT)' for one in arguments)})"
    raise NotMet(f"there is no expression {operation!r}")


def window(spec: dict[str, Any]) -> AnyWindow:
    """A window of the case."""
    match spec["type"]:
        case "tumbling":
            return tumbling(spec["size"], grace=spec["grace"])
        case "hopping":
            return hopping(spec["size"], advance=spec["advance"], grace=spec["grace"])
        case "sliding":
            return sliding(spec["size"], grace=spec["grace"])
        case "session":
            return session(spec["gap"], grace=spec["grace"])
    raise NotMet(f"there is no window {spec['type']!r}")


@dataclass
class Built:
    """A case in a pipeline: the names that are its own, and where its results are to be seen."""

    case: Case
    prefix: str
    store: str | None = None
    topic: str | None = None

    def topic_of(self, name: str) -> str:
        """The pipeline's topic for one of the case's."""
        return f"{self.prefix}_{name}"

    def wanted(self) -> list[Row]:
        """What Kafka Streams answered: of a table its final rows, of a stream all of them."""
        rows = [
            (row["key"], row["window"] and tuple(row["window"]), row["value"]) for row in self.case["expected"]["final"]
        ]
        return rows if self.case["spec"]["result_kind"] == "stream" else collapsed(rows)


def collapsed(rows: list[Row]) -> list[Row]:
    """The last row of every key and window, deletions left out."""
    last = {(key, window): value for key, window, value in rows}
    return [(key, window, value) for (key, window), value in last.items() if value is not None]


def add(pipeline: Pipeline, case: Case, prefix: str) -> Built:
    """Add a case to a pipeline, under names that begin with `prefix`."""
    built = Built(case, prefix)
    handles: dict[str, Any] = {}
    for node in case["spec"]["nodes"]:
        handles[node["id"]] = _add(pipeline, built, node, handles)
    sink = next(node for node in case["spec"]["nodes"] if node["id"] == case["spec"]["sink"])
    if sink["op"] == "aggregate":
        built.store = f"{prefix}_{sink['id']}"
    else:
        built.topic = f"{prefix}_out"
        handles[sink["id"]].to(built.topic)
    return built


def _add(pipeline: Pipeline, built: Built, node: dict[str, Any], handles: dict[str, Any]) -> Any:
    parent = handles.get(node["in"]) if isinstance(node.get("in"), str) else None
    match node["op"]:
        case "stream":
            return pipeline.stream(built.topic_of(node["topic"]), value=Value, nulls="keep")
        case "table":
            return pipeline.table(built.topic_of(node["topic"]), value=Value)
        case "global_table":
            return pipeline.global_table(built.topic_of(node["topic"]), value=Value)
        case "merge":
            first, *others = (handles[name] for name in node["in"])
            return first.merge(*others)
        case "join":
            return _join(node, handles[node["left"]], handles[node["right"]])
        case "aggregate":
            return _aggregate(built, node, parent)
        case _:
            return _step(node, parent)


def _step(node: dict[str, Any], parent: Any) -> Any:
    match node["op"]:
        case "filter":
            return parent.filter(sql(node["where"]))
        case "filter_not":
            return parent.filter_not(sql(node["where"]))
        case "map_values":
            operation, columns = node["value"][0], node["value"][1]
            if operation != "struct":
                return parent.map_values(sql(node["value"]))
            return parent.select(**{name: sql(one) for name, one in columns.items()})
        case "select_key":
            return parent.select_key(sql(node["key"]))
        case "flat_map_values":
            return parent.flat_map_values(sql(node["list"]))
        case "suppress" if node["type"] == "window_close":
            return parent.suppress_until_window_closes()
        case "suppress":
            return parent.suppress_until_time_limit(node["ms"])
    raise NotMet(f"there is no operator {node['op']!r}")


def _join(node: dict[str, Any], left: Any, right: Any) -> Any:
    if isinstance(left, Stream) and isinstance(right, Stream):
        spec = node["window"]
        return left.join(
            right, within(before=spec["before"], after=spec["after"], grace=spec["grace"]), how=node["type"]
        )
    on = node.get("left_key") or node.get("fk")
    if isinstance(right, GlobalTable) or isinstance(left, Table):
        return left.join(right, how=node["type"], on=sql(on) if on else None)
    return left.join(right, how=node["type"])


def _aggregate(built: Built, node: dict[str, Any], parent: Any) -> Any:
    key = sql(node["group_key"]) if "group_key" in node else "_key"
    grouped = parent.group_by(key)
    if "window" in node:
        grouped = grouped.windowed_by(window(node["window"]))
    columns = {one["name"]: _aggregation(one) for one in node["aggs"]}
    return grouped.aggregate(columns, store=f"{built.prefix}_{node['id']}")


def _aggregation(one: dict[str, Any]) -> str:
    text = f"{one['fn']}({sql(one['expr']) if 'expr' in one else '*'})"
    # The cases' sums begin at zero; in SQL the sum of nothing is null.
    return f"coalesce({text}, 0)" if one["fn"] == "sum" else text
