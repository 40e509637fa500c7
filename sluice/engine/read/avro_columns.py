"""Decodes the Avro of many values at once to columns, field by field instead of value by value.

All values are in one buffer. A decoder has an array with a place in this buffer for each value. It
reads one field of all values with a few calls of NumPy, and moves all places on. This takes a
fraction of the time of decoding each value to an object. As with JSON (see `json_columns`), the
columns are used only if the values are proven to be valid: each place must end exactly where its
value ends, and the contract must accept each part. Otherwise, the values are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from sluice.engine.read.column_limits import checked, maps_of, struct_of, without_limits
from sluice.engine.read.json_lines import require
from sluice.engine.read.json_types import (
    TIME,
    column_type,
    is_more_than_fields,
    may_be_null,
    present,
)
from sluice.values import avro_schemas
from sluice.values.avro_schemas import Array, Choice, Field, Fixed, Map, Node, Primitive, Record
from sluice.values.avro_values import Aliases, unit_of_logical
from sluice.values.contract_parts import digits_of
from sluice.values.contracts import ObjectType, choice_type, choice_values
from sluice.values.epochs import unit_of

Places: TypeAlias = npt.NDArray[np.int64]
_LAST_SHIFT = 63
_MOST_ITEMS = 100
"""The largest number of items in a list. Longer lists are decoded one by one."""
_MOST_BYTES_OF_NUMBER = 8
_FIRST_DAY, _LAST_DAY = -718_797, 2_932_531
"""The first day of year 2 and the last of 9998: between them, a time is valid in every zone."""
_MICROS_OF_DAY = 86_400_000_000


class NotColumnarError(Exception):
    """Values of this schema or contract can only be decoded one by one."""


class Data:
    """The bytes of many values, one after the other, perhaps with gaps between them."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self.buffer = buffer
        self.bytes = np.frombuffer(buffer, np.uint8)
        self.size = len(self.bytes)

    def varints(self, at: Places) -> npt.NDArray[np.uint64]:
        """Read an unsigned number at each place, and move the places on."""
        first = self.bytes[at]
        at += 1
        rows = np.flatnonzero(first > 0x7F)
        if not rows.size:
            return first.astype(np.uint64)
        numbers = (first & 0x7F).astype(np.uint64)
        shift = 7
        while rows.size:
            require(shift <= _LAST_SHIFT)
            further = self.bytes[at[rows]]
            at[rows] += 1
            require(shift < _LAST_SHIFT or not (further > 1).any())
            numbers[rows] |= (further & 0x7F).astype(np.uint64) << np.uint64(shift)
            rows = rows[further > 0x7F]
            shift += 7
        return numbers

    def longs(self, at: Places) -> npt.NDArray[np.int64]:
        """Read a signed number at each place, and move the places on."""
        zigzag = self.varints(at)
        signs = (zigzag & np.uint64(1)).view(np.int64)
        return (zigzag >> np.uint64(1)).view(np.int64) ^ -signs

    def move_over_bytes(self, at: Places) -> Places:
        """Return the places at which bytes of a given length begin, and move `at` to their ends."""
        lengths = self.longs(at)
        if lengths.size:
            require(bool(lengths.min() >= 0) and bool(lengths.max() <= self.size))
        begins = at.copy()
        at += lengths
        return begins

    def fixed(self, at: Places, size: int) -> npt.NDArray[np.uint8]:
        """Read `size` bytes at each place, as the rows of an array, and move the places on."""
        rows: npt.NDArray[np.uint8] = self.bytes[at[:, None] + np.arange(size)]
        at += size
        return rows

    def slices(self, begins: Places, ends: Places) -> pa.Array:
        """Return the bytes between these places, as a column."""
        count = len(begins)
        if not count:
            return pa.array([], pa.binary())
        # The places are in ascending order. One Arrow array can therefore hold the bytes and the
        # gaps between them in turn, without a copy.
        require(bool((begins[1:] >= ends[:-1]).all()) and bool(ends[-1] <= self.size))
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2], bounds[1::2] = begins, ends
        buffers = [None, pa.py_buffer(bounds), self.buffer]
        in_turn = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        return in_turn.take(pa.array(np.arange(0, 2 * count - 1, 2)))


