"""Evaluates typed expressions on Arrow, with the same results and errors as Spark SQL.

Each rule of `sql.rules` that Arrow can compute has its function here. Conditions and choices decide which of their
arguments Spark would compute for a row, since an argument that is not computed does not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sluice.sql import arrow_lists, arrow_texts, arrow_times
from sluice.sql.arrow_casts import cast, converted, decimal_quotient, formatted, times
from sluice.sql.arrow_from_json import array_of_json
from sluice.sql.arrow_numbers import (
    absolute,
    calculated,
    divided,
    divided_whole,
    modulus,
    negated,
    remainder,
    rounded,
    whole,
)
from sluice.sql.arrow_to_json import json_object, json_values
from sluice.sql.arrow_types import arrow_type
from sluice.sql.arrow_values import Mask, Result, Value, array_of, by_row, either, mask_of, null_if_failed, valid
from sluice.sql.rules import PYTHON, RULES, RuleKey
from sluice.sql.typed_expression import JSON_VALUE, PATH_ELEMENT, TypedExpression
from sluice.sql.types import is_decimal, precision_and_scale
from sluice.values.sql_types import struct_fields

Columns: TypeAlias = Mapping[str, Value]
Functions: TypeAlias = Mapping[str, Callable[..., Any]]
"""An author's Python functions by the names under which SQL calls them."""
Function: TypeAlias = Callable[[TypedExpression, list[Value], int], Result]


def evaluate(
    expression: TypedExpression, columns: Columns, count: int, functions: Functions = MappingProxyType({})
) -> Result:
    """The values of an expression for `count` rows, given the columns and the Python functions that it reads."""
    return _Evaluation(columns, count, functions).of(expression)


@dataclass
class _Evaluation:
    """The results of expressions for some rows. One that stands in several places is computed once."""

    columns: Columns
    count: int
    functions: Functions
    done: dict[int, tuple[TypedExpression, Result]] = field(default_factory=dict)

    def of(self, expression: TypedExpression) -> Result:
        if id(expression) not in self.done:
            special = _SPECIAL.get(expression.key)
            result = self._call(expression) if special is None else special(self, expression)
            self.done[id(expression)] = (expression, result)
        return self.done[id(expression)][1]

    def parts(self, expression: TypedExpression) -> list[Result]:
        """The arguments, converted to the types that the function takes."""
        return [self.converted(part, kind) for part, kind in zip(expression.parts, expression.operands, strict=True)]

    def converted(self, expression: TypedExpression, kind: str) -> Result:
        result = self.of(expression)
        return Result(converted(result.values, expression.type, kind), result.failed)

    def rows(self, chosen: Mask, read: frozenset[str]) -> _Evaluation:
        """The evaluation for some of the rows, with only the columns that are read."""
        rows = pa.array(np.flatnonzero(chosen))
        return _Evaluation({name: self.columns[name].take(rows) for name in read}, len(rows), self.functions)

    def _call(self, expression: TypedExpression) -> Result:
        parts = self.parts(expression)
        result = _FUNCTIONS[expression.key](expression, [part.values for part in parts], self.count)
        assert isinstance(result.values, pa.Scalar) or len(result.values) == self.count, expression.node
        return Result(result.values, either(self._failed(expression, parts), result.failed))

    def _failed(self, expression: TypedExpression, parts: list[Result]) -> Mask | None:
        """The rows in which an argument fails that Spark computes."""
        order = RULES[expression.key].order if expression.key in RULES else "all"
        if order == "all" or all(part.failed is None for part in parts):
            return either(*(part.failed for part in parts))
        *others, last = parts if order == "until null" else reversed(parts)
        failed = last.failed
        for part in reversed(others):
            later = None if failed is None else failed & valid(part.values, self.count)
            failed = either(part.failed, later)
        return failed


# -- Columns, literals, conditions


def _column(of: _Evaluation, expression: TypedExpression) -> Result:
    assert isinstance(expression.node, exp.Column)
    first, *rest = (part.name for part in expression.node.parts)
    # A list, because Arrow reads the text `.a` as a path.
    return Result(reduce(lambda of_object, name: pc.struct_field(of_object, [name]), rest, of.columns[first]))


def _literal(of: _Evaluation, expression: TypedExpression) -> Result:
    text, kind = expression.node.name, expression.type
    value: Any = text
    if is_decimal(kind):
        value = Decimal(text)
    elif kind != "STRING":
        value = float(text) if kind == "DOUBLE" else int(text)
    return Result(pa.scalar(value, arrow_type(kind)))


