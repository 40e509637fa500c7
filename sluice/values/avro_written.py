"""Writes plain data in Avro, exactly. If a value does not fit, the error has its path."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from struct import Struct
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

Write: TypeAlias = Callable[[Any], bytes]
"""Encodes a value, given as plain data, to Avro's bytes."""
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_BITS = {"int": 31, "long": 63}
LARGEST_FLOAT = 3.4028235677973366e38
"""This number and larger numbers do not fit into a float of 32 bits."""
_NULL = Primitive("null")


class UnwritableError(ValueError):
    """A value does not fit its schema."""


def writer(node: Node, path: str = "$") -> Write:  # noqa: C901  (a table)
    """Return the function that writes a value of a schema. It raises UnwritableError."""
    match node:
        case Primitive(logical="decimal"):
            return lambda value: _with_length(_decimal(node, value, path))
        case Fixed(logical="decimal"):
            return lambda value: _decimal(node, value, path)
        case Primitive(kind="int", logical="date"):
            return lambda value: _long(_day(value, path))
        case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
            per_second, is_local = unit_of_logical(logical)
            return lambda value: _long(_moment(per_second, is_local, value, path))
        case Primitive(kind=kind, logical="time-millis" | "time-micros" as logical):
            per_second = 1_000 if logical == "time-millis" else 1_000_000
            whole = _whole(_BITS[kind], path)
            return lambda value: _long(whole(_time_of_day(per_second, value, path)))
        case Primitive(kind="int" | "long" as kind):
            whole = _whole(_BITS[kind], path)
            return lambda value: _long(whole(value))
        case Primitive(kind="float"):
            return lambda value: _FLOAT.pack(_number("float", value, path))
        case Primitive(kind="double"):
            return lambda value: _DOUBLE.pack(_number("double", value, path))
        case Primitive(kind="boolean"):
            return lambda value: _FLAGS[_typed(bool, value, node, path)]
        case Primitive(kind="string"):
            return lambda value: _with_length(_typed(str, value, node, path).encode())
        case Primitive(kind="bytes"):
            return lambda value: _with_length(_bytes(value, node, path))
        case Primitive():
            return lambda value: _nothing(value, node, path)
        case Fixed():
            return lambda value: _fixed(node, value, path)
        case Choice():
            return _symbols(node, path)
        case Array(items=items):
            write_item = writer(items, f"{path}[...]")
            return lambda value: _block([*map(write_item, _typed(list, value, node, path))])
        case Map(values=values):
            return _map(writer(values, f"{path}[...]"), node, path)
        case Union(branches=branches):
            return _union(branches, node, path)
        case Record():
            return _record(node, path)


def _nothing(value: Any, node: Node, path: str) -> bytes:
    _typed(type(None), value, node, path)
    return b""


_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_FLAGS = {False: b"\0", True: b"\1"}


def _written_long(number: int) -> bytes:
    if number >= 0:
        zigzag = number << 1
    else:
        zigzag = (-number << 1) - 1
    written = bytearray()
    while zigzag > 0x7F:
        written.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    written.append(zigzag)
    return bytes(written)


_MOST_KNOWN = 4_096
_KNOWN = [_written_long(number) for number in range(_MOST_KNOWN)]
"""The bytes of small numbers. Most numbers are small: lengths, and the numbers of branches."""


def _long(number: int) -> bytes:
    return _KNOWN[number] if 0 <= number < _MOST_KNOWN else _written_long(number)


def _with_length(data: bytes) -> bytes:
    return _long(len(data)) + data


def _block(items: list[bytes]) -> bytes:
    """Return the bytes of a list or a map: one block with its items, then the empty block."""
    return b"".join([_long(len(items)), *items, b"\0"]) if items else b"\0"


def _map(write_value: Write, node: Node, path: str) -> Write:
    def write(value: Any) -> bytes:
        items: list[bytes] = []
        for name, each in _typed(dict, value, node, path).items():
            items.append(_with_length(name.encode()) + write_value(each))
        return _block(items)

    return write


def _symbols(node: Choice, path: str) -> Write:
    numbers = {symbol: _long(number) for number, symbol in enumerate(node.symbols)}

    def write(value: Any) -> bytes:
        try:
            return numbers[value]
        except (KeyError, TypeError):
            raise _unfit(value, node, path) from None

    return write


def _record(node: Record, path: str) -> Write:
    parts: list[tuple[str, Write, bytes | None, bool]] = []
    for each in node.fields:
        where = f"{path}.{each.name}"
        has_null = isinstance(each.type, Union) and _NULL in each.type.branches
        takes_null = has_null or each.type == _NULL
        default: bytes | None = None
        if each.default is not NO_DEFAULT:
            default = written_default(each.type, each.default, where)
        write_field = writer(each.type, where)
        if default is None and takes_null:
            default = write_field(None)
        parts.append((each.name, write_field, default, takes_null))
    count = len(parts)
    names = {name for name, _, _, _ in parts}

    def write(value: Any) -> bytes:
        if not isinstance(value, dict):
            raise _unfit(value, node, path)
        written: list[bytes] = []
        for name, write_field, default, takes_null in parts:
            field = value.get(name)
            if field is not None:
                written.append(write_field(field))
            elif takes_null and name in value:
                written.append(write_field(None))
            elif default is not None:
                written.append(default)
            elif name in value:
                raise UnwritableError(f"{path}.{name}: the schema does not allow null here")
            else:
                raise UnwritableError(f"{path}.{name}: the value lacks this field of the schema")
        if len(value) != count or value.keys() != names:
            for name in value.keys() - names:
                if value[name] is not None:
                    raise UnwritableError(
                        f"{path}.{name}: the schema lacks this field of the value"
                    )
        return b"".join(written)

    return write


