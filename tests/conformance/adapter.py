"""Builds pipelines from conformance cases, whose nodes are JSON. Many cases share a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sluice import Pipeline, hopping, session, sliding, tumbling, within
from sluice.topology.streams import Stream
from sluice.topology.tables import GlobalTable, Table
from sluice.values.sql_text import literal
from sluice.values.windows import AnyWindow
from tests.conformance import values
from tests.conformance.functions import (
    Slots,
    Turns,
    Value,
    added,
    appended,
    decreased,
    decreased_or_removed,
    doubled,
    folded,
    folded_or_removed,
    increased,
    increased_or_removed,
    is_present,
    merged,
    nothing,
    subtracted,
)
from tests.conformance.processors import Elements, processor

Expression = list[Any]
Case = dict[str, Any]
Row = tuple[str | None, tuple[int, int] | None, Any, dict[str, Any]]
"""Key, window, value, and what else the case compares: `headers` and `ts`."""


class NotMet(Exception):
    """A case needs a feature that Sluice does not have."""


_BINARY = {
    ">": ">",
    "<": "<",
    ">=": ">=",
    "<=": "<=",
    "=": "=",
    "==": "=",
    "+": "+",
    "-": "-",
    "*": "*",
}
_BEST = "element_at(filter({0}, one -> one.{1} <=> array_max(transform({0}, each -> each.{1}))), 1)"
"""SQL of the first element with the largest field."""
_CALLS = {"upper": "upper({})", "str": "CAST({} AS STRING)", "mod": "pmod({}, {})", "is_null": "({} IS NULL)",
          "not_null": "({} IS NOT NULL)", "if_null": "coalesce({}, {})",
          "digest": "aggregate(coalesce({}, array()), 0L, (sum, n) -> pmod(sum * 7 + n, 50))"}  # fmt: skip


def sql(expression: Expression, kind: Callable[[Expression], values.Kind] = lambda _: None) -> str:
    """An expression as Spark SQL. `kind` returns the types of its parts, if known."""
    operation, *arguments = expression
    if operation == "field":
        return ".".join(f"`{name}`" for name in arguments)
    if operation == "value":
        return "value"
    if operation == "const":
        (constant,) = arguments
        return (
            "NULL"
            if constant is None
            else literal(constant)
            if isinstance(constant, str)
            else repr(constant)
        )
    if operation == "key":
        return "_key"
    if operation in ("window_start", "window_end"):
        return f"unix_millis(_{operation})"
    if operation == "struct":
        pairs = ", ".join(
            f"{literal(name)}, {sql(one, kind)}" for name, one in arguments[0].items()
        )
        return f"named_struct({pairs})"
    if operation == "best":
        elements, field_name = arguments
        return _BEST.format(sql(elements, kind), field_name)
    parts = [sql(one, kind) for one in arguments]
    if operation in _BINARY:
        left, right = parts
        return f"({left} {_BINARY[operation]} {right})"
    if operation in _CALLS:
        return _CALLS[operation].format(*parts)
    if operation == "concat":
        texts = (f"coalesce(CAST({part} AS STRING), 'null')" for part in parts)
        return f"concat({', '.join(texts)})"
    if operation == "list":
        if kind(expression) in (None, [None]):
            # A list of values of several types: Spark's VARIANT can hold any type.
            parts = [f"CAST({part} AS VARIANT)" for part in parts]
        return f"array({', '.join(parts)})"
    raise NotMet(f"there is no expression {operation!r}")


_KEEPING_VALUES = (
    "filter",
    "filter_not",
    "select_key",
    "to_stream",
    "to_table",
    "suppress",
    "repartition",
)
"""The operators that pass values on unchanged. A node `process_values` without a `value` does so
too."""


def _paths(expression: Any) -> Iterator[list[str]]:
    """The fields that an expression reads."""
    match expression:
        case ["field", *path]:
            yield path
        case ["const", _]:
            return
        case [_, *arguments]:
            for one in arguments:
                yield from _paths(one)
        case dict():
            for one in expression.values():
                yield from _paths(one)


def _ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def window(spec: dict[str, Any]) -> AnyWindow:
    """A window of the case."""
    match spec["type"]:
        case "tumbling":
            return tumbling(_ms(spec["size"]), grace=_ms(spec["grace"]))
        case "hopping":
            return hopping(
                _ms(spec["size"]), advance=_ms(spec["advance"]), grace=_ms(spec["grace"])
            )
        case "sliding":
            return sliding(_ms(spec["size"]), grace=_ms(spec["grace"]))
        case "session":
            return session(_ms(spec["gap"]), grace=_ms(spec["grace"]))
    raise NotMet(f"there is no window {spec['type']!r}")


@dataclass
class Built:
    """A case in a pipeline: its own names, and the places of its results."""

    case: Case
    prefix: str
    store: str | None = None
    topic: str | None = None
    further_topic: str | None = None
    """The topic with the counts of a processor that also passes its records on."""
    is_windowed: bool = False
    """Whether the results have windowed keys."""
    nodes: dict[str, dict[str, Any]] = field(init=False)
    kinds: dict[str, values.Kind] = field(init=False)
    """The types of the topics' values."""

    def __post_init__(self) -> None:
        self.nodes = {node["id"]: node for node in self.case["spec"]["nodes"]}
        self.kinds = self._kinds()

    def _kinds(self) -> dict[str, values.Kind]:
        """The type of each topic's values, with all fields of the records and expressions."""
        inputs = [record for record in self.case["inputs"] if "topic" in record]
        every = values.kind_of(record["value"] for record in inputs)
        results = {
            topic: values.kind_of(record["value"] for record in inputs if record["topic"] == topic)
            or every
            for topic in dict.fromkeys(
                node["topic"] for node in self.nodes.values() if "topic" in node
            )
        }
        parts = [part for node in self.nodes.values() for part in node.get("parts", ())]
        for node in [*self.nodes.values(), *parts]:
            read = [
                node[name]
                for name in ("where", "value", "key", "list", "group_key", "left_key", "fk")
                if name in node
            ]
            read += [one["expr"] for one in node.get("aggs", ()) if "expr" in one]
            for name in ("set_headers", "add_headers"):
                read += node.get(name, {}).values()
            for path in _paths(["all", *read]):
                for topic, name in self._read_in(
                    node.get("in") or node.get("left") or node["parts"][0]["in"], path
                ):
                    kind = results[topic]
                    results[topic] = {name: None} | kind if isinstance(kind, dict) else kind
        return {topic: values.completed(kind, every) for topic, kind in results.items()}

    def _read_in(self, name: str, path: list[str]) -> Iterator[tuple[str, str]]:
        """The source topics that contain a field of a node's values, and the field's name there."""
        node = self.nodes[name]
        match node:
            case {"topic": topic}:
                yield topic, path[0]
            case {"op": "join", "left": _, "right": _}:
                if len(path) > 1:
                    yield from self._read_in(node[path[0]], path[1:])
            case {"op": "merge", "in": merged}:
                for one in merged:
                    yield from self._read_in(one, path)
            case {"op": op, "in": parent} if op in _KEEPING_VALUES or (
                op == "process_values" and "value" not in node
            ):
                yield from self._read_in(parent, path)

    def sql(self, name: str, expression: Expression) -> str:
        """An expression over a node's values as Spark SQL."""
        return sql(expression, lambda one: self.kind(name, one))

    def kind(self, name: str, expression: Expression) -> values.Kind:
        """The type of an expression over a node's values; None if unknown."""
        match expression:
            case ["field", *path]:
                return self._kind_at(name, path)
            case ["value"]:
                return self._kind_at(name, [])
            case ["const", constant]:
                return values.kind_of([constant])
            case ["upper" | "str" | "concat" | "key" | "header", *_]:
                return "str"
            case ["+" | "-" | "*" | "mod" | "digest" | "ts" | "count_so_far", *_]:
                return "int"
            case ["window_start" | "window_end"]:
                return "int"
            case ["lookup", table, _]:
                return self._kind_at(table, [])
            case ["if_null", first, _]:
                return self.kind(name, first)
            case ["list", *elements]:
                kinds = [self.kind(name, one) for one in elements]
                return [kinds[0] if all(kind == kinds[0] for kind in kinds) else None]
            case ["struct", columns]:
                return {column: self.kind(name, one) for column, one in columns.items()}
        return None

    def _kind_at(self, name: str, path: list[str]) -> values.Kind:
        """The type of a field of a node's values."""
        node, kind = self.nodes[name], None
        match node:
            case {"topic": topic}:
                kind = self.kinds[topic]
            case {"op": "map_values" | "process_values", "value": value}:
                kind = self.kind(node["in"], value)
            case {"op": "flat_map_values"}:
                kind = self.kind(node["in"], node["list"])
                kind = kind[0] if isinstance(kind, list) else None
            case {"op": "fold"}:
                kind = "int"
            case {"op": "punctuate"}:
                passed_on = self._kind_at(node["in"], []) if node["forward"] else None
                kind = (passed_on if isinstance(passed_on, dict) else {}) | {
                    "n": "int",
                    "at": "int",
                }
            case {"op": "cogroup", "parts": parts}:
                kind = {
                    one["name"]: "int"
                    for part in parts
                    for one in part["aggs"]
                    if one["fn"] in ("count", "sum")
                }
            case {"op": "aggregate"}:
                kind = {
                    aggregate["name"]: "int"
                    for aggregate in node["aggs"]
                    if aggregate["fn"] in ("count", "sum")
                }
            case {"op": "join"}:
                return self._kind_at(node[path[0]], path[1:]) if path else None
            case {"op": "merge", "in": [first, *_]}:
                return self._kind_at(first, path)
            case _:
                return self._kind_at(node["in"], path)
        for field_name in path:
            kind = kind.get(field_name) if isinstance(kind, dict) else None
        return kind

    @property
    def compared(self) -> list[str]:
        """What is compared besides key, window and value: `headers` and `ts`.

        A result of the model has no headers (see `model/answers.py`).
        """
        rows = self.case["expected"]["final"]
        return [name for name in self.case.get("compare", ()) if all(name in row for row in rows)]

    @property
    def sink(self) -> dict[str, Any]:
        """The node whose output is compared."""
        return self.nodes[self.case["spec"]["sink"]]

    def contract(self, source: dict[str, Any]) -> Any:
        """The type of the values of a source's topic."""
        return values.contract(self.kinds[source["topic"]])

    def topic_of(self, name: str) -> str:
        """The pipeline's topic for a topic of the case."""
        return f"{self.prefix}_{name}"

    def store_of(self, node: dict[str, Any]) -> str:
        """The pipeline's store for a node of the case."""
        return f"{self.prefix}_{node['id']}"

    def wanted(self) -> list[Row]:
        """The results of Kafka Streams: the final rows of a table, or all records of a stream."""
        rows = [
            (
                _text(row["key"]),
                row["window"] and tuple(row["window"]),
                row["value"],
                {name: row[name] for name in self.compared},
            )
            for row in self.case["expected"]["final"]
        ]
        return rows if self.case["spec"]["result_kind"] == "stream" else collapsed(rows)


