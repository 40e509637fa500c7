"""Makes the parameters of a node's operator, and says which rows the node takes from its inputs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from sluice.errors import TopologyError
from sluice.operators.base import LEFT
from sluice.operators.changed_rows import ChangedRows
from sluice.operators.changes import Changes
from sluice.operators.deduplicate import Deduplicate
from sluice.operators.lateness import WindowLateness
from sluice.operators.set_metadata import SetMetadata
from sluice.plan.definitions import declared
from sluice.plan.filtered_tables import follows_filter, needs_old_to_filter
from sluice.plan.operator_parameters import (
    Action,
    Aggregate,
    Call,
    Latest,
    Merge,
    PassedRows,
    Process,
    ProcessorOutput,
    ProcessorStore,
    PythonAggregate,
    StreamJoin,
    Suppress,
    TableJoin,
    TableLookup,
)
from sluice.plan.planned_operators import result_column
from sluice.plan.scopes import result_expressions
from sluice.sql.typed_expression import type_of
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.topology.serdes import shape_of
from sluice.topology.value_types import types_after
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.change_values import DebeziumEnvelope
from sluice.values.record_metadata import CHANGE_METADATA, METADATA
from sluice.values.references import Reference, reference
from sluice.values.sql_text import is_null, value_json
from sluice.values.windows import CountWindow, JoinWindow, SlidingWindow

_FIRST_PROCESSOR_GROUP = 1 << 30
_PROCESSOR_GROUPS = (1 << 30) - 1_024


def is_of_processor(group_id: int) -> bool:
    """Return whether the group number belongs to a processor's store."""
    return group_id >= _FIRST_PROCESSOR_GROUP


def _processor_group(store: str) -> int:
    """Return the group number of a processor's store: a hash of its name, which stays the same if other stores are added."""
    return _FIRST_PROCESSOR_GROUP + zlib.crc32(store.encode()) % _PROCESSOR_GROUPS


def action_of(
    node: nodes.Node, functions: tuple[AggregateFunction, ...], pipeline: Graph
) -> Action:
    """Return the parameters of a node's operator, from which the engine builds the operator."""
    match node:
        case nodes.Aggregate(python=None):
            plain = not functions or result_expressions(node) is None
            return Aggregate(
                node.window,
                functions,
                tuple(node.columns),
                node.scalar,
                plain,
                nodes.subtracts(node),
                node.retention_ms,
                node.history_ms,
            )
        case nodes.Aggregate(python=nodes.PythonAggregate() as python):
            return PythonAggregate(
                node.window, reference(python.initializer), Reference(python.adder), reference(python.subtractor),
                reference(python.merger), reference(python.takes), reference(python.returns), python.shape,
                nodes.subtracts(node), node.retention_ms, node.history_ms,
                _cogrouped(node), python.takes_list,
            )  # fmt: skip
        case nodes.Merge():
            return Merge()
        case nodes.ToTable():
            return Latest(node.history_ms, node.expiry)
        case nodes.Changes():
            return Changes()
        case nodes.ToStream():
            return PassedRows()
        case nodes.Suppress():
            limits = node.max_records, node.max_bytes, node.when_full
            return Suppress(
                node.until, _waiting_time(node), *limits, needs_old_to_filter(node), node.early_ms
            )
        case nodes.Join():
            return _join(node, pipeline)
        case nodes.Deduplicate():
            return Deduplicate(node.within_ms)
        case nodes.SetMetadata():
            return _set_metadata(node)
        case nodes.ChangedRows():
            return ChangedRows(node.check_old, _may_lack_columns(node))
        case nodes.Process():
            return _process(node, pipeline)
        case nodes.Call():
            return Call(
                Reference(node.function),
                reference(node.takes),
                reference(node.returns),
                node.shape,
                node.policy,
                node.answers,
                node.otherwise,
                node.size,
            )
        case nodes.Lookup():
            return TableLookup(
                node.table,
                Reference(node.returns),
                node.row,
                node.on_missing,
                node.policy,
                node.answers,
            )
        case _:
            raise AssertionError(f"{node.name} is not an operator")


def _join(node: nodes.Join, pipeline: Graph) -> StreamJoin | TableJoin:
    if node.kind == "stream-stream":
        assert isinstance(node.window, JoinWindow)
        return StreamJoin(node.how, node.window, pipeline.keeps_headers(None))
    filtered = follows_filter(node.left), follows_filter(node.right)
    history_ms = nodes.history_of(node.right) if node.kind == "stream-table" else None
    return TableJoin(
        node.how,
        node.kind,
        node.on is not None,
        filtered,
        history_ms,
        node.grace_ms,
        node.mapped_key,
    )


def _cogrouped(node: nodes.Aggregate) -> tuple[tuple[Reference, Reference | None], ...]:
    """For each stream of a cogrouped aggregate: its adder, and the type of the values that the adder takes."""
    if not isinstance(node, nodes.Cogroup):
        return ()
    return tuple((Reference(part.adder), reference(part.takes)) for part in node.parts)


def _process(node: nodes.Process, pipeline: Graph) -> Process:
    stores = {}
    for name, (kind, ttl_ms) in node.stores.items():
        group_id = _processor_group(name) if node.queryable else None
        # A query shows all entries of a key at once, as a map.
        sql_type = f"map<string,{declared(kind)}>"
        keeps_headers = pipeline.keeps_headers(name)
        stores[name] = ProcessorStore(Reference(kind), ttl_ms, sql_type, group_id, keeps_headers)
    outputs = {}
    for number, (name, kind) in enumerate(node.returns.items()):
        column = result_column(node.number, number)
        outputs[name] = ProcessorOutput(reference(kind), column, shape_of(kind))
    return Process(
        Reference(node.processor),
        stores,
        reference(node.takes),
        outputs,
        node.queryable,
        sets_timers=hasattr(node.processor, "on_timer"),
        keeps_key=node.keeps_key,
        is_keyed_by=node.by is not None,
        has_windowed_keys=nodes.window_of(node.parent) is not None,
        tables={name: reference(node.table_types[name]) for name in node.tables},
    )


