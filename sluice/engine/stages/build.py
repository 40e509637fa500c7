"""Builds a job's operators from the plan, the author's functions, and the resolved types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from sluice.engine.batch.rejections import describe_error
from sluice.engine.stages.stage_output import StageOperator
from sluice.errors import EngineError, TopologyError
from sluice.lookups.connections import Connection
from sluice.operators.aggregation.aggregate import Aggregate, TableAggregate, WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import (
    Batched,
    Calculation,
    Cogrouped,
    Custom,
    Functions,
)
from sluice.operators.aggregation.count_windows import EveryRecordsAggregate, LastRecordsAggregate
from sluice.operators.aggregation.custom_windows import CustomWindowAggregate
from sluice.operators.aggregation.sessions import SessionAggregate
from sluice.operators.aggregation.sliding import SlidingAggregate
from sluice.operators.base import RIGHT
from sluice.operators.by_window import ByWindow
from sluice.operators.call import Call, Lookup
from sluice.operators.early_results import EarlyResults
from sluice.operators.expiring_table import ExpiringTable
from sluice.operators.joins.by_key import StreamTableJoin, TableJoin
from sluice.operators.joins.foreign_key import ForeignKeyJoin
from sluice.operators.joins.stream_join import StreamJoin
from sluice.operators.joins.version_join import VersionedJoin
from sluice.operators.merge import Merge
from sluice.operators.operator import Operator
from sluice.operators.passed_rows import PassedRows
from sluice.operators.processor import StoreOptions
from sluice.operators.processor_operator import Process
from sluice.operators.suppress import BufferLimit, Suppress
from sluice.operators.suppressed_windows import ClosingWindows
from sluice.operators.table import Latest, LatestVersion
from sluice.plan import PlannedOperator
from sluice.plan import operator_parameters as plan
from sluice.values.aggregate_calls import OF_PAIRS
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.call_parameters import LookedUpTable, SharedStore
from sluice.values.references import Reference
from sluice.values.sink_tables import connection_variable
from sluice.values.sql_types import element_type, map_value_type, struct_fields
from sluice.values.windows import (
    AnyWindow,
    CountWindow,
    CustomWindow,
    SessionWindow,
    SlidingWindow,
    Window,
)

Make = Callable[[], Operator[Any]]


def stage_operator(
    operator: PlannedOperator,
    arguments: Mapping[int, list[str]],
    *,
    is_read: bool,
    only_stored: bool,
    only_last: bool,
    only_changes: bool = False,
    has_listeners: bool = False,
    connections: Mapping[str, str] = MappingProxyType({}),
) -> StageOperator:
    """Return the operator of a stage.

    `arguments`: operator → the types of its aggregate's arguments.

    `is_read` is true if later expressions read fields of the results. The results must then fit the
    types that the plan has found for these fields. `only_stored` is true if results go only to
    their store, `only_last` if only the last result of each key and window in a batch matters, and
    `only_changes` if a result that equals the previous one does not matter. `connections`:
    environment variable → the URL of a database in which records are looked up.
    """
    only_stored = only_stored and not operator.by_window
    action = operator.action
    if isinstance(action, plan.CallParameters):
        return StageOperator(operator, partial(_call, action, str(operator.step)))
    if isinstance(action, plan.TableLookupParameters):
        if isinstance(action.table, SharedStore):
            return StageOperator(operator, partial(_lookup_in, action, str(operator.step)))
        name = action.table.connection
        connection = Connection(name, connections.get(connection_variable(name), ""))
        return StageOperator(operator, partial(_lookup, action, str(operator.step), connection))
    make = _make(operator, arguments.get(operator.number, []), is_read, only_stored, only_changes)
    # A processor is not wrapped: it handles windowed keys itself, because its timers have windowed
    # keys, too.
    is_wrapped = operator.by_window and not isinstance(action, plan.ProcessParameters)
    if is_wrapped:
        make = partial(ByWindow, make)
    return StageOperator(operator, make, only_last=only_last, has_listeners=has_listeners)


def _make(
    operator: PlannedOperator,
    arguments: list[str],
    is_read: bool,
    only_last: bool,
    only_changes: bool,
) -> Make:
    action, sends_old_values = operator.action, operator.sends_old_values
    match action:
        case plan.AggregateParameters() | plan.PythonAggregateParameters():
            try:
                calculation = _calculation(action, arguments, is_read)
            except TopologyError as error:
                where = f"aggregate into {operator.store!r} at {operator.step.at}"
                raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
            if action.subtracts and action.window is None:
                return partial(
                    _table_aggregate,
                    calculation,
                    sends_old_values=sends_old_values,
                    only_last=only_last,
                )
            return partial(
                _aggregate,
                calculation,
                action.window,
                action.history_ms,
                action.retention_ms,
                sends_old_values=sends_old_values,
                only_last=only_last,
                only_changes=only_changes,
            )
        case plan.MergeParameters():
            return Merge
        case plan.PassedRowsParameters():
            return PassedRows
        case plan.LatestParameters():
            return _table(action, sends_old_values=sends_old_values)
        case plan.SuppressParameters():
            return _suppress(
                action, sends_old_values=sends_old_values, reads_windows=operator.reads_windows
            )
        case plan.StreamJoinParameters(how=how, window=window, keeps_headers=keeps_headers):
            return partial(StreamJoin, how, window, keeps_headers=keeps_headers)
        case plan.TableJoinParameters(kind="stream-table", history_ms=int(history_ms)):
            return partial(VersionedJoin, _left_or_inner(action), history_ms, action.grace_ms)
        case plan.TableJoinParameters(kind="stream-table"):
            return partial(
                StreamTableJoin,
                _left_or_inner(action),
                mapped=action.mapped,
                mapped_key=action.mapped_key,
            )
        case plan.TableJoinParameters(kind="foreign-key"):
            return partial(
                ForeignKeyJoin,
                _left_or_inner(action),
                right_filtered=action.filtered[RIGHT],
            )
        case plan.TableJoinParameters(how=how, filtered=filtered):
            return partial(
                TableJoin,
                how,
                sends_old_values=sends_old_values,
                filtered=filtered,
            )
        case plan.ProcessParameters():
            return partial(_process, action, operator.step.at)
        case _:  # The planned action is the operator itself.
            assert not isinstance(action, plan.CallParameters | plan.TableLookupParameters)
            return partial(copy, action)


def _suppress(
    suppress: plan.SuppressParameters, *, sends_old_values: bool, reads_windows: bool
) -> Make:
    if suppress.early_ms is not None:
        return partial(
            EarlyResults, suppress.wait_ms, suppress.early_ms, sends_old_values=sends_old_values
        )
    if reads_windows:
        return partial(ClosingWindows, suppress.until, suppress.wait_ms)
    limit = BufferLimit(suppress.max_records, suppress.max_bytes, suppress.when_full)
    options = {"sends_old_values": sends_old_values, "filtered": suppress.filtered}
    return partial(Suppress, suppress.until, suppress.wait_ms, limit, **options)


def _table(table: plan.LatestParameters, *, sends_old_values: bool) -> Make:
    if table.history_ms is not None:
        return partial(LatestVersion, table.history_ms, sends_old_values=sends_old_values)
    if table.expiry is not None:
        return partial(ExpiringTable, table.expiry, sends_old_values=sends_old_values)
    return partial(Latest, sends_old_values=sends_old_values)


def _left_or_inner(join: plan.TableJoinParameters) -> Literal["inner", "left"]:
    if join.how == "left":
        return "left"
    return "inner"


def _process(action: plan.ProcessParameters, at: str) -> Operator[Any]:
    options: dict[str, StoreOptions] = {}
    for name, store in action.stores.items():
        options[name] = StoreOptions(store.type.value, store.ttl_ms, store.keeps_headers)
    returns: dict[str, Any] = {}
    for name, output in action.outputs.items():
        returns[name] = _type_of(output.type)
    tables: dict[str, Any] = {}
    for name, kind in action.tables.items():
        tables[name] = _type_of(kind)
    argument = _type_of(action.takes)
    try:
        return Process(
            action.processor.value,
            options,
            argument_type=argument,
            outputs=returns,
            keeps_key=action.keeps_key,
            is_keyed_by=action.is_keyed_by,
            has_windowed_keys=action.has_windowed_keys,
            tables=tables,
        )
    except BaseException as error:
        name = action.processor.value.__name__
        raise EngineError(
            f"The processor {name} at {at} cannot be started: {describe_error(error)}.",
            next_step="Correct the processor's __init__ or init, then run again.",
        ) from error


def _call(action: plan.CallParameters, step: str) -> Operator[Any]:
    return Call(
        action.function.value,
        action.policy,
        step,
        argument_type=_type_of(action.takes),
        result_type=_type_of(action.returns),
        otherwise=action.otherwise,
        size=action.size,
    )


def _lookup(action: plan.TableLookupParameters, step: str, connection: Connection) -> Operator[Any]:
    # Imported only if it is needed, because importing SQLAlchemy takes a second.
    from sluice.lookups.database_table import DatabaseTable

    assert isinstance(action.table, LookedUpTable)
    table = DatabaseTable(action.table, connection, action.returns.value, step)
    return Lookup(table.read, action.policy, step, action.on_missing)


def _lookup_in(action: plan.TableLookupParameters, step: str) -> Operator[Any]:
    # Imported only if it is needed, because the module imports clients of state servers.
    from sluice.engine.stages.shared_store import StoreLookup

    assert isinstance(action.table, SharedStore)
    return StoreLookup(action.table, action.returns.value, action.policy, step, action.on_missing)


def _table_aggregate(
    calculation: Callable[[], Calculation], *, sends_old_values: bool, only_last: bool
) -> Operator[Any]:
    return TableAggregate(calculation(), sends_old_values=sends_old_values, only_last=only_last)


def _aggregate(
    calculation: Callable[[], Calculation],
    window: AnyWindow | CountWindow | None,
    history_ms: int | None,
    retention_ms: int | None,
    *,
    sends_old_values: bool,
    only_last: bool,
    only_changes: bool,
) -> Operator[Any]:
    sent = {
        "sends_old_values": sends_old_values,
        "only_last": only_last,
        "only_changes": only_changes,
    }
    match window:
        case None:
            return Aggregate(calculation(), history_ms=history_ms, **sent)
        case SlidingWindow():
            return SlidingAggregate(calculation(), window, sends_old_values=sends_old_values)
        case CountWindow():
            if window.slides:
                return LastRecordsAggregate(
                    calculation(), window, sends_old_values=sends_old_values
                )
            return EveryRecordsAggregate(calculation(), window, sends_old_values=sends_old_values)
        case CustomWindow():
            return CustomWindowAggregate(calculation(), window, sends_old_values=sends_old_values)
        case SessionWindow():
            return SessionAggregate(
                calculation(),
                window,
                sends_old_values=sends_old_values,
                retention_ms=retention_ms,
            )
        case Window() | CalendarWindow():
            return WindowedAggregate(calculation(), window, **sent)


def _calculation(
    action: plan.AggregateParameters | plan.PythonAggregateParameters,
    arguments: list[str],
    is_read: bool,
) -> Callable[[], Calculation]:
    if isinstance(action, plan.PythonAggregateParameters):
        return partial(_custom, action)
    functions: list[Function] = []
    for (name, text, parameters), kind in zip(action.functions, arguments, strict=True):
        # `count()` has no argument, so it has no type.
        argument = None if text is None else kind
        functions.append(_function(name, argument, parameters, is_read))
    fields = action.result_names
    scalar = action.scalar and action.plain
    return partial(Functions, *functions, subtracts=action.subtracts, fields=fields, scalar=scalar)


def _function(
    name: str,
    argument: str | None,
    parameters: tuple[float, ...],
    bigint: bool,
) -> Function:
    if argument is None:
        return Function(name, bigint=bigint)
    if name in OF_PAIRS:
        fields = struct_fields(argument)
        return Function(
            name,
            _python_type(fields["x"]),
            parameters,
            second=_python_type(fields["y"]),
        )
    return Function(name, _python_type(argument), parameters, bigint, _has_maps(argument))


def _custom(action: plan.PythonAggregateParameters) -> Calculation:
    assert action.adder is not None
    value_type = _type_of(action.returns)
    if action.cogrouped:
        assert action.initializer is not None
        adders: list[tuple[Callable[..., Any], Any]] = []
        for adder, takes in action.cogrouped:
            adders.append((adder.value, _type_of(takes)))
        return Cogrouped(action.initializer.value, adders, _function_of(action.merger), value_type)
    argument_type = _type_of(action.takes)
    if action.takes_list:
        assert action.initializer is not None
        return Batched(
            action.initializer.value,
            action.adder.value,
            value_type=value_type,
            argument_type=argument_type,
        )
    return Custom(
        _function_of(action.initializer),
        action.adder.value,
        _function_of(action.subtractor),
        _function_of(action.merger),
        value_type,
        argument_type,
    )


def _type_of(contract: Reference | None) -> Any:
    """Return a contract, or Any for plain JSON data."""
    if contract is None:
        return Any
    return contract.value


def _function_of(function: Reference | None) -> Callable[..., Any] | None:
    """Return an author's function; None if the author has set no function."""
    if function is None:
        return None
    value: Callable[..., Any] = function.value
    return value


_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_PYTHON_TYPES = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("string", "timestamp", "date"), str),
    "boolean": bool,
}


def _python_type(kind: str) -> type:
    if kind.startswith("decimal"):
        return Decimal
    return _PYTHON_TYPES.get(kind, msgspec.Raw)


def _has_maps(kind: str) -> bool:
    inner = [element_type(kind), *struct_fields(kind).values()]
    return bool(map_value_type(kind)) or any(_has_maps(each) for each in inner if each)