Read: TypeAlias = Callable[[Data, Places], pa.Array]
"""Reads a part of each value, and moves the places on."""
Skip: TypeAlias = Callable[[Data, Places], object]


@dataclass(frozen=True)
class AvroColumns:
    """Reads values of one writer's schema to columns.

    Raises NotColumnarError if they can only be read one by one.
    """

    writer: Node
    contract: ObjectType
    aliases: Aliases
    is_utc: bool
    """Whether times without a zone are in UTC."""

    def __post_init__(self) -> None:
        if not isinstance(self.writer, Record) or is_more_than_fields(self.contract):
            raise NotColumnarError
        object.__setattr__(self, "_parts", self._compiled(self.writer, self.contract))

    def read(self, data: Data, begins: Places, ends: Places) -> dict[str, pa.Array]:
        """Return the values between these places as columns.

        Raises UnsureError if any of them may be invalid.
        """
        at = begins.copy()
        parts: list[tuple[str, Any]] = self._parts  # type: ignore[attr-defined]
        columns = _read_fields(parts, data, at)
        require(bool((at == ends).all()))
        return {each.encode_name: columns[each.encode_name] for each in self.contract.fields}

    def _compiled(self, record: Record, kind: ObjectType) -> list[tuple[str, Any]]:
        """Return a name and a function for each field of a writer's record, in their order.

        The name is empty for a field that the contract lacks, and the function then skips it.
        The constants of the fields that the writer lacks come last.
        """
        by_written: dict[str, inspect.Field] = {}
        constants: list[tuple[str, Any]] = []
        for each in kind.fields:
            written = self.aliases.written(record, kind, each.encode_name)
            if written is None:
                constants.append((each.encode_name, constant(each)))
            elif written.name in by_written:
                raise NotColumnarError
            else:
                by_written[written.name] = each
        parts: list[tuple[str, Any]] = []
        for field in record.fields:
            target = by_written.get(field.name)
            if target is None:
                parts.append(("", skipper(field.type)))
            else:
                parts.append((target.encode_name, self._reader_of(field, target)))
        return parts + constants

    def _reader_of(self, field: Field, target: inspect.Field) -> Read:
        return self._nullable(field.type, target.type)

    def _nullable(self, node: Node, kind: inspect.Type) -> Read:
        inner = avro_schemas.present(node)
        read = self._reader(inner, present(kind))
        if inner is node:
            return read
        assert isinstance(node, avro_schemas.Union)
        if len(node.branches) == 1:
            return lambda data, at: (data.longs(at), read(data, at))[1]
        return _optional(read, node.branches.index(inner), is_required=not may_be_null(kind))

    def _reader(self, node: Node, declared: inspect.Type) -> Read:  # noqa: C901
        kind, check = without_limits(declared)
        if check is not None:
            return checked(self._reader(node, kind), check)
        match kind, node:
            case inspect.Metadata(), _ if (digits := digits_of(kind)) is not None:
                return _decimals(node, digits)
            case inspect.Metadata(), _ if (unit := unit_of(kind.extra)) is not None:
                if not isinstance(node, Primitive) or node.kind != "long":
                    raise NotColumnarError
                per_second, is_local = unit_of_logical(node.logical)
                return self._times(per_second or unit.value, is_local=is_local)
            case inspect.DateTimeType(tz=None), Primitive(kind="long", logical=logical) if logical:
                per_second, is_local = unit_of_logical(logical)
                if not per_second:
                    raise NotColumnarError
                return self._times(per_second, is_local=is_local)
            case inspect.DateType(), Primitive(kind="int", logical="date"):
                return _days
            case (
                inspect.IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None),
                Primitive(kind="int" | "long"),
            ):
                read_numbers = _whole_numbers(node.kind)
                return lambda data, at: pa.array(read_numbers(data, at))
            case (
                inspect.FloatType(gt=None, ge=None, lt=None, le=None, multiple_of=None),
                Primitive(kind=number),
            ) if number in ("int", "long", "float", "double"):
                return _doubles(number)
            case inspect.BoolType(), Primitive(kind="boolean"):
                return _booleans
            case (
                inspect.StrType(min_length=None, max_length=None, pattern=None),
                Primitive(kind="string"),
            ):
                return _strings
            case (
                inspect.StrType(min_length=None, max_length=None, pattern=None),
                Choice(symbols=symbols),
            ):
                return _symbols(symbols, symbols)
            case ((inspect.LiteralType() | inspect.EnumType()), _):
                if isinstance(kind, inspect.LiteralType) and isinstance(node, Choice):
                    default = self.aliases.enum_defaults.get(node.short_name)
                    if default is not None:
                        return _known_symbols(node.symbols, kind.values, default)
                return _choices(kind, node)
            case (
                inspect.BytesType(min_length=None, max_length=None),
                Primitive(kind="bytes"),
            ):
                return _bytes
            case inspect.BytesType(min_length=None, max_length=None), Fixed(size=size):
                return lambda data, at: _fixed_bytes(data, at, size)
            case (
                inspect.ListType(min_length=None, max_length=None)
                | inspect.VarTupleType(min_length=None, max_length=None),
                Array(items=items),
            ):
                return _list(self._nullable(items, kind.item_type), items)
            case (
                inspect.DictType(key_type=inspect.StrType(), min_length=None, max_length=None),
                Map(values=values),
            ):
                return _map(self._nullable(values, kind.value_type))
            case inspect.StructType() | inspect.DataclassType(), Record():
                if is_more_than_fields(kind):
                    raise NotColumnarError
                parts = self._compiled(node, kind)
                names = [each.encode_name for each in kind.fields]
                return lambda data, at: _struct(parts, names, data, at)
            case _:
                raise NotColumnarError

    def _times(self, per_second: int, *, is_local: bool) -> Read:
        if is_local and not self.is_utc:
            raise NotColumnarError

        def read(data: Data, at: Places) -> pa.Array:
            numbers = data.longs(at)
            if per_second > 1_000_000:
                numbers, rest = np.divmod(numbers, per_second // 1_000_000)
                require(not rest.any())
            else:
                factor = 1_000_000 // per_second
                limit = _LAST_DAY * _MICROS_OF_DAY // factor
                require(not len(numbers) or bool(numbers.max() <= limit))
                require(not len(numbers) or bool(numbers.min() >= -limit))
                numbers = numbers * factor
            _require_between(numbers, _FIRST_DAY * _MICROS_OF_DAY, _LAST_DAY * _MICROS_OF_DAY)
            return pa.array(numbers).cast(TIME)

        return read


def _read_fields(parts: list[tuple[str, Any]], data: Data, at: Places) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    count = len(at)
    for name, part in parts:
        if isinstance(part, pa.Scalar):
            columns[name] = pa.repeat(part, count)
        elif name:
            columns[name] = part(data, at)
        else:
            part(data, at)
    return columns


def _struct(parts: list[tuple[str, Any]], names: list[str], data: Data, at: Places) -> pa.Array:
    return struct_of(_read_fields(parts, data, at), names)


def constant(each: inspect.Field) -> pa.Scalar:
    """Return the default of a field that the writer lacks."""
    if each.default_factory is list:
        of_list = column_type(each.type)
        if of_list is None:
            raise NotColumnarError
        return pa.scalar([], of_list)
    if each.required or not isinstance(each.default, str | int | float | None):
        raise NotColumnarError
    kind = present(each.type)
    types: dict[type, pa.DataType] = {
        inspect.IntType: pa.int64(),
        inspect.FloatType: pa.float64(),
        inspect.BoolType: pa.bool_(),
        inspect.StrType: pa.string(),
        inspect.DateTimeType: TIME,
        inspect.DateType: pa.date32(),
        inspect.BytesType: pa.binary(),
    }
    of_kind = types.get(type(kind))
    if isinstance(kind, inspect.LiteralType) and choice_type(kind) is str:
        of_kind = pa.string()
    digits = digits_of(kind)
    if digits is not None:
        of_kind = pa.decimal128(*digits)
    if of_kind is None or (each.default is not None and digits is not None):
        raise NotColumnarError
    if isinstance(each.default, float) and not np.isfinite(each.default):
        raise NotColumnarError
    if each.default is None and not may_be_null(each.type):
        raise NotColumnarError
    return pa.scalar(each.default, of_kind)


def _optional(read: Read, branch: int, *, is_required: bool) -> Read:
    """Return the function for a union of null and one other type, whose number is `branch`."""

    def read_present(data: Data, at: Places) -> pa.Array:
        branches = data.varints(at)
        written = np.uint64(2 * branch)
        is_present = branches == written
        if is_present.all():
            return read(data, at)
        require(not is_required)
        require(bool((branches[~is_present] == np.uint64(2 * (1 - branch))).all()))
        rows = np.flatnonzero(is_present)
        inner = at[rows]
        values = read(data, inner)
        at[rows] = inner
        indices = np.cumsum(is_present) - 1
        return values.take(pa.array(indices, mask=~is_present))

    return read_present


def _strings(data: Data, at: Places) -> pa.Array:
    # The cast checks that the bytes are UTF-8.
    return _bytes(data, at).cast(pa.string())


def _bytes(data: Data, at: Places) -> pa.Array:
    begins = data.move_over_bytes(at)
    return data.slices(begins, at)


def _fixed_bytes(data: Data, at: Places, size: int) -> pa.Array:
    begins = at.copy()
    at += size
    return data.slices(begins, at)


def _booleans(data: Data, at: Places) -> pa.Array:
    flags = data.bytes[at]
    at += 1
    require(not flags.size or bool(flags.max() <= 1))
    return pa.array(flags.astype(bool))


def _whole_numbers(kind: str) -> Callable[[Data, Places], npt.NDArray[np.int64]]:
    if kind == "long":
        return Data.longs

    def read(data: Data, at: Places) -> npt.NDArray[np.int64]:
        numbers = data.longs(at)
        _require_between(numbers, -(2**31), 2**31 - 1)
        return numbers

    return read


def _doubles(number: str) -> Read:
    sizes = {"float": ("<f4", 4), "double": ("<f8", 8)}

    def read(data: Data, at: Places) -> pa.Array:
        if number not in sizes:
            return pa.array(_whole_numbers(number)(data, at).astype(np.float64))
        kind, size = sizes[number]
        rows = data.fixed(at, size)
        numbers = np.ascontiguousarray(rows).view(kind).ravel().astype(np.float64)
        require(bool(np.isfinite(numbers).all()))
        return pa.array(numbers)

    return read


def _days(data: Data, at: Places) -> pa.Array:
    days = data.longs(at)
    _require_between(days, _FIRST_DAY, _LAST_DAY)
    return pa.array(days.astype(np.int32)).cast(pa.date32())


def _symbols(symbols: tuple[str, ...], allowed: tuple[str, ...]) -> Read:
    names = pa.array(symbols, pa.string())
    is_allowed = np.array([symbol in allowed for symbol in symbols], bool)

    def read(data: Data, at: Places) -> pa.Array:
        numbers = data.longs(at)
        _require_between(numbers, 0, len(symbols) - 1)
        require(bool(is_allowed[numbers].all()))
        return names.take(pa.array(numbers))

    return read


def _known_symbols(symbols: tuple[str, ...], known: Container[Any], default: str) -> Read:
    """Return the function for an enum whose symbol `default` stands for unknown symbols."""
    names = tuple([symbol if symbol in known else default for symbol in symbols])
    return _symbols(names, names)


def _choices(kind: inspect.LiteralType | inspect.EnumType, node: Node) -> Read:
    values = choice_values(kind)
    of_kind = choice_type(kind)
    if of_kind is str and isinstance(node, Choice):
        return _symbols(node.symbols, tuple(values))
    if of_kind is str and node == Primitive("string"):
        read, allowed = _strings, pa.array(values, pa.string())
    elif of_kind is int and isinstance(node, Primitive) and node.kind in ("int", "long"):
        read_numbers = _whole_numbers(node.kind)
        allowed = pa.array(values, pa.int64())

        def read(data: Data, at: Places) -> pa.Array:
            return pa.array(read_numbers(data, at))

    else:
        raise NotColumnarError

    def read_allowed(data: Data, at: Places) -> pa.Array:
        column = read(data, at)
        require(pc.all(pc.is_in(column, allowed), min_count=0).as_py())
        return column

    return read_allowed


def _decimals(node: Node, digits: tuple[int, int]) -> Read:
    """Return the function for decimals of at most eight bytes, as most decimals are."""
    if not isinstance(node, Primitive | Fixed) or node.logical != "decimal":
        raise NotColumnarError
    if node.scale != digits[1]:
        raise NotColumnarError
    size = node.size if isinstance(node, Fixed) else None
    kind = pa.decimal128(*digits)
    largest = Decimal(10) ** digits[0] - 1

    def read(data: Data, at: Places) -> pa.Array:
        if size is None:
            begins = data.move_over_bytes(at)
            lengths = at - begins
        else:
            begins = at.copy()
            at += size
            lengths = np.full(len(at), size, np.int64)
        numbers = _big_endian(data, begins, lengths)
        limit = min(int(largest), 2**63 - 1)
        _require_between(numbers, -limit, limit)
        words = np.empty((len(numbers), 2), np.int64)
        words[:, 0], words[:, 1] = numbers, numbers >> 63
        return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(words)])

    return read