def _may_lack_columns(node: nodes.ChangedRows) -> bool:
    """Return whether the old rows of changes come from Debezium, and not from the changes of a table of Sluice."""
    if any(isinstance(step, nodes.Changes) for step in nodes.upstream(node)):
        return False
    return any(
        isinstance(source.serde.decode, DebeziumEnvelope) for source in nodes.sources_of(node)
    )


def _set_metadata(node: nodes.SetMetadata) -> SetMetadata:
    """Raises TopologyError if an expression has a type that times or headers cannot have."""
    types = _types_of_input(node)
    if node.time is not None:
        kind = type_of(node.time, types)
        advice = "timestamp_millis(...)" if kind else "CAST(... AS TIMESTAMP)"
        _require_type(node, "_timestamp", kind, {"TIMESTAMP"}, advice)
    headers: list[tuple[str, bool]] = []
    for name, text in node.headers.items():
        kind = "STRING" if is_null(text) else type_of(text, types)
        _require_type(node, f"header {name!r}", kind, {"STRING", "BINARY"}, "CAST(... AS STRING)")
        headers.append((name, kind == "BINARY"))
    return SetMetadata(node.time is not None, tuple(headers))


def _types_of_input(node: nodes.SetMetadata) -> dict[str, str]:
    return types_after(node.parent) | METADATA | CHANGE_METADATA


def _require_type(node: nodes.Node, name: str, kind: str, allowed: set[str], advice: str) -> None:
    if kind not in allowed:
        expected = " or ".join(sorted(allowed))
        raise TopologyError(
            f"{node.name} at {node.at}: {name} must be {expected}, and is {kind or 'of an unknown type'}.",
            next_step=f"Convert it, for example with {advice}.",
        )


def metadata_sql(node: nodes.SetMetadata, sqls: Mapping[str, str]) -> str:
    """SQL of the new time and headers as JSON, as `SetMetadata` reads them.

    `sqls`: name → SQL of the expression.
    """
    types = _types_of_input(node)
    parts: list[str] = []
    for name, text in metadata_texts(node).items():
        if is_null(text):
            parts.append("'null'")
        elif type_of(text, types) == "BINARY":
            parts.append(value_json(f"hex({sqls[name]})"))
        else:
            parts.append(value_json(sqls[name]))
    values = ", ',', ".join(parts)
    return f"concat('[', {values}, ']')"


def metadata_texts(node: nodes.SetMetadata) -> dict[str, str]:
    """Return the expressions of the new time and headers, in the order in which `SetMetadata` reads them."""
    texts = {} if node.time is None else {"time": node.time}
    return texts | {f"header{number}": text for number, text in enumerate(node.headers.values())}


def _waiting_time(node: nodes.Suppress) -> int:
    """Return how many ms after its window's end, or after a key's first update, a suppress step holds a result back."""
    window = nodes.window_of(node)
    if window is None or node.until == "time_limit":
        return node.limit_ms
    return WindowLateness(window).open_ms


def waits_for_close(node: nodes.Node) -> bool:
    """Return whether an operator needs stream time, for example to send results or to forget state."""
    match node:
        case nodes.Aggregate():
            # When stream time closes a window of event time, the operator forgets the window.
            return nodes.window_of(node) is not None or node.history_ms is not None
        case nodes.Join(kind=kind):
            # Unmatched records are sent when stream time is past the end of their window. A join
            # with a versioned table needs stream time to hold records back for its grace, and to
            # forget old versions.
            return kind == "stream-stream" or joins_versions(node)
        case nodes.ToTable():
            return not node.has_rows_of_records
        case nodes.Call() | nodes.Lookup() | nodes.SetMetadata() | nodes.ChangedRows():
            return False
        case nodes.Suppress() | nodes.Process() | nodes.StreamOperator():
            return True
        case _:
            return False


def joins_versions(node: nodes.Node) -> bool:
    """Return whether a node joins a stream with the versions of a table."""
    match node:
        case nodes.Join(kind="stream-table", right=right):
            return nodes.history_of(right) is not None
        case _:
            return False


def needs_old_values(node: nodes.Node, table: nodes.Node) -> bool:
    """Return whether a node needs the old values of one of its input tables.

    The old value of a change is the row that the change replaces. Joins of tables by key have this
    row in their state.
    """
    if table is not nodes.parents(node)[0]:
        return False
    match node:
        case nodes.Aggregate():
            return nodes.subtracts(node)
        case nodes.Join(kind=kind):
            # When a row's foreign key changes, the join deletes the row under the old foreign key.
            return kind == "foreign-key"
        case _:
            return needs_old_to_filter(node)


def requires_value(node: nodes.Node, side: int) -> bool:
    """Return whether the node drops records without a value on a side."""
    match node:
        case nodes.Join() if joins_versions(node) and side != LEFT:
            # A record without a value deletes a row. The join needs this record, because a deletion
            # is a version, too.
            return False
        case nodes.Join():
            # In Kafka Streams, a stream's join drops null values; in a join of
            # tables, null values are deletions.
            return not nodes.is_table(node)
        case nodes.Aggregate(parent=parent, window=window):
            # Kafka Streams drops null values in aggregates without windows and in sliding windows,
            # but adds them to tumbling, hopping and session windows.
            drops_nulls = window is None or isinstance(window, SlidingWindow | CountWindow)
            return drops_nulls and not nodes.is_table(parent)
        case _:
            return False
