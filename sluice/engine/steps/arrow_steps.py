"""Computes stateless steps on Arrow, in the task that decodes the records, with the same results as Spark SQL.

`plan.one_pass` says which expressions this module can compute, and their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sluice.engine.batch.arrow_json import json_object, json_values
from sluice.plan import Column, Job, Layers
from sluice.plan.jobs import columns_of
from sluice.plan.one_pass import common_decimal, json_of, why_spark
from sluice.plan.value_types import kind_of, precision_and_scale
from sluice.values.dialect import text_of, tree_of

Value: TypeAlias = Any
"""An Arrow array, or a scalar that applies to every row."""
Columns: TypeAlias = Mapping[str, Value]

_COMPARE: dict[type[exp.Expr], Callable[[Value, Value], Value]] = {
    exp.EQ: pc.equal, exp.NEQ: pc.not_equal, exp.GT: pc.greater, exp.GTE: pc.greater_equal, exp.LT: pc.less,
    exp.LTE: pc.less_equal,
}  # fmt: skip
_CALCULATE: dict[type[exp.Expr], Callable[[Value, Value], Value]] = {
    exp.Add: pc.add, exp.Sub: pc.subtract, exp.Mul: pc.multiply,
}  # fmt: skip
_NULL = pa.scalar(None, pa.null())


@dataclass(frozen=True)
class ArrowSteps:
    """The task's stateless steps: from decoded records to the columns of `schema`."""

    layers: tuple[tuple[tuple[str, str], ...], ...]
    """Names and SQL of the columns of each layer, which read the columns of the layers before."""
    schema: pa.Schema

    @classmethod
    def of(cls, job: Job, read: pa.Schema, wanted: pa.Schema, more: Layers = ()) -> Self | None:
        """The steps of a job and the layers after them; None if Spark must compute them.

        Schemas: of decoded records, and of the result.
        """
        if why_spark(job):
            return None
        steps = cls.of_layers((*job.layers, *more), wanted)
        made = steps.columns(pa.RecordBatch.from_pylist([], read))
        schema = pa.schema([(name, made[name].type) for name in wanted.names])
        if different := [field.name for field in schema if not _is_same(field.type, wanted.field(field.name).type)]:
            import structlog  # Python workers import this module, and structlog takes 0.1 seconds

            structlog.get_logger().warning(
                "Spark and Arrow give columns different types; Spark computes the steps", columns=different
            )
            return None
        return cls(steps.layers, schema)

    @classmethod
    def of_layers(cls, layers: Layers, schema: pa.Schema | None = None) -> Self:
        """The steps of layers that Arrow can compute. Without a schema, only `columns_from` can be called."""
        of_each = (
            tuple((column.name, column.sql) for column in columns_of((layer,)) if isinstance(column, Column))
            for layer in layers
        )
        return cls(tuple(of_each), pa.schema([]) if schema is None else schema)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                columns = self.columns(batch)
                yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """All columns by name, including the batch's."""
        return self.columns_from(dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows)

    def columns_from(self, columns: dict[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """The given columns of `count` rows, and those of all layers."""
        for layer in self.layers:
            made = {name: evaluate(tree_of(sql), columns, count) for name, sql in layer}
            columns = columns | {name: _array(value, count) for name, value in made.items()}
        return columns


def _is_same(made: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types are equal, regardless of which fields of structs may be null."""
    return str(made).replace(" not null", "") == str(wanted).replace(" not null", "")


def evaluate(node: exp.Expr, columns: Columns, count: int) -> Value:  # noqa: C901  (a case per kind of expression)
    """The values of an expression for `count` rows, given the columns that it reads."""

    def of(part: exp.Expr) -> Value:
        return evaluate(part, columns, count)

    match node:
        case exp.Paren():
            return of(node.this)
        case exp.Column():
            first, *rest = (part.name for part in node.parts)
            # A list, because Arrow reads the text `.a` as a path.
            return reduce(lambda of_object, name: pc.struct_field(of_object, [name]), rest, columns[first])
        case exp.Literal():
            return _literal(node)
        case exp.Boolean():
            return pa.scalar(bool(node.this))
        case exp.Null():
            return _NULL
        case exp.And():
            return pc.and_kleene(of(node.left), of(node.right))
        case exp.Or():
            return pc.or_kleene(of(node.left), of(node.right))
        case exp.Not():
            return pc.invert(of(node.this))
        case exp.Is():
            return pc.is_null(of(node.this))
        case exp.NullSafeEQ():
            return _same(*_alike(of(node.left), of(node.right)))
        case exp.In():
            return _in(of(node.this), [of(part) for part in node.expressions])
        case exp.Between():
            low, high = (_alike(of(node.this), of(node.args[name])) for name in ("low", "high"))
            return pc.and_kleene(pc.greater_equal(*low), pc.less_equal(*high))
        case exp.Like():
            found = pc.match_like(of(node.this), node.expression.name)
            return pc.invert(found) if node.args.get("negate") else found
        case exp.If():
            return _if(of(node.this), node.args["true"], node.args.get("false") or exp.null(), columns, count)
        case exp.Case():
            value = of(node.args.get("default") or exp.null())
            for branch in reversed(node.args["ifs"]):
                value = _chosen(of(branch.this), of(branch.args["true"]), value)
            return value
        case exp.Coalesce():
            return reduce(lambda first, rest: _chosen(pc.is_valid(first), first, rest), map(of, _arguments(node)))
        case exp.Concat():
            return _joined([of(part) for part in node.expressions])
        case exp.DPipe():
            return _joined([of(part) for part in node.flatten()])
        case exp.Neg():
            return pc.negate(of(node.this))
        case exp.Cast():
            return _cast(of(node.this), text_of(node.to))
        case exp.Struct():
            fields = {part.name: _array(of(part.expression), count) for part in node.expressions}
            return pa.StructArray.from_arrays(list(fields.values()), list(fields))
        case exp.JSONFormat():
            return json_object({part.name: _array(of(part.expression), count) for part in node.this.expressions})
        case exp.Substring():
            value = json_of(node)
            assert value is not None
            return json_values(_array(of(value), count))
    assert isinstance(node, exp.Binary)
    if type(node) in _COMPARE:
        return _COMPARE[type(node)](*_alike(of(node.left), of(node.right)))
    return _calculated(node, of(node.left), of(node.right))


def _array(value: Value, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def _literal(node: exp.Literal) -> pa.Scalar[Any]:
    if node.is_string:
        return pa.scalar(node.name)
    if not node.name.isdecimal():
        digits = precision_and_scale(kind_of(node, {}))
        return pa.scalar(Decimal(node.name), pa.decimal128(*digits))
    number = int(node.name)
    return pa.scalar(number, pa.int32() if number < 2**31 else pa.int64())


def _arguments(node: exp.Coalesce) -> list[exp.Expr]:
    return [node.this, *node.expressions]


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return "INT" if kind == pa.int32() else "BIGINT"


def _is_number(value: Value) -> bool:
    return bool(pa.types.is_decimal(value.type) or pa.types.is_integer(value.type))


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Two values converted to a common type, so that they can be compared."""
    if left.type == right.type:
        return left, right
    if not _is_number(left) or not _is_number(right):  # one of them is NULL
        kind = right.type if pa.types.is_null(left.type) else left.type
    elif pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        kind = pa.int64()
    else:
        kind = pa.decimal128(*common_decimal(_sql(left.type), _sql(right.type)))
    return left.cast(kind), right.cast(kind)


def _same(left: Value, right: Value) -> Value:
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), False), both_null)