def _big_endian(data: Data, begins: Places, lengths: Places) -> npt.NDArray[np.int64]:
    """Return the whole numbers in two's complement that begin at these places."""
    if not len(begins):
        return np.empty(0, np.int64)
    longest = int(lengths.max())
    require(int(lengths.min()) >= 1 and longest <= _MOST_BYTES_OF_NUMBER)
    first = data.bytes[begins]
    numbers = first.astype(np.int8).astype(np.int64)
    if longest == int(lengths.min()):
        for place in range(1, longest):
            numbers = (numbers << 8) | data.bytes[begins + place]
        return numbers
    for place in range(1, longest):
        rows = np.flatnonzero(lengths > place)
        numbers[rows] = (numbers[rows] << 8) | data.bytes[begins[rows] + place]
    return numbers


def _map(read: Read) -> Read:
    """Return the function for maps of one block each."""

    def read_maps(data: Data, at: Places) -> pa.Array:
        names: list[pa.Array] = []
        values: list[pa.Array] = []

        def read_entries(inner: Places) -> None:
            names.append(_strings(data, inner))
            values.append(read(data, inner))

        counts, begins = _walk_items(data, at, read_entries)
        if not begins:
            read_entries(np.empty(0, np.int64))
            begins.append(np.empty(0, np.int64))
        order = pa.array(np.argsort(np.concatenate(begins)))
        rows = np.repeat(np.arange(len(counts)), counts)
        keys, items = pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order)
        return maps_of(rows, len(counts), keys, items)

    return read_maps


