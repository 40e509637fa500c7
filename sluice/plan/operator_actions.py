"""Makes the parameters of a node's operator."""

from __future__ import annotations

import zlib

from sluice.errors import TopologyError
from sluice.operators.changed_rows import ChangedRows
from sluice.operators.changes import Changes
from sluice.operators.deduplicate import Deduplicate
from sluice.operators.lateness import WindowLateness
from sluice.operators.set_metadata import SetMetadata
from sluice.plan.operator_parameters import (
    Action,
    AggregateParameters,
    CallParameters,
    LatestParameters,
    MergeParameters,
    PassedRowsParameters,
    ProcessorOutput,
    ProcessorStore,
    ProcessParameters,
    PythonAggregateParameters,
    StreamJoinParameters,
    SuppressParameters,
    TableJoinParameters,
    TableLookupParameters,
)
from sluice.plan.planned_operators import result_column
from sluice.plan.scopes import result_expressions
from sluice.sql.typed_expression import type_of
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.topology.serdes import shape_of
from sluice.topology.value_types import declared_type
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.change_values import DebeziumEnvelope
from sluice.values.references import Reference, reference
from sluice.values.sql_text import is_null
from sluice.values.windows import JoinWindow

_FIRST_PROCESSOR_GROUP = 1 << 30
_PROCESSOR_GROUPS = (1 << 30) - 1_024


def is_of_processor(group_id: int) -> bool:
    """Return whether the group number belongs to a processor's store."""
    return group_id >= _FIRST_PROCESSOR_GROUP


def _processor_group(store: str) -> int:
    """Return the group number of a processor's store.

    It is a hash of the name, so it stays the same if other stores are added.
    """
    return _FIRST_PROCESSOR_GROUP + zlib.crc32(store.encode()) % _PROCESSOR_GROUPS


def action_of(
    node: nodes.Node, functions: tuple[AggregateFunction, ...], pipeline: Graph
) -> Action:
    """Return the parameters of a node's operator, from which the engine builds the operator."""
    match node:
        case nodes.Aggregate(python=None):
            plain = not functions or result_expressions(node) is None
            return AggregateParameters(
                node.window,
                functions,
                tuple(node.columns),
                node.scalar,
                plain,
                node.subtracts,
                node.retention_ms,
                node.history_ms,
            )
        case nodes.Aggregate(python=nodes.PythonAggregate() as python):
            return PythonAggregateParameters(
                node.window, reference(python.initializer), Reference(python.adder),
                reference(python.subtractor), reference(python.merger), reference(python.takes),
                reference(python.returns), python.shape, node.subtracts, node.retention_ms,
                node.history_ms, _cogrouped(node), python.takes_list,
            )  # fmt: skip
        case nodes.Merge():
            return MergeParameters()
        case nodes.ToTable():
            return LatestParameters(node.history_ms, node.expiry)
        case nodes.Changes():
            return Changes()
        case nodes.ToStream():
            return PassedRowsParameters()
        case nodes.Suppress():
            return SuppressParameters(
                node.until,
                _waiting_time(node),
                node.max_records,
                node.max_bytes,
                node.when_full,
                node.needs_old_values,
                node.early_ms,
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
            return CallParameters(
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
            return TableLookupParameters(
                node.table,
                Reference(node.returns),
                node.row,
                node.on_missing,
                node.policy,
                node.answers,
            )
        case _:
            raise AssertionError(f"{node.name} is not an operator")


def _join(node: nodes.Join, pipeline: Graph) -> StreamJoinParameters | TableJoinParameters:
    if node.kind == "stream-stream":
        assert isinstance(node.window, JoinWindow)
        return StreamJoinParameters(node.how, node.window, pipeline.keeps_headers(None))
    filtered = node.left.follows_filter, node.right.follows_filter
    history_ms = None
    if node.kind == "stream-table":
        history_ms = node.right.history
    return TableJoinParameters(
        node.how,
        node.kind,
        node.on is not None,
        filtered,
        history_ms,
        node.grace_ms,
        node.mapped_key,
    )


def _cogrouped(node: nodes.Aggregate) -> tuple[tuple[Reference, Reference | None], ...]:
    """Return each cogrouped stream's adder, and the type of the values that the adder takes."""
    if not isinstance(node, nodes.Cogroup):
        return ()
    adders: list[tuple[Reference, Reference | None]] = []
    for part in node.parts:
        adders.append((Reference(part.adder), reference(part.takes)))
    return tuple(adders)


def _process(node: nodes.Process, pipeline: Graph) -> ProcessParameters:
    stores = {}
    for name, (kind, ttl_ms) in node.stores.items():
        group_id = None
        if node.queryable:
            group_id = _processor_group(name)
        # A query shows all entries of a key at once, as a map.
        sql_type = f"map<string,{declared_type(kind)}>"
        keeps_headers = pipeline.keeps_headers(name)
        stores[name] = ProcessorStore(Reference(kind), ttl_ms, sql_type, group_id, keeps_headers)
    outputs = {}
    for number, (name, kind) in enumerate(node.returns.items()):
        column = result_column(node.number, number)
        outputs[name] = ProcessorOutput(reference(kind), column, shape_of(kind))
    tables: dict[str, Reference | None] = {}
    for name in node.tables:
        tables[name] = reference(node.table_types[name])
    return ProcessParameters(
        Reference(node.processor),
        stores,
        reference(node.takes),
        outputs,
        node.queryable,
        sets_timers=node.sets_timers,
        keeps_key=node.keeps_key,
        is_keyed_by=node.by is not None,
        has_windowed_keys=node.parent.key_window is not None,
        tables=tables,
    )


def _may_lack_columns(node: nodes.ChangedRows) -> bool:
    """Return whether the old rows come from Debezium, and may therefore lack columns.

    Old rows that Sluice itself makes have all columns.
    """
    for step in nodes.upstream(node):
        if isinstance(step, nodes.Changes):
            return False
    for source in nodes.sources_of(node):
        if isinstance(source.serde.decode, DebeziumEnvelope):
            return True
    return False


def _set_metadata(node: nodes.SetMetadata) -> SetMetadata:
    """Return the operator.

    Raises TopologyError if an expression has a type that times or headers cannot have.
    """
    types = node.readable_types
    if node.time is not None:
        kind = type_of(node.time, types)
        advice = "CAST(... AS TIMESTAMP)"
        if kind:
            advice = "timestamp_millis(...)"
        _require_type(node, "_timestamp", kind, {"TIMESTAMP"}, advice)
    headers: list[tuple[str, bool]] = []
    for name, text in node.headers.items():
        kind = "STRING" if is_null(text) else type_of(text, types)
        _require_type(node, f"header {name!r}", kind, {"STRING", "BINARY"}, "CAST(... AS STRING)")
        headers.append((name, kind == "BINARY"))
    return SetMetadata(node.time is not None, tuple(headers))


def _require_type(node: nodes.Node, name: str, kind: str, allowed: set[str], advice: str) -> None:
    if kind not in allowed:
        expected = " or ".join(sorted(allowed))
        raise TopologyError(
            f"{node.name} at {node.at}: {name} must be {expected}, but is "
            f"{kind or 'of an unknown type'}.",
            next_step=f"Convert it, for example with {advice}.",
        )


def _waiting_time(node: nodes.Suppress) -> int:
    """Return how long a suppress step holds back a result, in ms.

    The time begins with the end of the window, or with the key's first update.
    """
    window = node.key_window
    if window is None or node.until == "time_limit":
        return node.limit_ms
    return WindowLateness(window).open_ms
