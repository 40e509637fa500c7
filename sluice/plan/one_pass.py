"""Decides whether a job's stateless steps can run on Arrow, in the task that decodes the records, or need Spark SQL.

On Arrow, records stay in one Python task until they are added up or sent to ordered operators; for Spark SQL, they go
to the JVM and back. Arrow computes expressions that cannot fail and for which its results equal Spark's: columns,
literals, comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE, IF, CASE, COALESCE, concatenation, decimal arithmetic,
structs, and their JSON. Spark computes all others. `engine.steps.arrow_steps` computes what `kind` accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce

from sqlglot import exp

from sluice.plan.jobs import Attempt, Edge, Job, Layers, OrderedJob, Transformation
from sluice.plan.value_types import MOST_DIGITS, decimal_digits, kind_of, precision_and_scale
from sluice.values.dialect import text_of, tree_of
from sluice.values.records import METADATA
from sluice.values.sql import TO_JSON, VALUE_JSON
from sluice.values.sql_types import element_type, struct_fields, struct_type

PLAIN_SCALE = 6
"""The largest scale of decimals that Spark and Arrow always write without an exponent."""

_INTEGERS = ("INT", "BIGINT")
_COMPARISONS = exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.NullSafeEQ
_COMPARABLE = ("STRING", "BOOLEAN", "TIMESTAMP", "DATE")
_AS_TEXT = ("STRING", "BOOLEAN", *_INTEGERS)
_IN_JSON = (*_AS_TEXT, "TIMESTAMP", "DATE")
_JSON_OPTIONS = tree_of(TO_JSON.format("x")).args["options"]


class NeedsSparkError(Exception):
    """Arrow cannot compute an expression. The message is the part of the expression that needs Spark."""

    def __init__(self, part: str, step: int | None = None) -> None:
        super().__init__(part)
        self.step = step
        """The number of the step, if it is known."""


def why_spark(job: Job) -> str:
    """Why Spark SQL computes the job's stateless steps; empty if the tasks compute them on Arrow."""
    try:
        types = types_of(job.layers, types_read(job))
    except NeedsSparkError as part:
        where = "" if part.step is None else f"{job.pipeline.steps[part.step]}: "
        return where + _named(str(part), job.field_names)
    for edge in job.feeds_of(0) if isinstance(job, OrderedJob) else ():
        try:
            _require_edge(edge, types)
        except NeedsSparkError as part:
            return f"{job.pipeline.steps[edge.target]}: {_named(str(part), job.field_names)}"
    return ""


def types_read(job: Job) -> dict[str, str]:
    """The types of the columns of a job's records, before any step."""
    types = {**METADATA, "_source": "INT", "_null": "BOOLEAN"}
    return types | {field.column: field.type for source in job.streams for field in source.fields}


def types_of(layers: Layers, types: Mapping[str, str]) -> dict[str, str]:
    """The given types and those of the columns of layers. Raises NeedsSparkError if Arrow cannot compute a column."""
    types = dict(types)
    for layer in layers:
        if isinstance(layer, Transformation):
            raise NeedsSparkError("is a function of a DataFrame", layer.step)
        for column in layer:
            if isinstance(column, Attempt):
                raise NeedsSparkError("an expression can fail", column.step)
            if column.position:
                raise NeedsSparkError("turns one record into several", column.step)
            try:
                types[column.name] = kind(tree_of(column.sql), types)
            except NeedsSparkError as part:
                raise NeedsSparkError(str(part), column.step) from None
    return types


def _require_edge(edge: Edge, types: Mapping[str, str]) -> None:
    """Raise NeedsSparkError if Arrow cannot compute the rows that an ordered operator takes from the steps."""
    if edge.path_column is not None:
        raise NeedsSparkError("turns one record into several")
    _all([tree_of(edge.passed), tree_of(edge.is_null)], "BOOLEAN", types)
    _all([tree_of(sql) for sql in (edge.key, edge.foreign) if sql is not None], "STRING", types)
    for tree in map(tree_of, edge.values):
        if not isinstance(tree, exp.Null):
            _require_json(kind(tree, types))