def _list(read: Read, items: Node) -> Read:
    """Return the function for lists of one block each. Writers write short lists in this way."""
    if not _takes_bytes(items):
        raise NotColumnarError

    def read_lists(data: Data, at: Places) -> pa.Array:
        parts: list[pa.Array] = []
        counts, begins = _walk_items(data, at, lambda inner: parts.append(read(data, inner)))
        bounds = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=bounds[1:])
        if not parts:
            values = read(data, np.empty(0, np.int64))
        elif len(parts) == 1:
            values = parts[0]
        else:
            # The items of a list are adjacent in the data, so their places show their order.
            order = np.argsort(np.concatenate(begins))
            values = pa.concat_arrays(parts).take(pa.array(order))
        return pa.ListArray.from_arrays(pa.array(bounds), values)

    return read_lists


def _walk_items(
    data: Data, at: Places, visit: Callable[[Places], object]
) -> tuple[Places, list[Places]]:
    """Visit the first items of all lists, then the second ones, and so on; move the places on.

    Return the number of items of each list, and the places of the items in the order of visits.
    """
    counts = _count_items(data, at)
    rows = np.flatnonzero(counts)
    left = counts[rows]
    begins: list[Places] = []
    while rows.size:
        inner = at[rows]
        begins.append(inner.copy())
        visit(inner)
        at[rows] = inner
        left = left - 1
        goes_on = left > 0
        rows, left = rows[goes_on], left[goes_on]
    rows = np.flatnonzero(counts)
    if rows.size:
        # A list's only block must be followed by an empty block.
        inner = at[rows]
        require(not data.bytes[inner].any())
        at[rows] = inner + 1
    return counts, begins


