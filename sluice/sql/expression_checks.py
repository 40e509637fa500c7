"""Checks SQL expressions from text and declared types while a pipeline is built, without Spark.

An expression is rejected only if it is certainly wrong, because the result types of many functions
are unknown here. `sluice check` lets Spark analyze all expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sluice.errors import TopologyError
from sluice.sql.calls import aggregates, function_name
from sluice.sql.dialect import text_of, tokens_of, tree_of
from sluice.sql.function_arguments import arguments_of, misfit
from sluice.sql.function_names import FUNCTIONS
from sluice.sql.json_paths import is_json_path, is_variant_path
from sluice.sql.spark_syntax import functions_in
from sluice.sql.typed_expression import type_expression
from sluice.sql.types import VOID
from sluice.sql.words_as_names import CONSTANTS
from sluice.sql.written_text import written, written_name
from sluice.values.json_text import JSON_FIELD
from sluice.values.sql_types import struct_fields

Need = Literal["condition", "array", "key", "key or null", ""]
"""The required type of an expression: BOOLEAN, ARRAY, a type of keys (perhaps also a constant
null), or any."""

_ADDED_BY_SLUICE = frozenset({"top", "collect_sorted"})
_NUMBERS = exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Mod | exp.Neg
_OF_TEXT = (
    exp.Upper | exp.Lower | exp.Initcap | exp.Trim | exp.Like | exp.ILike | exp.RegexpLike
    | exp.RegexpReplace | exp.RegexpExtract | exp.RegexpSplit | exp.Replace | exp.Translate
    | exp.StrPosition | exp.Concat | exp.DPipe
)  # fmt: skip


_BATCH_TIME = "Use current_timestamp(), which is the time when the batch began."
_FROM_THE_RECORD = (
    "Compute it from the record, for example with xxhash64(_key) or _partition and _offset."
)
_VARYING: dict[str, str] = {
    **dict.fromkeys(
        (
            "rand",
            "randn",
            "randstr",
            "uniform",
            "uuid",
            "shuffle",
            "monotonically_increasing_id",
            "spark_partition_id",
        ),
        _FROM_THE_RECORD,
    ),
    **dict.fromkeys(
        ("input_file_name", "input_file_block_start", "input_file_block_length"),
        _FROM_THE_RECORD,
    ),
    **dict.fromkeys(("reflect", "try_reflect", "java_method"), "Use a Python function."),
    **dict.fromkeys(("current_time", "localtimestamp", "now"), _BATCH_TIME),
}
"""Functions whose result changes when Spark computes a record again → what to use instead.
`current_timestamp()` is repeatable, because the time when a batch began is kept with the batch."""
_SPECIAL_TIME = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s+\S+)?\s*", re.IGNORECASE)
"""Texts that Spark converts to a time relative to its own clock."""
_OF_ROWS = frozenset(
    {"rank", "dense_rank", "percent_rank", "cume_dist", "row_number", "ntile", "lag", "lead"}
)
_WITH_RANDOM_BYTES = (
    "Pass aes_encrypt a mode, a padding and an initialization vector, or the mode 'ECB'."
)


def require_valid(text: str, types: Mapping[str, str], where: str, need: Need = "") -> None:
    """Raise TopologyError for unknown functions, unknown fields of objects, and wrong types."""
    tree, tokens = tree_of(text), tokens_of(text)
    where = f"{where}: {text!r}"
    _require_functions(tokens, where)
    kinds = _Kinds(tree, types)
    for node in tree.walk():
        if isinstance(node, exp.Func):
            _require_repeatable(node, text, where)
            _require_of_record(node, where)
        # A batch is computed again after a crash, so its results must not depend on the clock.
        elif (
            isinstance(node, exp.Literal)
            and _SPECIAL_TIME.fullmatch(node.name)
            and _is_time(node, kinds)
        ):
            raise TopologyError(
                f"{where}: {written(node, text)} would give another time if a batch is repeated "
                "after a crash.",
                next_step=_BATCH_TIME,
            )
        if isinstance(node, exp.Anonymous):
            _require_constants(node, where)
        elif isinstance(node, exp.Column):
            _require_fields(node, types, where)
        elif isinstance(node, _OF_TEXT) or _is_short_cast_to_text(node, text):
            _require_text(node, kinds, text, where)
        elif isinstance(node, exp.Distinct) and not _counts_one_field(node):
            raise TopologyError(
                f"{where}: DISTINCT is supported only in count, with one field.",
                next_step="Write count(DISTINCT struct(a, b)).",
            )
        _require_arguments(node, kinds, text, where)
    _require_backticks(tokens, types, where)
    _require_fields_once(tree, where)
    for mistake, advice in _misplaced(tree, text):
        raise TopologyError(f"{where} {mistake}.", next_step=advice)
    if any(map(aggregates, tree.walk())) and tree.find(exp.CurrentTimestamp, exp.CurrentDate):
        raise TopologyError(
            f"{where} uses the current time in an aggregate.",
            next_step="Make the current time a field of the record first, for example with "
            'select(at="current_timestamp()").',
        )
    kind = _kind(tree, kinds)
    if need == "condition" and kind not in ("", "BOOLEAN"):
        raise TopologyError(f"{where} is {kind}, not a condition.", next_step="Write a comparison.")
    if need == "array" and kind and not kind.startswith("ARRAY"):
        raise TopologyError(
            f"{where} is {kind}, not an array.",
            next_step="Make an array, for example with split(text, ' ').",
        )
    if need in ("key", "key or null") and JSON_FIELD in kind:
        with_json = [node for node in tree.find_all(exp.Column) if JSON_FIELD in kinds.of(node)]
        example = text
        if with_json:
            example = text_of(with_json[0])
        raise TopologyError(
            f"{where} contains unparsed JSON, which cannot be a key.",
            next_step=f"Use the text of the JSON: {example}.{JSON_FIELD}.",
        )
    if need == "key" and kind == "NULL":
        raise TopologyError(
            f"{where} is always null: no record would have a key.",
            next_step="Write an expression over fields of the record.",
        )


def _require_backticks(tokens: Sequence[Token], types: Mapping[str, str], where: str) -> None:
    """Raise TopologyError if a bare name is a field, but also a constant or function of SQL."""
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        is_condition = before is not None and before.text.upper() in ("IS", "NOT")
        is_call = after is not None and after.token_type is TokenType.L_PAREN
        if (
            token.token_type in CONSTANTS
            and token.text in types
            and not is_condition
            and not is_call
        ):
            raise TopologyError(
                f"{where}: {token.text} is a constant or a function of SQL, and also a field.",
                next_step=f"Write {token.text.swapcase()} if you mean the constant or function.",
            )


def _require_fields_once(tree: exp.Expr, where: str) -> None:
    """Raise TopologyError if an object has two fields of one name, which are the same in JSON."""
    for constructor in tree.find_all(exp.Struct, exp.Tuple, exp.ArraysZip):
        if _is_compared(constructor):
            continue
        names: set[str] = set()
        for argument in constructor.expressions:
            part = argument if isinstance(argument, exp.PropertyEQ) else argument.unnest()
            if not isinstance(part, exp.PropertyEQ | exp.Column):
                continue
            name = part.name.lower()
            if name in names:
                raise TopologyError(
                    f"{where} makes an object with two fields named {name}.",
                    next_step="Give them different names: struct(... AS name, ...).",
                )
            names.add(name)


def _is_compared(constructor: exp.Expr) -> bool:
    """Return whether an object is only compared with another object.

    The names of such an object's fields do not matter.
    """
    return (
        isinstance(constructor.parent, exp.Predicate)
        or constructor.find_ancestor(exp.In) is not None
    )


def _require_repeatable(node: exp.Func, text: str, where: str) -> None:
    """Raise TopologyError if a function's result changes when a batch is repeated after a crash."""
    name = function_name(node)
    instead = _VARYING.get(name, "")
    if name == "aes_encrypt" and 2 <= len(node.expressions) < 5:
        mode = ""
        if len(node.expressions) > 2:
            mode = node.expressions[2].name
        instead = "" if mode.upper() == "ECB" else _WITH_RANDOM_BYTES
    if instead:
        raise TopologyError(
            f"{where}: {written_name(node, text)} would have another result if a batch is repeated "
            "after a crash.",
            next_step=instead,
        )


