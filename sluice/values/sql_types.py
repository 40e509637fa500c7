"""Formats and parses Spark SQL's type texts.

Only this module does so, because field names may contain any character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from sluice.values.sql_text import quoted

MOST_DIGITS = 38
"""The largest precision, and the largest scale, of a decimal."""
SUM_DIGITS = 10
"""Spark's sum of decimals has this many digits more than its argument, all before the point."""
AVERAGE_DIGITS = 4
"""Spark's average of decimals has this many digits more than its argument, all after the point."""


def sum_digits(precision: int, scale: int) -> tuple[int, int]:
    """Return the precision and the scale of a sum of such decimals."""
    return min(precision + SUM_DIGITS, MOST_DIGITS), scale


def average_digits(precision: int, scale: int) -> tuple[int, int]:
    """Return the precision and the scale of an average of such decimals."""
    return min(precision + AVERAGE_DIGITS, MOST_DIGITS), min(scale + AVERAGE_DIGITS, MOST_DIGITS)


def struct_type(fields: Mapping[str, str]) -> str:
    """Return the type of an object with these fields.

    If a field's type is unknown, pass an empty text.
    """
    named_types = [f"{quoted(name)}: {kind}" for name, kind in fields.items()]
    return f"STRUCT<{', '.join(named_types)}>"


def struct_fields(kind: str) -> dict[str, str]:
    """Return the fields of a struct type with their types (empty if unknown); otherwise none."""
    fields = {}
    for part in _arguments(kind, "STRUCT"):
        name, _, of_field = _split(part, ":")
        fields[_unquoted(name.strip())] = of_field.strip()
    return fields


def element_type(kind: str) -> str:
    """Return the type of an array's elements; an empty text for other types."""
    return "".join(_arguments(kind, "ARRAY"))


def map_key_type(kind: str) -> str:
    """Return the type of a map's keys; an empty text for other types."""
    return next(_arguments(kind, "MAP"), "")


def map_value_type(kind: str) -> str:
    """Return the type of a map's values; an empty text for other types."""
    return next(islice(_arguments(kind, "MAP"), 1, None), "")


def parts_of(kind: str) -> list[str]:
    """Return the types of the parts of an object, a list or a map; empty for other types."""
    return [*struct_fields(kind).values(), *_arguments(kind, "ARRAY"), *_arguments(kind, "MAP")]


def names_within(types: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the fields, and of the fields of objects inside them, even in lists."""
    for name, kind in types.items():
        yield name
        yield from names_within(struct_fields(element_type(kind) or kind))


def is_complete(kind: str) -> bool:
    """Return whether a type and the types of all its parts are known."""
    return bool(kind) and all(map(is_complete, parts_of(kind)))


def compact(kind: str) -> str:
    """Return the type in Spark's short form: lower case, no spaces, except for fields' names."""
    if fields := struct_fields(kind):
        named_types: list[str] = []
        for name, of_field in fields.items():
            named_types.append(f"{quoted(name)}:{compact(of_field)}")
        return f"struct<{','.join(named_types)}>"
    if element := element_type(kind):
        return f"array<{compact(element)}>"
    if of_map := [*_arguments(kind, "MAP")]:
        return f"map<{','.join(map(compact, of_map))}>"
    return kind.lower().replace(" ", "")


def canonical(kind: str) -> str:
    """Return the type as contracts declare it: in upper case, except for the names of fields."""
    if fields := struct_fields(kind):
        return struct_type({name: canonical(of_field) for name, of_field in fields.items()})
    if element := element_type(kind):
        return f"ARRAY<{canonical(element)}>"
    if of_map := [*_arguments(kind, "MAP")]:
        return f"MAP<{', '.join(map(canonical, of_map))}>"
    return kind.upper().replace(" ", "")


def _arguments(kind: str, name: str) -> Iterator[str]:
    """Yield the types, or named types, inside `NAME<...>`; none for another type."""
    opening = len(name) + 1
    if kind[:opening].upper() != f"{name}<":
        return
    rest = kind[opening:-1]
    while rest.strip():
        argument, _, rest = _split(rest, ",")
        yield argument.strip()


def _split(text: str, separator: str) -> tuple[str, str, str]:
    """Do the same as `str.partition`, but skip separators in brackets and in backticks."""
    depth, is_quoted = 0, False
    for i, sign in enumerate(text):
        # A doubled backtick toggles twice, so it does not end the name.
        if sign == "`":
            is_quoted = not is_quoted
        elif not is_quoted:
            if sign == separator and not depth:
                return text[:i], separator, text[i + 1 :]
            depth += (sign in "<(") - (sign in ">)")
    return text, "", ""


def _unquoted(name: str) -> str:
    if name.startswith("`"):
        return name[1:-1].replace("``", "`")
    return name


def precision_and_scale(kind: str) -> tuple[int, int]:
    """Return precision and scale of a DECIMAL type."""
    digits = [int(number) for number in re.findall(r"\d+", kind)]
    precision = 10
    if digits:
        precision = digits[0]
    scale = 0
    if len(digits) == 2:
        scale = digits[1]
    return precision, scale