def _count_items(data: Data, at: Places) -> Places:
    """Return the number of items in the first block of each list."""
    counts = data.longs(at)
    rows = np.flatnonzero(counts < 0)
    if rows.size:
        # The block's size in bytes follows. Readers need it only to skip the block.
        inner = at[rows]
        data.longs(inner)
        at[rows] = inner
        counts[rows] = -counts[rows]
    _require_between(counts, 0, _MOST_ITEMS)
    return counts


def _takes_bytes(node: Node) -> bool:
    """Return whether a value of this type has at least one byte."""
    match node:
        case Primitive(kind="null"):
            return False
        case Record(fields=fields):
            return any(_takes_bytes(field.type) for field in fields)
        case Fixed(size=size):
            return size > 0
        case _:
            return True


def skipper(node: Node) -> Skip:
    """Return the function that moves the places over values that the contract lacks."""
    match node:
        case Primitive(kind="int" | "long" as kind):
            return _whole_numbers(kind)
        case Primitive(kind="boolean"):
            return _booleans
        case Primitive(kind="string"):
            # Decode the text instead of skipping it: if its bytes are not UTF-8, the value is
            # invalid.
            return _strings
        case Primitive(kind="bytes"):
            return Data.move_over_bytes
        case Primitive(kind=kind):
            size = {"null": 0, "float": 4, "double": 8}[kind]
            return lambda data, at: _move(at, size)
        case Fixed(size=size):
            return lambda data, at: _move(at, size)
        case Choice(symbols=symbols):
            return lambda data, at: _require_between(data.longs(at), 0, len(symbols) - 1)
        case Record(fields=fields):
            skips = [skipper(field.type) for field in fields]
            return lambda data, at: [skip(data, at) for skip in skips]
        case avro_schemas.Union(branches=branches):
            return _union_skipper([skipper(branch) for branch in branches])
        case Array(items=items):
            skip_item = skipper(items)
            return lambda data, at: _walk_items(data, at, lambda inner: skip_item(data, inner))
        case Map(values=values):
            skip_value = skipper(values)
            return lambda data, at: _walk_items(
                data, at, lambda inner: (_strings(data, inner), skip_value(data, inner))
            )


def _move(at: Places, size: int) -> None:
    at += size


def _union_skipper(skips: list[Skip]) -> Skip:
    def skip_branches(data: Data, at: Places) -> None:
        branches = data.longs(at)
        _require_between(branches, 0, len(skips) - 1)
        for number, skip in enumerate(skips):
            rows = np.flatnonzero(branches == number)
            if rows.size:
                inner = at[rows]
                skip(data, inner)
                at[rows] = inner

    return skip_branches


def _require_between(numbers: npt.NDArray[np.int64], least: int, most: int) -> None:
    if numbers.size:
        require(bool(least <= numbers.min()) and bool(numbers.max() <= most))