def _text(key: Any) -> str | None:
    """The text of a key, which is a number in some cases."""
    return None if key is None else str(key)


def collapsed(rows: list[Row]) -> list[Row]:
    """The last row of every key and window, without deleted ones."""
    last = {(key, window): (value, more) for key, window, value, more in rows}
    return [
        (key, window, value, more)
        for (key, window), (value, more) in last.items()
        if value is not None
    ]


def add(pipeline: Pipeline, case: Case, prefix: str) -> Built:
    """Add a case to a pipeline. All its names begin with `prefix`."""
    built = Built(case, prefix)
    handles: dict[str, Any] = {}
    add_nodes(pipeline, built, handles)
    built.is_windowed = handles[built.sink["id"]].node.key_window is not None
    # A store has neither headers nor times of records.
    in_store = built.sink["op"] in ("aggregate", "cogroup", "to_table") and not built.compared
    if in_store and case["spec"]["result_kind"] == "table":
        built.store = built.store_of(built.sink)
    else:
        built.topic = f"{prefix}_out"
        results = handles[built.sink["id"]]
        if built.sink["op"] in ("filter", "filter_not") and isinstance(results, Table):
            # A topic of a table also gets the deletions of rows that the filter has never passed.
            results = results.to_stream()
        results.to(built.topic)
    return built


