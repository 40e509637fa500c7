"""Evaluates typed expressions over Arrow arrays, with the same results and errors as Spark SQL.

Each rule of `sql.rules` that Arrow can compute has its function here. The functions of IF, AND and
the like also find the rows in which Spark would compute an argument: an argument can fail only in
these rows.
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
from sluice.sql.arrow_casts import cast, decimal_quotient, format_times, times_from_numbers, widen
from sluice.sql.arrow_from_json import array_of_json
from sluice.sql.arrow_numbers import (
    absolute_value,
    calculate,
    divide,
    divide_whole,
    modulus,
    negate,
    remainder,
    round_decimals,
    round_to_whole,
)
from sluice.sql.arrow_to_json import json_object, json_values
from sluice.sql.arrow_types import arrow_type
from sluice.sql.arrow_values import (
    Result,
    Value,
    any_of,
    array_of,
    arrays_of,
    false_if_null,
    ignore_failures,
    map_rows,
    mask_of,
    rows_of,
    valid_rows,
)
from sluice.sql.rules import PYTHON, RULES, RuleKey
from sluice.sql.typed_expression import JSON_VALUE, PATH_ELEMENT, TypedExpression
from sluice.sql.types import is_decimal
from sluice.support.arrays import Mask
from sluice.values.sql_types import precision_and_scale, struct_fields

Columns: TypeAlias = Mapping[str, Value]
Functions: TypeAlias = Mapping[str, Callable[..., Any]]
"""Name in SQL → an author's Python function. The function takes a list for each argument, with the
values of all rows."""
Function: TypeAlias = Callable[[TypedExpression, list[Value], int], Result]


def evaluate(
    expression: TypedExpression,
    columns: Columns,
    count: int,
    functions: Functions = MappingProxyType({}),
) -> Result:
    """Return an expression's values for `count` rows, from the columns and Python functions."""
    return _Evaluation(columns, count, functions).result(expression)


@dataclass
class _Evaluation:
    """The results of expressions for some rows.

    An expression that occurs in several places is computed once.
    """

    columns: Columns
    count: int
    functions: Functions
    done: dict[int, tuple[TypedExpression, Result]] = field(default_factory=dict)
    """Id of an expression → the expression and its result. As long as the expression is kept here,
    no other object can get its id."""

    def result(self, expression: TypedExpression) -> Result:
        if id(expression) not in self.done:
            special = _SPECIAL.get(expression.key)
            if special is None:
                result = self._call(expression)
            else:
                result = special(self, expression)
            self.done[id(expression)] = (expression, result)
        return self.done[id(expression)][1]

    def arguments(self, expression: TypedExpression) -> list[Result]:
        """Return the results of the arguments, converted to the types that the function takes."""
        results: list[Result] = []
        for part, kind in zip(expression.parts, expression.operands, strict=True):
            results.append(self.convert(part, kind))
        return results

    def convert(self, expression: TypedExpression, kind: str) -> Result:
        """Return an expression's result as `kind`, a type that can hold all of its values."""
        result = self.result(expression)
        return Result(widen(result.values, expression.type, kind), result.failed)

    def for_rows(self, mask: Mask, columns_read: frozenset[str]) -> _Evaluation:
        """Return an evaluation of only these rows and columns."""
        rows = pa.array(np.flatnonzero(mask))
        columns = {name: self.columns[name].take(rows) for name in columns_read}
        return _Evaluation(columns, len(rows), self.functions)

    def _call(self, expression: TypedExpression) -> Result:
        arguments = self.arguments(expression)
        values = [argument.values for argument in arguments]
        result = _FUNCTIONS[expression.key](expression, values, self.count)
        assert isinstance(result.values, pa.Scalar) or len(result.values) == self.count, (
            expression.node
        )
        failed = self._failed_arguments(expression, arguments)
        return Result(result.values, any_of(failed, result.failed))

    def _failed_arguments(
        self,
        expression: TypedExpression,
        arguments: list[Result],
    ) -> Mask | None:
        """Return a mask of the rows in which Spark would compute an argument that fails."""
        order = "all"
        if expression.key in RULES:
            order = RULES[expression.key].order
        if order == "all" or all(argument.failed is None for argument in arguments):
            return any_of(*(argument.failed for argument in arguments))
        # Spark computes an argument only in rows where all earlier arguments are not null.
        *earlier, last = arguments if order == "until null" else reversed(arguments)
        failed = last.failed
        for argument in reversed(earlier):
            failed_later = None
            if failed is not None:
                goes_on = valid_rows(argument.values, self.count)
                if order == "from divisor":
                    goes_on &= _nonzero_rows(argument.values, self.count)
                failed_later = failed & goes_on
            failed = any_of(argument.failed, failed_later)
        return failed