def _and(of: _Evaluation, expression: TypedExpression) -> Result:
    return _condition(of, expression, pc.and_kleene, until=False)


def _or(of: _Evaluation, expression: TypedExpression) -> Result:
    return _condition(of, expression, pc.or_kleene, until=True)


def _condition(of: _Evaluation, expression: TypedExpression, function: Callable[..., Value], *, until: bool) -> Result:
    """AND or OR. Where the left side decides, Spark does not compute the right one."""
    left, right = of.parts(expression)
    later = right.failed
    if later is not None:
        later = later & ~mask_of(pc.equal(left.values, until), of.count)
    return Result(function(left.values, right.values), either(left.failed, later))


def _if(of: _Evaluation, expression: TypedExpression) -> Result:
    condition, true, *others = expression.parts
    kind = expression.type
    if not others or isinstance(others[0].node, exp.Null):
        return _guarded(of, of.of(condition), true, kind)
    return _chosen(of, of.of(condition), of.converted(true, kind), of.converted(others[0], kind))


def _guarded(of: _Evaluation, condition: Result, true: TypedExpression, kind: str) -> Result:
    """A value where a condition is true, else null. It is computed only for these rows."""
    passed = mask_of(condition.values, of.count)
    if passed.all() or not true.parts:
        value = of.converted(true, kind)
        return _chosen(of, condition, value, Result(pa.scalar(None, arrow_type(kind))))
    few = of.rows(passed, true.columns).converted(true, kind)
    values = array_of(few.values, int(passed.sum()))
    failed = None
    if few.failed is not None:
        failed = np.zeros(of.count, bool)
        failed[passed] = few.failed
    places = np.cumsum(passed) - 1
    return Result(values.take(pa.array(places, mask=~passed)), either(condition.failed, failed))


def _case(of: _Evaluation, expression: TypedExpression) -> Result:
    count = len(expression.parts) // 2
    conditions, results = expression.parts[:count], expression.parts[count:]
    kind = expression.type
    made = of.converted(results[count], kind) if len(results) > count else Result(pa.scalar(None, arrow_type(kind)))
    for condition, result in zip(reversed(conditions), reversed(results[:count]), strict=True):
        made = _chosen(of, of.of(condition), of.converted(result, kind), made)
    return made


def _coalesce(of: _Evaluation, expression: TypedExpression) -> Result:
    *others, made = of.parts(expression)
    for part in reversed(others):
        made = _chosen(of, Result(pc.is_valid(part.values), part.failed), Result(part.values), made)
    return made


def _chosen(of: _Evaluation, condition: Result, true: Result, false: Result) -> Result:
    """One of two values per row; the second where the condition is null."""
    passed = pc.fill_null(condition.values, False)
    failed = None
    if true.failed is not None or false.failed is not None:
        is_true, none = mask_of(passed, of.count), np.zeros(of.count, bool)
        failed = np.where(
            is_true, none if true.failed is None else true.failed, none if false.failed is None else false.failed
        )
    return Result(pc.if_else(passed, true.values, false.values), either(condition.failed, failed))


def _in(of: _Evaluation, expression: TypedExpression) -> Result:
    """Whether a value is one of several. Spark computes them one after the other, until one is equal."""
    value, *options = of.parts(expression)
    found, failed = pa.scalar(False), value.failed
    for option in options:
        if option.failed is not None:
            failed = either(failed, option.failed & valid(value.values, of.count) & ~mask_of(found, of.count))
        found = pc.or_kleene(found, pc.equal(value.values, option.values))
    return Result(found, failed)


def _python(of: _Evaluation, expression: TypedExpression) -> Result:
    """The results of a Python function, which gives an error of a record as a part of its result."""
    function = of.functions[expression.node.name]
    arguments = (array_of(part.values, of.count).to_pylist() for part in of.parts(expression))
    return Result(pa.array([function(*each) for each in zip(*arguments, strict=True)], arrow_type(expression.type)))


_SPECIAL: dict[RuleKey, Callable[[_Evaluation, TypedExpression], Result]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda of, expression: Result(pa.scalar(bool(expression.node.this))),
    exp.HexString: lambda of, expression: Result(pa.scalar(bytes.fromhex(expression.node.name))),
    exp.Null: lambda of, expression: Result(pa.scalar(None, pa.null())),
    exp.Paren: lambda of, expression: of.of(expression.parts[0]),
    exp.And: _and,
    exp.Or: _or,
    exp.If: _if,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.In: _in,
    PYTHON: _python,
}
"""Expressions that do not compute all of their arguments for each row."""


