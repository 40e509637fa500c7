"""Computes a hash of an author's function, which changes only when the function's code changes.

The hash covers the syntax tree without comments, docstrings, formatting and line numbers, and is
the same in all minor versions of Python. It includes functions, classes and plain values that the
function uses from its own module, but not code from other modules.
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
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import Any

from sluice.values.function_wrappers import Wrapper

_PLAIN = (type(None), bool, int, float, str, bytes, Decimal)
_DIGITS = 16


def code_fingerprint(function: Callable[..., Any]) -> str:
    """Return the hash of a function, a class, or a callable object."""
    description = "\n".join(_descriptions(function, set()))
    return hashlib.sha256(description.encode()).hexdigest()[:_DIGITS]


def _descriptions(value: Any, seen: set[int]) -> Iterator[str]:
    # Functions may call each other. Without this check, their description would recurse forever.
    if id(value) in seen:
        return
    seen.add(id(value))
    match value:
        case functools.partial():
            yield "partial"
            names_and_values = chain.from_iterable(sorted(value.keywords.items()))
            for part in (value.func, *value.args, *names_and_values):
                yield from _descriptions(part, seen)
        case Wrapper():
            yield type(value).__name__
            yield from _descriptions(value.function, seen)
        case MethodType():
            yield from _descriptions(value.__func__, seen)
        case FunctionType():
            yield _syntax_text(value)
            yield from _descriptions_of_used_values(value, seen)
        case type():
            yield _syntax_text(value)
            for member in vars(value).values():
                # A class method or a decorated method wraps the function with the author's code.
                inner = getattr(member, "__func__", member)
                function = inspect.unwrap(inner) if callable(inner) else inner
                if isinstance(function, FunctionType):
                    yield from _descriptions_of_used_values(function, seen)
        case list() | tuple() | dict():
            yield type(value).__name__
            for item in value.items() if isinstance(value, dict) else value:
                yield from _descriptions(item, seen)
        case _ if isinstance(value, _PLAIN):
            yield repr(value)
        case _ if inspect.isbuiltin(value) or inspect.ismodule(value):
            yield getattr(value, "__qualname__", value.__name__)
        case _:
            yield from _descriptions(type(value), seen)


def _descriptions_of_used_values(function: FunctionType, seen: set[int]) -> Iterator[str]:
    """Describe the values that a function uses from its own module and from enclosing functions."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in sorted(cells):
        yield name
        # `cell_contents` raises ValueError as long as the name has no value.
        try:
            yield from _descriptions(cells[name].cell_contents, seen)
        except ValueError:
            continue
    # Sort the names, because versions of Python list them in different orders.
    for name in sorted(set(_names_in(function.__code__))):
        value = function.__globals__.get(name)
        is_own = getattr(value, "__module__", None) == function.__module__
        if isinstance(value, FunctionType | type) and not is_own:
            yield f"{value.__module__}.{value.__qualname__}"
        elif name in function.__globals__ and (
            is_own or isinstance(value, (*_PLAIN, list, tuple, dict))
        ):
            yield name
            yield from _descriptions(value, seen)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _syntax_text(value: FunctionType | type) -> str:
    """Return the syntax tree of a function or class as text.

    If the source is unavailable, return its names and constants.
    """
    try:
        if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
            return _node_text(_lambda_tree(value))
        return _text_of_source(inspect.getsource(value))
    except (OSError, TypeError, ValueError, IndexError, SyntaxError):
        name = value.__qualname__
        if not isinstance(value, FunctionType):
            texts = [name]
            for member in vars(value).values():
                if isinstance(member, FunctionType):
                    texts.append(_syntax_text(member))
            return "\n".join(texts)
        plain = [constant for constant in value.__code__.co_consts if isinstance(constant, _PLAIN)]
        return f"{name} {value.__code__.co_names} {plain}"


# Cached, because each `TopologyTestDriver` in a pipeline's tests describes the same functions
# again.
@functools.lru_cache(maxsize=1_000)
def _text_of_source(source: str) -> str:
    return _node_text(ast.parse(textwrap.dedent(source)).body[0])


def _lambda_tree(function: FunctionType) -> ast.AST:
    """Return the syntax tree of a lambda.

    `inspect.getsource` cannot be used: it returns whole lines, which may not parse or may contain
    several lambdas.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename)
    # The last instruction with a source position spans the lambda's whole body.
    last_line, last_column = 0, 0
    for line, _, column, end_column in code.co_positions():
        if (end_column or 0) > (column or 0):
            last_line, last_column = line or 0, column or 0
    around: list[ast.Lambda] = []
    for node in ast.walk(ast.parse("".join(lines))):
        if not isinstance(node, ast.Lambda):
            continue
        begins_before = (node.lineno, node.col_offset) <= (last_line, last_column)
        if begins_before and last_line <= (node.end_lineno or 0):
            around.append(node)
    # Of nested lambdas, the innermost begins last.
    return max(around, key=lambda node: (node.lineno, node.col_offset))


def _node_text(node: ast.AST) -> str:
    """Return a syntax tree as text, without docstrings and empty fields.

    Empty fields differ between versions of Python.
    """
    fields = []
    for name, value in ast.iter_fields(node):
        # The field `kind` only tells whether a string has the prefix u.
        if name == "kind":
            continue
        if name == "body" and isinstance(node, _DOCUMENTED) and _has_docstring(value):
            value = value[1:]
        # Some versions of Python, such as 3.12, add empty strings to f-strings.
        if isinstance(node, ast.JoinedStr):
            value = [part for part in value if getattr(part, "value", None) != ""]
        if value is None or value == []:
            continue
        fields.append(f"{name}={_field_text(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _field_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_field_text, value))}]"
    if isinstance(value, ast.AST):
        return _node_text(value)
    return repr(value)


def _has_docstring(body: list[ast.stmt]) -> bool:
    first = None
    if body:
        first = body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return False
    return isinstance(first.value.value, str)
