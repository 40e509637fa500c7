"""What an author's function does, as a hash that changes with its code and with nothing else.

The hash is of the syntax tree: comments, docstrings, formatting and line numbers are not in it, nor what differs
between minor versions of Python. Functions, classes and plain values of the same module that it uses count as its own
code. What it calls in other modules does not.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import CodeType, FunctionType, MethodType
from typing import Any

from sluice.topology.functions import Wrapper

_PLAIN = (type(None), bool, int, float, str, bytes, Decimal)
_DIGITS = 16


def fingerprint(function: Callable[..., Any]) -> str:
    """The hash of a function, a class, or an object that can be called."""
    found = "\n".join(_described(function, set()))
    return hashlib.sha256(found.encode()).hexdigest()[:_DIGITS]


def _described(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    match value:
        case functools.partial():
            yield "partial"
            for part in (value.func, *value.args, *(one for pair in sorted(value.keywords.items()) for one in pair)):
                yield from _described(part, seen)
        case Wrapper():
            yield type(value).__name__
            yield from _described(value.function, seen)
        case MethodType():
            yield from _described(value.__func__, seen)
        case FunctionType():
            yield _tree(value)
            yield from _used(value, seen)
        case type():
            yield _tree(value)
            for member in vars(value).values():
                function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else member
                if isinstance(function, FunctionType):
                    yield from _used(function, seen)
        case list() | tuple() | dict():
            yield type(value).__name__
            for one in value.items() if isinstance(value, dict) else value:
                yield from _described(one, seen)
        case _ if isinstance(value, _PLAIN):
            yield repr(value)
        case _ if inspect.isbuiltin(value) or inspect.ismodule(value):
            yield getattr(value, "__qualname__", value.__name__)
        case _:
            yield from _described(type(value), seen)


def _used(function: FunctionType, seen: set[int]) -> Iterator[str]:
    """What a function uses of its own module, of the functions around it, and as defaults."""
    state_rows = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in sorted(state_rows):
        yield name
        try:
            yield from _described(state_rows[name].cell_contents, seen)
        except ValueError:
            continue  # the name is not bound yet
    for name in sorted(set(_names(function.__code__))):
        value = function.__globals__.get(name)
        is_own = getattr(value, "__module__", None) == function.__module__
        if isinstance(value, FunctionType | type) and not is_own:
            yield f"{value.__module__}.{value.__qualname__}"
        elif name in function.__globals__ and (is_own or isinstance(value, (*_PLAIN, list, tuple, dict))):
            yield name
            yield from _described(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _tree(value: FunctionType | type) -> str:
    """The syntax tree of a function or class as text; names and constants where the source is not there."""
    try:
        node = _lambda(value) if isinstance(value, FunctionType) and value.__name__ == "<lambda>" else _parsed(value)
    except (OSError, TypeError, ValueError, IndexError, SyntaxError):
        name = value.__qualname__
        if not isinstance(value, FunctionType):
            return "\n".join([name, *(_tree(one) for one in vars(value).values() if isinstance(one, FunctionType))])
        plain = [constant for constant in value.__code__.co_consts if isinstance(constant, _PLAIN)]
        return f"{name} {value.__code__.co_names} {plain}"
    return _text(node)


def _parsed(value: FunctionType | type) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _lambda(function: FunctionType) -> ast.AST:
    """The tree of a lambda: `getsource` gives whole lines, which may be no syntax by themselves, or hold several."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename)
    found = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Lambda)]
    # Instructions that stand for something in the source say where; the last of them is the body as a whole.
    line, _, column, _ = [place for place in code.co_positions() if (place[3] or 0) > (place[2] or 0)][-1]
    mine = (node for node in found if node.lineno <= (line or 0) <= (node.end_lineno or 0))
    offsets = ((node, len("".join(lines[node.lineno - 1]).encode()[: node.col_offset])) for node in mine)
    return max(
        (node for node, offset in offsets if node.lineno < (line or 0) or offset <= (column or 0)),
        key=lambda node: (node.lineno, node.col_offset),
    )


def _text(node: ast.AST) -> str:
    """A tree as text without docstrings. What is empty is left out: some versions of Python have more such fields."""
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "kind":
            continue  # whether a string was written with a u
        if name == "body" and isinstance(value, list) and isinstance(node, _DOCUMENTED):
            value = value[_has_docstring(value) :]
        if isinstance(node, ast.JoinedStr):  # to which Python 3.12 adds empty strings
            value = [one for one in value if getattr(one, "value", None) != ""]
        if value is None or value == []:
            continue
        fields.append(f"{name}={_field(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _field(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_field, value))}]"
    return _text(value) if isinstance(value, ast.AST) else repr(value)


def _has_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