# -- Comparisons


def _compared(function: Callable[[Value, Value], Value]) -> Function:
    def compare(expression: TypedExpression, values: list[Value], count: int) -> Result:
        return Result(function(*values))

    return compare


def _equal(left: Value, right: Value) -> Value:
    """NaN equals NaN, unlike in Arrow."""
    equal = pc.equal(left, right)
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right))) if pa.types.is_floating(left.type) else equal


def _less(left: Value, right: Value) -> Value:
    """NaN is larger than any other number."""
    less = pc.less(left, right)
    if not pa.types.is_floating(left.type):
        return less
    return pc.or_(less, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _same(left: Value, right: Value) -> Value:
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(_equal(left, right), False), both_null)


def _extreme(is_better: Callable[[Value, Value], Value]) -> Function:
    """The greatest or the least value, without nulls; the first one of equal ones."""

    def better(best: Value, value: Value) -> Value:
        replaces = pc.or_kleene(pc.is_null(best), pc.fill_null(is_better(value, best), False))
        return pc.if_else(pc.and_(replaces, pc.is_valid(value)), value, best)

    return lambda expression, values, count: Result(reduce(better, values))


# -- Numbers, casts


def _calculated(sign: str, *, tries: bool = False) -> Function:
    def calculate(expression: TypedExpression, values: list[Value], count: int) -> Result:
        made = calculated(sign, values[0], values[1], expression.type, count)
        return null_if_failed(made) if tries else made

    return calculate


def _divided(expression: TypedExpression, values: list[Value], count: int) -> Result:
    if not is_decimal(expression.type):
        return divided(values[0], values[1], count)
    digits = precision_and_scale(expression.type)
    return by_row(
        lambda left, right: decimal_quotient(left, right, *digits), values, arrow_type(expression.type), count
    )


def _negated(expression: TypedExpression, values: list[Value], count: int) -> Result:
    literal = expression.node.this
    if isinstance(literal, exp.Literal) and literal.is_int:  # the least number has no positive one of its type
        return Result(pa.scalar(-int(literal.name), arrow_type(expression.type)))
    return negated(values[0], expression.type, count)


def _cast(expression: TypedExpression, values: list[Value], count: int) -> Result:
    made = cast(values[0], expression.parts[0].type, expression.type, count)
    return null_if_failed(made) if expression.node.args.get("safe") else made


def _shifted(function: Callable[..., Value]) -> Function:
    def shift(expression: TypedExpression, values: list[Value], count: int) -> Result:
        number = array_of(values[0], count)
        return Result(function(number, pa.scalar(values[1].as_py() % number.type.bit_width, number.type)))

    return shift


def _rounded(expression: TypedExpression, values: list[Value], count: int) -> Result:
    places = expression.node.args.get("decimals")
    return rounded(values[0], 0 if places is None else int(places.name), expression.type, count)


def _whole(function: Callable[[Value], Value]) -> Function:
    return lambda expression, values, count: whole(function, values[0], expression.operands[0], expression.type, count)


# -- Objects, lists, JSON


def _struct(expression: TypedExpression, values: list[Value], count: int) -> Result:
    names = list(struct_fields(expression.type))
    return Result(pa.StructArray.from_arrays([array_of(value, count) for value in values], names))


