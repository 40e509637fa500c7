"""Finds the types of the results of functions that only Spark computes.

A type may be known in part: `struct(f(x) AS a)` has the type `STRUCT<a: >` if the type of `f(x)` is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sqlglot import exp

from sluice.sql.dialect import PARSE_ERRORS, tree_of
from sluice.sql.rules import RuleKey, field_names, rule_key
from sluice.sql.types import VOID, common_type, decimal, declared, is_decimal, known_types
from sluice.values.sql_types import (
    element_type,
    map_key_type,
    map_value_type,
    precision_and_scale,
    struct_fields,
    struct_type,
)

Kinds: TypeAlias = Sequence[str]
TypeIn: TypeAlias = Callable[[exp.Expr, Mapping[str, str]], str]
"""A function that takes an expression, and name → type of its variables. It returns the
expression's type."""


def result_type(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    """Return the type of a function's or operator's result for these types; empty if unknown."""
    key = rule_key(node)
    if (kind := _ALWAYS.get(key)) is not None:
        return kind
    if not kinds and key not in _WITHOUT_ARGUMENTS:
        return ""
    if (resolve := _OF_ARGUMENTS.get(key)) is not None:
        return resolve(kinds)
    if (of_lambda := _OF_LAMBDAS.get(key)) is not None:
        return of_lambda(node, kinds, type_in)
    if (of_node := _OF_NODES.get(key)) is not None:
        return of_node(node, kinds)
    return ""


def path_type(kind: str, names: Sequence[str]) -> str:
    """Return the type of a path such as `lines.product`, whose first part has the type `kind`.

    Empty if it is unknown.
    """
    for name in names:
        kind = _part_type(kind, name)
    return kind


def _part_type(kind: str, name: str) -> str:
    """Return the type of a path's next part: a field, a map's value, or a field in a list."""
    if element := element_type(kind):
        # Spark cannot read the fields of objects in a list of lists.
        return list_type(_field_type(element, name))
    return map_value_type(kind) or _field_type(kind, name)


def _field_type(kind: str, name: str) -> str:
    fields = {field.lower(): of_field for field, of_field in struct_fields(kind).items()}
    return fields.get(name.lower(), "")


def list_type(element: str) -> str:
    """Return the type of a list; empty if the type of its elements is unknown."""
    if element:
        return f"ARRAY<{element}>"
    return ""


def map_type(key: str, value: str) -> str:
    """Return the type of a map; empty if the type of its keys or values is unknown."""
    if key and value:
        return f"MAP<{key}, {value}>"
    return ""


def widest_type(kinds: Kinds) -> str:
    """Return the type to which Spark converts values of these types, which may differ in parts.

    Empty if the type is unknown.
    """
    different = known_types(kinds)
    if len(different) < 2:
        return common_type(different)
    if {*different} == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    if all(map(element_type, different)):
        return list_type(widest_type(list(map(element_type, different))))
    if all(map(map_value_type, different)):
        key = widest_type(list(map(map_key_type, different)))
        return map_type(key, widest_type(list(map(map_value_type, different))))
    if all(map(struct_fields, different)):
        return _widest_object(list(map(struct_fields, different)))
    return common_type(different)


def _widest_object(objects: Sequence[Mapping[str, str]]) -> str:
    """Return the widest type of objects with the same field names; empty if the names differ."""
    first, *others = objects
    for other in others:
        if [*map(str.lower, other)] != [*map(str.lower, first)]:
            return ""
    fields: dict[str, str] = {}
    for place, name in enumerate(first):
        kinds = [[*each.values()][place] for each in objects]
        fields[name] = _common(kinds)
    return struct_type(fields)


def type_of_schema(text: str) -> str:
    """Return the type of a schema such as `a INT, b STRING` or `ARRAY<INT>`; empty if unknown."""
    for cast in (f"CAST(x AS {text})", f"CAST(x AS STRUCT<{text}>)"):
        try:
            tree = tree_of(cast)
        except PARSE_ERRORS:
            continue
        to = tree.args.get("to")
        if isinstance(tree, exp.Cast) and isinstance(to, exp.DataType):
            return _with_digits(declared(to))
    return ""


def _with_digits(kind: str) -> str:
    """Return the type, with the digits of all decimals, even of those declared without digits."""
    if fields := struct_fields(kind):
        return struct_type({name: _with_digits(of_field) for name, of_field in fields.items()})
    if element := element_type(kind):
        return list_type(_with_digits(element))
    if value := map_value_type(kind):
        return map_type(_with_digits(map_key_type(kind)), _with_digits(value))
    if is_decimal(kind):
        return decimal(*precision_and_scale(kind))
    return kind


# -- Functions whose results have the types of their arguments


def _first(kinds: Kinds) -> str:
    return kinds[0]


def _list_of_all(kinds: Kinds) -> str:
    return list_type(widest_type(kinds))


def _list_of_first(kinds: Kinds) -> str:
    return list_type(kinds[0])


def _with_element(kinds: Kinds) -> str:
    """Return the type of a list to which an element is added."""
    element = element_type(kinds[0])
    if element and kinds[-1]:
        return list_type(widest_type([element, kinds[-1]]))
    return ""


def _element(kinds: Kinds) -> str:
    return element_type(kinds[0])


def _element_or_value(kinds: Kinds) -> str:
    return element_type(kinds[0]) or map_value_type(kinds[0])


def _entries(kinds: Kinds) -> str:
    key, value = map_key_type(kinds[0]), map_value_type(kinds[0])
    if value:
        return list_type(struct_type({"key": key, "value": value}))
    return ""


def _map_of_entries(kinds: Kinds) -> str:
    parts = [*struct_fields(element_type(kinds[0])).values()]
    if len(parts) == 2:
        return map_type(*parts)
    return ""


def _map_of_lists(kinds: Kinds) -> str:
    if len(kinds) == 2:
        return map_type(element_type(kinds[0]), element_type(kinds[1]))
    return ""


def _common(kinds: Sequence[str]) -> str:
    if all(kinds):
        return widest_type(kinds)
    return ""


def _common_list(kinds: Kinds) -> str:
    if all(map(element_type, kinds)):
        return _common(kinds)
    return ""


_OF_ARGUMENTS: dict[RuleKey, Callable[[Kinds], str]] = {
    **dict.fromkeys(
        (
            exp.Paren, exp.Filter, exp.ArrayFilter, exp.ArraySlice, exp.ArraySort,
            exp.ArrayDistinct, exp.ArrayCompact, exp.Shuffle, exp.Alias, "map_filter", exp.AnyValue,
            exp.FirstValue, exp.LastValue, exp.Mode, exp.ArgMax, exp.ArgMin, exp.Nullif, exp.Min,
            exp.Max, exp.First, exp.Last,
        ),
        _first,
    ),
    **dict.fromkeys(
        (exp.ArrayAppend, exp.ArrayPrepend, exp.ArrayInsert, exp.ArrayRemove), _with_element
    ),
    **dict.fromkeys((exp.ArrayIntersect, exp.ArrayExcept, "array_union"), _common_list),
    **dict.fromkeys((exp.Coalesce, exp.Greatest, exp.Least, "map_concat"), _common),
    **dict.fromkeys((exp.Concat, exp.DPipe), _common_list),
    **dict.fromkeys((exp.ArrayMax, exp.ArrayMin, exp.Flatten), _element),
    **dict.fromkeys((exp.Bracket, "get"), _element_or_value),
    **dict.fromkeys(
        (exp.ArrayAgg, exp.ArrayUniqueAgg, "array_repeat", "top", "collect_sorted"), _list_of_first
    ),
    exp.Reverse: _first,
    exp.GenerateSeries: lambda kinds: list_type(_common(kinds[:2])),
    exp.Array: _list_of_all,
    exp.MapKeys: lambda kinds: list_type(map_key_type(kinds[0])),
    "map_values": lambda kinds: list_type(map_value_type(kinds[0])),
    "map_entries": _entries,
    exp.MapFromEntries: _map_of_entries,
    exp.Map: _map_of_lists,
    exp.VarMap: _map_of_lists,
    exp.StrToMap: lambda kinds: map_type("STRING", "STRING"),
    **dict.fromkeys(
        (exp.RegexpExtractAll, exp.JSONKeys, "xpath"), lambda kinds: list_type("STRING")
    ),
    "sentences": lambda kinds: list_type(list_type("STRING")),
}  # fmt: skip
_ALWAYS: dict[RuleKey, str] = {
    **dict.fromkeys(
        (
            exp.LogicalAnd, exp.LogicalOr, "every", "some", "any", exp.Exists, "forall", exp.ILike,
            exp.IsNan, "arrays_overlap", "is_variant_null", "is_valid_variant", "is_valid_utf8",
            "luhn_check", exp.MapContainsKey, exp.EqualNull,
        ),
        "BOOLEAN",
    ),
    **dict.fromkeys(
        (
            exp.Ascii, exp.BitwiseCount, exp.BitLength, exp.Levenshtein, exp.UnixDate,
            exp.RegexpCount, exp.RegexpInstr, "cardinality", "find_in_set", "hash", "octet_length",
            "json_array_length",
        ),
        "INT",
    ),
    **dict.fromkeys(
        (
            exp.ArrayPosition, exp.CountIf, exp.Factorial, exp.StrToUnix, exp.WidthBucket,
            exp.ApproxDistinct, exp.TimestampDiff, "crc32", "xxhash64",
        ),
        "BIGINT",
    ),
    **dict.fromkeys(
        (
            exp.Cbrt, exp.Corr, exp.CovarPop, exp.CovarSamp, exp.Degrees, exp.Radians, exp.Exp,
            exp.Kurtosis, exp.Ln, exp.Log, exp.MonthsBetween, exp.Pow, exp.Rint, exp.Sign, exp.Sin,
            exp.Cos, exp.Tan, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Sinh, exp.Cosh, exp.Tanh,
            exp.Skewness, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.VariancePop, exp.Variance,
            "std", "expm1", "log1p", "hypot",
        ),
        "DOUBLE",
    ),
    **dict.fromkeys(
        (
            exp.ToBase64, exp.Chr, exp.Decode, exp.Format, exp.UnixToStr, exp.Initcap, exp.ParseUrl,
            exp.RegexpExtract, exp.RegexpReplace, exp.RegexpSubstr, exp.Soundex, exp.Space,
            exp.SplitPart, exp.SubstringIndex, exp.ToChar, exp.Translate, exp.Typeof, exp.Dayname,
            exp.Monthname, "bin", "btrim", "conv", "format_number", "printf", "mask", "quote",
            "to_varchar", "url_encode", "url_decode", "schema_of_json", "to_csv",
        ),
        "STRING",
    ),
    **dict.fromkeys(
        (exp.AddMonths, exp.DateFromUnixDate, exp.LastDay, exp.NextDay, exp.DateTrunc, "make_date"),
        "DATE",
    ),
    **dict.fromkeys((exp.Encode, exp.FromBase64, exp.ToBinary, "aes_encrypt"), "BINARY"),
    **dict.fromkeys(
        ("from_utc_timestamp", "to_utc_timestamp", exp.TimestampFromParts), "TIMESTAMP"
    ),
}  # fmt: skip
"""Functions whose results have the same type for all arguments."""

_WITHOUT_ARGUMENTS = frozenset({exp.Array})
"""Functions that need no arguments."""


# -- Functions with lambdas


def _result_of(function: exp.Expr | None, variables: Kinds, type_in: TypeIn) -> str:
    """Return the type of a lambda's result, given the types of its variables."""
    if not isinstance(function, exp.Lambda):
        return ""
    names = [name.name for name in function.expressions]
    return type_in(
        _with_columns(function.this, {*names}), dict(zip(names, variables, strict=False))
    )


def _with_columns(body: exp.Expr, names: set[str]) -> exp.Expr:
    """Return the body of a lambda, with a column in place of each of these variables."""
    # `replace` works only on a node with a parent.
    root = exp.Paren(this=body.copy())
    for name in [*root.find_all(exp.Identifier)]:
        is_part = isinstance(name.parent, exp.Column) or (
            name.arg_key != "this" and isinstance(name.parent, exp.Dot)
        )
        is_name = isinstance(name.parent, exp.PropertyEQ) and name.arg_key == "this"
        is_parameter = isinstance(name.parent, exp.Lambda) and name.arg_key == "expressions"
        if name.name in names and not (is_part or is_name or is_parameter):
            name.replace(exp.Column(this=name.copy()))
    return root


def _transformed(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    return list_type(
        _result_of(node.args.get("expression"), [element_type(kinds[0]), "INT"], type_in)
    )


def _reduced(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    start = ""
    if len(kinds) > 1:
        start = kinds[1]
    finish = node.args.get("finish")
    if finish is None:
        return start
    return _result_of(finish, [start], type_in)


def _zipped(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    if len(node.expressions) != 3:
        return ""
    return list_type(_result_of(node.expressions[2], [*map(element_type, kinds[:2])], type_in))


def _with_new_values(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    key, value = map_key_type(kinds[0]), map_value_type(kinds[0])
    return map_type(key, _result_of(node.expressions[-1], [key, value], type_in))


def _with_new_keys(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    key, value = map_key_type(kinds[0]), map_value_type(kinds[0])
    return map_type(_result_of(node.expressions[-1], [key, value], type_in), value)


def _zipped_maps(node: exp.Expr, kinds: Kinds, type_in: TypeIn) -> str:
    key, values = map_key_type(kinds[0]), [*map(map_value_type, kinds[:2])]
    return map_type(key, _result_of(node.expressions[-1], [key, *values], type_in))


_OF_LAMBDAS: dict[RuleKey, Callable[[exp.Expr, Kinds, TypeIn], str]] = {
    exp.Transform: _transformed,
    exp.Reduce: _reduced,
    "zip_with": _zipped,
    "transform_values": _with_new_values,
    "transform_keys": _with_new_keys,
    "map_zip_with": _zipped_maps,
}


# -- Functions whose results depend on names or constants


def _object(node: exp.Expr, kinds: Kinds) -> str:
    names = field_names(node)
    known = ["" if kind == VOID else kind for kind in kinds]
    fields = dict(zip(names, known, strict=True))
    if len(fields) == len(kinds):
        return struct_type(fields)
    return ""


def _zip_of_lists(node: exp.Expr, kinds: Kinds) -> str:
    fields = dict(zip(field_names(node), map(element_type, kinds), strict=True))
    if len(fields) == len(kinds):
        return list_type(struct_type(fields))
    return ""


def _branch(node: exp.Expr, kinds: Kinds) -> str:
    """Return the type of an IF: the common type of its two results."""
    return _common(kinds[1:])


def _branches(node: exp.Expr, kinds: Kinds) -> str:
    """Return the type of a CASE: the common type of its results. These follow the conditions."""
    conditions = len(node.args["ifs"]) + (node.this is not None)
    return _common(kinds[conditions:])


def _field(node: exp.Expr, kinds: Kinds) -> str:
    return _part_type(kinds[0], node.expression.name)


def _of_schema(node: exp.Expr, kinds: Kinds) -> str:
    if isinstance(node, exp.FromJson):
        return _of_constant(node.expression)
    if len(node.expressions) > 1:
        return _of_constant(node.expressions[1])
    return ""


def _of_variant(node: exp.Expr, kinds: Kinds) -> str:
    if len(node.expressions) == 2:
        return "VARIANT"
    if len(node.expressions) == 3:
        return _of_constant(node.expressions[2])
    return ""


def _of_constant(schema: exp.Expr | None) -> str:
    """Return the type that a constant text describes; empty if the schema is computed."""
    if isinstance(schema, exp.Literal) and schema.is_string:
        return type_of_schema(schema.name)
    return ""


_OF_NODES: dict[RuleKey, Callable[[exp.Expr, Kinds], str]] = {
    exp.Struct: _object,
    exp.Tuple: _object,
    exp.ArraysZip: _zip_of_lists,
    exp.If: _branch,
    exp.Nvl2: _branch,
    exp.Case: _branches,
    exp.Dot: _field,
    **dict.fromkeys((exp.FromJson, "from_csv", "from_xml"), _of_schema),
    **dict.fromkeys(("variant_get", "try_variant_get"), _of_variant),
}
