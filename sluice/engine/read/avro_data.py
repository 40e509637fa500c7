"""Walks through Avro's bytes to find out what is wrong with them, and where."""

from __future__ import annotations

from sluice.values.avro_schemas import Array, Choice, Fixed, Map, Node, Primitive, Record, Union

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_MOST_SHIFT = 63


class _FailedError(Exception):
    """The bytes at a path are wrong."""


def problem_of(node: Node, data: bytes, begin: int) -> str:
    """Return what is wrong with a value's bytes, with the path; empty if nothing is."""
    try:
        end = _skip(node, data, begin, "$")
    except _FailedError as failed:
        return str(failed)
    except RecursionError:
        return "$: the value is nested too deep"
    if end < len(data):
        return f"$: {len(data) - end} bytes are left after the value"
    return ""


def _skip(node: Node, data: bytes, at: int, path: str) -> int:
    """Return the place after a value. Raises _FailedError."""
    match node:
        case Primitive(kind="int" | "long"):
            return _long(data, at, path)[1]
        case Primitive(kind="string" | "bytes" as kind):
            size, at = _long(data, at, path)
            end = _moved(data, at, size, path)
            if kind == "string":
                _require_utf8(data[at:end], path)
            return end
        case Primitive(kind=kind):
            return _moved(data, at, _SIZES[kind], path)
        case Fixed(size=size):
            return _moved(data, at, size, path)
        case Choice(symbols=symbols):
            return _number_below(len(symbols), "symbols", data, at, path)[1]
        case Union(branches=branches):
            number, at = _number_below(len(branches), "branches", data, at, path)
            return _skip(branches[number], data, at, path)
        case Record(fields=fields):
            for each in fields:
                at = _skip(each.type, data, at, f"{path}.{each.name}")
            return at
        case Array(items=items):
            return _skip_blocks(items, data, at, path, has_names=False)
        case Map(values=values):
            return _skip_blocks(values, data, at, path, has_names=True)


def _skip_blocks(node: Node, data: bytes, at: int, path: str, *, has_names: bool) -> int:
    number = 0
    while True:
        count, at = _long(data, at, path)
        if count == 0:
            return at
        if count < 0:
            _, at = _long(data, at, path)
            count = -count
        if count > len(data) - at and not isinstance(node, Record):
            raise _FailedError(f"{path}: {count} items are more than the bytes that are left")
        for _ in range(count):
            where = f"{path}[{number}]"
            if has_names:
                size, at = _long(data, at, where)
                at = _moved(data, at, size, where)
            at = _skip(node, data, at, where)
            number += 1


def _long(data: bytes, at: int, path: str) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        if at >= len(data):
            raise _FailedError(f"{path}: the value ends within a number")
        if shift > _MOST_SHIFT:
            raise _FailedError(f"{path}: a number has more than 64 bits")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def _moved(data: bytes, at: int, size: int, path: str) -> int:
    if size < 0:
        raise _FailedError(f"{path}: a length is {size}")
    if at + size > len(data):
        raise _FailedError(
            f"{path}: the value ends after {len(data) - at} of {size} bytes of this part"
        )
    return at + size


def _number_below(end: int, what: str, data: bytes, at: int, path: str) -> tuple[int, int]:
    number, at = _long(data, at, path)
    if not 0 <= number < end:
        raise _FailedError(f"{path}: number {number} of {end} {what}")
    return number, at


def _require_utf8(text: bytes, path: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise _FailedError(f"{path}: {error}") from None