def _require_of_record(node: exp.Func, where: str) -> None:
    """Raise TopologyError for functions that read other rows, such as rank, and for `count()`."""
    name = function_name(node)
    if name in _OF_ROWS:
        raise TopologyError(
            f"{where}: {name} needs other rows, but an expression sees one record.",
            next_step="Use a store, such as aggregate(best='top(amount, 3)'), or a processor.",
        )
    if isinstance(node, exp.Count) and node.this is None:
        raise TopologyError(f"{where}: count needs an argument.", next_step="Write count(*).")


def _is_time(node: exp.Literal, kinds: _Kinds) -> bool:
    """Return whether it is certain that Spark converts a text to a time."""
    parent = node.parent
    match parent:
        case exp.Cast() | exp.TryCast():
            return parent.to.this in exp.DataType.TEMPORAL_TYPES
        case exp.TsOrDsToDate() | exp.TsOrDsToTimestamp():
            return True
        case exp.Anonymous():
            return parent.name.lower() == "date_format"
        # In a comparison with a time, Spark converts the text on the other side.
        case exp.Predicate():
            for side in parent.iter_expressions():
                if kinds.of(side).startswith(("TIMESTAMP", "DATE")):
                    return True
    return False


def _require_functions(tokens: Sequence[Token], where: str) -> None:
    known = FUNCTIONS | _ADDED_BY_SLUICE
    for token in functions_in(tokens):
        name = token.text.lower()
        if name in known:
            continue
        next_step = "Correct the name or use a Python function."
        if close := get_close_matches(name, known):
            next_step = f"Did you mean {' or '.join(close)}?"
        raise TopologyError(
            f"{where}: unknown Spark SQL function {token.text}.",
            next_step=next_step,
        )


