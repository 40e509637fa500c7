"""Rules for Spark SQL's operators and functions: each result's type, and whether it can fail.

For arguments of certain types, a rule gives the type of the result, and the types to which Spark
converts the arguments. It also tells whether a record's values can make the function fail, and
gives the reason for the dead letter. `sql.arrow_evaluation` has the functions that compute rules
with Arrow. Functions without a rule for the types of their arguments are computed by Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from sqlglot import exp

from sluice.sql.dialect import GIVEN, text_of, tree_of
from sluice.sql.types import (
    VOID,
    common_type,
    decimal,
    declared,
    digits,
    is_decimal,
    is_exact,
    is_integer,
    is_number,
    known_types,
    wide_decimal,
)
from sluice.values import row_order
from sluice.values.sql_text import struct_json, value_json, value_of_json
from sluice.values.sql_types import (
    MOST_DIGITS,
    average_digits,
    canonical,
    element_type,
    map_key_type,
    map_value_type,
    precision_and_scale,
    struct_fields,
    struct_type,
    sum_digits,
)

Kinds: TypeAlias = tuple[str, ...]
"""The types of a function's arguments; an empty text for an argument of an unknown type."""


@dataclass(frozen=True)
class Signature:
    """The signature of a function for arguments of certain types."""

    type: str = ""
    """The Spark SQL type of the result; an empty text if the type is unknown."""
    operands: Kinds | None = None
    """The types to which the arguments are converted; None if only Spark computes the function for
    these arguments."""
    fails: bool = False
    """Whether a record's values can make the function fail, or give NaN or infinity."""
    problem: str = ""
    """The part of the expression that only Spark computes; empty if only Spark computes all of
    it."""


Resolve: TypeAlias = Callable[[exp.Expr, Kinds], Signature]
Order: TypeAlias = Literal["until null", "backwards", "from divisor", "all"]
"""Which arguments Spark computes for a row:

- "until null": in order, up to the first argument that is null,
- "backwards": in reverse order, from the last argument down to the first that is null,
- "from divisor": like "backwards", but an argument that is 0 also ends it, or
- "all": all arguments.
"""


@dataclass(frozen=True)
class Rule:
    """The rule for a function. If the function fails, the record's error starts with `reason`."""

    resolve: Resolve
    reason: str = ""
    arguments: Callable[[exp.Expr], Sequence[exp.Expr]] = field(
        default=lambda node: _arguments_of(node)
    )
    order: Order = "until null"


def _arguments_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of a function, in their usual order."""
    arguments: list[exp.Expr] = []
    for name in node.arg_types:
        value = node.args.get(name)
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, exp.Expr) and not isinstance(part, _NO_ARGUMENTS):
                arguments.append(part)
    return arguments


_NO_ARGUMENTS = exp.DataType | exp.Var | exp.Identifier


def rule_of(node: exp.Expr) -> Rule:
    """Return the rule for a node. A function that has no rule may fail, and its type is unknown."""
    rule = RULES.get(rule_key(node))
    if rule is not None:
        return rule
    if isinstance(node, exp.Func):
        return _UNKNOWN
    return _UNKNOWN_PART


def reason_of(node: exp.Expr) -> str:
    """Return the text that starts a record's error if the node fails; empty if it never fails."""
    is_tried = isinstance(node, exp.Cast) and node.args.get("safe")
    if is_tried:
        return ""
    return rule_of(node).reason


def rule_key(node: exp.Expr) -> RuleKey:
    """Return a node's key in the table: its class, or the name of a function unknown to sqlglot."""
    if isinstance(node, exp.Anonymous):
        name = str(node.name).lower()
        if re.fullmatch(r"python_\d+", name):
            return PYTHON
        return name
    if isinstance(node, exp.Cast):
        return exp.Cast
    return type(node)


RuleKey: TypeAlias = "type[exp.Expr] | str"
PYTHON = "(a Python function of the author)"
"""The key of the planner's calls of Python functions."""
PYTHON_RESULT = (
    "STRUCT<key: STRING, value: STRING, items: ARRAY<STRUCT<key: STRING, value: STRING>>, "
    "error: STRING>"
)


def _kinds_if(is_known: bool, kinds: Kinds) -> Kinds | None:
    """Return the types of the operands, or None if only Spark computes the function."""
    if is_known:
        return kinds
    return None


def _if_known(result: str, operands: Kinds, *, is_known: bool) -> Signature:
    """Return the signature of a function that Arrow computes if `is_known`.

    If not, only Spark computes the function, and it may fail.
    """
    if is_known:
        return Signature(result, operands)
    return Signature(result, None, fails=True)


def _of_pair(kind: str, *, fails: bool) -> Signature:
    """Return the signature of a function whose two arguments and whose result have one type.

    An empty type is unknown.
    """
    if not kind:
        return Signature(fails=fails)
    return Signature(kind, (kind, kind), fails)


def _always(result: str, *operands: str, fails: bool = False, of_any: bool = False) -> Resolve:
    """Return the `Resolve` of a function whose result has the type `result`.

    Its arguments are converted to `operands`.

    `of_any`: the function also takes values of all other types, and converting them cannot fail.
    """

    def resolve(node: exp.Expr, kinds: Kinds) -> Signature:
        fit = len(kinds) <= len(operands) and all(map(_fits, kinds, operands))
        converted = _kinds_if(fit, operands[: len(kinds)])
        return Signature(result, converted, fails or not (fit or of_any))

    return resolve


def _only_spark(result: str) -> Resolve:
    """Return the `Resolve` of a function that only Spark computes, and that may fail."""
    return lambda node, kinds: Signature(result, None, fails=True)


def _exactly(result: str, *allowed: Kinds) -> Resolve:
    """Return the `Resolve` of a function of arguments of exactly these types.

    For other types, only Spark knows whether the function fails.
    """

    def resolve(node: exp.Expr, kinds: Kinds) -> Signature:
        return _if_known(result, kinds, is_known=kinds in allowed)

    return resolve


def _fits(kind: str, operand: str) -> bool:
    """Return whether Spark converts a value of type `kind` to type `operand` without a loss."""
    return kind == operand or common_type((kind, operand)) == operand


# -- Columns, literals, conditions