def written_default(node: Node, default: Any, path: str) -> bytes:
    """Return the bytes of a field's default."""
    match node:
        case Union(branches=branches):
            return _long(0) + written_default(branches[0], default, path)
        case Primitive(kind="bytes"):
            return _with_length(str(default).encode("latin-1"))
        case Fixed():
            return str(default).encode("latin-1")
        case Record(fields=fields):
            given: Mapping[str, Any] = {}
            if isinstance(default, dict):
                given = default
            written: list[bytes] = []
            for each in fields:
                own = given.get(each.name, each.default)
                written.append(written_default(each.type, own, f"{path}.{each.name}"))
            return b"".join(written)
        case _:
            return writer(node, path)(default)


def _union(branches: tuple[Node, ...], node: Node, path: str) -> Write:
    null = None
    if _NULL in branches:
        null = _long(branches.index(_NULL))
    writes: list[tuple[Node, bytes, Write]] = []
    for number, branch in enumerate(branches):
        if branch != _NULL:
            writes.append((branch, _long(number), writer(branch, path)))
    has_tags = sum(isinstance(branch, Record) for branch in branches) > 1

    def write(value: Any) -> bytes:
        if value is None:
            if null is not None:
                return null
            raise UnwritableError(f"{path}: the schema does not allow null here")
        if len(writes) == 1:
            _, number, write_branch = writes[0]
            return number + write_branch(value)
        problems: list[str] = []
        for branch, number, write_branch in writes:
            fields = value
            if has_tags and isinstance(branch, Record) and isinstance(value, dict):
                found = _without_tag(branch, value)
                if found is None:
                    continue
                fields = found
            try:
                return number + write_branch(fields)
            except UnwritableError as error:
                problems.append(str(error))
        problem = f"{_shown(value)} is no {described(node)}"
        if len(problems) == 1:
            (problem,) = problems
        if problem.startswith("$"):
            raise UnwritableError(problem)
        raise UnwritableError(f"{path}: {problem}")

    return write


def _without_tag(record: Record, value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a union's value if its tag names this record; otherwise None.

    In SQL, a value has the fields of all members of the union. The fields of the other members are
    null.
    """
    names = {record.name, record.short_name}
    known = {each.name for each in record.fields}
    tags: set[str] = set()
    for name, each in value.items():
        if isinstance(each, str) and each in names:
            tags.add(name)
    if not tags:
        return None
    fields: dict[str, Any] = {}
    for name, each in value.items():
        if each is not None and (name in known or name not in tags):
            fields[name] = each
    return fields


def _decimal(node: Decimals, value: Any, path: str) -> bytes:
    if type(value) is float:
        # Most amounts have few digits, so they can be written without a slow Decimal.
        whole, _, fraction = repr(value).partition(".")
        if len(fraction) <= node.scale and fraction.isdigit():
            unscaled = int(whole + fraction.ljust(node.scale, "0"))
            if abs(unscaled) < min(_MOST_SURE, int(10**node.precision)):
                return _twos_complement(node, unscaled, value, path)
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
    return _twos_complement(node, unscaled, value, path)


_MOST_SURE = 10**15
"""Numbers below this have at most 15 digits, so a float's text shows their exact digits."""


def _twos_complement(node: Decimals, unscaled: int, value: Any, path: str) -> bytes:
    if isinstance(node, Fixed):
        try:
            data: bytes = unscaled.to_bytes(node.size, "big", signed=True)
        except OverflowError:
            raise _unfit(value, node, path) from None
        return data
    digits = unscaled if unscaled >= 0 else ~unscaled
    size = digits.bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def _moment(per_second: int, is_local: bool, value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(63, path)(value)
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise UnwritableError(f"{path}: {_shown(value)} is not a time") from None
    if moment.tzinfo is None or is_local:
        moment = moment.replace(tzinfo=UTC)
    microseconds = (moment - _1970) // timedelta(microseconds=1)
    if per_second > 1_000_000:
        return _whole(63, path)(microseconds * (per_second // 1_000_000))
    number, rest = divmod(microseconds, 1_000_000 // per_second)
    if rest:
        raise UnwritableError(f"{path}: {_shown(value)} is not a whole number of milliseconds")
    return number


def _day(value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(31, path)(value)
    try:
        day = value if isinstance(value, date) else date.fromisoformat(value)
    except (TypeError, ValueError):
        raise UnwritableError(f"{path}: {_shown(value)} is not a date") from None
    return day.toordinal() - _FIRST_DAY


def _time_of_day(per_second: int, value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        moment = time.fromisoformat(value)
    except ValueError:
        raise UnwritableError(f"{path}: {_shown(value)} is not a time of day") from None
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    number, rest = divmod(seconds * 1_000_000 + moment.microsecond, 1_000_000 // per_second)
    if rest:
        raise UnwritableError(f"{path}: {_shown(value)} is not a whole number of milliseconds")
    return number


def _whole(bits: int, path: str) -> Callable[[Any], int]:
    def write(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnwritableError(f"{path}: {_shown(value)} is not a whole number")
        if not -(2**bits) <= value < 2**bits:
            raise UnwritableError(f"{path}: {value} has more than {bits + 1} bits")
        return value

    return write


def _number(kind: str, value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UnwritableError(f"{path}: {_shown(value)} is not a number")
    number = float(value)
    if not math.isfinite(number) or (kind == "float" and abs(number) >= LARGEST_FLOAT):
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
        raise UnwritableError(f"{path}: {len(data)} bytes are not a {described(node)}")
    return data


def _unfit(value: Any, node: Node, path: str) -> UnwritableError:
    return UnwritableError(f"{path}: {_shown(value)} is no {described(node)}")


def _shown(value: Any) -> str:
    return shortened(repr(value) if isinstance(value, str) else str(value))