def _array(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(arrow_lists.made_of([array_of(value, count) for value in values], count))


def _element(expression: TypedExpression, values: list[Value], count: int) -> Result:
    of, index = array_of(values[0], count), values[1]
    if pa.types.is_map(of.type):
        return Result(arrow_lists.entry(of, index))
    arguments = expression.node.args
    return arrow_lists.element(of, index, offset=arguments.get("offset") or 0, tries=bool(arguments.get("safe")))


def _object_json(expression: TypedExpression, values: list[Value], count: int) -> Result:
    of_struct = array_of(values[0], count)
    names = [of_struct.type.field(place).name for place in range(of_struct.type.num_fields)]
    return Result(json_object(dict(zip(names, of_struct.flatten(), strict=True))))


def _joined(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(pc.binary_join_element_wise(*values, pa.scalar("", arrow_type(expression.type))))


def _path_element(expression: TypedExpression, values: list[Value], count: int) -> Result:
    """The index of an element as four bytes."""
    indices = pc.fill_null(array_of(values[0], count), 0).to_numpy().astype(">i4")
    made = pa.Array.from_buffers(pa.binary(4), count, [None, pa.py_buffer(indices.tobytes())])
    return Result(made.cast(pa.binary()))


def _like(expression: TypedExpression, values: list[Value], count: int) -> Result:
    found = pc.match_like(values[0], expression.node.expression.name)
    return Result(pc.invert(found) if expression.node.args.get("negate") else found)


# -- Texts and times


def _of_arrays(function: Callable[..., Value]) -> Function:
    """A function of arrays."""
    return lambda expression, values, count: Result(function(*(array_of(value, count) for value in values)))


def _of_rows(function: Callable[..., Any]) -> Function:
    """A Python function of each row's values."""
    return lambda expression, values, count: by_row(function, values, arrow_type(expression.type), count)


def _trimmed(expression: TypedExpression, values: list[Value], count: int) -> Result:
    characters = expression.node.args.get("expression")
    position = str(expression.node.args.get("position") or "BOTH")
    return Result(arrow_texts.trimmed(values[0], " " if characters is None else characters.name, position))


def _padded(expression: TypedExpression, values: list[Value], count: int) -> Result:
    function = arrow_texts.left_padded if expression.node.args.get("is_left") else arrow_texts.right_padded
    return by_row(function, values, pa.string(), count)


def _replaced(expression: TypedExpression, values: list[Value], count: int) -> Result:
    replacement = expression.node.args.get("replacement")
    by = "" if replacement is None else replacement.name
    return Result(pc.replace_substring(values[0], expression.node.expression.name, by))


def _digest(expression: TypedExpression, values: list[Value], count: int) -> Result:
    names: dict[RuleKey, str] = {exp.MD5: "md5", exp.SHA: "sha1"}
    name = names.get(expression.key) or f"sha{int(expression.node.args['length'].name) or 256}"
    return arrow_texts.digest(values[0], name, count)


def _part_of_time(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(arrow_times.part(str(getattr(expression.key, "__name__", expression.key)), values[0]))


def _truncated(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(arrow_times.truncated(array_of(values[0], count), expression.node.args["unit"].name))


def _since_epoch(micros: int) -> Function:
    return lambda expression, values, count: Result(arrow_times.since_epoch(array_of(values[0], count), micros))


def _from_epoch(micros: int) -> Function:
    return lambda expression, values, count: times(array_of(values[0], count), micros)


_FUNCTIONS: dict[RuleKey, Function] = {
    exp.Not: lambda expression, values, count: Result(pc.invert(values[0])),
    exp.Is: lambda expression, values, count: Result(pc.is_null(values[0])),
    exp.EQ: _compared(_equal),
    exp.NEQ: _compared(lambda left, right: pc.invert(_equal(left, right))),
    exp.LT: _compared(_less),
    exp.LTE: _compared(lambda left, right: pc.invert(_less(right, left))),
    exp.GT: _compared(lambda left, right: _less(right, left)),
    exp.GTE: _compared(lambda left, right: pc.invert(_less(left, right))),
    exp.NullSafeEQ: _compared(_same),
    exp.Greatest: _extreme(lambda value, best: _less(best, value)),
    exp.Least: _extreme(_less),
    exp.Add: _calculated("+"),
    exp.Sub: _calculated("-"),
    exp.Mul: _calculated("*"),
    exp.SafeAdd: _calculated("+", tries=True),
    exp.SafeSubtract: _calculated("-", tries=True),
    exp.SafeMultiply: _calculated("*", tries=True),
    exp.Div: _divided,
    exp.SafeDivide: lambda expression, values, count: null_if_failed(_divided(expression, values, count)),
    exp.IntDiv: lambda expression, values, count: divided_whole(values[0], values[1], count),
    exp.Mod: lambda expression, values, count: remainder(values[0], values[1], expression.type, count),
    exp.Neg: _negated,
    exp.Abs: lambda expression, values, count: absolute(values[0], expression.type, count),
    exp.Round: _rounded,
    exp.Floor: _whole(pc.floor),
    exp.Ceil: _whole(pc.ceil),
    exp.Cast: _cast,
    exp.Struct: _struct,
    exp.Dot: lambda expression, values, count: Result(pc.struct_field(values[0], [expression.node.expression.name])),
    exp.Array: _array,
    exp.ArrayCompact: _of_arrays(arrow_lists.without_nulls),
    PATH_ELEMENT: _path_element,
    exp.ArraySize: _of_arrays(arrow_lists.sizes),
    exp.ArrayContains: lambda expression, values, count: Result(
        arrow_lists.contains(array_of(values[0], count), values[1])
    ),
    exp.ArrayToString: lambda expression, values, count: Result(
        arrow_lists.joined(array_of(values[0], count), values[1])
    ),
    exp.Bracket: _element,
    exp.MapKeys: lambda expression, values, count: Result(arrow_lists.map_part(array_of(values[0], count), 0)),
    "map_values": lambda expression, values, count: Result(arrow_lists.map_part(array_of(values[0], count), 1)),
    exp.FromJson: lambda expression, values, count: Result(
        array_of_json(array_of(values[0], count), arrow_type(expression.type))
    ),
    exp.JSONFormat: _object_json,
    JSON_VALUE: lambda expression, values, count: Result(json_values(array_of(values[0], count))),
    exp.Concat: _joined,
    exp.DPipe: _joined,
    exp.Like: _like,
    exp.Upper: _of_arrays(lambda texts: arrow_texts.changed_case(texts, upper=True)),
    exp.Lower: _of_arrays(lambda texts: arrow_texts.changed_case(texts, upper=False)),
    exp.Trim: _trimmed,
    exp.Length: lambda expression, values, count: Result(pc.utf8_length(values[0])),
    exp.Reverse: lambda expression, values, count: Result(pc.utf8_reverse(values[0])),
    exp.Substring: lambda expression, values, count: arrow_texts.substring(values, count),
    exp.Left: _of_rows(arrow_texts.left),
    exp.Right: _of_rows(arrow_texts.right),
    exp.Pad: _padded,
    exp.Repeat: _of_rows(lambda text, times: text * max(times, 0)),
    exp.ConcatWs: lambda expression, values, count: Result(arrow_texts.joined(values[0], values[1:], count)),
    exp.Replace: _replaced,
    exp.RegexpLike: lambda expression, values, count: Result(
        arrow_texts.matches(values[0], expression.node.expression.name)
    ),
    exp.RegexpSplit: lambda expression, values, count: Result(
        arrow_texts.split(array_of(values[0], count), expression.node.expression.name)
    ),
    exp.StrPosition: _of_rows(lambda text, part: text.find(part) + 1),
    exp.StartsWith: _of_rows(str.startswith),
    exp.EndsWith: _of_rows(str.endswith),
    exp.Contains: _of_rows(lambda text, part: part in text),
    exp.Hex: _of_rows(arrow_texts.hexadecimal),
    exp.Unhex: _of_rows(arrow_texts.from_hexadecimal),
    exp.MD5: _digest,
    exp.SHA: _digest,
    exp.SHA2: _digest,
    **dict.fromkeys(
        (
            exp.Year,
            exp.Quarter,
            exp.Month,
            exp.WeekOfYear,
            exp.Day,
            exp.DayOfMonth,
            exp.DayOfYear,
            exp.DayOfWeek,
            "weekday",
            exp.Hour,
            exp.Minute,
            exp.Second,
        ),
        _part_of_time,
    ),
    exp.TsOrDsToDate: lambda expression, values, count: cast(values[0], expression.operands[0], "DATE", count),
    "date_format": lambda expression, values, count: Result(
        formatted(array_of(values[0], count), expression.node.expressions[1].name)
    ),
    exp.TimestampTrunc: _truncated,
    exp.TsOrDsAdd: lambda expression, values, count: Result(arrow_times.days_added(*values)),
    exp.DateDiff: lambda expression, values, count: Result(arrow_times.days_between(*values)),
    exp.UnixMicros: _since_epoch(1),
    exp.UnixMillis: _since_epoch(1_000),
    exp.UnixSeconds: _since_epoch(1_000_000),
    "timestamp_micros": _from_epoch(1),
    "timestamp_millis": _from_epoch(1_000),
    "timestamp_seconds": _from_epoch(1_000_000),
    exp.Sqrt: lambda expression, values, count: Result(pc.sqrt(values[0])),
    exp.BitwiseAnd: lambda expression, values, count: Result(pc.bit_wise_and(*values)),
    exp.BitwiseOr: lambda expression, values, count: Result(pc.bit_wise_or(*values)),
    exp.BitwiseXor: lambda expression, values, count: Result(pc.bit_wise_xor(*values)),
    exp.BitwiseRightShift: _shifted(pc.shift_right),
    exp.BitwiseLeftShift: _shifted(pc.shift_left),
    "pmod": lambda expression, values, count: modulus(values[0], values[1], expression.type, count),
}

COMPUTED = frozenset({*_FUNCTIONS, *_SPECIAL})
"""The keys of the rules that Arrow computes for some types."""