def _nothing(node: exp.Expr, kinds: Kinds) -> Signature:
    return Signature()


def _unknown(node: exp.Expr, kinds: Kinds) -> Signature:
    return Signature(fails=True)


def _same(node: exp.Expr, kinds: Kinds) -> Signature:
    return Signature(kinds[0], kinds)


def _literal(node: exp.Expr, kinds: Kinds) -> Signature:
    of = _literal_type(node)
    # Spark rejects a number with more digits than a decimal can have.
    is_too_long = is_decimal(of) and precision_and_scale(of)[0] > MOST_DIGITS
    if not of or is_too_long:
        return Signature(of)
    return Signature(of, ())


def _literal_type(node: exp.Expr) -> str:
    if node.is_string:
        return "STRING"
    text = node.name
    if re.fullmatch(r"\d+", text):
        if int(text) < 2**31:
            return "INT"
        if int(text) < 2**63:
            return "BIGINT"
        return f"DECIMAL({len(text)},0)"
    if match := re.fullmatch(r"(\d*)\.(\d*)", text):
        whole, decimals = match[1].lstrip("0"), match[2]
        return f"DECIMAL({max(1, len(whole) + len(decimals))},{len(decimals)})"
    if re.fullmatch(r"(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text):
        return "DOUBLE"
    return ""


def _conditions(node: exp.Expr, kinds: Kinds) -> Signature:
    if set(kinds) == {"BOOLEAN"}:
        return Signature("BOOLEAN", kinds)
    return Signature("BOOLEAN")


def _is_null(node: exp.Expr, kinds: Kinds) -> Signature:
    if isinstance(node.expression, exp.Null) and kinds[0]:
        return Signature("BOOLEAN", kinds)
    return Signature("BOOLEAN")


_COMPARABLE = ("STRING", "BOOLEAN", "TIMESTAMP", "DATE", "DOUBLE")


def _comparison(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a comparison: of numbers, or of two values of the same type.

    Spark compares a text with a number by casting the text to a number, which can fail.
    """
    different = known_types(kinds)
    fails = "" in different or not (len(different) <= 1 or all(map(is_number, different)))
    kind = _comparison_type(different)
    # If IN has more than ten options, Spark puts them into a set, in which 0.0 and -0.0 are
    # different.
    is_in_doubles = isinstance(node, exp.In) and kind == "DOUBLE"
    is_comparable = kind in _COMPARABLE or is_exact(kind)
    if not is_comparable or is_in_doubles:
        return Signature("BOOLEAN", None, fails)
    # If IN has no listed options, it has UNNEST(...) or a query, which only Spark computes.
    if isinstance(node, exp.In) and not node.expressions:
        return Signature("BOOLEAN", None, fails=True)
    return Signature("BOOLEAN", (kind,) * len(kinds), fails)


def _comparison_type(kinds: list[str]) -> str:
    """Return the type to which compared values are converted.

    If all compared values are exact numbers, the type can hold each of them.
    """
    if len(kinds) > 1 and all(map(is_exact, kinds)) and not all(map(is_integer, kinds)):
        precision, scale = wide_decimal(map(_fewest_digits, kinds))
        if precision <= MOST_DIGITS:
            return f"DECIMAL({precision},{scale})"
        return ""
    return common_type(kinds)


def _fewest_digits(kind: str) -> tuple[int, int]:
    """Return the precision and scale of the smallest decimal that holds all numbers of a type."""
    # Spark's decimal for a BIGINT has 20 digits, but the largest BIGINT has only 19 digits.
    if kind == "BIGINT":
        return (19, 0)
    return digits(kind)


def _choice(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a function that returns one of several values.

    The result has the common type of the values.
    """
    kind = "" if "" in kinds else common_type(kinds)
    if kind in ("", VOID):
        return Signature(kind, None, fails=not kind)
    return Signature(kind, (kind,) * len(kinds))


def _extreme(node: exp.Expr, kinds: Kinds) -> Signature:
    choice = _choice(node, kinds)
    is_ordered = choice.type in _COMPARABLE or is_exact(choice.type)
    if is_ordered and len(kinds) > 1:
        return choice
    return Signature(choice.type, None, choice.fails)


def _if(node: exp.Expr, kinds: Kinds) -> Signature:
    condition, *branches = kinds
    # A branch of CASE, or an IF without ELSE, gives null if the condition is not true.
    if len(branches) == 1:
        branches = [*branches, VOID]
    choice = _choice(node, tuple(branches))
    operands: Kinds | None = None
    if condition == "BOOLEAN" and choice.operands is not None:
        operands = ("BOOLEAN", *choice.operands)[: len(kinds)]
    return Signature(choice.type, operands, choice.fails)


def _case(node: exp.Expr, kinds: Kinds) -> Signature:
    count = len(kinds) // 2
    conditions, results = kinds[:count], kinds[count:]
    # CASE without ELSE gives null if no condition is true.
    has_else = len(results) > count
    all_results = (*results, VOID)
    if has_else:
        all_results = results
    choice = _choice(node, all_results)
    operands: Kinds | None = None
    if set(conditions) == {"BOOLEAN"} and choice.operands is not None:
        operands = (*conditions, *choice.operands[: len(results)])
    return Signature(choice.type, operands, choice.fails)


def _case_arguments(node: exp.Expr) -> list[exp.Expr]:
    branches, default = node.args["ifs"], node.args.get("default")
    conditions = [branch.this for branch in branches]
    results = [branch.args["true"] for branch in branches]
    return _present(node.this, *conditions, *results, default)


def _if_arguments(node: exp.Expr) -> list[exp.Expr]:
    return _present(node.this, node.args["true"], node.args.get("false"))


def _present(*parts: exp.Expr | None) -> list[exp.Expr]:
    return [part for part in parts if part is not None]


# -- Numbers


def _addition(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of an addition or a subtraction."""

    def of_decimals(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        scale = max(left[1], right[1])
        return max(left[0] - left[1], right[0] - right[1]) + scale + 1, scale

    return _arithmetic(node, kinds, of_decimals)


def _product(node: exp.Expr, kinds: Kinds) -> Signature:
    return _arithmetic(
        node,
        kinds,
        lambda left, right: (left[0] + right[0] + 1, left[1] + right[1]),
    )


def _arithmetic(
    node: exp.Expr,
    kinds: Kinds,
    of_decimals: Callable[[tuple[int, int], tuple[int, int]], tuple[int, int]],
) -> Signature:
    kind = _numbers(kinds)
    if not kind or not is_decimal(kind):
        # Integers can overflow, and doubles can become infinite.
        return _of_pair(kind, fails=True)
    left, right = _operands_digits(node, kinds)
    precision, scale = of_decimals(left, right)
    fits = precision <= MOST_DIGITS
    operands = _kinds_if(fits, (decimal(*left), decimal(*right)))
    return Signature(decimal(precision, scale), operands, fails=not fits)


def _numbers(kinds: Kinds) -> str:
    """Return the type with which an operation computes: DOUBLE, DECIMAL, BIGINT, INT or none."""
    if not all(map(is_number, kinds)):
        return ""
    if "DOUBLE" in kinds:
        return "DOUBLE"
    if any(map(is_decimal, kinds)):
        return "DECIMAL"
    return common_type(kinds)


def _operands_digits(node: exp.Expr, kinds: Kinds) -> list[tuple[int, int]]:
    """Return each argument's precision and scale.

    For an integer literal, count only the digits of its text.
    """
    pairs: list[tuple[int, int]] = []
    for argument, kind in zip(_arguments_of(node), kinds, strict=True):
        if isinstance(argument, exp.Literal) and is_integer(kind):
            pairs.append((len(argument.name), 0))
        else:
            pairs.append(digits(kind))
    return pairs


def _division(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _numbers(kinds)
    fails = not (is_integer(kind) and _is_not_zero(node.expression))
    if not kind:
        return Signature(fails=fails)
    if not is_decimal(kind):
        return _of_pair("DOUBLE", fails=fails)
    (p1, s1), (p2, s2) = _operands_digits(node, kinds)
    # As in Spark, a quotient of decimals has at least 6 digits after the point.
    scale = max(6, s1 + p2 + 1)
    quotient = decimal(p1 - s1 + s2 + scale, scale)
    return Signature(quotient, (decimal(p1, s1), decimal(p2, s2)), fails=True)


def _remainder(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _numbers(kinds)
    fails = not (is_integer(kind) and _is_not_zero(node.expression))
    if kind and is_decimal(kind):
        (p1, s1), (p2, s2) = _operands_digits(node, kinds)
        scale = max(s1, s2)
        return Signature(decimal(min(p1 - s1, p2 - s2) + scale, scale), None, fails=True)
    return _of_pair(kind, fails=fails)


def _modulus(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a remainder that has the divisor's sign.

    Arrow computes such remainders only of whole numbers, because Spark may round other numbers.
    """
    kind = ""
    if len(kinds) == 2:
        kind = _numbers(kinds)
    if not is_integer(kind):
        return Signature(fails=True)
    return Signature(kind, (kind, kind), fails=not _is_not_zero(_arguments_of(node)[-1]))


def _bits(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of an operation on the bits of whole numbers."""
    kind = common_type(kinds)
    if not is_integer(kind):
        return Signature(fails=True)
    return Signature(kind, (kind, kind))


def _shift(node: exp.Expr, kinds: Kinds) -> Signature:
    if is_integer(kinds[0]) and kinds[1] == "INT" and isinstance(node.expression, exp.Literal):
        return Signature(kinds[0], kinds)
    return Signature(fails=True)


def _integer_division(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _numbers(kinds)
    fails = not (is_integer(kind) and _is_not_zero(node.expression))
    if is_integer(kind):
        return _of_pair("BIGINT", fails=fails)
    if kind:
        return Signature("BIGINT", None, fails)
    return Signature(fails=fails)


def _is_not_zero(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and node.is_int and int(node.name) != 0


def _negative(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _number_of(kinds[0])
    if isinstance(node.this, exp.Literal):
        # Spark's parser takes the sign as a part of the number, so -2147483648 is an INT, although
        # 2147483648 is not.
        kind = {str(2**31): "INT", str(2**63): "BIGINT"}.get(node.this.name, kind)
    # Only Spark converts a text to a number.
    operands = _kinds_if(is_number(kinds[0]), (kind,))
    may_overflow = not isinstance(node.this, exp.Literal) and not _is_symmetric(kinds[0])
    return Signature(kind, operands, fails=may_overflow)


def _absolute(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _number_of(kinds[0])
    operands = _kinds_if(is_number(kinds[0]), kinds)
    return Signature(kind, operands, fails=not _is_symmetric(kinds[0]))


def _number_of(kind: str) -> str:
    """Return the number type to which Spark converts a number or a text; empty for other types."""
    if kind == "STRING":
        return "DOUBLE"
    return _if_number(kind)


def _if_number(kind: str) -> str:
    if is_number(kind):
        return kind
    return ""


def _is_symmetric(kind: str) -> bool:
    """Return whether the negative of each number of a type is also a number of the type."""
    return is_decimal(kind) or kind == "DOUBLE"


def _null_on_failure(resolve: Resolve) -> Resolve:
    """Return the rule of a `try_` function.

    Its result is null where the function without `try_` fails.
    """

    def resolve_or_null(node: exp.Expr, kinds: Kinds) -> Signature:
        signature = resolve(node, kinds)
        # `try_` does not prevent NaN and infinity. They cannot be written, so records with such
        # results still fail.
        fails = signature.operands is None or "DOUBLE" in (*signature.operands, signature.type)
        return Signature(signature.type, signature.operands, fails)

    return resolve_or_null


def _rounding(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of rounding to a number of decimal places.

    Doubles are rounded only by Spark, because it rounds the digits that Java writes.
    """
    places, kind = node.args.get("decimals"), kinds[0]
    number = None
    if places is None:
        number = 0
    elif isinstance(places, exp.Literal) and places.is_int:
        number = int(places.name)
    if number is None or not is_decimal(kind):
        return Signature(_if_number(kind), None, fails=True)
    precision, scale = precision_and_scale(kind)
    new_scale = min(scale, number)
    # Rounding up can add a digit, as from 9.99 to 10.0.
    new_precision = min(precision - scale + 1 + new_scale, MOST_DIGITS)
    return _if_known(
        decimal(new_precision, new_scale),
        (kind, *kinds[1:]),
        is_known=precision < MOST_DIGITS,
    )


def _floor_or_ceil(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of rounding up or down to a whole number."""
    kind = kinds[0]
    if len(kinds) > 1 or not is_number(kind):
        return Signature(fails=True)
    if is_decimal(kind):
        precision, scale = precision_and_scale(kind)
        fits = precision < MOST_DIGITS
        return _if_known(decimal(precision - scale + 1, 0), kinds, is_known=fits)
    return Signature("BIGINT", kinds)


# -- Casts

_TO_TEXT = ("STRING", "BOOLEAN", "INT", "BIGINT", "DATE", "TIMESTAMP")
_CASTS = {
    ("STRING", "INT"), ("STRING", "BIGINT"), ("STRING", "DOUBLE"), ("STRING", "DECIMAL"),
    ("STRING", "BOOLEAN"), ("STRING", "DATE"), ("INT", "BIGINT"), ("BIGINT", "INT"),
    ("INT", "DOUBLE"), ("BIGINT", "DOUBLE"), ("INT", "DECIMAL"), ("BIGINT", "DECIMAL"),
    ("DECIMAL", "INT"), ("DECIMAL", "BIGINT"), ("DECIMAL", "DECIMAL"), ("DECIMAL", "DOUBLE"),
    ("DOUBLE", "INT"), ("DOUBLE", "BIGINT"), ("BOOLEAN", "INT"), ("BOOLEAN", "BIGINT"),
    ("INT", "BOOLEAN"), ("BIGINT", "BOOLEAN"), ("TIMESTAMP", "DATE"), ("DATE", "TIMESTAMP"),
    ("TIMESTAMP", "BIGINT"), ("INT", "TIMESTAMP"), ("BIGINT", "TIMESTAMP"),
}  # fmt: skip
"""The casts that Arrow computes, besides casts to the same type and to STRING."""
_SAFE_CASTS = {
    ("INT", "BIGINT"), ("INT", "DOUBLE"), ("BIGINT", "DOUBLE"), ("DECIMAL", "DOUBLE"),
    ("BOOLEAN", "INT"), ("BOOLEAN", "BIGINT"), ("INT", "BOOLEAN"), ("BIGINT", "BOOLEAN"),
    ("TIMESTAMP", "DATE"), ("DATE", "TIMESTAMP"), ("TIMESTAMP", "BIGINT"), ("INT", "TIMESTAMP"),
}  # fmt: skip


def _cast(node: exp.Expr, kinds: Kinds) -> Signature:
    (of,), to = kinds, declared(node.args["to"])
    # Only Spark computes casts of NULL.
    if of == VOID:
        return Signature(to)
    is_tried = bool(node.args.get("safe"))
    if to == "STRING":
        is_known = of in _TO_TEXT or is_decimal(of)
        # Bytes that are not UTF-8 cannot become a text: see `fallible.with_utf8_checks`.
        fails = of in ("", "BINARY") and not is_tried
        return Signature(to, _kinds_if(is_known, kinds), fails)
    if isinstance(node.this, exp.Literal) and is_plain_time(node.this.name, to):
        return Signature(to, kinds)
    pair = _family(of), _family(to)
    fails = not (of == to != "" or pair in _SAFE_CASTS or _is_widening(of, to))
    if is_tried:
        # TRY_CAST accepts the texts NaN and Infinity, which then cannot be written.
        fails = fails and to in ("DOUBLE", "FLOAT")
    is_known = of == to or pair in _CASTS
    return Signature(to, _kinds_if(is_known, kinds), fails)


def is_plain_time(text: str, kind: str) -> bool:
    """Return whether a text is a date, or a time in UTC such as `2026-11-21 08:00:00`."""
    if _PLAIN_TIMES.get(kind) is None or not re.fullmatch(_PLAIN_TIMES[kind], text):
        return False
    try:
        return datetime.fromisoformat(text) is not None
    # The text has the form of a date but is not a date, such as February 30.
    except ValueError:
        return False


_PLAIN_TIMES = {
    "DATE": r"\d{4}-\d\d-\d\d",
    "TIMESTAMP": r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{6})?)?",
}


def _family(kind: str) -> str:
    return "DECIMAL" if is_decimal(kind) else kind


def _is_widening(of: str, to: str) -> bool:
    """Return whether the decimal type `to` can hold each number of the type `of`."""
    if not is_exact(of) or not is_decimal(to):
        return False
    (of_precision, of_scale), (precision, scale) = digits(of), precision_and_scale(to)
    # Spark's decimal for a BIGINT has 20 digits, but the largest BIGINT has only 19 digits.
    if of == "BIGINT":
        of_precision = 19
    return of_scale <= scale and of_precision - of_scale <= precision - scale


# -- Objects, lists, JSON


def _struct(node: exp.Expr, kinds: Kinds) -> Signature:
    names = field_names(node)
    is_known = bool(names) and len(names) == len({name.lower() for name in names})
    if not is_known or "" in kinds or VOID in kinds:
        return Signature()
    return Signature(struct_type(dict(zip(names, kinds, strict=True))), kinds)


def field_names(node: exp.Expr) -> list[str]:
    """Return Spark's names of the fields of `struct`, `(a, b)`, `named_struct` or `arrays_zip`."""
    names: list[str] = []
    for number, part in enumerate(node.expressions):
        if isinstance(node, exp.ArraysZip):
            unnamed = str(number)
        else:
            unnamed = f"col{number + 1}"
        names.append(_field_name(part) or unnamed)
    return names


def _field_name(node: exp.Expr) -> str:
    """Return a field's name: after AS, or a path's last part; empty for other expressions."""
    match node.unnest():
        case exp.PropertyEQ() as named:
            # sqlglot numbers the fields that have no name. Unlike names, these numbers have no
            # position in the text.
            is_name = not named.this.meta.keys().isdisjoint(("start", GIVEN))
            if is_name:
                return named.name
            return _field_name(named.expression)
        case exp.Alias() as named:
            return str(named.alias)
        case exp.Column() as path:
            return path.parts[-1].name
        case exp.Dot() as path:
            return str(path.expression.name)
        case exp.Bracket(expressions=[exp.Literal(is_string=True) as key]):
            return str(key.name)
    return ""


def _struct_arguments(node: exp.Expr) -> list[exp.Expr]:
    values: list[exp.Expr] = []
    for part in node.expressions:
        values.append(part.expression if isinstance(part, exp.PropertyEQ) else part)
    return values


def _field(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = struct_fields(kinds[0]).get(node.expression.name)
    if kind is None:
        return Signature()
    return Signature(kind, _kinds_if(kind != "", kinds))


def _size(node: exp.Expr, kinds: Kinds) -> Signature:
    is_known = bool(element_type(kinds[0]) or map_value_type(kinds[0]))
    return _if_known("INT", kinds, is_known=is_known)


def _element(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of `x[y]`. It fails if a list lacks the index; a map gives null."""
    if len(kinds) != 2:
        return Signature(fails=True)
    of, by = kinds
    if element := element_type(of):
        return Signature(element, _kinds_if(by == "INT", kinds), fails=True)
    is_known = bool(map_value_type(of)) and by == map_key_type(of) == "STRING"
    return _if_known(map_value_type(of), kinds, is_known=is_known)


def _array_contains(node: exp.Expr, kinds: Kinds) -> Signature:
    of, value = kinds
    is_known = (
        element_type(of) == value
        and (value in _COMPARABLE or is_exact(value))
        and value != "DOUBLE"
    )
    return _if_known("BOOLEAN", kinds, is_known=is_known)


def _map_part(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of the keys or the values of a map."""
    if isinstance(node, exp.MapKeys):
        of = map_key_type(kinds[0])
    else:
        of = map_value_type(kinds[0])
    if not of:
        return Signature(fails=True)
    return Signature(f"ARRAY<{of}>", kinds)


def _array(node: exp.Expr, kinds: Kinds) -> Signature:
    choice = _choice(node, kinds)
    if not choice.operands:
        return Signature("", None, choice.fails)
    return Signature(f"ARRAY<{choice.type}>", choice.operands, choice.fails)


_JSON_OPTIONS = tree_of(struct_json("x")).args["options"]


def _json_text(node: exp.Expr, kinds: Kinds) -> Signature:
    # If `to_json` has other options, only Spark can write its texts.
    is_known = node.args.get("options") == _JSON_OPTIONS and bool(struct_fields(kinds[0]))
    if not is_known:
        return Signature("STRING", None, fails=True)
    problem = json_problem(kinds[0])
    operands = _kinds_if(not problem, kinds)
    return Signature("STRING", operands, fails=True, problem=problem)


def json_problem(kind: str) -> str:
    """Return why only Spark can write the JSON of a type; an empty text if Arrow can."""
    if parts := _parts_of(kind):
        return next(filter(None, map(json_problem, parts)), "")
    if kind in _IN_JSON or is_decimal(kind):
        return ""
    return f"the JSON of {kind or 'an unknown type'}"


def key_problem(kind: str) -> str:
    """Return why only Spark can make the texts of keys of a type.

    Return an empty text if Arrow can make them.
    """
    if json_problem(kind):
        return f"a key of type {kind or 'that is unknown'}"
    names = [name.lower() for name in struct_fields(kind)]
    if len(set(names)) < len(names):
        return f"a key of type {kind}"
    return next(filter(None, map(key_problem, _parts_of(kind))), "")


def _parts_of(kind: str) -> list[str]:
    """Return the types of the parts of an object, list or map.

    Return an empty type for a map whose keys are not texts.
    """
    if fields := struct_fields(kind):
        return list(fields.values())
    if element := element_type(kind):
        return [element]
    of_values = map_value_type(kind)
    if not of_values:
        return []
    if map_key_type(kind) == "STRING":
        return [of_values]
    return [""]


_IN_JSON = ("STRING", "BOOLEAN", "INT", "BIGINT", "DOUBLE", "TIMESTAMP", "DATE", "BINARY")


def _from_json(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature for reading JSON that Sluice has written.

    Only Spark reads the JSON of other programs.
    """
    kind = ""
    if isinstance(node.expression, exp.Literal):
        kind = canonical(node.expression.name)
    is_known = (
        kinds == ("STRING",) and node.args.get("options") == _WRITTEN and bool(struct_fields(kind))
    )
    if is_known:
        return Signature(kind, kinds)
    return Signature(fails=True)


_WRITTEN = tree_of(value_of_json("x", "a INT")).args["options"]


def json_of(node: exp.Substring) -> exp.Expr | None:
    """Return the value in a call of `substring` made with `value_json`; None for any other call."""
    try:
        value = node.this.this.expressions[0].expression
    except (AttributeError, IndexError):
        return None
    if isinstance(value, exp.Expr) and node == tree_of(value_json(text_of(value))):
        return value
    return None


# -- Texts


def _concat(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a concatenation, which turns values of other types into texts.

    Spark also concatenates bytes and arrays.
    """
    if set(kinds) == {"BINARY"}:
        return Signature("BINARY", kinds)
    # Values of unknown types may be bytes or arrays.
    if any(kind.startswith("ARRAY") for kind in kinds) or set(kinds) <= {"", "BINARY", VOID}:
        return Signature()
    if all(map(_has_same_text, kinds)):
        return Signature("STRING", ("STRING",) * len(kinds))
    return Signature("STRING")


def _reverse(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of REVERSE, which turns a value of another type into a text.

    Spark also reverses lists.
    """
    is_known = kinds == ("STRING",)
    kind = "" if kinds[0].startswith("ARRAY") else _text_or_bytes(kinds)
    return _if_known(kind, kinds, is_known=is_known)


_SAME_TEXT = ("STRING", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types, besides integers and decimals, whose values Arrow and Spark write as the same text."""


def _has_same_text(kind: str) -> bool:
    """Return whether Arrow and Spark write values of this type as the same text."""
    return is_integer(kind) or is_decimal(kind) or kind in _SAME_TEXT


def _like(node: exp.Expr, kinds: Kinds) -> Signature:
    is_known = isinstance(node.expression, exp.Literal) and "\\" not in node.expression.name
    are_texts = set(kinds) == {"STRING"}
    return Signature("BOOLEAN", _kinds_if(is_known and are_texts, kinds), fails=not is_known)


def _of_text(result: str, *operands: str) -> Resolve:
    """Return the `Resolve` of a function of a text.

    The function's other arguments are constants of the types `operands`, and not null.
    """

    def resolve(node: exp.Expr, kinds: Kinds) -> Signature:
        others = _arguments_of(node)[1:]
        are_constant = all(isinstance(other, exp.Literal) for other in others)
        are_known = are_constant and kinds == ("STRING", *operands)[: len(kinds)]
        return _if_known(result, kinds, is_known=are_known)

    return resolve


def _position_arguments(node: exp.Expr) -> list[exp.Expr]:
    return _present(node.this, node.args.get("substr"), node.args.get("position"))


def _substring(node: exp.Expr, kinds: Kinds) -> Signature:
    is_known = kinds in (("STRING", "INT"), ("STRING", "INT", "INT"))
    return _if_known(_text_or_bytes(kinds), kinds, is_known=is_known)


def _first_characters(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of the first characters of a text, or the first bytes of bytes."""
    signature = _always("STRING", "STRING", "INT")(node, kinds)
    return Signature(_text_or_bytes(kinds), signature.operands, signature.fails)


def _text_or_bytes(kinds: Kinds) -> str:
    """Return the type of a part of a value: bytes from bytes, text from all other values."""
    if kinds[0] not in ("", "BINARY"):
        return "STRING"
    return kinds[0]


def _trim(node: exp.Expr, kinds: Kinds) -> Signature:
    characters = node.args.get("expression")
    is_known = characters is None or (isinstance(characters, exp.Literal) and characters.name != "")
    return Signature("STRING", _kinds_if(is_known and set(kinds) == {"STRING"}, kinds))


def _concat_ws(node: exp.Expr, kinds: Kinds) -> Signature:
    is_known = len(kinds) > 1 and set(kinds) == {"STRING"}
    return _if_known("STRING", kinds, is_known=is_known)


def _replace(node: exp.Expr, kinds: Kinds) -> Signature:
    signature = _of_text("STRING", "STRING", "STRING")(node, kinds)
    if signature.operands and node.expression.name:
        return signature
    return Signature("STRING", None, fails=signature.fails)


def _regexp_like(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a match with a pattern, if Arrow and Java understand it alike."""
    signature = _of_text("BOOLEAN", "STRING")(node, kinds)
    if signature.operands is None or not _is_common_pattern(node.expression.name):
        # Java may reject the regular expression.
        return Signature("BOOLEAN", None, fails=True)
    has_flag = isinstance(node.args.get("flag"), exp.Expr)
    if has_flag:
        return Signature("BOOLEAN")
    return signature


def _split(node: exp.Expr, kinds: Kinds) -> Signature:
    signature = _of_text("ARRAY<STRING>", "STRING")(node, kinds)
    pattern = ""
    if signature.operands:
        pattern = node.expression.name
    is_known = (
        bool(signature.operands)
        and len(kinds) == 2
        and (pattern == " +" or is_plain_pattern(pattern))
    )
    if is_known:
        return signature
    return Signature("ARRAY<STRING>", None, fails=True)


_SIGNS = r"\\[\\.\[\](){}*+?^$|/-]"
"""A pattern for an escaped character that stands for itself."""
_ONE = (
    rf"(?:[^\\.\[\](){{}}*+?^$|]|{_SIGNS}|\\d|\\w|"
    rf"\[\^?(?:[^\\\[\]^&-]|{_SIGNS}|\\d|\\w|[A-Za-z0-9]-[A-Za-z0-9])+\])"
)
_COMMON = re.compile(rf"\^?(?:{_ONE}(?:[*+?]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}})?)*\$?")


def _is_common_pattern(pattern: str) -> bool:
    """Return whether a regular expression has only parts that mean the same for Java and for Arrow.

    `$` counts as such a part, because `arrow_texts.matches` translates Java's `$` for Arrow.
    """
    return _COMMON.fullmatch(pattern) is not None and pattern.isascii()


def is_plain_pattern(pattern: str) -> bool:
    """Return whether a regular expression is plain: it matches only one text."""
    return re.fullmatch(rf"(?:[^\\.\[\](){{}}*+?^$|]|{_SIGNS})+", pattern) is not None


def plain_pattern(pattern: str) -> str:
    """Return the text that a plain regular expression matches."""
    return re.sub(r"\\(.)", r"\1", pattern)


# -- Times


_PART_OF_TIME = _exactly("INT", ("DATE",), ("TIMESTAMP",))
_TIME_OF_DAY = _exactly("INT", ("TIMESTAMP",))


def _to_day(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a cast to DATE. sqlglot adds such casts to functions of dates."""
    is_known = kinds in (("DATE",), ("TIMESTAMP",), ("STRING",)) and node.args.get("format") is None
    # The cast of a text that is not a date fails.
    fails = not is_known or kinds == ("STRING",)
    return Signature("DATE", _kinds_if(is_known, kinds), fails)


_UNITS = frozenset({
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND",
    "MICROSECOND",
})  # fmt: skip


def _truncation(node: exp.Expr, kinds: Kinds) -> Signature:
    is_known = kinds == ("TIMESTAMP",) and node.args["unit"].name.upper() in _UNITS
    return _if_known("TIMESTAMP", kinds, is_known=is_known)


def _days_added(node: exp.Expr, kinds: Kinds) -> Signature:
    # sqlglot turns `date_sub` into an addition of `days * -1`. Constant days are then an
    # expression, not a literal.
    is_constant = node.expression.find(exp.Column) is None
    is_known = kinds == ("DATE", "INT") and node.args["unit"].name.upper() == "DAY" and is_constant
    return _if_known("DATE", kinds, is_known=is_known)


def _date_format(node: exp.Expr, kinds: Kinds) -> Signature:
    """Return the signature of a function that writes a time in a format without locale."""
    pattern = None
    if len(kinds) == 2:
        pattern = node.expressions[1]
    is_known = isinstance(pattern, exp.Literal) and _FORMAT.fullmatch(pattern.name) is not None
    usable = is_known and kinds in (("TIMESTAMP", "STRING"), ("DATE", "STRING"))
    return _if_known("STRING", kinds, is_known=usable)


_FORMAT = re.compile(r"(?:yyyy|MM|dd|HH|mm|ss|[-/:., ]|'[A-Za-z]+')+")


def _difference(node: exp.Expr, kinds: Kinds) -> Signature:
    signature = _exactly("INT", ("DATE", "DATE"))(node, kinds)
    if node.args.get("unit") is None:
        return signature
    return Signature(fails=True)


def _digest(node: exp.Expr, kinds: Kinds) -> Signature:
    length = node.args.get("length")
    # For all other lengths, Spark's sha2 returns null. The length 0 means 256.
    is_usual = length is None or length.name in ("0", "224", "256", "384", "512")
    is_known = kinds[0] in ("STRING", "BINARY") and is_usual
    return _if_known("STRING", kinds, is_known=is_known)


# -- Aggregates: this table has only their types


def _sum(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _first_kind(kinds)
    if is_decimal(kind):
        kind = decimal(*sum_digits(*precision_and_scale(kind)))
    result = "BIGINT" if kind == "INT" else _number_of(kind)
    return Signature(result, fails=True)


def _average(node: exp.Expr, kinds: Kinds) -> Signature:
    kind = _first_kind(kinds)
    if is_decimal(kind):
        kind = decimal(*average_digits(*precision_and_scale(kind)))
        return Signature(kind, fails=True)
    if not kind:
        return Signature(fails=True)
    return Signature("DOUBLE", fails=True)


def _same_as_first(node: exp.Expr, kinds: Kinds) -> Signature:
    return Signature(_first_kind(kinds), fails=True)


def _filter(node: exp.Expr, kinds: Kinds) -> Signature:
    return Signature(_first_kind(kinds))


def _first_kind(kinds: Kinds) -> str:
    """Return the type of the first argument; an empty text for a function without arguments."""
    if kinds:
        return kinds[0]
    return ""


def _array_compact(node: exp.Expr, kinds: Kinds) -> Signature:
    is_list = bool(element_type(kinds[0]))
    return Signature(kinds[0], _kinds_if(is_list, kinds))


def path_element(node: exp.Expr) -> exp.Expr | None:
    """Return the `position` in SQL that `row_order.element_sql` has made.

    Return None for any other expression.
    """
    try:
        position: object = node.this.this.this.this
    except AttributeError:
        return None
    # In other expressions, this may be the name of a column, as a text.
    if not isinstance(position, exp.Expr):
        return None
    if node == tree_of(row_order.element_sql(text_of(position))):
        return position
    return None


_UNKNOWN = Rule(_unknown, "NO_RESULT")
_UNKNOWN_PART = Rule(_unknown)
_NEVER = Rule(_nothing)
_OVERFLOW = "ARITHMETIC_OVERFLOW"
_COMPARISON = "CAST_INVALID_INPUT"

RULES: dict[RuleKey, Rule] = {
    # Parts of other nodes
    exp.Identifier: _NEVER,
    exp.Star: _NEVER,
    exp.DataType: _NEVER,
    exp.DataTypeParam: _NEVER,
    exp.Var: _NEVER,
    exp.PropertyEQ: _NEVER,
    # The variables in the body of a lambda have types that only Spark knows.
    exp.Lambda: Rule(_unknown, arguments=lambda node: ()),
    # Literals and conditions
    exp.Column: Rule(_nothing, arguments=lambda node: ()),
    exp.Literal: Rule(_literal),
    exp.Null: Rule(lambda node, kinds: Signature(VOID, ())),
    exp.Boolean: Rule(lambda node, kinds: Signature("BOOLEAN", ())),
    exp.Paren: Rule(_same),
    exp.And: Rule(_conditions),
    exp.Or: Rule(_conditions),
    exp.Not: Rule(_conditions),
    exp.Is: Rule(_is_null),
    exp.EQ: Rule(_comparison, _COMPARISON),
    exp.NEQ: Rule(_comparison, _COMPARISON),
    exp.GT: Rule(_comparison, _COMPARISON),
    exp.GTE: Rule(_comparison, _COMPARISON),
    exp.LT: Rule(_comparison, _COMPARISON),
    exp.LTE: Rule(_comparison, _COMPARISON),
    exp.NullSafeEQ: Rule(_comparison, _COMPARISON, order="all"),
    exp.In: Rule(_comparison, _COMPARISON),
    exp.Between: Rule(_comparison, _COMPARISON),
    exp.If: Rule(_if, "CAST_INVALID_INPUT", _if_arguments),
    exp.Case: Rule(_case, "CAST_INVALID_INPUT", _case_arguments),
    exp.Coalesce: Rule(_choice, "CAST_INVALID_INPUT"),
    exp.Greatest: Rule(_extreme, "NO_RESULT", order="all"),
    exp.Least: Rule(_extreme, "NO_RESULT", order="all"),
    # Numbers
    exp.Add: Rule(_addition, _OVERFLOW),
    exp.Sub: Rule(_addition, _OVERFLOW),
    exp.Mul: Rule(_product, _OVERFLOW),
    exp.Div: Rule(_division, _OVERFLOW, order="backwards"),
    exp.Mod: Rule(_remainder, _OVERFLOW, order="backwards"),
    exp.IntDiv: Rule(_integer_division, _OVERFLOW, order="backwards"),
    exp.Neg: Rule(_negative, _OVERFLOW),
    exp.Abs: Rule(_absolute, _OVERFLOW),
    exp.SafeAdd: Rule(_null_on_failure(_addition), "NO_RESULT"),
    exp.SafeSubtract: Rule(_null_on_failure(_addition), "NO_RESULT"),
    exp.SafeMultiply: Rule(_null_on_failure(_product), "NO_RESULT"),
    exp.SafeDivide: Rule(_null_on_failure(_division), "NO_RESULT", order="from divisor"),
    exp.Round: Rule(_rounding, "NO_RESULT"),
    exp.Floor: Rule(_floor_or_ceil, "NO_RESULT"),
    exp.Ceil: Rule(_floor_or_ceil, "NO_RESULT"),
    exp.Sqrt: Rule(_always("DOUBLE", "DOUBLE", fails=True), "NO_RESULT"),
    exp.BitwiseAnd: Rule(_bits),
    exp.BitwiseOr: Rule(_bits),
    exp.BitwiseXor: Rule(_bits),
    exp.BitwiseRightShift: Rule(_shift, "NO_RESULT"),
    exp.BitwiseLeftShift: Rule(_shift, "NO_RESULT"),
    "pmod": Rule(_modulus, "DIVIDE_BY_ZERO", order="backwards"),
    # Casts
    exp.Cast: Rule(_cast, "CAST_INVALID_INPUT"),
    "validate_utf8": Rule(_unknown, "NOT_UTF8"),
    # Objects, lists, JSON
    exp.Struct: Rule(_struct, arguments=_struct_arguments, order="all"),
    exp.Dot: Rule(_field, arguments=lambda node: (node.this,)),
    exp.Array: Rule(_array, "NO_RESULT", order="all"),
    exp.ArrayCompact: Rule(_array_compact, "NO_RESULT"),
    exp.Bracket: Rule(_element, "INVALID_ARRAY_INDEX"),
    exp.ArraySize: Rule(_size, "NO_RESULT"),
    exp.ArrayContains: Rule(_array_contains, "NO_RESULT"),
    exp.ArrayToString: Rule(_exactly("STRING", ("ARRAY<STRING>", "STRING")), "NO_RESULT"),
    exp.MapKeys: Rule(_map_part, "NO_RESULT"),
    "map_values": Rule(_map_part, "NO_RESULT"),
    exp.FromJson: Rule(_from_json, "NO_RESULT", arguments=lambda node: (node.this,)),
    PYTHON: Rule(_exactly(PYTHON_RESULT, ("BOOLEAN", "STRING", "STRING"))),
    exp.JSONFormat: Rule(_json_text, "NO_RESULT", arguments=lambda node: (node.this,)),
    exp.Substring: Rule(_substring, "NO_RESULT"),
    "get_json_object": Rule(_only_spark("STRING"), "NO_RESULT"),
    # Texts
    exp.HexString: Rule(lambda node, kinds: Signature("BINARY", ())),
    exp.Upper: Rule(_always("STRING", "STRING", of_any=True)),
    exp.Lower: Rule(_always("STRING", "STRING", of_any=True)),
    exp.Trim: Rule(_trim),
    exp.Length: Rule(_always("INT", "STRING", of_any=True)),
    exp.Reverse: Rule(_reverse, "NO_RESULT"),
    exp.Left: Rule(_first_characters, "NO_RESULT"),
    exp.Right: Rule(_always("STRING", "STRING", "INT"), "NO_RESULT"),
    exp.Pad: Rule(_of_text("STRING", "INT", "STRING"), "NO_RESULT"),
    exp.Repeat: Rule(_of_text("STRING", "INT"), "NO_RESULT"),
    exp.ConcatWs: Rule(_concat_ws, "NO_RESULT", order="all"),
    exp.Replace: Rule(_replace, "NO_RESULT"),
    exp.RegexpLike: Rule(_regexp_like, "NO_RESULT"),
    exp.RegexpSplit: Rule(_split, "NO_RESULT"),
    exp.StrPosition: Rule(_exactly("INT", ("STRING", "STRING")), "NO_RESULT", _position_arguments),
    exp.StartsWith: Rule(_always("BOOLEAN", "STRING", "STRING"), "NO_RESULT"),
    exp.EndsWith: Rule(_always("BOOLEAN", "STRING", "STRING"), "NO_RESULT"),
    exp.Contains: Rule(_always("BOOLEAN", "STRING", "STRING"), "NO_RESULT"),
    exp.Hex: Rule(_exactly("STRING", ("INT",), ("BIGINT",)), "NO_RESULT"),
    exp.Unhex: Rule(_always("BINARY", "STRING"), "NO_RESULT"),
    exp.MD5: Rule(_digest, "NO_RESULT"),
    exp.SHA2: Rule(_digest, "NO_RESULT", lambda node: (node.this,)),
    exp.SHA: Rule(_digest, "NO_RESULT"),
    # Times
    exp.Year: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.Month: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.Day: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.DayOfMonth: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.DayOfYear: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.DayOfWeek: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.WeekOfYear: Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.Quarter: Rule(_PART_OF_TIME, "NO_RESULT"),
    "weekday": Rule(_PART_OF_TIME, "NO_RESULT"),
    exp.Hour: Rule(_TIME_OF_DAY, "NO_RESULT"),
    exp.Minute: Rule(_TIME_OF_DAY, "NO_RESULT"),
    exp.Second: Rule(_TIME_OF_DAY, "NO_RESULT"),
    exp.TsOrDsToDate: Rule(_to_day, "NO_RESULT"),
    "date_format": Rule(_date_format, "NO_RESULT"),
    exp.TimestampTrunc: Rule(_truncation, "NO_RESULT"),
    exp.TsOrDsAdd: Rule(_days_added, "NO_RESULT"),
    exp.DateDiff: Rule(_difference, "NO_RESULT"),
    exp.UnixMillis: Rule(_always("BIGINT", "TIMESTAMP"), "NO_RESULT"),
    exp.UnixMicros: Rule(_always("BIGINT", "TIMESTAMP"), "NO_RESULT"),
    exp.UnixSeconds: Rule(_always("BIGINT", "TIMESTAMP"), "NO_RESULT"),
    "timestamp_millis": Rule(_always("TIMESTAMP", "BIGINT", fails=True), "NO_RESULT"),
    "timestamp_micros": Rule(_always("TIMESTAMP", "BIGINT"), "NO_RESULT"),
    "timestamp_seconds": Rule(_always("TIMESTAMP", "BIGINT", fails=True), "NO_RESULT"),
    exp.Concat: Rule(_concat, order="all"),
    exp.DPipe: Rule(_concat, order="all"),
    exp.Like: Rule(_like),
    # Aggregates
    exp.Filter: Rule(_filter, arguments=lambda node: (node.this,)),
    exp.Count: Rule(lambda node, kinds: Signature("BIGINT", fails=True), "NO_RESULT"),
    exp.Sum: Rule(_sum, "NO_RESULT"),
    exp.Avg: Rule(_average, "NO_RESULT"),
    exp.Min: Rule(_same_as_first, "NO_RESULT"),
    exp.Max: Rule(_same_as_first, "NO_RESULT"),
    exp.First: Rule(_same_as_first, "NO_RESULT"),
    exp.Last: Rule(_same_as_first, "NO_RESULT"),
}
