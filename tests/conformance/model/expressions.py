"""The cases' expressions, evaluated for one record. The adapter writes the same expressions as Spark SQL."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Expression = list[Any]

SIZES = 50
"""All numbers that generated topologies compute are below, so that they stay small in long chains."""

_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "=": operator.eq, "==": operator.eq,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "mod": operator.mod,
}  # fmt: skip


def evaluate(
    expression: Expression,
    key: Any,
    value: Any,
    more: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Any:
    """The result for a record. As in SQL, an operation on null is null, except for `concat` and the tests for null.

    `key` is a text or a windowed key.

    `more` has further operations, which get their arguments as they are.
    """
    operation, *arguments = expression
    if operation in more:
        return more[operation](*arguments)
    match operation:
        case "field":
            return _field(value, arguments)
        case "value":
            return value
        case "const":
            return arguments[0]
        case "key":
            return getattr(key, "key", key)
        case "window_start":
            return key.start
        case "window_end":
            return key.end
        case "struct":
            return {name: evaluate(one, key, value, more) for name, one in arguments[0].items()}
    # `best` names a field, which is no expression.
    return _result(
        operation,
        [evaluate(one, key, value, more) if isinstance(one, list) else one for one in arguments],
    )


def _result(operation: str, parts: list[Any]) -> Any:
    """The result of an operation on values."""
    match operation:
        case "list":
            return parts
        case "best":
            elements, field = parts
            return max(elements or (), key=lambda element: element[field], default=None)
        case "concat":
            return "".join("null" if part is None else text(part) for part in parts)
        case "is_null":
            return parts[0] is None
        case "not_null":
            return parts[0] is not None
        case "if_null":
            return parts[1] if parts[0] is None else parts[0]
        case "digest":
            return _digest(parts[0] or [])
    if None in parts:
        return None
    match operation:
        case "upper":
            return parts[0].upper()
        case "str":
            return text(parts[0])
    return _OF_TWO[operation](*parts)


def holds(condition: Expression, key: Any, value: Any) -> bool:
    """Whether a condition is true: neither false nor null."""
    return evaluate(condition, key, value) is True


def compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def text(value: Any) -> str:
    """A value as Spark SQL's CAST writes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _field(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _digest(numbers: list[int]) -> int:
    """A number that depends on the numbers and their order."""
    digest = 0
    for number in numbers:
        digest = (digest * 7 + number) % SIZES
    return digest
