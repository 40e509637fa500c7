"""Parses Spark SQL expressions without Spark: finds fields and aggregates, and renames columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from sluice.errors import TopologyError
from sluice.sql.calls import CLOSING, OPENING, aggregates
from sluice.sql.dialect import PARSE_ERRORS, SparkSQL, is_plain_name, tokens_of, tree_of
from sluice.sql.spark_syntax import reason_not_parsed, reason_to_refuse
from sluice.values.record_metadata import METADATA, TEXT_FIELD
from sluice.values.sql_text import backticked, named_struct, quoted
from sluice.values.sql_types import names_within, struct_fields

MOST_LEVELS = 200
_MOST_BRACKETS = 40
"""The maximum depth of a parsed expression, and of nested brackets.

Python allows 1,000 nested calls. sqlglot needs about 15 calls for each bracket, and the planner two
or three for each level. Some of the 1,000 calls are needed by Airflow and the author's code.
"""


@dataclass(frozen=True)
class ParsedExpression:
    """A Spark SQL expression.

    `names` are the columns that it reads, each with its start and end in the text.
    """

    text: str
    names: tuple[tuple[str, int, int], ...]
    aggregates: bool
    naming: Mapping[int, _Naming] = field(default_factory=dict)
    """Start of a column in the text → the naming of the result's field that Spark names after this
    column, as in `struct(amount)`. The field keeps this name when other SQL replaces the column."""

    @property
    def fields(self) -> frozenset[str]:
        """The columns that the expression reads; for `address.city`, `address`."""
        return frozenset(name for name, _, _ in self.names)

    def on(self, columns: Mapping[str, str]) -> str:
        """Return the same expression with every column replaced by `columns[name]`."""
        return self._replaced(columns, lambda name, _: name)

    def on_results(self, results: Mapping[str, str]) -> str:
        """Return the expression, with `results[name]` in place of intermediate results' names.

        The author did not choose the names of intermediate results. If Spark would name a field of
        the result after an intermediate result, the field gets a number instead, such as `col1`.
        """
        return self._replaced(results, lambda _, naming: naming.number)

    def _replaced(self, columns: Mapping[str, str], name_of: Callable[[str, _Naming], str]) -> str:
        out, end = [], 0
        for name, start, stop in self.names:
            sql, naming = columns[name], self.naming.get(start)
            if naming is not None:
                sql = naming.named(sql, name_of(name, naming))
            out += [self.text[end:start], sql]
            end = stop
        return "".join([*out, self.text[end:]])


@dataclass(frozen=True)
class _Naming:
    """A column whose name Spark gives to a field of the result, as in `struct(amount)`."""

    number: str
    """The name that Spark gives the field if the expression has no name: `col1` in a struct, `0` in
    arrays_zip."""
    takes_alias: bool
    """Whether SQL allows `AS name` after the column."""

    def named(self, sql: str, name: str) -> str:
        """Return SQL that gives the field this name."""
        if self.takes_alias:
            return f"{sql} AS {quoted(name)}"
        # Where AS is not allowed, put the value into the field `name` of an extra struct, and read
        # it from there. Spark then gives the result's field the same name. Spark's optimizer
        # removes the struct.
        return f"{named_struct({name: sql})}.{quoted(name)}"


@cache
def parse(text: str) -> ParsedExpression:
    """Parse `text`. Raises TopologyError with the mistake and its column."""
    text = _with_backticks(text)
    try:
        tree, *more = sqlglot.parse(text, dialect=SparkSQL)
    except RecursionError:
        raise _too_deep(text) from None
    except PARSE_ERRORS as error:
        raise _not_an_expression(text, error) from None
    if tree is None or more:
        number = "more than one" if more else "no"
        raise TopologyError(
            f"{text!r} contains {number} expression.",
            next_step="Write exactly one expression, without a semicolon.",
        )
    if reason := reason_to_refuse(text, tree):
        raise _refusal(text, reason)
    if _levels(tree) > MOST_LEVELS or _brackets(text) > _MOST_BRACKETS:
        raise _too_deep(text)
    # `ParsedExpression.on` needs the columns in the order of their positions in the text.
    names = sorted(map(_position, tree.find_all(exp.Column)), key=lambda name: name[1])
    is_aggregate = any(map(aggregates, tree.walk()))
    return ParsedExpression(text, tuple(names), is_aggregate, dict(_namings(tree)))


def _refusal(text: str, reason: str) -> TopologyError:
    problem, _, advice = reason.partition("; ")
    advice = advice or "write an expression over the fields"
    return TopologyError(f"{text!r} {problem}.", next_step=f"{advice[0].upper()}{advice[1:]}.")


def _not_an_expression(text: str, error: Exception) -> TopologyError:
    """Return the error for a text that sqlglot cannot parse, with sqlglot's description."""
    with suppress(SqlglotError):
        if reason := reason_not_parsed(text):
            return _refusal(text, reason)
    problem = (getattr(error, "errors", None) or [{}])[0]
    where = ""
    if problem.get("col"):
        where = f" (column {problem['col']})"
    mistake = str(problem.get("description") or error)
    # Leave out internal errors, because the author does not know sqlglot's classes and functions.
    if not isinstance(error, SqlglotError):
        mistake = "a function has other arguments"
    elif mistake.startswith("Required keyword"):
        mistake = "a value is missing"
    corrected = _with_a_quoted_keyword(text)
    next_step = "Correct the expression."
    if where:
        next_step = "Correct the expression at this column."
    if corrected:
        next_step = f"Fields whose names are SQL keywords need backticks: {corrected}"
    return TopologyError(
        f"{text!r} is not a Spark SQL expression{where}: {mistake}.", next_step=next_step
    )