def _nonzero_rows(value: Value, count: int) -> Mask:
    return mask_of(pc.not_equal(value, pa.scalar(0).cast(value.type)), count)


# -- Columns, literals, conditions


def _column(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    assert isinstance(expression.node, exp.Column)
    column, *path = (part.name for part in expression.node.parts)
    values = evaluation.columns[column]
    for name in path:
        # Pass the name in a list, because Arrow would read a text such as `.a` as a path.
        values = pc.struct_field(values, [name])
    return Result(values)


def _literal(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    text, kind = expression.node.name, expression.type
    value: Any = text
    if is_decimal(kind):
        value = Decimal(text)
    elif kind != "STRING":
        value = float(text) if kind == "DOUBLE" else int(text)
    return Result(pa.scalar(value, arrow_type(kind)))


def _and(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    return _condition(evaluation, expression, pc.and_kleene, until=False)


def _or(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    return _condition(evaluation, expression, pc.or_kleene, until=True)


def _condition(
    evaluation: _Evaluation,
    expression: TypedExpression,
    function: Callable[..., Value],
    *,
    until: bool,
) -> Result:
    """Compute AND or OR. Where the left side decides, Spark does not compute the right side."""
    left, right = evaluation.arguments(expression)
    right_failed = right.failed
    if right_failed is not None:
        is_decided = mask_of(pc.equal(left.values, until), evaluation.count)
        right_failed = right_failed & ~is_decided
    return Result(function(left.values, right.values), any_of(left.failed, right_failed))


def _if(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    condition, true, *otherwise = expression.parts
    kind, is_true = expression.type, evaluation.result(condition)
    if not otherwise or isinstance(otherwise[0].node, exp.Null):
        return _value_where(evaluation, is_true, true, kind)
    false = evaluation.convert(otherwise[0], kind)
    return _choose(evaluation, is_true, evaluation.convert(true, kind), false)


def _value_where(
    evaluation: _Evaluation,
    condition: Result,
    true: TypedExpression,
    kind: str,
) -> Result:
    """Return the value in rows where a condition is true, else null.

    The value is computed only in these rows.
    """
    passed = mask_of(condition.values, evaluation.count)
    if passed.all():
        value = evaluation.convert(true, kind)
        values = array_of(value.values, evaluation.count)
        return Result(values, any_of(condition.failed, value.failed))
    # A value without parts needs no computing, so selecting its rows would save nothing.
    if not true.parts:
        value = evaluation.convert(true, kind)
        return _choose(evaluation, condition, value, Result(pa.scalar(None, arrow_type(kind))))
    result = evaluation.for_rows(passed, true.columns).convert(true, kind)
    values = array_of(result.values, int(passed.sum()))
    failed = None
    if result.failed is not None:
        failed = np.zeros(evaluation.count, bool)
        failed[passed] = result.failed
    # For each row, its index among the rows that passed.
    places = np.cumsum(passed) - 1
    return Result(values.take(pa.array(places, mask=~passed)), any_of(condition.failed, failed))


def _case(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    count = len(expression.parts) // 2
    conditions, results = expression.parts[:count], expression.parts[count:]
    kind = expression.type
    if len(results) > count:
        chosen = evaluation.convert(results[count], kind)
    else:
        chosen = Result(pa.scalar(None, arrow_type(kind)))
    # Go from the last condition to the first: the first condition that is true must decide.
    for condition, result in zip(reversed(conditions), reversed(results[:count]), strict=True):
        value = evaluation.convert(result, kind)
        chosen = _choose(evaluation, evaluation.result(condition), value, chosen)
    return chosen


def _coalesce(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    *earlier, chosen = evaluation.arguments(expression)
    # Go from the last value to the first: the first value that is not null must be chosen.
    for argument in reversed(earlier):
        is_valid = Result(pc.is_valid(argument.values), argument.failed)
        chosen = _choose(evaluation, is_valid, Result(argument.values), chosen)
    return chosen


def _choose(evaluation: _Evaluation, condition: Result, true: Result, false: Result) -> Result:
    """Choose for each row: `true` where the condition holds, `false` where it is false or null."""
    passed = false_if_null(condition.values)
    failed = None
    if true.failed is not None or false.failed is not None:
        count = evaluation.count
        failed = np.where(mask_of(passed, count), true.failed_of(count), false.failed_of(count))
    return Result(pc.if_else(passed, true.values, false.values), any_of(condition.failed, failed))


def _in(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    """Return whether a value equals one of several options.

    Spark computes the options in order, until an option is equal.
    """
    value, *options = evaluation.arguments(expression)
    is_equal, failed = pa.scalar(False), value.failed
    for option in options:
        if option.failed is not None:
            is_found = mask_of(is_equal, evaluation.count)
            is_computed = valid_rows(value.values, evaluation.count) & ~is_found
            failed = any_of(failed, option.failed & is_computed)
        is_equal = pc.or_kleene(is_equal, pc.equal(value.values, option.values))
    return Result(is_equal, failed)


def _python(evaluation: _Evaluation, expression: TypedExpression) -> Result:
    """Return the results of a Python function.

    If the function raises an error for a record, the record's result is the error.
    """
    function = evaluation.functions[expression.node.name]
    arguments = evaluation.arguments(expression)
    columns = [rows_of(argument.values, evaluation.count) for argument in arguments]
    return Result(pa.array(function(*columns), arrow_type(expression.type)))


_SPECIAL: dict[RuleKey, Callable[[_Evaluation, TypedExpression], Result]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda evaluation, expression: Result(pa.scalar(bool(expression.node.this))),
    exp.HexString: lambda evaluation, expression: Result(
        pa.scalar(bytes.fromhex(expression.node.name))
    ),
    exp.Null: lambda evaluation, expression: Result(pa.scalar(None, pa.null())),
    exp.Paren: lambda evaluation, expression: evaluation.result(expression.parts[0]),
    exp.And: _and,
    exp.Or: _or,
    exp.If: _if,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.In: _in,
    PYTHON: _python,
}
"""Functions that need more than the values of all arguments. They also use the evaluation's
columns, its Python functions, or the rows for which to compute an argument."""


# -- Comparisons


def _comparison(function: Callable[[Value, Value], Value]) -> Function:
    def compare(expression: TypedExpression, values: list[Value], count: int) -> Result:
        return Result(function(*values))

    return compare


def _equal(left: Value, right: Value) -> Value:
    """Return whether values are equal. NaN equals NaN, unlike in Arrow."""
    equal = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return equal
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Value, right: Value) -> Value:
    """Return whether `left` is less than `right`. NaN is larger than any other number."""
    less = pc.less(left, right)
    if not pa.types.is_floating(left.type):
        return less
    return pc.or_(less, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _same(left: Value, right: Value) -> Value:
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(_equal(left, right), False), both_null)


def _extreme(is_better: Callable[[Value, Value], Value]) -> Function:
    """Return the greatest or the least value; of equal values, the first. Ignores nulls."""

    def better(best: Value, value: Value) -> Value:
        replaces = pc.or_kleene(pc.is_null(best), pc.fill_null(is_better(value, best), False))
        return pc.if_else(pc.and_(replaces, pc.is_valid(value)), value, best)

    return lambda expression, values, count: Result(reduce(better, values))


# -- Numbers, casts


def _calculation(sign: str, *, tries: bool = False) -> Function:
    def compute(expression: TypedExpression, values: list[Value], count: int) -> Result:
        result = calculate(sign, values[0], values[1], expression.type, count)
        if tries:
            return ignore_failures(result)
        return result

    return compute


def _divide(expression: TypedExpression, values: list[Value], count: int) -> Result:
    if not is_decimal(expression.type):
        return divide(values[0], values[1], count)
    digits = precision_and_scale(expression.type)
    wanted = arrow_type(expression.type)
    return map_rows(
        lambda left, right: decimal_quotient(left, right, *digits), values, wanted, count
    )


def _negate(expression: TypedExpression, values: list[Value], count: int) -> Result:
    literal = expression.node.this
    # Read a literal together with its sign: without the sign, the type's least number would not fit
    # the type.
    if isinstance(literal, exp.Literal) and literal.is_int:
        return Result(pa.scalar(-int(literal.name), arrow_type(expression.type)))
    return negate(values[0], expression.type, count)


def _cast(expression: TypedExpression, values: list[Value], count: int) -> Result:
    result = cast(values[0], expression.parts[0].type, expression.type, count)
    if expression.node.args.get("safe"):
        return ignore_failures(result)
    return result


def _shift(function: Callable[..., Value]) -> Function:
    def shift(expression: TypedExpression, values: list[Value], count: int) -> Result:
        number = array_of(values[0], count)
        # As in Java, only the last bits of the shift count matter: INT << 33 is INT << 1.
        places = values[1].as_py() % number.type.bit_width
        return Result(function(number, pa.scalar(places, number.type)))

    return shift


def _round(expression: TypedExpression, values: list[Value], count: int) -> Result:
    decimals = expression.node.args.get("decimals")
    places = 0
    if decimals is not None:
        places = int(decimals.name)
    return round_decimals(values[0], places, expression.type, count)


def _rounding_to_whole(function: Callable[[Value], Value]) -> Function:
    return lambda expression, values, count: round_to_whole(
        function,
        values[0],
        expression.operands[0],
        expression.type,
        count,
    )


# -- Objects, lists, JSON


def _struct(expression: TypedExpression, values: list[Value], count: int) -> Result:
    names = list(struct_fields(expression.type))
    return Result(pa.StructArray.from_arrays(arrays_of(values, count), names))


def _array(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(arrow_lists.list_of(arrays_of(values, count), count))


def _element(expression: TypedExpression, values: list[Value], count: int) -> Result:
    collection, index = array_of(values[0], count), values[1]
    if pa.types.is_map(collection.type):
        return Result(arrow_lists.entry(collection, index))
    offset, tries = expression.node.args.get("offset") or 0, bool(expression.node.args.get("safe"))
    return arrow_lists.element(collection, index, offset=offset, tries=tries)


def _object_json(expression: TypedExpression, values: list[Value], count: int) -> Result:
    objects = array_of(values[0], count)
    names = [field.name for field in objects.type]
    return Result(json_object(dict(zip(names, objects.flatten(), strict=True))))


def _join(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(pc.binary_join_element_wise(*values, pa.scalar("", arrow_type(expression.type))))


def _path_element(expression: TypedExpression, values: list[Value], count: int) -> Result:
    """Return an array index as four bytes, as in the path of a row (`values.row_order`)."""
    indices = pc.fill_null(array_of(values[0], count), 0).to_numpy().astype(">i4")
    elements = pa.Array.from_buffers(pa.binary(4), count, [None, pa.py_buffer(indices.tobytes())])
    return Result(elements.cast(pa.binary()))


def _like(expression: TypedExpression, values: list[Value], count: int) -> Result:
    matches = pc.match_like(values[0], expression.node.expression.name)
    if expression.node.args.get("negate"):
        matches = pc.invert(matches)
    return Result(matches)


# -- Texts and times


def _array_function(function: Callable[..., Value]) -> Function:
    """Return the `Function` that calls a function of arrays."""
    return lambda expression, values, count: Result(function(*arrays_of(values, count)))


def _array_and_value(function: Callable[[pa.Array, Value], Value]) -> Function:
    """Return the `Function` of an array and another value, which may be the same for all rows."""
    return lambda expression, values, count: Result(function(array_of(values[0], count), values[1]))


def _row_function(function: Callable[..., Any]) -> Function:
    """Return the `Function` that calls a Python function with each row's values."""

    def compute(expression: TypedExpression, values: list[Value], count: int) -> Result:
        return map_rows(function, values, arrow_type(expression.type), count)

    return compute


def _trim(expression: TypedExpression, values: list[Value], count: int) -> Result:
    given = expression.node.args.get("expression")
    characters = " "
    if given is not None:
        characters = given.name
    position = str(expression.node.args.get("position") or "BOTH")
    return Result(arrow_texts.trim(values[0], characters, position))


def _pad(expression: TypedExpression, values: list[Value], count: int) -> Result:
    function = arrow_texts.pad_right
    if expression.node.args.get("is_left"):
        function = arrow_texts.pad_left
    return map_rows(function, values, pa.string(), count)


def _replace(expression: TypedExpression, values: list[Value], count: int) -> Result:
    replacement = expression.node.args.get("replacement")
    by = ""
    if replacement is not None:
        by = replacement.name
    return Result(pc.replace_substring(values[0], expression.node.expression.name, by))


def _digest(expression: TypedExpression, values: list[Value], count: int) -> Result:
    names: dict[RuleKey, str] = {exp.MD5: "md5", exp.SHA: "sha1"}
    name = names.get(expression.key) or f"sha{int(expression.node.args['length'].name) or 256}"
    return arrow_texts.digest(values[0], name, count)


def _part_of_time(expression: TypedExpression, values: list[Value], count: int) -> Result:
    return Result(
        arrow_times.part(str(getattr(expression.key, "__name__", expression.key)), values[0])
    )


def _truncate(expression: TypedExpression, values: list[Value], count: int) -> Result:
    times = array_of(values[0], count)
    starts = arrow_times.truncate(times, expression.node.args["unit"].name)
    # If the start lies before the earliest possible time, it wraps around to a later time.
    has_wrapped = mask_of(pc.greater(starts, times), count)
    if not has_wrapped.any():
        return Result(starts)
    return Result(pc.if_else(pa.array(has_wrapped), None, starts), has_wrapped)


def _to_epoch(micros: int) -> Function:
    return lambda expression, values, count: Result(
        arrow_times.units_since_epoch(array_of(values[0], count), micros)
    )


def _from_epoch(micros: int) -> Function:
    return lambda expression, values, count: times_from_numbers(array_of(values[0], count), micros)


_FUNCTIONS: dict[RuleKey, Function] = {
    exp.Not: lambda expression, values, count: Result(pc.invert(values[0])),
    exp.Is: lambda expression, values, count: Result(pc.is_null(values[0])),
    exp.EQ: _comparison(_equal),
    exp.NEQ: _comparison(lambda left, right: pc.invert(_equal(left, right))),
    exp.LT: _comparison(_less),
    exp.LTE: _comparison(lambda left, right: pc.invert(_less(right, left))),
    exp.GT: _comparison(lambda left, right: _less(right, left)),
    exp.GTE: _comparison(lambda left, right: pc.invert(_less(left, right))),
    exp.NullSafeEQ: _comparison(_same),
    exp.Greatest: _extreme(lambda value, best: _less(best, value)),
    exp.Least: _extreme(_less),
    exp.Add: _calculation("+"),
    exp.Sub: _calculation("-"),
    exp.Mul: _calculation("*"),
    exp.SafeAdd: _calculation("+", tries=True),
    exp.SafeSubtract: _calculation("-", tries=True),
    exp.SafeMultiply: _calculation("*", tries=True),
    exp.Div: _divide,
    exp.SafeDivide: lambda expression, values, count: ignore_failures(
        _divide(expression, values, count)
    ),
    exp.IntDiv: lambda expression, values, count: divide_whole(values[0], values[1], count),
    exp.Mod: lambda expression, values, count: remainder(
        values[0],
        values[1],
        expression.type,
        count,
    ),
    exp.Neg: _negate,
    exp.Abs: lambda expression, values, count: absolute_value(values[0], expression.type, count),
    exp.Round: _round,
    exp.Floor: _rounding_to_whole(pc.floor),
    exp.Ceil: _rounding_to_whole(pc.ceil),
    exp.Cast: _cast,
    exp.Struct: _struct,
    exp.Dot: lambda expression, values, count: Result(
        pc.struct_field(values[0], [expression.node.expression.name])
    ),
    exp.Array: _array,
    exp.ArrayCompact: _array_function(arrow_lists.drop_nulls),
    PATH_ELEMENT: _path_element,
    exp.ArraySize: _array_function(arrow_lists.sizes),
    exp.ArrayContains: _array_and_value(arrow_lists.contains),
    exp.ArrayToString: _array_and_value(arrow_lists.join_elements),
    exp.Bracket: _element,
    exp.MapKeys: lambda expression, values, count: Result(
        arrow_lists.map_part(array_of(values[0], count), 0)
    ),
    "map_values": lambda expression, values, count: Result(
        arrow_lists.map_part(array_of(values[0], count), 1)
    ),
    exp.FromJson: lambda expression, values, count: Result(
        array_of_json(array_of(values[0], count), arrow_type(expression.type))
    ),
    exp.JSONFormat: _object_json,
    JSON_VALUE: lambda expression, values, count: Result(json_values(array_of(values[0], count))),
    exp.Concat: _join,
    exp.DPipe: _join,
    exp.Like: _like,
    exp.Upper: _array_function(lambda texts: arrow_texts.change_case(texts, upper=True)),
    exp.Lower: _array_function(lambda texts: arrow_texts.change_case(texts, upper=False)),
    exp.Trim: _trim,
    exp.Length: lambda expression, values, count: Result(pc.utf8_length(values[0])),
    exp.Reverse: lambda expression, values, count: Result(pc.utf8_reverse(values[0])),
    exp.Substring: lambda expression, values, count: arrow_texts.substring(values, count),
    exp.Left: _row_function(arrow_texts.left),
    exp.Right: _row_function(arrow_texts.right),
    exp.Pad: _pad,
    exp.Repeat: _row_function(lambda text, times: text * max(times, 0)),
    exp.ConcatWs: lambda expression, values, count: Result(
        arrow_texts.join_texts(values[0], values[1:], count)
    ),
    exp.Replace: _replace,
    exp.RegexpLike: lambda expression, values, count: Result(
        arrow_texts.matches(values[0], expression.node.expression.name)
    ),
    exp.RegexpSplit: lambda expression, values, count: Result(
        arrow_texts.split(array_of(values[0], count), expression.node.expression.name)
    ),
    exp.StrPosition: _row_function(lambda text, part: text.find(part) + 1),
    exp.StartsWith: _row_function(str.startswith),
    exp.EndsWith: _row_function(str.endswith),
    exp.Contains: _row_function(lambda text, part: part in text),
    exp.Hex: _row_function(arrow_texts.hexadecimal),
    exp.Unhex: _row_function(arrow_texts.from_hexadecimal),
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
    exp.TsOrDsToDate: lambda expression, values, count: cast(
        values[0],
        expression.operands[0],
        "DATE",
        count,
    ),
    "date_format": lambda expression, values, count: Result(
        format_times(array_of(values[0], count), expression.node.expressions[1].name)
    ),
    exp.TimestampTrunc: _truncate,
    exp.TsOrDsAdd: lambda expression, values, count: Result(arrow_times.add_days(*values)),
    exp.DateDiff: lambda expression, values, count: Result(arrow_times.days_between(*values)),
    exp.UnixMicros: _to_epoch(1),
    exp.UnixMillis: _to_epoch(1_000),
    exp.UnixSeconds: _to_epoch(1_000_000),
    "timestamp_micros": _from_epoch(1),
    "timestamp_millis": _from_epoch(1_000),
    "timestamp_seconds": _from_epoch(1_000_000),
    exp.Sqrt: lambda expression, values, count: Result(pc.sqrt(values[0])),
    exp.BitwiseAnd: lambda expression, values, count: Result(pc.bit_wise_and(*values)),
    exp.BitwiseOr: lambda expression, values, count: Result(pc.bit_wise_or(*values)),
    exp.BitwiseXor: lambda expression, values, count: Result(pc.bit_wise_xor(*values)),
    exp.BitwiseRightShift: _shift(pc.shift_right),
    exp.BitwiseLeftShift: _shift(pc.shift_left),
    "pmod": lambda expression, values, count: modulus(values[0], values[1], expression.type, count),
}

COMPUTED = frozenset({*_FUNCTIONS, *_SPECIAL})
"""The keys of the rules that Arrow can compute, at least for some types."""
