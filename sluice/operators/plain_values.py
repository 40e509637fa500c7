"""Recognizes plain values: numbers, short texts, Booleans, and Structs of them.

A plain value needs no further check: it can be written as JSON and as MessagePack, and is read back
as the same value. Recognizing a plain value takes a fraction of the time that writing and reading
it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from sluice.values.json_limits import LONGEST_NAME

_TESTS = {
    int: f"type({{0}}) is int and {-(1 << 63)} <= {{0}} < {1 << 63}",
    # For NaN and infinite floats, the difference is NaN instead of 0.
    float: "type({0}) is float and {0} - {0} == 0",
    bool: "type({0}) is bool",
    # An ASCII text has no surrogates, which UTF-8 could not encode.
    str: f"type({{0}}) is str and len({{0}}) <= {LONGEST_NAME} and {{0}}.isascii()",
    NoneType: "{0} is None",
}
"""Type → Python source that tests whether a value, `{0}`, is plain."""


def plain_check(kind: Any) -> Callable[[Any], bool]:
    """Return a function that returns True only for plain values of the type.

    Its code is generated for the type.
    """
    if kind is Any:
        test = _test(int | str | float | bool, "v")
    elif is_plain_struct(kind):
        test = "type(v) is kind"
        for field in msgspec.structs.fields(kind):
            test += f" and {_test(field.type, f'v.{field.name}')}"
    else:
        test = _test(kind, "v")
    # `eval` is safe here, because the source contains only names of fields.
    check: Callable[[Any], bool] = eval(f"lambda v: {test or False}", {"kind": kind})
    return check


def plain_copy(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that copies plain Structs of the type.

    Return None for any other type: its plain values are immutable.
    """
    if is_plain_struct(kind):
        copy: Callable[[Any], Any] = kind.__copy__
        return copy
    return None


def has_plain_values(kind: Any) -> bool:
    """Return whether all values of the type consist of numbers, texts, Booleans and nulls."""
    return is_plain_struct(kind) or _test(kind, "v") is not None


def is_plain_struct(kind: Any) -> bool:
    """Return whether the type is a Struct all of whose fields are numbers, texts, Booleans or null.

    Reading such a Struct back gives an equal Struct, because the type has no code of its own and no
    attributes besides its fields.
    """
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return False
    if kind.__struct_config__.dict or hasattr(kind, "__post_init__"):
        return False
    return all(_test(field.type, "v") for field in msgspec.structs.fields(kind))


def _test(kind: Any, item: str) -> str | None:
    """Return Python source that tests whether `item` is plain; None if no value of the type is."""
    if get_origin(kind) in (Union, UnionType):
        tests = [_test(member, item) for member in get_args(kind)]
        if None in tests:
            return None
        return f"({' or '.join(f'({test})' for test in tests)})"
    if isinstance(kind, type):
        test = _TESTS.get(kind)
    else:
        test = None
    if test is None:
        return None
    return test.format(item)
