"""A table of the types of arguments that each function and operator of Spark SQL accepts.

The types are those that Spark accepts, including those that Spark first converts: for example,
texts as numbers. Aggregates are stricter, because Sluice computes them itself
(`values.aggregate_calls`).
`expression_checks` refuses other types when a pipeline's file is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sluice.sql.aggregate_expressions import aggregate_name
from sluice.sql.rules import RuleKey, rule_key, rule_of
from sluice.sql.types import declared
from sluice.values.aggregate_calls import ARGUMENTS, Takes
from sluice.values.sql_types import element_type, map_key_type

_WHOLE = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_NUMBERS = _WHOLE | {"FLOAT", "DOUBLE", "DECIMAL"}
_TIMES = frozenset({"DATE", "TIMESTAMP"})
_SINGLE = _NUMBERS | _TIMES | {"STRING", "BOOLEAN", "BINARY"}
_NESTED = frozenset({"ARRAY", "MAP", "STRUCT"})
_KNOWN = _SINGLE | _NESTED


@dataclass(frozen=True)
class Accepted:
    """The types that an argument may have."""

    name: str
    """A description of the types, for errors."""
    heads: frozenset[str]
    """The types without digits, element types and fields, such as DECIMAL or ARRAY."""
    advice: str
    """Advice on what to do with a value of another type."""


def _accepted(name: str, heads: Iterable[str], advice: str) -> Accepted:
    return Accepted(name, frozenset(heads), advice)


# If an argument must be a number or a time, Spark converts a text. It does not convert texts for a
# PLAIN_NUMBER, a PLAIN_WHOLE, a MOMENT or a DATE.
_CAST = "Use another field, or convert it"
NUMBER = _accepted("a number", {*_NUMBERS, "STRING"}, f"{_CAST}: CAST(... AS DOUBLE).")
WHOLE = _accepted("a whole number", {*_WHOLE, "STRING"}, f"{_CAST}: CAST(... AS BIGINT).")
EXACT = _accepted(
    "an exact number", {*_WHOLE, "DECIMAL", "STRING"}, f"{_CAST}: CAST(... AS BIGINT)."
)
PLAIN_NUMBER = _accepted("a number", _NUMBERS, f"{_CAST}: CAST(... AS BIGINT).")
PLAIN_WHOLE = _accepted("a whole number", _WHOLE, f"{_CAST}: CAST(... AS BIGINT).")
TEXT = _accepted("a text", _SINGLE, "Use one of its fields or elements, or its JSON: to_json(...).")
CHARACTERS = _accepted("a text", {"STRING"}, f"{_CAST}: CAST(... AS STRING).")
BYTES = _accepted("a text or bytes", {"STRING", "BINARY"}, f"{_CAST}: CAST(... AS STRING).")
DAY = _accepted(
    "a date or a time",
    {*_TIMES, "STRING"},
    f"{_CAST}: CAST(... AS TIMESTAMP), or timestamp_millis(...).",
)
MOMENT = _accepted("a time", {"TIMESTAMP"}, f"{_CAST}: CAST(... AS TIMESTAMP).")
DATE = _accepted("a date", {"DATE"}, f"{_CAST}: CAST(... AS DATE).")
DAYS = _accepted("an INT", {"TINYINT", "SMALLINT", "INT", "STRING"}, f"{_CAST}: CAST(... AS INT).")
NUMBER_OR_TIME = _accepted(
    "a number or a time", {*_NUMBERS, *_TIMES, "STRING"}, f"{_CAST}: CAST(... AS DOUBLE)."
)
STEPS = _accepted("a whole number or a time", _WHOLE | _TIMES, f"{_CAST}: CAST(... AS BIGINT).")
BITS = _accepted(
    "a whole number or a condition", {*_WHOLE, "BOOLEAN"}, f"{_CAST}: CAST(... AS BIGINT)."
)
CONDITION = _accepted("a condition", {"BOOLEAN"}, "Write a comparison, such as amount > 0.")
CONDITION_OR_TEXT = _accepted("a condition", {"BOOLEAN", "STRING"}, CONDITION.advice)
LIST = _accepted(
    "a list", {"ARRAY"}, "Make a list, for example with array(...) or split(text, ' ')."
)
MAP = _accepted("a map", {"MAP"}, "Use another field, or make a map: map(key, value).")
LIST_OR_MAP = _accepted("a list or a map", {"ARRAY", "MAP"}, LIST.advice)
NESTED = _accepted("an object, a list or a map", _NESTED, "Make an object: struct(...).")
REVERSIBLE = _accepted("a text or a list", {*_SINGLE, "ARRAY"}, TEXT.advice)
NOT_MAP = _accepted(
    "a value that is not a map", _KNOWN - {"MAP"}, "Compare or hash to_json(...) of the map."
)

_OF_TAKES: dict[Takes, Accepted | None] = {
    "anything": None,
    "a number": _accepted("a number", _NUMBERS, NUMBER.advice),
    "a whole number": _accepted("a whole number", _WHOLE, WHOLE.advice),
    "a condition": CONDITION,
    "a value with an order": _accepted(
        "a value with an order",
        _SINGLE - {"BINARY"},
        "Compare one of its fields, for example with max_by(x, y), which gives the x of the "
        "largest y.",
    ),
}
"""Requirement on an argument of an aggregate → the Spark SQL types that meet it."""

_SAME_ARGUMENTS = {"median": "percentile", "count_if": "bool_and"}
"""Aggregate → the aggregate that takes the same arguments, and that Sluice computes instead."""
_COMPARISONS = (
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.NullSafeEQ,
    exp.In,
    exp.Between,
    exp.Nullif,
)
_OF_ONE_TYPE = (*_COMPARISONS, exp.Coalesce, exp.Array)
"""Operators and functions whose arguments need a common type."""

TABLE: dict[RuleKey, tuple[Accepted | None, ...]] = {
    **dict.fromkeys((exp.And, exp.Or, exp.Not), (CONDITION_OR_TEXT, CONDITION_OR_TEXT)),
    exp.If: (CONDITION,),
    # Numbers
    **dict.fromkeys(
        (exp.Add, exp.Sub, exp.SafeAdd, exp.SafeSubtract), (NUMBER_OR_TIME, NUMBER_OR_TIME)
    ),
    **dict.fromkeys(
        (
            exp.Mul, exp.Div, exp.Mod, exp.SafeMultiply, exp.SafeDivide, exp.Neg, exp.Negative,
            "positive", exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.Sqrt, exp.Cbrt, exp.Exp,
            exp.Ln, exp.Log, exp.Pow, exp.Sin, exp.Cos, exp.Tan, exp.Sign, exp.Degrees, exp.Radians,
            exp.Rint, exp.IsNan, exp.Nanvl, exp.Factorial, "bround", "bin", "hypot", "pmod",
            "try_mod", exp.BitwiseRightShift, exp.BitwiseLeftShift, exp.Chr, exp.Space,
            exp.DateFromUnixDate, exp.UnixToStr,
        ),
        (NUMBER, NUMBER),
    ),
    exp.UnixToStr: (NUMBER,),
    exp.IntDiv: (EXACT, EXACT),
    **dict.fromkeys((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor), (WHOLE, WHOLE)),
    exp.WidthBucket: (NUMBER,),
    "format_number": (PLAIN_NUMBER,),
    exp.ToChar: (NUMBER_OR_TIME,),
    exp.BitwiseCount: (BITS,),
    exp.GenerateSeries: (STEPS, STEPS),
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), (DAY, TEXT)),
    "make_date": (NUMBER, NUMBER, NUMBER),
    # Texts
    **dict.fromkeys(
        (
            exp.Upper, exp.Lower, exp.Initcap, exp.Trim, "btrim", exp.Length, exp.BitLength,
            "octet_length", exp.Hex, exp.Unhex, exp.Ascii, exp.FromBase64, "url_encode", "quote",
            exp.Encode, exp.ToNumber, "try_to_number", "conv", exp.TsOrDsToDate,
        ),
        (TEXT,),
    ),
    **dict.fromkeys(
        (
            exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpSplit, exp.RegexpExtract,
            exp.StrPosition, exp.StartsWith, exp.EndsWith, exp.Contains, exp.Levenshtein,
            "find_in_set", exp.SplitPart,
        ),
        (TEXT, TEXT),
    ),
    **dict.fromkeys((exp.Replace, exp.RegexpReplace, exp.Translate), (TEXT, TEXT, TEXT)),
    exp.Substring: (TEXT, NUMBER, NUMBER),
    **dict.fromkeys((exp.Left, exp.Right, exp.Repeat), (TEXT, NUMBER)),
    exp.Pad: (TEXT, NUMBER, TEXT),
    exp.ConcatWs: (TEXT, REVERSIBLE),
    **dict.fromkeys((exp.Concat, exp.DPipe), (REVERSIBLE, REVERSIBLE)),
    exp.Reverse: (REVERSIBLE,),
    **dict.fromkeys(
        (exp.Soundex, "get_json_object", exp.FromJson, exp.ParseUrl, "json_tuple", "mask"),
        (CHARACTERS,),
    ),
    **dict.fromkeys((exp.MD5, exp.SHA, exp.SHA2, exp.ToBase64, "crc32", exp.Decode), (BYTES,)),
    **dict.fromkeys(("hash", "xxhash64"), (NOT_MAP, NOT_MAP)),
    **dict.fromkeys((*_COMPARISONS, exp.Greatest, exp.Least), (NOT_MAP, NOT_MAP)),
    exp.JSONFormat: (NESTED,),
    # Times
    **dict.fromkeys(
        (
            exp.Year, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfYear, exp.DayOfWeek,
            exp.WeekOfYear, exp.Quarter, "weekday", exp.Hour, exp.Minute, exp.Second,
            exp.TimestampTrunc, exp.LastDay, exp.StrToUnix, exp.NextDay,
        ),
        (DAY,),
    ),
    "date_format": (DAY, TEXT),
    exp.TsOrDsAdd: (DAY, DAYS),
    exp.AddMonths: (DAY, NUMBER),
    **dict.fromkeys((exp.DateDiff, exp.MonthsBetween), (DAY, DAY)),
    exp.DateTrunc: (None, DAY),
    **dict.fromkeys((exp.Extract, "date_part"), (None, DAY)),
    **dict.fromkeys((exp.UnixMillis, exp.UnixMicros, exp.UnixSeconds), (MOMENT,)),
    exp.UnixDate: (DATE,),
    "timestamp_seconds": (PLAIN_NUMBER,),
    **dict.fromkeys(("timestamp_millis", "timestamp_micros"), (PLAIN_WHOLE,)),
    # Lists and maps
    **dict.fromkeys(
        (
            exp.ArrayCompact, exp.ArraySlice, exp.ArraySort, exp.ArrayDistinct, exp.ArrayMax,
            exp.ArrayMin, exp.ArrayContains, exp.ArrayPosition, exp.ArrayRemove, exp.Transform,
            exp.ArrayFilter, exp.Exists, exp.Reduce, exp.Flatten,
        ),
        (LIST,),
    ),
    exp.ArrayToString: (LIST, CHARACTERS),
    **dict.fromkeys(("array_union", "arrays_overlap"), (LIST, LIST)),
    **dict.fromkeys((exp.ArraySize, "cardinality", exp.Explode), (LIST_OR_MAP,)),
    exp.Bracket: (LIST_OR_MAP,),
    **dict.fromkeys((exp.MapKeys, "map_values", "map_entries"), (MAP,)),
    "map_concat": (MAP, MAP),
}  # fmt: skip
"""Function → the types that its arguments may have, in the order of `Rule.arguments`; None for any
type. Further arguments, and all arguments of functions that are not listed, may have any type."""

_CASTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_NUMBERS, _NUMBERS | {"STRING", "BOOLEAN", "TIMESTAMP"}),
    "DATE": _TIMES | {"STRING"},
    "TIMESTAMP": _NUMBERS | _TIMES | {"STRING"},
    "BOOLEAN": _NUMBERS | {"STRING", "BOOLEAN"},
    "BINARY": frozenset({"STRING", "BINARY"}),
}
"""Type → the types that Spark casts to this type."""


@dataclass(frozen=True)
class Misfit:
    """An argument of a type that a function does not accept."""

    argument: exp.Expr
    needed: str
    advice: str


def arguments_of(node: exp.Expr) -> Sequence[exp.Expr]:
    """Return the arguments of a function or an operator, in the order of the table."""
    if isinstance(node, exp.Filter):
        where = node.expression
        if isinstance(where, exp.Where):
            return [where.this]
        return []
    if isinstance(node, exp.Extract):
        return [node.this, node.expression]
    arguments: list[exp.Expr] = []
    for argument in rule_of(node).arguments(node):
        # sqlglot converts the arguments of some functions of dates.
        if isinstance(argument, exp.TsOrDsToDate) and not isinstance(node, exp.Cast):
            argument = argument.this
        arguments.append(argument)
    return arguments


def misfit(node: exp.Expr, kinds: Sequence[str]) -> Misfit | None:
    """Return the first argument that Spark would refuse; None if Spark may accept all arguments.

    `kinds` has the types of `arguments_of(node)`, with an empty text for an unknown type.
    """
    arguments = arguments_of(node)
    for argument, kind, accepted in zip(arguments, kinds, _accepted_by(node), strict=False):
        if accepted is not None and _head(kind) in _KNOWN - accepted.heads:
            return Misfit(argument, accepted.name, accepted.advice)
    if kinds:
        return _unfit_together(node, arguments, kinds)
    return None


def _unfit_together(
    node: exp.Expr, arguments: Sequence[exp.Expr], kinds: Sequence[str]
) -> Misfit | None:
    """Return the first argument that does not fit the others or, in a cast, the target type."""
    match node:
        case exp.Cast():
            target = _head(declared(node.args["to"]))
            if _head(kinds[0]) in _KNOWN - _CASTS.get(target, _KNOWN):
                return Misfit(
                    arguments[0],
                    f"a value that Spark casts to {target}",
                    "Use another field, or its parts.",
                )
        case exp.Add() | exp.Sub() | exp.SafeAdd() | exp.SafeSubtract():
            if (needed := _second_summand(node, [_head(kind) for kind in kinds])) is not None:
                return Misfit(arguments[1], *needed)
        case exp.Round() if len(arguments) > 1 and arguments[1].find(exp.Column) is not None:
            return Misfit(
                arguments[1], "a constant number of places", "Write for example round(x, 2)."
            )
        case exp.Greatest() | exp.Least():
            return _unlike(kinds[0], arguments, kinds, _are_alike)
        case exp.ArrayContains() | exp.ArrayPosition() | exp.ArrayRemove():
            return _unlike(element_type(kinds[0]), arguments, kinds, _are_alike)
        case exp.Bracket() if _head(kinds[0]) == "MAP":
            return _unlike(map_key_type(kinds[0]), arguments, kinds, _are_comparable)
        case exp.Bracket() if _head(kinds[0]) == "ARRAY":
            return _unlike("INT", arguments, kinds, _are_alike)
        case exp.ConcatWs():  # Takes texts and lists at once. It is a subclass of exp.Concat.
            return None
        case exp.Concat() | exp.DPipe():
            return _unlike(kinds[0], arguments, kinds, _are_both_lists_or_texts)
        case exp.Case() if node.this is not None:
            # The first types are the types of x and of the values with which `CASE x` compares x.
            # The types of the results follow.
            return _unlike(kinds[0], arguments, kinds[: 1 + len(node.args["ifs"])], _are_comparable)
        case _ if isinstance(node, _OF_ONE_TYPE):
            return _unlike(kinds[0], arguments, kinds, _are_comparable)
    return None


def _unlike(
    kind: str,
    arguments: Sequence[exp.Expr],
    kinds: Sequence[str],
    fit: Callable[[str, str], bool],
) -> Misfit | None:
    """Return the first argument after `arguments[0]` whose type does not fit the type `kind`."""
    for argument, other in zip(arguments[1:], kinds[1:], strict=False):
        if not fit(kind, other):
            return Misfit(argument, f"a value like {kind}", _SAME_TYPE)
    return None


_SAME_TYPE = "Convert one of these arguments with CAST(... AS ...), or use another field."


def _accepted_by(node: exp.Expr) -> Sequence[Accepted | None]:
    name = aggregate_name(node)
    if (takes := ARGUMENTS.get(_SAME_ARGUMENTS.get(name, name))) is not None:
        return [_OF_TAKES[each] for each in takes]
    # In `CASE x WHEN y`, the value y is compared with x.
    if (
        isinstance(node, exp.If)
        and isinstance(node.parent, exp.Case)
        and node.parent.this is not None
    ):
        return ()
    if isinstance(node, exp.Filter):
        return (CONDITION,)
    return TABLE.get(rule_key(node), ())


def _head(kind: str) -> str:
    """Return a type without its digits, elements or fields, such as `DECIMAL` or `ARRAY`."""
    return re.split(r"[(<]", kind, maxsplit=1)[0]


def _are_comparable(kind: str, other: str) -> bool:
    """Return whether Spark can compare values of these types; true if a type is unknown."""
    heads = {_head(kind), _head(other)}
    return _are_alike(kind, other) or ("STRING" in heads and not heads & _NESTED)


def _are_both_lists_or_texts(kind: str, other: str) -> bool:
    heads = {_head(kind), _head(other)}
    return not heads <= _KNOWN or "ARRAY" not in heads or len(heads) == 1


def _are_alike(kind: str, other: str) -> bool:
    """Return whether two types have a common type in Spark without converting a text.

    True if a type is unknown.
    """
    heads = {_head(kind), _head(other)}
    return not heads <= _KNOWN or len(heads) == 1 or heads <= _NUMBERS or heads <= _TIMES


def _second_summand(node: exp.Expr, heads: Sequence[str]) -> tuple[str, str] | None:
    """Describe the types that the second summand must have, with advice.

    Return None if Spark can add or subtract values of these types.
    """
    if len(heads) != 2 or not {*heads} <= _KNOWN:
        return None
    if heads[0] == heads[1] == "STRING":
        return "a number", "To join texts, write concat(a, b)."
    if {*heads} <= _TIMES and isinstance(node, exp.Add | exp.SafeAdd):
        return "an interval", "Write a - b for the time between two times."
    if "TIMESTAMP" in heads and {*heads} & _NUMBERS:
        return "an interval", "Write for example at + INTERVAL 1 HOUR."
    return None
