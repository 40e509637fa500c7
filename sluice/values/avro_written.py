"""Converts plain data to what Avro writes, exactly: a value that does not fit is an error."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias
from uuid import UUID

from sluice.values.avro_schemas import (
    NO_DEFAULT,
    Array,
    Choice,
    Decimals,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
)
from sluice.values.avro_values import described, unit_of_logical
from sluice.values.json_limits import shortened

Write: TypeAlias = Callable[[Any], Any]
"""Turns plain data into what a schema without logical types takes."""
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_BITS = {"int": 31, "long": 63}
_LARGEST_FLOAT = 3.4028235677973366e38
_NULL = Primitive("null")


class UnwritableError(ValueError):
    """A value does not fit its schema."""


def writer(node: Node, path: str = "$") -> Write:  # noqa: C901
    """Return the function for values of a schema. It raises UnwritableError."""
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            return lambda value: _decimal(node, value, path)
        case Primitive(kind="int", logical="date"):
            return lambda value: _day(value, path)
        case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
            per_second, is_local = unit_of_logical(logical)
            return lambda value: _moment(per_second, is_local, value, path)
        case Primitive(kind=kind, logical="time-millis" | "time-micros" as logical):
            per_second = 1_000 if logical == "time-millis" else 1_000_000
            whole = _whole(_BITS[kind], path)
            return lambda value: whole(_time_of_day(per_second, value, path))
        case Primitive(kind="int" | "long" as kind):
            return _whole(_BITS[kind], path)
        case Primitive(kind="float" | "double" as kind):
            return lambda value: _number(kind, value, path)
        case Primitive(kind="boolean"):
            return lambda value: _typed(bool, value, node, path)
        case Primitive(kind="string"):
            return lambda value: _typed(str, value, node, path)
        case Primitive(kind="bytes"):
            return lambda value: _bytes(value, node, path)
        case Primitive():
            return lambda value: _typed(type(None), value, node, path)
        case Fixed():
            return lambda value: _fixed(node, value, path)
        case Choice():
            return lambda value: _symbol(node, value, path)
        case Array(items=items):
            write_item = writer(items, f"{path}[...]")
            return lambda value: [*map(write_item, _typed(list, value, node, path))]
        case Map(values=values):
            write_value = writer(values, f"{path}[...]")
            return lambda value: {
                name: write_value(each) for name, each in _typed(dict, value, node, path).items()
            }
        case Union(branches=branches):
            return _union(branches, node, path)
        case Record():
            return _record(node, path)


def _record(node: Record, path: str) -> Write:
    writes: dict[str, Write] = {}
    defaults: dict[str, Any] = {}
    for each in node.fields:
        where = f"{path}.{each.name}"
        writes[each.name] = writer(each.type, where)
        if each.default is not NO_DEFAULT:
            defaults[each.name] = _default(each.type, each.default, where)
        elif isinstance(each.type, Union) and _NULL in each.type.branches:
            defaults[each.name] = None

    def write(value: Any) -> Any:
        fields = _typed(dict, value, node, path)
        written: dict[str, Any] = {}
        for name, write_field in writes.items():
            if name in fields and not (fields[name] is None and _lacks_null(node, name)):
                written[name] = write_field(fields[name])
            elif name in defaults:
                written[name] = defaults[name]
            elif name in fields:
                raise UnwritableError(f"{path}.{name}: the schema does not allow null here")
            else:
                raise UnwritableError(f"{path}.{name}: the value lacks this field of the schema")
        for name in fields.keys() - writes.keys():
            if fields[name] is not None:
                raise UnwritableError(f"{path}.{name}: the schema lacks this field of the value")
        return written

    return write


def _lacks_null(node: Record, name: str) -> bool:
    kind = next(each.type for each in node.fields if each.name == name)
    return kind != _NULL and not (isinstance(kind, Union) and _NULL in kind.branches)


def _default(node: Node, default: Any, path: str) -> Any:
    """Return a field's default as a schema without logical types takes it."""
    match node:
        case Union(branches=branches):
            return _default(branches[0], default, path)
        case Primitive(kind="bytes") | Fixed():
            return str(default).encode("latin-1")
        case Record(fields=fields):
            given: Mapping[str, Any] = default if isinstance(default, dict) else {}
            own = {each.name: given.get(each.name, each.default) for each in fields}
            return {each.name: _default(each.type, own[each.name], path) for each in fields}
        case _:
            return default