def _named(text: str, names: Mapping[str, str]) -> str:
    """The text with the author's names of fields instead of the job's columns."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)


def kind(node: exp.Expr, types: Mapping[str, str]) -> str:  # noqa: C901  (a case per kind of expression)
    """The Spark SQL type of an expression that Arrow can compute. Raises NeedsSparkError for any other expression."""
    match node:
        case exp.Paren():
            return kind(node.this, types)
        case exp.Column():
            return _column(node, types)
        case exp.Literal() | exp.Boolean():
            return _literal(node)
        case exp.And() | exp.Or():
            return _all((node.left, node.right), "BOOLEAN", types)
        case exp.Not():
            return _all((node.this,), "BOOLEAN", types)
        case exp.Is() if isinstance(node.expression, exp.Null):
            kind(node.this, types)
            return "BOOLEAN"
        case exp.In() if node.expressions:
            return _comparison(node, [node.this, *node.expressions], types)
        case exp.Between():
            return _comparison(node, [node.this, node.args["low"], node.args["high"]], types)
        case exp.Like() if isinstance(node.expression, exp.Literal) and "\\" not in node.expression.name:
            return _all((node.this,), "STRING", types) and "BOOLEAN"
        case exp.If():
            _all((node.this,), "BOOLEAN", types)
            return _choice(node, [node.args["true"], node.args.get("false") or exp.null()], types)
        case exp.Case() if node.this is None:
            _all([branch.this for branch in node.args["ifs"]], "BOOLEAN", types)
            branches = [branch.args["true"] for branch in node.args["ifs"]]
            return _choice(node, [*branches, node.args.get("default") or exp.null()], types)
        case exp.Coalesce():
            return _choice(node, [node.this, *node.expressions], types)
        case exp.Concat() | exp.DPipe():
            return _all(list(node.flatten()) if isinstance(node, exp.DPipe) else node.expressions, "STRING", types)
        case exp.Add() | exp.Sub() | exp.Mul():
            return _arithmetic(node, types)
        case exp.Neg():
            return _negative(node, types)
        case exp.Cast() if not node.args.get("safe"):
            return _cast(node, types)
        case exp.Struct():
            return struct_type({part.name: kind(part.expression, types) for part in _pairs(node)})
        case exp.JSONFormat() if node.args.get("options") == _JSON_OPTIONS and isinstance(node.this, exp.Struct):
            _require_json(kind(node.this, types))
            return "STRING"
        case exp.Substring() if (value := json_of(node)) is not None:
            _require_json(kind(value, types))
            return "STRING"
    if isinstance(node, _COMPARISONS):
        return _comparison(node, [node.left, node.right], types)
    raise NeedsSparkError(_text(node))


def json_of(node: exp.Substring) -> exp.Expr | None:
    """The value in a call of `substring` made with `VALUE_JSON`; None for any other call."""
    try:
        value: exp.Expr = node.this.this.expressions[0].expression
    except (AttributeError, IndexError):
        return None
    return value if node == tree_of(VALUE_JSON.format(text_of(value))) else None


def common_decimal(*kinds: str) -> tuple[int, int]:
    """Precision and scale of a decimal that holds all values of these numeric types."""
    digits = [(19, 0) if of == "BIGINT" else precision_and_scale(of) for of in kinds]
    scale = max(scale for _, scale in digits)
    return max(precision - of_scale for precision, of_scale in digits) + scale, scale


def _column(node: exp.Column, types: Mapping[str, str]) -> str:
    first, *rest = (part.name for part in node.parts)
    found = reduce(lambda of, name: struct_fields(of).get(name, ""), rest, types.get(first, ""))
    if not found:
        raise NeedsSparkError(_text(node))
    return found


def _literal(node: exp.Literal | exp.Boolean) -> str:
    if isinstance(node, exp.Boolean):
        return "BOOLEAN"
    if node.is_string:
        return "STRING"
    if node.name.isdecimal() and int(node.name) < 2**63:
        return "INT" if int(node.name) < 2**31 else "BIGINT"
    if (of := kind_of(node, {})).startswith("DECIMAL") and precision_and_scale(of)[0] <= MOST_DIGITS:
        return of
    raise NeedsSparkError(_text(node))


def _all(parts: tuple[exp.Expr, ...] | list[exp.Expr], wanted: str, types: Mapping[str, str]) -> str:
    for part in parts:
        if kind(part, types) != wanted:
            raise NeedsSparkError(_text(part))
    return wanted


def _is_number(of: str) -> bool:
    return of in _INTEGERS or of.startswith("DECIMAL")


def _comparison(node: exp.Expr, parts: list[exp.Expr], types: Mapping[str, str]) -> str:
    kinds = {kind(part, types) for part in parts if not isinstance(part, exp.Null)}
    alike = len(kinds) == 1 and kinds <= {*_COMPARABLE}
    numbers = bool(kinds) and all(map(_is_number, kinds)) and common_decimal(*kinds)[0] <= MOST_DIGITS
    if not alike and not numbers:
        raise NeedsSparkError(_text(node))
    return "BOOLEAN"


def _choice(node: exp.Expr, branches: list[exp.Expr], types: Mapping[str, str]) -> str:
    kinds = {kind(branch, types) for branch in branches if not isinstance(branch, exp.Null)}
    if kinds == {*_INTEGERS}:
        return "BIGINT"
    if len(kinds) != 1:
        raise NeedsSparkError(_text(node))
    return kinds.pop()


def _arithmetic(node: exp.Binary, types: Mapping[str, str]) -> str:
    kinds = kind(node.left, types), kind(node.right, types)
    known = exp.Add if isinstance(node, exp.Add) else exp.Sub if isinstance(node, exp.Sub) else exp.Mul
    # The digits of a result follow from the types of both sides, and for a literal from its digits.
    sides = [
        part if isinstance(part, exp.Literal) else exp.column(f"c{number}")
        for number, part in enumerate((node.left, node.right))
    ]
    digits = decimal_digits(known(this=sides[0], expression=sides[1]), {"c0": kinds[0], "c1": kinds[1]})
    if digits is None or digits[0] > MOST_DIGITS:
        raise NeedsSparkError(_text(node))
    return f"DECIMAL({digits[0]},{digits[1]})"


def _negative(node: exp.Neg, types: Mapping[str, str]) -> str:
    of = kind(node.this, types)
    if of.startswith("DECIMAL") or isinstance(node.this, exp.Literal):
        return of
    raise NeedsSparkError(_text(node))


def _cast(node: exp.Cast, types: Mapping[str, str]) -> str:
    of, to = kind(node.this, types), text_of(node.to).replace(" ", "")
    if to == "STRING" and (of in _AS_TEXT or _is_plain(of)):
        return to
    if to == "DECIMAL(20,0)" and of in _INTEGERS:
        return to
    raise NeedsSparkError(_text(node))


def _is_plain(of: str) -> bool:
    return of.startswith("DECIMAL") and precision_and_scale(of)[1] <= PLAIN_SCALE


def _pairs(node: exp.Struct) -> list[exp.PropertyEQ]:
    pairs = [part for part in node.expressions if isinstance(part, exp.PropertyEQ)]
    names = {part.name for part in pairs}
    if len(pairs) < len(node.expressions) or len(names) < len(pairs) or not pairs:
        raise NeedsSparkError(_text(node))
    return pairs


def _require_json(of: str) -> None:
    if fields := struct_fields(of):
        for of_field in fields.values():
            _require_json(of_field)
    elif element := element_type(of):
        _require_json(element)
    elif of not in _IN_JSON and not _is_plain(of):
        raise NeedsSparkError(f"the JSON of {of}")


def _text(node: exp.Expr) -> str:
    text: str = text_of(node)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 80