def add_nodes(pipeline: Pipeline, built: Built, handles: dict[str, Any]) -> None:
    """Add those nodes of a case that have no handle yet."""
    for node in built.nodes.values():
        if node["id"] not in handles:
            handles[node["id"]] = _add(pipeline, built, node, handles)


def _add(pipeline: Pipeline, built: Built, node: dict[str, Any], handles: dict[str, Any]) -> Any:
    parent: Any = handles.get(node["in"]) if isinstance(node.get("in"), str) else None
    match node["op"]:
        case "stream":
            return pipeline.stream(
                built.topic_of(node["topic"]), value=built.contract(node), nulls="keep"
            )
        case "table":
            topic = built.topic_of(node["topic"])
            return pipeline.table(topic, value=built.contract(node), versioned=_history(node))
        case "global_table" | "global_store":
            return pipeline.global_table(built.topic_of(node["topic"]), value=built.contract(node))
        case "merge":
            first, *others = (handles[name] for name in node["in"])
            return first.merge(*others)
        case "join":
            return _join(node, handles[node["left"]], handles[node["right"]])
        case "aggregate":
            return _aggregate(built, node, parent)
        case "cogroup":
            return _cogroup(built, node, handles)
        case "reduce":
            return _reduce(built, node, parent)
        case "fold":
            return _fold(built, node, parent)
        case "to_table":
            expires_after = _ms(node["expires_ms"]) if "expires_ms" in node else None
            return parent.to_table(
                store=built.store_of(node), versioned=_history(node), expires_after=expires_after
            )
        case "process" | "process_values" | "punctuate" | "deduplicate":
            return _processed(built, node, parent, handles)
        case _:
            return _step(built, node, parent)