def _require_constants(node: exp.Anonymous, where: str) -> None:
    """Raise TopologyError for a constant argument that makes a function fail for every record."""
    name = node.name.lower()
    if name == "top":
        _require_top(node, where)
    if name in _PATHS and len(node.expressions) > 1:
        is_path, advice = _PATHS[name]
        path = node.expressions[1]
        if isinstance(path, exp.Literal) and not is_path(path.name):
            raise TopologyError(
                f"{where}: {path.name!r} is not a path that Spark reads.", next_step=advice
            )


_IN_VARIANT = """A path begins with $, and goes on with .name, ['name'], ["name"] or [0]."""
_PATHS = {
    "get_json_object": (
        is_json_path,
        "A path begins with $, and goes on with .name, ['name'], [0], [*] or .*.",
    ),
    "variant_get": (is_variant_path, _IN_VARIANT),
    "try_variant_get": (is_variant_path, _IN_VARIANT),
}
"""Functions with a path as second argument → a function that checks the path, and advice."""


def _require_top(node: exp.Anonymous, where: str) -> None:
    number = None
    if len(node.expressions) == 2:
        number = node.expressions[1]
    if not (isinstance(number, exp.Literal) and number.name.isdigit() and int(number.name) > 0):
        raise TopologyError(
            f"{where}: top takes a value and a number of values to keep.",
            next_step="Write top(amount, 3).",
        )


def _require_arguments(node: exp.Expr, kinds: _Kinds, text: str, where: str) -> None:
    """Raise TopologyError for an argument that Spark would reject, according to the table."""
    if isinstance(node, exp.Column | exp.Literal) or _is_in_lambda(node):
        return
    of_arguments = [kinds.of(argument) for argument in arguments_of(node)]
    if (wrong := misfit(node, of_arguments)) is not None:
        raise TopologyError(
            f"{where}: {written_name(node, text)} needs {wrong.needed}, but "
            f"{written(wrong.argument, text)} is {kinds.of(wrong.argument)}.",
            next_step=wrong.advice,
        )


def _is_in_lambda(node: exp.Expr) -> bool:
    """Return whether a node is in a lambda, as `upper` is in `transform(tags, tag -> upper(tag))`.

    Only Spark knows the type of the element.
    """
    return node.find_ancestor(exp.Lambda) is not None


def _is_short_cast_to_text(node: exp.Expr, text: str) -> bool:
    """Return whether a node may be a cast `...::STRING`, which `casts_to_text` does not find."""
    return isinstance(node, exp.Cast) and "::" in text and node.to.this is exp.DType.TEXT