def _union(branches: tuple[Node, ...], node: Node, path: str) -> Write:
    has_null = _NULL in branches
    writes = [(branch, writer(branch, path)) for branch in branches if branch != _NULL]
    records = [branch for branch in branches if isinstance(branch, Record)]

    def write(value: Any) -> Any:
        if value is None:
            if has_null:
                return None
            raise UnwritableError(f"{path}: the schema does not allow null here")
        if len(writes) == 1:
            return writes[0][1](value)
        problems: list[str] = []
        for branch, write_branch in writes:
            fields = value
            if isinstance(branch, Record) and isinstance(value, dict) and len(records) > 1:
                names = {branch.name, branch.short_name}
                tags = [name for name, each in value.items() if each in names]
                known = {each.name for each in branch.fields}
                if not tags:
                    continue
                fields = {
                    name: each for name, each in value.items() if name in known or name not in tags
                }
                fields = {name: each for name, each in fields.items() if each is not None}
            try:
                written = write_branch(fields)
            except UnwritableError as error:
                problems.append(str(error))
                continue
            return (branch.name, written) if isinstance(branch, Record) else written
        problem = problems[0] if len(problems) == 1 else f"{_shown(value)} is no {described(node)}"
        raise UnwritableError(f"{path}: {problem}" if not problem.startswith("$") else problem)

    return write


def _decimal(node: Decimals, value: Any, path: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise _unfit(value, node, path)
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise _unfit(value, node, path) from None
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise _unfit(value, node, path)
    places = exponent + node.scale
    if abs(places) > 400:
        raise _unfit(value, node, path)
    unscaled = int("".join(map(str, digits)) or "0")
    if places >= 0:
        unscaled *= int(10**places)
    else:
        unscaled, rest = divmod(unscaled, int(10**-places))
        if rest:
            raise _unfit(value, node, path)
    if unscaled >= 10**node.precision:
        raise _unfit(value, node, path)
    if sign:
        unscaled = -unscaled
    if isinstance(node, Fixed):
        try:
            data: bytes = unscaled.to_bytes(node.size, "big", signed=True)
        except OverflowError:
            raise _unfit(value, node, path) from None
        return data
    size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8) + 1
    return unscaled.to_bytes(size, "big", signed=True)


def _moment(per_second: int, is_local: bool, value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(63, path)(value)
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise UnwritableError(f"{path}: {_shown(value)} is no time") from None
    if moment.tzinfo is None or is_local:
        moment = moment.replace(tzinfo=UTC)
    microseconds = (moment - _1970) // timedelta(microseconds=1)
    if per_second > 1_000_000:
        return _whole(63, path)(microseconds * (per_second // 1_000_000))
    number, rest = divmod(microseconds, 1_000_000 // per_second)
    if rest:
        raise UnwritableError(f"{path}: {_shown(value)} has more than whole milliseconds")
    return number


def _day(value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(31, path)(value)
    try:
        day = value if isinstance(value, date) else date.fromisoformat(value)
    except (TypeError, ValueError):
        raise UnwritableError(f"{path}: {_shown(value)} is no date") from None
    return day.toordinal() - _FIRST_DAY


def _time_of_day(per_second: int, value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        moment = time.fromisoformat(value)
    except ValueError:
        raise UnwritableError(f"{path}: {_shown(value)} is no time of day") from None
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    number, rest = divmod(seconds * 1_000_000 + moment.microsecond, 1_000_000 // per_second)
    if rest:
        raise UnwritableError(f"{path}: {_shown(value)} has more than whole milliseconds")
    return number


def _whole(bits: int, path: str) -> Callable[[Any], int]:
    def write(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnwritableError(f"{path}: {_shown(value)} is no whole number")
        if not -(2**bits) <= value < 2**bits:
            raise UnwritableError(f"{path}: {value} has more than {bits + 1} bits")
        return value

    return write


def _number(kind: str, value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UnwritableError(f"{path}: {_shown(value)} is no number")
    number = float(value)
    if not math.isfinite(number) or (kind == "float" and abs(number) >= _LARGEST_FLOAT):
        raise UnwritableError(f"{path}: {_shown(value)} is too large for a {kind}")
    return number


def _typed(kind: type, value: Any, node: Node, path: str) -> Any:
    if not isinstance(value, kind):
        raise _unfit(value, node, path)
    return value


def _bytes(value: Any, node: Node, path: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(_typed(str, value, node, path), validate=True)
    except ValueError:
        raise _unfit(value, node, path) from None


def _fixed(node: Fixed, value: Any, path: str) -> bytes:
    if node.logical == "uuid":
        try:
            return UUID(value).bytes
        except (TypeError, ValueError, AttributeError):
            raise _unfit(value, node, path) from None
    data = _bytes(value, node, path)
    if len(data) != node.size:
        raise UnwritableError(f"{path}: {len(data)} bytes are no {described(node)}")
    return data


def _symbol(node: Choice, value: Any, path: str) -> str:
    if value not in node.symbols:
        raise _unfit(value, node, path)
    return str(value)


def _unfit(value: Any, node: Node, path: str) -> UnwritableError:
    return UnwritableError(f"{path}: {_shown(value)} is no {described(node)}")


def _shown(value: Any) -> str:
    return shortened(repr(value) if isinstance(value, str) else str(value))