def _in(value: Value, options: list[Value]) -> Value:
    return reduce(pc.or_kleene, [pc.equal(*_alike(value, option)) for option in options])


def _if(condition: Value, true: exp.Expr, false: exp.Expr, columns: Columns, count: int) -> Value:
    """The value of an IF. If the other value is NULL, rows that fail the condition are not computed."""
    if (
        not isinstance(false, exp.Null)
        or isinstance(true, exp.Column | exp.Literal)
        or isinstance(condition, pa.Scalar)
    ):
        return _chosen(condition, evaluate(true, columns, count), evaluate(false, columns, count))
    passed = np.asarray(pc.fill_null(condition, False).to_numpy(zero_copy_only=False), bool)
    rows = np.flatnonzero(passed)
    if len(rows) == count:
        return evaluate(true, columns, count)
    # Filter only the columns that the value reads.
    read = {column.parts[0].name for column in true.find_all(exp.Column)}
    chosen = pa.array(rows)
    few = {name: columns[name].take(chosen) for name in read}
    value = _array(evaluate(true, few, len(rows)), len(rows))
    places = np.cumsum(passed) - 1
    return value.take(pa.array(places, mask=~passed))


def _chosen(condition: Value, true: Value, false: Value) -> Value:
    """One of two values per row; the second where the condition is null."""
    if pa.types.is_null(true.type):
        true = pa.scalar(None, false.type)
    elif pa.types.is_null(false.type):
        false = pa.scalar(None, true.type)
    elif true.type != false.type:
        true, false = true.cast(pa.int64()), false.cast(pa.int64())
    return pc.if_else(pc.fill_null(condition, False), true, false)


def _joined(texts: list[Value]) -> Value:
    return pc.binary_join_element_wise(*texts, "")


def _calculated(node: exp.Binary, left: Value, right: Value) -> Value:
    """The result of decimal arithmetic. An integer literal has the precision of its text."""
    sides = []
    for value, side in ((left, node.left), (right, node.right)):
        if pa.types.is_decimal(value.type):
            sides.append(value)
            continue
        digits = len(side.name) if isinstance(side, exp.Literal) else 20 if value.type == pa.int64() else 10
        sides.append(_as_decimal(value, digits))
    return _CALCULATE[type(node)](*sides)


def _as_decimal(value: Value, digits: int) -> Value:
    if isinstance(value, pa.Scalar):
        return pa.scalar(Decimal(value.as_py()), pa.decimal128(digits, 0))
    return value.cast(pa.decimal128(max(digits, 19), 0)).cast(pa.decimal128(digits, 0))


def _cast(value: Value, to: str) -> Value:
    return value.cast(pa.string()) if to == "STRING" else _as_decimal(value, 20)
