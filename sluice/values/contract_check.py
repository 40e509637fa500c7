"""Checks a value against the recorded fields of a contract, without the author's code.

The check finds missing fields, wrong types, nulls, choices and digits. It does not check limits
such as a longest text, nor unions of objects, so a run may still reject a value that passes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from sluice.values.contract_fields import (
    FORBIDDEN,
    NULLABLE,
    OPTIONAL,
    UNKNOWN_FIELDS,
    choices_of,
)
from sluice.values.sql_types import precision_and_scale

_MOST_PROBLEMS = 50
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


class FieldProblem(NamedTuple):
    """A problem of a field in a value. The path is empty for the value as a whole."""

    path: str
    detail: str


def problems_of(fields: Mapping[str, str], text: str) -> list[FieldProblem]:
    """Return the problems of a JSON text, given the fields that `contract_fields` returned."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except ValueError as error:
        return [FieldProblem("", f"This is not JSON: {error}")]
    except RecursionError:
        return [FieldProblem("", "The value is nested too deeply.")]
    found: list[FieldProblem] = []
    for problem in _problems(fields, "", "", value):
        found.append(problem)
        if len(found) == _MOST_PROBLEMS:
            break
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _problems(
    fields: Mapping[str, str], path: str, shown: str, value: Any
) -> Iterator[FieldProblem]:
    """Yield the problems of the value at a path.

    `shown` is the path with the indices of list elements.
    """
    undeclared = "" if path else "object"
    kind = fields.get(path, undeclared).removesuffix(OPTIONAL)
    is_nullable = kind.endswith(NULLABLE)
    kind = kind.removesuffix(NULLABLE)
    if value is None:
        if kind and not is_nullable:
            yield FieldProblem(shown, f"Expected {_article(kind)}, got null")
    elif kind == "list":
        if not isinstance(value, list):
            yield FieldProblem(shown, f"Expected a list, got {_name(value)}")
            return
        for number, item in enumerate(value):
            yield from _problems(fields, f"{path}[]", f"{shown}[{number}]", item)
    elif kind == "map":
        if not isinstance(value, dict):
            yield FieldProblem(shown, f"Expected an object, got {_name(value)}")
            return
        for name, item in value.items():
            yield from _problems(fields, f"{path}[]", f"{shown}.{name}", item)
    elif kind == "object":
        yield from _problems_of_object(fields, path, shown, value)
    elif kind:
        detail = _problem_of_scalar(kind, value)
        if detail:
            yield FieldProblem(shown, detail)


def _problems_of_object(
    fields: Mapping[str, str], path: str, shown: str, value: Any
) -> Iterator[FieldProblem]:
    if not isinstance(value, dict):
        yield FieldProblem(shown, f"Expected an object, got {_name(value)}")
        return
    if any(name.startswith(f"{path}<") for name in fields):
        # Only the author's code knows to which member of a union an object belongs.
        return
    prefix = begin = ""
    if path:
        prefix, begin = f"{path}.", f"{shown}."
    known: set[str] = set()
    for field, kind in fields.items():
        name = field.removeprefix(prefix)
        is_own = field.startswith(prefix) and name and "." not in name and not name.endswith("[]")
        if not is_own or name == UNKNOWN_FIELDS:
            continue
        known.add(name)
        if name in value:
            yield from _problems(fields, field, begin + name, value[name])
        elif not kind.endswith(OPTIONAL):
            yield FieldProblem(begin + name, "The field is missing")
    if fields.get(f"{prefix}{UNKNOWN_FIELDS}") == FORBIDDEN:
        for name in value.keys() - known:
            # A name with a point could be mistaken for the path of a field in an object.
            if "." in name or name.endswith("[]"):
                continue
            yield FieldProblem(begin + name, "The contract does not name this field")


_PYTHON_TYPES = {"STRING": str, "BOOLEAN": bool}


def _problem_of_scalar(kind: str, value: Any) -> str:
    """Describe the problem of a value that is not null; empty if none is known."""
    choices = choices_of(kind)
    if choices is not None:
        is_choice = isinstance(value, str | int | bool) and value in choices
        if is_choice:
            return ""
        return f"Expected {kind}, got {_shown(value)}"
    bare = kind.partition(" with ")[0]
    expected = f"Expected {_article(bare)}, got {_name(value)}"
    if bare in _PYTHON_TYPES and not isinstance(value, _PYTHON_TYPES[bare]):
        return expected
    if bare in _INTEGERS:
        if isinstance(value, bool) or not isinstance(value, int):
            return expected
        most = 2 ** (_INTEGERS[bare] - 1)
        if -most <= value < most:
            return ""
        return f"{value} is out of the range of {bare}"
    if bare in ("DOUBLE", "FLOAT"):
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return expected
        return ""
    if bare.startswith("DECIMAL"):
        return _problem_of_decimal(bare, value) or ""
    if bare in ("TIMESTAMP", "DATE"):
        return _problem_of_time(bare, value)
    return ""


def _problem_of_decimal(kind: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        return f"Expected a {kind}, got {_name(value)}"
    try:
        number = Decimal(value)
    except InvalidOperation:
        return f"{_shown(value)} is not a number"
    if not number.is_finite():
        return f"{_shown(value)} is not a number"
    precision, scale = precision_and_scale(kind)
    exponent = number.normalize().as_tuple().exponent
    decimals = 0
    if isinstance(exponent, int):
        decimals = max(-exponent, 0)
    if decimals > scale:
        return f"{value} has {decimals} decimal places, but {kind} has {scale}"
    if number and number.adjusted() >= precision - scale:
        return f"{value} has more digits than {kind}"
    return ""


def _problem_of_time(kind: str, value: Any) -> str:
    if not isinstance(value, str):
        return f"Expected a text with a {kind}, got {_name(value)}"
    try:
        if kind == "TIMESTAMP":
            datetime.fromisoformat(value)
        else:
            date.fromisoformat(value)
    except ValueError:
        return f"{_shown(value)} is not a {kind} in ISO 8601"
    return ""


def _article(kind: str) -> str:
    if kind[:1] in "aeiouAEIO" and not kind.startswith("one of"):
        return f"an {kind}"
    return f"a {kind}"


def _name(value: Any) -> str:
    """Return the type of a JSON value, for an error."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    return "a number"


def _shown(value: Any) -> str:
    if isinstance(value, Decimal):
        text = str(value)
    else:
        text = json.dumps(value, ensure_ascii=False)
    if len(text) <= 100:
        return text
    return f"{text[:99]}…"