def _counts_one_field(node: exp.Distinct) -> bool:
    """Return whether this is `count(DISTINCT field)`."""
    return isinstance(node.parent, exp.Count) and len(node.expressions) == 1


def _require_text(node: exp.Expr, kinds: _Kinds, text: str, where: str) -> None:
    """Raise TopologyError if a text function gets bytes: Spark would replace invalid UTF-8."""
    parts = [part for part in node.iter_expressions() if not isinstance(part, exp.DataType)]
    of_parts = {part: kinds.of(part) for part in parts}
    # If all parts of a concatenation are bytes, its result is bytes too, so nothing is used as
    # text.
    if isinstance(node, exp.Concat) and set(of_parts.values()) == {"BINARY"}:
        return
    for part, kind in of_parts.items():
        if kind == "BINARY":
            name = written(part, text)
            raise TopologyError(
                f"{where} uses {name}, which is BINARY, as text.",
                next_step=f"Write CAST({name} AS STRING).",
            )


def _misplaced(tree: exp.Expr, text: str) -> Iterator[tuple[str, str]]:
    """Yield misplaced aggregates, and misplaced fields: for each, a description and advice.

    Aggregates must not contain aggregates, and fields must not be outside of aggregates.
    """
    inner = [node for node in tree.walk() if aggregates(node)]
    if not inner:
        return
    for node in inner:
        if any(map(aggregates, _above(node))):
            yield (
                f"aggregates the aggregate {written(node, text)}",
                "Aggregate the results in a further step.",
            )
    for column in tree.find_all(exp.Column):
        if not any(map(_reads_group, _above(column))):
            yield (
                f"reads {written(column, text)} outside of an aggregate",
                "Write for example max(...).",
            )


def _reads_group(node: exp.Expr) -> bool:
    """Return whether a node reads a whole group: an aggregate, also with FILTER or WITHIN GROUP."""
    return aggregates(node) or isinstance(node, exp.Filter | exp.WithinGroup)


def _above(node: exp.Expr) -> Iterator[exp.Expr]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


class _Kinds:
    """The types of an expression's parts.

    All types are computed in one pass, because each type follows from the types of smaller parts.
    """

    def __init__(self, tree: exp.Expr, types: Mapping[str, str]) -> None:
        self._types = types
        # The ids of nodes stay valid, because a cache keeps the tree alive.
        self._of_parts: dict[int, str] = {}
        parts = [type_expression(tree, types)]
        for part in parts:
            # Several expressions may stand for one node, such as the two comparisons of BETWEEN.
            # Keep the first one: the expression with the node's own type comes before its parts.
            self._of_parts.setdefault(id(part.node), part.type)
            parts.extend(part.parts)

    def of(self, node: exp.Expr) -> str:
        """Return the type of a part; an empty text if it is unknown."""
        kind = self._of_parts.get(id(node))
        # Some parts are not arguments of a typed expression, such as the parts of a
        # query.
        if kind is None:
            return type_expression(node, self._types).type
        return kind


def _kind(node: exp.Expr, kinds: _Kinds) -> str:
    """Return the type of an expression's result; an empty text if the type is not certain."""
    kind = kinds.of(node)
    if kind == VOID or (isinstance(node, exp.Cast) and isinstance(node.this, exp.Null)):
        return "NULL"
    return kind or ("a number or a time" if isinstance(node.unnest(), _NUMBERS) else "")


def _require_fields(column: exp.Column, types: Mapping[str, str], where: str) -> None:
    """Raise TopologyError if a path such as `address.city` names an unknown field of an object."""
    first, *rest = (part.name for part in column.parts)
    kind = types.get(first, "")
    for name in rest:
        # Only Spark can resolve a path into an array, a map or a VARIANT.
        if not kind or kind.startswith(("ARRAY", "MAP", "VARIANT")):
            return
        fields = {field.lower(): inner for field, inner in struct_fields(kind).items()}
        if name.lower() not in fields:
            known_fields = "Only objects have fields. Leave the field out."
            if fields:
                known_fields = f"Its fields: {', '.join(struct_fields(kind))}."
            parent = f"{first}, which is {kind}"
            if fields:
                parent = first
            raise TopologyError(
                f"{where} reads the unknown field {name} of {parent}.",
                next_step=known_fields,
            )
        first, kind = name, fields[name.lower()]