def _step(built: Built, node: dict[str, Any], parent: Any) -> Any:
    match node["op"]:
        case "filter" if node["where"] == ["not_null", ["value"]]:
            return parent.filter(is_present)
        case "filter":
            return parent.filter(sql(node["where"]))
        case "filter_not":
            return parent.filter_not(sql(node["where"]))
        case "map_values":
            operation, *arguments = node["value"]
            if operation != "struct":
                return parent.map_values(built.sql(node["in"], node["value"]))
            return parent.select(
                {name: built.sql(node["in"], one) for name, one in arguments[0].items()}
            )
        case "to_stream":
            stream = parent.to_stream() if isinstance(parent, Table) else parent
            # The cases' tables drop the windows of their keys there, if a case does not say that
            # they keep them.
            is_plain = node.get("keep_window") or parent.node.key_window is None
            return stream if is_plain else stream.select_key("_key")
        case "repartition":
            return parent.repartition(node.get("partitions"))
        case "map":
            _, columns = node["value"]
            columns = {name: built.sql(node["in"], one) for name, one in columns.items()}
            return parent.select(columns, _key=built.sql(node["in"], node["key"]))
        case "select_key":
            return parent.select_key(sql(node["key"]))
        case "flat_map_values" if isinstance(built._kind_at(node["id"], []), dict):
            # The fields of objects that SQL makes are unknown to the next step.
            element = values.contract(built._kind_at(node["id"], []))
            return parent.flat_map_values(Elements(node["list"]), returns=element)
        case "flat_map_values":
            return parent.flat_map_values(built.sql(node["in"], node["list"]))
        case "double":
            return parent.map_values(doubled, returns=Value)
        case "suppress" if node["type"] == "window_close":
            return parent.suppress_until_window_closes()
        case "suppress":
            return parent.suppress_until_time_limit(_ms(node["ms"]))
    raise NotMet(f"there is no operator {node['op']!r}")


