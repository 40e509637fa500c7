"""A plan's ordered operators made ready to run, with the types that Spark found and the author's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import msgspec
from pyspark.sql import types as spark

from sluice.engine.batch.rejected import said
from sluice.engine.ordered.runner import Hosted
from sluice.engine.ordered.specs import OperatorSpec
from sluice.engine.steps.pickling import Pickled
from sluice.errors import EngineError, TopologyError
from sluice.operators.aggregation.aggregate import Aggregate, Hopping, TableAggregate, WindowedAggregate
from sluice.operators.aggregation.calculation import Calculation, Custom, Functions
from sluice.operators.aggregation.functions import Function
from sluice.operators.aggregation.sessions import Session, SessionAggregate
from sluice.operators.aggregation.sliding import Sliding, SlidingAggregate
from sluice.operators.base import FAILURES, Operator
from sluice.operators.deduplicate import Deduplicate
from sluice.operators.joins.by_key import StreamTableJoin, TableJoin
from sluice.operators.joins.foreign_key import ForeignKeyJoin
from sluice.operators.joins.streams import StreamJoin
from sluice.operators.merge import Merge
from sluice.operators.process import Process
from sluice.operators.processor import StoreOptions
from sluice.operators.suppress import Limit, Suppress
from sluice.operators.table import Latest
from sluice.plan import Ordered
from sluice.topology import drawing, nodes
from sluice.values.windows import AnyWindow, SessionWindow, SlidingWindow, open_for

Make = Callable[[], Operator[Any]]


def hosted(
    operator: Ordered, spec: OperatorSpec, arguments: Mapping[int, list[spark.DataType]], *, is_read: bool
) -> Hosted:
    """The operator for its stage, given the types of every aggregate's arguments.

    `is_read`: expressions that follow read the fields of its results, by their types.
    """
    late = None if operator.late is None else operator.late.number
    node = operator.node
    step = f"{drawing.title(node)} at {node.at}"
    make = _make(operator, arguments.get(operator.number, []), is_read)
    return Hosted(spec, make, operator.inline, late, node.on_error, tuple(operator.entries.values()), step)


def _make(operator: Ordered, arguments: list[spark.DataType], is_read: bool) -> Make:
    node, retracts = operator.node, operator.retracts
    match node:
        case nodes.Aggregate():
            try:
                calculation = _calculation(operator, node, arguments, is_read)
            except TopologyError as error:
                where = f"aggregate into {node.store!r} at {node.at}"
                raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
            table = nodes.is_table(node.parent)
            return partial(_aggregate, calculation, node.window, subtracts=table, retracts=retracts)
        case nodes.Merge():
            return Merge
        case nodes.ToTable():
            return partial(Latest, retracts=retracts)
        case nodes.Suppress():
            limit = Limit(node.max_records, node.max_bytes, node.when_full)
            return partial(Suppress, node.until, _wait(node), limit, retracts=retracts)
        case nodes.Join():
            return _join(node, retracts)
        case _:
            return _author(node)


def _join(node: nodes.Join, retracts: bool) -> Make:
    if node.kind == "stream-stream":
        assert node.window is not None
        return partial(StreamJoin, node.how, node.window.before_ms, node.window.after_ms, node.window.grace_ms)
    if node.kind == "stream-table":
        return partial(StreamTableJoin, _left_or_inner(node), mapped=node.on is not None)
    if node.kind == "foreign-key":
        return partial(ForeignKeyJoin, _left_or_inner(node), retracts=retracts)
    return partial(TableJoin, node.how, retracts=retracts)


def _left_or_inner(node: nodes.Join) -> Literal["inner", "left"]:
    return "left" if node.how == "left" else "inner"


def _author(node: nodes.Node) -> Make:
    if isinstance(node, nodes.Deduplicate):
        return partial(Deduplicate, node.within_ms)
    assert isinstance(node, nodes.Process)
    stores = {name: (Pickled.of(kind), ttl) for name, (kind, ttl) in node.stores.items()}
    outputs = {name: _pickled(kind) for name, kind in node.returns.items()}
    return partial(_process, Pickled.of(node.processor), stores, _pickled(node.takes), outputs, node.at)


def _process(
    processor: Pickled,
    stores: dict[str, tuple[Pickled, int | None]],
    takes: Pickled | None,
    outputs: dict[str, Pickled | None],
    at: str,
) -> Operator[Any]:
    options = {name: StoreOptions(kind.value, ttl) for name, (kind, ttl) in stores.items()}
    returns = {name: kind.value if kind else Any for name, kind in outputs.items()}
    argument = takes.value if takes else Any
    try:
        return Process(processor.value, options, argument_type=argument, outputs=returns)
    except FAILURES as error:
        raise EngineError(
            f"The processor {processor.value.__name__} at {at} cannot be started: {said(error)}.",
            next_step="Correct its __init__ or init, and run again.",
        ) from error


def _aggregate(
    calculation: Callable[[], Calculation], window: AnyWindow | None, *, subtracts: bool, retracts: bool
) -> Operator[Any]:
    made = calculation()
    if window is None:
        return (TableAggregate if subtracts else Aggregate)(made, retracts=retracts)
    if isinstance(window, SlidingWindow):
        return SlidingAggregate(made, Sliding(window.size_ms, window.grace_ms), retracts=retracts)
    if isinstance(window, SessionWindow):
        return SessionAggregate(made, Session(window.gap_ms, window.grace_ms), retracts=retracts)
    return WindowedAggregate(made, Hopping(window.size_ms, window.every_ms, window.grace_ms), retracts=retracts)


def _calculation(
    operator: Ordered, node: nodes.Aggregate, arguments: list[spark.DataType], is_read: bool
) -> Callable[[], Calculation]:
    python = node.python
    if python is not None:
        functions = [_pickled(one) for one in (python.initializer, python.adder, python.subtractor, python.merger)]
        return partial(_custom, functions, _pickled(python.returns), _pickled(python.takes))
    found = [
        Function(name, None if text is None else _python_type(kind), number, is_read)
        for (name, text, number), kind in zip(operator.functions, arguments, strict=True)
    ]
    fields = tuple(node.columns) if operator.plain else tuple(f"a{i}" for i in range(len(found)))
    scalar = node.scalar and operator.plain
    return partial(Functions, *found, subtracts=nodes.is_table(node.parent), fields=fields, scalar=scalar)


def _custom(functions: list[Pickled | None], returns: Pickled | None, takes: Pickled | None) -> Calculation:
    initializer, adder, subtractor, merger = (one.value if one else None for one in functions)
    assert adder is not None
    return Custom(
        initializer, adder, subtractor, merger, returns.value if returns else Any, takes.value if takes else Any
    )


def _pickled(value: Any) -> Pickled | None:
    return None if value is None else Pickled.of(value)


def _wait(node: nodes.Suppress) -> int:
    window = nodes.window_of(node)
    if node.until == "time_limit":
        return node.limit_ms
    assert window is not None
    return open_for(window)


def _python_type(kind: spark.DataType) -> type:
    match kind:
        case spark.IntegralType():
            return int
        case spark.FractionalType():
            return Decimal if isinstance(kind, spark.DecimalType) else float
        case spark.StringType() | spark.TimestampType() | spark.DateType():
            return str
        case spark.BooleanType():
            return bool
        case _:
            return msgspec.Raw


_SUM_DIGITS, _AVG_DIGITS, _MOST = 10, 4, 38


def result_type(function: str, argument: spark.DataType) -> str:
    """The type of a function's result, as Spark's own aggregate of that name has it, in DDL."""
    name = argument.simpleString()
    if function in ("count", "count_distinct"):
        return "bigint"
    if function in ("collect_list", "collect_set", "top"):
        return f"array<{name}>"
    if isinstance(argument, spark.DecimalType) and function in ("sum", "avg"):
        digits = _SUM_DIGITS if function == "sum" else _AVG_DIGITS
        scale = argument.scale + (_AVG_DIGITS if function == "avg" else 0)
        return f"decimal({min(argument.precision + digits, _MOST)},{min(scale, _MOST)})"
    if function == "avg" or (function == "sum" and isinstance(argument, spark.FractionalType)):
        return "double"
    return "bigint" if function == "sum" else name