def _with_backticks(text: str) -> str:
    """Return the text with backticks around words such as `größe`.

    Spark needs the backticks, but sqlglot does not.
    """
    out, end = [], 0
    with suppress(SqlglotError):
        for token in tokens_of(text):
            if token.token_type is TokenType.VAR and not token.text.isascii():
                out += [text[end : token.start], f"`{token.text}`"]
                end = token.end + 1
    return "".join([*out, text[end:]])


def _too_deep(text: str) -> TopologyError:
    return TopologyError(
        f"{text[:60]!r}{'...' * (len(text) > 60)} is nested too deeply: at most {_MOST_BRACKETS} "
        f"brackets, and {MOST_LEVELS} operators such as + and OR in a chain.",
        next_step="Compute parts of it in a select before this step, write IN (...) for a chain of "
        "comparisons, or use a Python function.",
    )


def _levels(tree: exp.Expr) -> int:
    """Return the depth of a parsed expression.

    Each operator of a chain such as `a + b + c` adds a level.
    """
    depth, level = 0, [tree]
    while level:
        depth += 1
        next_level: list[exp.Expr] = []
        for node in level:
            next_level += node.iter_expressions()
        level = next_level
    return depth


def _brackets(text: str) -> int:
    """Return the depth to which brackets, and CASE ... END, are nested."""
    opening, closing = (*OPENING, TokenType.CASE), (*CLOSING, TokenType.END)
    depth = deepest = 0
    for token in tokens_of(text):
        depth += (token.token_type in opening) - (token.token_type in closing)
        deepest = max(deepest, depth)
    return deepest


@cache
def _with_a_quoted_keyword(text: str) -> str:
    """Put backticks around a keyword if this makes the text valid; else return an empty text."""
    with suppress(SqlglotError):
        for token in tokens_of(text):
            quotes = f"{text[: token.start]}`{token.text}`{text[token.end + 1 :]}"
            if token.token_type is not TokenType.VAR and token.text.isidentifier():
                with suppress(*PARSE_ERRORS):
                    if not reason_to_refuse(quotes, tree_of(quotes)):
                        return quotes
    return ""


def reference(name: str) -> str:
    """Return the expression that reads the field with this name, quoted if needed."""
    if quoted(name) == name and is_plain_name(name):
        return name
    return backticked(name)