def _processed(built: Built, node: dict[str, Any], parent: Any, handles: dict[str, Any]) -> Any:
    """The results of a step that has a state for each key and passes records on one by one."""
    match node["op"]:
        case "process":
            return parent.process(
                Turns, stores={"turns": int}, returns=Value, queryable=False
            ).output
        case "process_values":
            # The cases count the records without a key too, and a store has entries for a key only.
            # A windowed key is never null.
            is_windowed = parent.node.key_window is not None
            return parent.process_values(
                processor(node),
                stores={"counts": int},
                by=None if is_windowed else "coalesce(concat('k', _key), '')",
                tables={name: handles[name] for name in looked_up(node)},
                queryable=False,
                returns=values.contract(built._kind_at(node["id"], [])),
            ).output
        case "punctuate":
            # Counts and records that are passed on have different fields, so each kind has its own
            # output.
            counts = {"counts": values.contract({"n": "int", "at": "int"})}
            if node["forward"] and node is built.sink:
                processed = parent.process(
                    processor(node | {"to": "counts"}),
                    stores={"counts": int},
                    queryable=False,
                    returns=values.contract(built._kind_at(node["in"], [])),
                    outputs=counts,
                )
                built.further_topic = f"{built.prefix}_counts"
                processed["counts"].to(built.further_topic)
                return processed.output
            returns = values.contract(built._kind_at(node["id"], []))
            # In the cases, the counts of a windowed key keep the key.
            step = parent.process if parent.node.key_window is None else parent.process_values
            return step(
                processor(node), stores={"counts": int}, queryable=False, returns=returns
            ).output
        case _:
            return parent.deduplicate(built.sql(node["in"], node["by"]), within=_ms(node["within"]))


def looked_up(expression: Any) -> set[str]:
    """The tables that a node's expressions look up."""
    match expression:
        case ["lookup", table, key]:
            return {table} | looked_up(key)
        case list():
            return set().union(*map(looked_up, expression))
        case dict():
            return looked_up([*expression.values()])
        case _:
            return set()


def _join(node: dict[str, Any], left: Any, right: Any) -> Any:
    if isinstance(left, Stream) and isinstance(right, Stream):
        spec = node["window"]
        return left.join(
            right,
            within(before=_ms(spec["before"]), after=_ms(spec["after"]), grace=_ms(spec["grace"])),
            how=node["type"],
        )
    on = node.get("left_key") or node.get("fk")
    if isinstance(right, GlobalTable) or isinstance(left, Table):
        return left.join(right, how=node["type"], on=sql(on) if on else None)
    grace = _ms(node["grace_ms"]) if "grace_ms" in node else None
    return left.join(right, how=node["type"], grace=grace)


def _aggregate(built: Built, node: dict[str, Any], parent: Any) -> Any:
    columns = {}
    for one in node["aggs"]:
        read = _replaced(one, node["group_value"]) if "group_value" in node else one
        columns[one["name"]] = _aggregation(built, node["in"], read)
    grouped = _grouped(node, parent)
    if "versioned" in node:
        grouped = grouped.versioned(_history(node))
    table = grouped.aggregate(columns, store=built.store_of(node))
    # The cases treat final results as a stream: a filter drops them, and sends no deletions.
    return table.to_stream() if "emit" in node else table


def _cogroup(built: Built, node: dict[str, Any], handles: dict[str, Any]) -> Any:
    streams: Any = None
    slots = _slots(built, node)
    for part in node["parts"]:
        stream = handles[part["in"]]
        # In an aggregate of the cases, the key is that of the group.
        grouped = (
            stream.select_key(sql(part["group_key"])) if "group_key" in part else stream
        ).group_by_key()
        columns = {one["name"]: _aggregation(built, part["in"], one) for one in part["aggs"]}
        added = columns if slots is None else replace(slots, aggs=tuple(part["aggs"]))
        streams = grouped.cogroup(added) if streams is None else streams.cogroup(grouped, added)
    if "window" in node:
        streams = streams.windowed_by(window(node["window"]), emit=node.get("emit", "every"))
    if slots is None:
        return streams.aggregate(store=built.store_of(node))
    merger = slots.merged if node["window"]["type"] == "session" else None
    return streams.aggregate(
        slots.initial, store=built.store_of(node), returns=slots.contract, merger=merger
    )


