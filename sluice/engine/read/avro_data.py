"""Reads single Avro values strictly. An error has the path of the invalid part in the value.

Logical types are not applied: `values.avro_values` then converts the values exactly. A value of a
union of several types becomes a pair: the number of its type, and the value itself.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from sluice.values.avro_schemas import Array, Choice, Fixed, Map, Node, Primitive, Record, Union

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value that begins at a place, and returns it with the place after it."""
_MOST_WITHOUT_BYTES = 1_000
"""The maximum number of items in a block that has fewer bytes than items."""
_LAST_SHIFT = 63
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_NULL = Primitive("null")


class AvroDataError(ValueError):
    """The bytes of a value are wrong."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"${path}: {problem}")
        self.problem = problem
        self.path = path

    def within(self, place: str) -> AvroDataError:
        """Return the same error, with the path seen from the enclosing value."""
        return AvroDataError(self.problem, f"{place}{self.path}")


def read_whole(read: Read, data: bytes, begin: int = 0) -> Any:
    """Read a value that goes up to the end of the bytes. Raises AvroDataError."""
    try:
        value, end = read(data, begin)
    except IndexError:
        raise _ended() from None
    if end < len(data):
        raise AvroDataError(f"{len(data) - end} bytes are left after the value")
    return value


def value_reader(node: Node) -> Read:
    """Return the function for values of a schema.

    It raises AvroDataError, or IndexError if the value ends within a number.
    """
    match node:
        case Primitive(kind="long"):
            return _long
        case Primitive(kind="int"):
            return _int
        case Primitive(kind="string"):
            return _text
        case Primitive(kind="bytes"):
            return _bytes
        case Primitive(kind="boolean"):
            return _flag
        case Primitive(kind="float"):
            return _unpacked(_FLOAT)
        case Primitive(kind="double"):
            return _unpacked(_DOUBLE)
        case Primitive():
            return lambda data, at: (None, at)
        case Fixed(size=size):
            return _fixed(size)
        case Choice(symbols=symbols):
            return _choice(symbols)
        case Union(branches=branches):
            return _union(branches)
        case Record():
            return _record(node)
        case Array(items=items):
            return _array(value_reader(items))
        case Map(values=values):
            return _map(value_reader(values))


def _ended() -> AvroDataError:
    return AvroDataError("the value ends within a number")


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        if shift >= _LAST_SHIFT and (shift > _LAST_SHIFT or byte > 1):
            raise AvroDataError("a number has more than 64 bits")
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + 1
        shift += 7


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -(2**31) <= number < 2**31:
        raise AvroDataError(f"{number} has more than 32 bits")
    return number, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    byte = data[at]
    # Most lengths have one byte, and reading them here saves a call.
    if byte < 0x80 and not byte & 1:
        size, at = byte >> 1, at + 1
    else:
        size, at = _long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        return _slice(data, at, size), end
    return data[at:end], end


def _slice(data: bytes, at: int, size: int) -> bytes:
    if size < 0:
        raise AvroDataError(f"a length is negative: {size}")
    if at + size > len(data):
        left = max(len(data) - at, 0)
        raise AvroDataError(f"the value ends after {left} of {size} bytes of this part")
    return data[at : at + size]


def _text(data: bytes, at: int) -> tuple[str, int]:
    text, at = _bytes(data, at)
    try:
        return text.decode(), at
    except UnicodeDecodeError as error:
        raise AvroDataError(str(error)) from None


def _flag(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise AvroDataError(f"{data[at]} is not a boolean")
    return data[at] == 1, at + 1


def _unpacked(struct: Struct) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        return struct.unpack(_slice(data, at, struct.size))[0], at + struct.size

    return read


def _fixed(size: int) -> Read:
    return lambda data, at: (_slice(data, at, size), at + size)


def _choice(symbols: tuple[str, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(symbols):
            raise AvroDataError(
                f"symbol {number} does not exist; the enum has {len(symbols)} symbols"
            )
        return symbols[number], at

    return read


def _union(branches: tuple[Node, ...]) -> Read:
    reads = [value_reader(branch) for branch in branches]
    has_pairs = sum(branch != _NULL for branch in branches) > 1

    def read(data: bytes, at: int) -> tuple[Any, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(reads):
            raise AvroDataError(
                f"branch {number} does not exist; the union has {len(reads)} branches"
            )
        value, at = reads[number](data, at)
        if has_pairs and branches[number] != _NULL:
            return (number, value), at
        return value, at

    return read


def _record(node: Record) -> Read:
    parts = [(field.name, value_reader(field.type)) for field in node.fields]

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, read_field in parts:
                values[name], at = read_field(data, at)
        except AvroDataError as error:
            raise error.within(f".{name}") from None
        except IndexError:
            raise _ended().within(f".{name}") from None
        return values, at

    return read


def _array(read_item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        count, at = _block(data, at)
        try:
            while count:
                for _ in range(count):
                    value, at = read_item(data, at)
                    values.append(value)
                count, at = _block(data, at)
        except AvroDataError as error:
            raise error.within(f"[{len(values)}]") from None
        except IndexError:
            raise _ended().within(f"[{len(values)}]") from None
        return values, at

    return read


def _map(read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        name = ""
        count, at = _block(data, at)
        try:
            while count:
                for _ in range(count):
                    name, at = _text(data, at)
                    values[name], at = read_value(data, at)
                count, at = _block(data, at)
        except AvroDataError as error:
            raise error.within(f"[{name}]") from None
        except IndexError:
            raise _ended().within(f"[{name}]") from None
        return values, at

    return read


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of items of the next block, and where the first one begins."""
    count, at = _long(data, at)
    if count < 0:
        _, at = _long(data, at)
        count = -count
    # Items may have no bytes, so a few damaged bytes could stand for any number of them.
    if count > max(len(data) - at, _MOST_WITHOUT_BYTES):
        raise AvroDataError(f"{count} items do not fit into the bytes that are left")
    return count, at