def backticks_for(text: str, known: Mapping[str, str]) -> str:
    """Return advice to write backticks around fields that need them, if the text lacks them.

    `known` has the fields with their types. The types contain the fields of nested objects.
    """
    bare: list[str] = []
    for name in dict.fromkeys(names_within(known)):
        if reference(name) != name and _in_backticks(text, [name]) != text:
            bare.append(name)
    # If the text uses one of the words as a keyword, backticks around it make the text invalid.
    if not _is_expression(_in_backticks(text, bare)):
        bare = [name for name in bare if _is_expression(_in_backticks(text, [name]))]
    if not bare:
        return ""
    return (
        "Write backticks around names that are SQL keywords or contain signs: "
        f"{', '.join(map(reference, bare))}."
    )


def _in_backticks(text: str, names: Iterable[str]) -> str:
    """Put backticks around these names in the text where they have none."""
    # Longest names first: otherwise, a short name would match the start of a longer name.
    longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pattern = "(?!)"
    if longest_first:
        pattern = rf"`(?:[^`]|``)*`|(?<!\w)(?:{longest_first})(?!\w)"

    def with_backticks(match: re.Match[str]) -> str:
        if match[0].startswith("`"):
            return match[0]
        return reference(match[0])

    return re.sub(pattern, with_backticks, text)


def _is_expression(text: str) -> bool:
    try:
        parse(text)
    except TopologyError:
        return False
    return True


def _namings(tree: exp.Expr) -> Iterator[tuple[int, _Naming]]:
    """Yield the start of each column whose name Spark gives to a field of the result."""
    for node in tree.find_all(exp.Struct, exp.Tuple, exp.ArraysZip):
        for number, part in enumerate(node.expressions):
            value = part.expression if isinstance(part, exp.PropertyEQ) else part
            column = value.unnest()
            if not isinstance(column, exp.Column) or len(column.parts) > 1:
                continue
            _, start, _ = _position(column)
            # A field that is named with AS, or by named_struct, is not named after the column.
            start_of_name = start if value is column else None
            if isinstance(part, exp.PropertyEQ) and part.this.meta.get("start") != start_of_name:
                continue
            if isinstance(node, exp.ArraysZip):
                yield start, _Naming(str(number), takes_alias=False)
            else:
                yield start, _Naming(f"col{number + 1}", takes_alias=value is column)


def _position(column: exp.Column) -> tuple[str, int, int]:
    first = column.parts[0]
    return first.name, first.meta["start"], first.meta["end"] + 1


def require_known(expression: ParsedExpression, known: Mapping[str, str], where: str) -> None:
    """Raise TopologyError if a column is unknown."""
    unknown = sorted(expression.fields - known.keys())
    if unknown:
        nested: list[str] = []
        for field_name in unknown:
            for name, kind in known.items():
                if field_name in struct_fields(kind):
                    nested.append(f"{name}.{field_name}")
        advice = ""
        if nested:
            advice = f"Did you mean {', '.join(nested)}? "
        if TEXT_FIELD in unknown:
            advice = f"The value is an object: write its fields without {TEXT_FIELD}. {advice}"
        if not METADATA.keys().isdisjoint(unknown):
            advice = (
                "Results of stateful steps and tables have no topic, headers and so on: select "
                "them before. "
            )
        raise TopologyError(
            f"{where}: {expression.text!r} reads unknown fields: {', '.join(unknown)}.",
            next_step=f"{advice}Known fields: {', '.join(sorted(known))}.",
        )


def require_aggregate(expression: ParsedExpression, where: str, *, aggregate: bool) -> None:
    """Raise TopologyError if an expression must aggregate but does not, or must not but does."""
    if aggregate and not expression.aggregates:
        raise TopologyError(
            f"{where}: {expression.text!r} must aggregate, like count(*) or sum(x).",
            next_step="Write for example max(...).",
        )
    if expression.aggregates and not aggregate:
        raise TopologyError(
            f"{where}: {expression.text!r} must not aggregate here.",
            next_step="Aggregate first, and use the result in the next step.",
        )