def _slots(built: Built, node: dict[str, Any]) -> Slots | None:
    """The Python functions of a cogrouped aggregate that sees null values, which SQL's lists leave out."""
    if node.get("window", {}).get("type", "sliding") == "sliding":
        return None
    columns = {one["name"]: one for part in node["parts"] for one in part["aggs"]}
    kinds = {one["name"]: _slot_kind(one) for one in columns.values()}
    return Slots(tuple(columns.values()), values.contract(kinds))


def _slot_kind(aggregate: dict[str, Any]) -> values.Kind:
    if aggregate["fn"] != "collect_list":
        return "int"
    return ["str" if aggregate["expr"][0] == "concat" else "int"]


def _history(node: dict[str, Any]) -> timedelta | None:
    return _ms(node["versioned"]["history_ms"]) if "versioned" in node else None


def _grouped(node: dict[str, Any], parent: Any) -> Any:
    if isinstance(parent, Table):
        return parent.group_by(sql(node.get("group_key", ["key"])))
    grouped = (
        parent.group_by(sql(node["group_key"])) if "group_key" in node else parent.group_by_key()
    )
    if "window" in node:
        retention = _ms(node["retention_ms"]) if "retention_ms" in node else None
        return grouped.windowed_by(
            window(node["window"]), emit=node.get("emit", "every"), retention=retention
        )
    return grouped


def _replaced(aggregate: dict[str, Any], group_value: Expression) -> dict[str, Any]:
    """An aggregate with its expression over the table's values instead of over `group_value`, a struct."""
    _, columns = group_value

    def replaced(expression: Any) -> Any:
        match expression:
            case ["value"]:
                return group_value
            case ["field", name]:
                return columns[name]
            case [operation, *arguments]:
                return [operation, *map(replaced, arguments)]
            case dict():
                return {name: replaced(one) for name, one in expression.items()}
            case _:
                return expression

    return aggregate | {"expr": replaced(aggregate["expr"])} if "expr" in aggregate else aggregate


def _fold(built: Built, node: dict[str, Any], parent: Any) -> Any:
    grouped = parent.group_by(sql(node["group_key"]) if "group_key" in node else "_key")
    store, removes = built.store_of(node), node.get("removes", False)
    if isinstance(parent, Table):
        functions = (
            (increased_or_removed, decreased_or_removed) if removes else (increased, decreased)
        )
        return grouped.aggregate(nothing, *functions, store=store, returns=int)
    adder = folded_or_removed if removes else folded
    if "window" in node:
        grouped = grouped.windowed_by(window(node["window"]))
        if node["window"]["type"] == "session":
            return grouped.aggregate(nothing, adder, merger=merged, store=store, returns=int)
    return grouped.aggregate(nothing, adder, store=store, returns=int)


def _reduce(built: Built, node: dict[str, Any], parent: Any) -> Any:
    grouped = parent.group_by(sql(node["group_key"]) if "group_key" in node else "_key")
    functions = (added, subtracted) if isinstance(parent, Table) else (appended,)
    return grouped.reduce(*functions, store=built.store_of(node))


def _aggregation(built: Built, parent: str, one: dict[str, Any]) -> str:
    if "expr" not in one:
        return f"{one['fn']}(*)"
    value = sql(one["expr"])
    if one["fn"] == "max" and built.kind(parent, one["expr"]) == "str":
        # The cases' maximum compares numbers: the first text stays as it is, and 0 is the maximum
        # of several.
        return f"IF(count({value}) > 1, CAST(0 AS VARIANT), CAST(max({value}) AS VARIANT))"
    text = f"{one['fn']}({value})"
    # The cases' sums begin at zero; in SQL, the sum of no rows is null.
    return f"coalesce({text}, 0)" if one["fn"] == "sum" else text
