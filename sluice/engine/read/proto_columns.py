"""Decodes many Protobuf messages at once to columns, with NumPy.

As with Avro (see `avro_columns`), all values are in one buffer, with a place in it for each. The
fields of a message may come in any order, so the values are read in rounds. In each round, one
field of every value is read, and the values with the same field are read together. The columns are
used only if all values are proven to be valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from sluice.engine.read.avro_columns import Data, NotColumnarError, Places, constant
from sluice.engine.read.column_limits import (
    checked,
    choices_of,
    maps_of,
    struct_of,
    without_limits,
)
from sluice.engine.read.json_lines import UnsureError, require
from sluice.engine.read.json_types import TIME, is_more_than_fields, may_be_null, present
from sluice.values.contract_parts import digits_of
from sluice.values.contracts import ObjectType, choice_type, choice_values
from sluice.values.epochs import unit_of
from sluice.values.proto_descriptors import is_entry, is_wrapper
from sluice.values.proto_schemas import TIMESTAMP

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_MOST_ROUNDS = 500
_FIRST_SECOND, _LAST_SECOND = -718_797 * 86_400, 2_932_531 * 86_400
"""The first second of year 2 and the last of 9998: between them, a time is valid in every zone."""
_AMOUNT = r"^-?[0-9]{1,20}(\.[0-9]{1,15})?$"
_WIRES = {
    1: _EIGHT, 2: _FOUR, 3: _VARINT, 4: _VARINT, 5: _VARINT, 6: _EIGHT, 7: _FOUR, 8: _VARINT,
    9: _BYTES, 11: _BYTES, 12: _BYTES, 13: _VARINT, 14: _VARINT, 15: _FOUR, 16: _EIGHT,
    17: _VARINT, 18: _VARINT,
}  # fmt: skip
"""Number of a type in Protobuf's descriptors → the wire type of its values."""


class Found(NamedTuple):
    """The places of a field: the values' rows, and each number, or begin and end of its bytes."""

    rows: Places
    numbers: npt.NDArray[np.uint64]
    begins: Places
    ends: Places


Make: TypeAlias = Callable[[Data, Found, int], pa.Array]
"""Makes a field's column for this many values, from all places where the field occurs."""


@dataclass(frozen=True)
class ProtoColumns:
    """Reads values of one Protobuf message type into columns.

    Raises NotColumnarError if they can only be read one by one.
    """

    descriptor: Any
    contract: ObjectType

    def __post_init__(self) -> None:
        object.__setattr__(self, "_makes", _makes(self.descriptor, self.contract))

    def read(self, data: Data, begins: Places, ends: Places) -> dict[str, pa.Array]:
        """Return the values between these places as columns.

        Raises UnsureError if any of them may be invalid.
        """
        makes: dict[str, tuple[int, Make]] = self._makes  # type: ignore[attr-defined]
        found = _scan(self.descriptor, data, begins, ends)
        for oneof in self.descriptor.oneofs:
            _require_one_of(oneof, found)
        columns: dict[str, pa.Array] = {}
        for name, (number, make) in makes.items():
            columns[name] = make(data, found.get(number, _NOTHING), len(begins))
        return columns


def _require_one_of(oneof: Any, found: dict[int, Found]) -> None:
    """Raise UnsureError if a value has several fields of a oneof.

    Only the last of them would count.
    """
    rows: list[Places] = []
    for field in oneof.fields:
        if field.number in found:
            rows.append(found[field.number].rows)
    if len(rows) > 1:
        joined = np.concatenate(rows)
        require(len(np.unique(joined)) == len(joined))


_NONE = np.empty(0, np.int64)
_NOTHING = Found(_NONE, np.empty(0, np.uint64), _NONE, _NONE)


def _makes(descriptor: Any, contract: ObjectType) -> dict[str, tuple[int, Make]]:
    if is_more_than_fields(contract):
        raise NotColumnarError
    fields = descriptor.fields_by_name
    makes: dict[str, tuple[int, Make]] = {}
    for each in contract.fields:
        field = fields.get(each.encode_name)
        if field is None:
            # The writer lacks this field. No field has the number 0, so no data will be found for
            # it.
            makes[each.encode_name] = 0, _missing(constant(each))
            continue
        if field.has_default_value:
            raise NotColumnarError
        if field.has_presence and not field.is_repeated and not each.required:
            # A missing field gets the default of the class.
            if each.default is not None or not may_be_null(each.type):
                raise NotColumnarError
        makes[each.encode_name] = field.number, _make(field, each.type)
    return makes


def _missing(default: pa.Scalar) -> Make:
    return lambda data, found, count: pa.repeat(default, count)


def _scan(descriptor: Any, data: Data, begins: Places, ends: Places) -> dict[int, Found]:
    """Return field number → the places of this field, in the messages between these places."""
    fields = {field.number: field for field in descriptor.fields}
    parts: dict[int, list[Found]] = {}
    at = begins.copy()
    rows = np.flatnonzero(at < ends)
    for _ in range(_MOST_ROUNDS):
        if not rows.size:
            break
        places = at[rows]
        tags = data.varints(places)
        for tag in np.unique(tags):
            is_same = tags == tag
            same_rows, same_places = rows[is_same], places[is_same]
            number, wire = int(tag) >> 3, int(tag) & 7
            require(0 < number < 2**29)
            found = _passed(data, same_rows, same_places, wire)
            require(bool((found.ends <= ends[same_rows]).all()))
            at[same_rows] = found.ends
            if number in fields:
                declared = _WIRES.get(fields[number].type)
                if wire == _BYTES != declared and fields[number].is_repeated:
                    found = _unpacked(data, found, declared)
                else:
                    require(declared == wire)
                parts.setdefault(number, []).append(found)
        rows = rows[at[rows] < ends[rows]]
    require(not rows.size and bool((at == ends).all()))
    joined: dict[int, Found] = {}
    for number, of_field in parts.items():
        joined[number] = _joined(of_field)
        _check(fields[number], data, joined[number])
    return joined


def _passed(data: Data, rows: Places, at: Places, wire: int) -> Found:
    """Move the places over a field, and return the field's places."""
    numbers = np.zeros(len(rows), np.uint64)
    if wire == _VARINT:
        begins = at
        numbers = data.varints(at)
    elif wire == _BYTES:
        lengths = data.varints(at)
        require(bool(lengths.max() <= data.size))
        begins = at.copy()
        at += lengths.astype(np.int64)
    elif wire in (_EIGHT, _FOUR):
        begins = at.copy()
        at += 8 if wire == _EIGHT else 4
    else:
        raise UnsureError
    require(bool(at.max() <= data.size))
    return Found(rows, numbers, begins, at.copy())


def _unpacked(data: Data, found: Found, wire: int | None) -> Found:
    """Return the places of the numbers in packed fields."""
    sizes = found.ends - found.begins
    starts = np.cumsum(sizes) - sizes
    bytes_at = np.arange(int(sizes.sum())) + np.repeat(found.begins - starts, sizes)
    rows = np.repeat(found.rows, sizes)
    if wire in (_EIGHT, _FOUR):
        size = 8 if wire == _EIGHT else 4
        require(not (sizes % size).any())
        begins = bytes_at[::size]
        return Found(rows[::size], np.zeros(len(begins), np.uint64), begins, begins + size)
    if not len(bytes_at):
        return _NOTHING
    is_last = data.bytes[bytes_at] <= 0x7F
    # A number must not continue beyond its field.
    require(bool(is_last[(starts + sizes - 1)[sizes > 0]].all()))
    places = np.flatnonzero(is_last)
    begins = bytes_at[np.concatenate(([0], places[:-1] + 1))]
    ends = begins.copy()
    numbers = data.varints(ends)
    return Found(rows[places], numbers, begins, ends)


def _joined(parts: list[Found]) -> Found:
    """Join the places of a field, in their order in the buffer."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[3], kind="stable")
    return Found(*(column[order] for column in columns))


def _check(field: Any, data: Data, found: Found) -> None:
    """Raise UnsureError if a field may be invalid. Fields not in the contract are checked, too."""
    if field.type == 9:
        _texts(data, found)
    elif field.type == 11:
        _scan(field.message_type, data, found.begins, found.ends)


def _make(field: Any, declared: inspect.Type) -> Make:
    kind = present(declared)
    if field.is_repeated:
        if not isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.DictType):
            raise NotColumnarError
        if kind.min_length is not None or kind.max_length is not None:
            raise NotColumnarError
        if isinstance(kind, inspect.DictType):
            return _maps(field, kind)
        return _lists(_checked(field, present(kind.item_type)))
    if field.has_presence:
        return _optional(_checked(field, kind), is_required=not may_be_null(declared))
    return _with_default(_checked(field, kind), field, kind)


Values: TypeAlias = Callable[[Data, Found], pa.Array]
"""Makes a column of all places where a field occurs."""


def _checked(field: Any, declared: inspect.Type) -> Values:
    kind, check = without_limits(declared)
    values = _values(field, kind)
    if check is None:
        return values
    return checked(values, check)


def _optional(values: Values, *, is_required: bool) -> Make:
    def make(data: Data, found: Found, count: int) -> pa.Array:
        _require_once(found.rows)
        if len(found.rows) == count:
            return values(data, found)
        require(not is_required)
        indices = np.zeros(count, np.int64)
        is_absent = np.ones(count, bool)
        indices[found.rows] = np.arange(len(found.rows))
        is_absent[found.rows] = False
        return values(data, found).take(pa.array(indices, mask=is_absent))

    return make


def _with_default(values: Values, field: Any, kind: inspect.Type) -> Make:
    """Return the function for a field that is left out if it has its default value."""
    _, check = without_limits(kind)
    choices = choices_of(kind)

    def make(data: Data, found: Found, count: int) -> pa.Array:
        _require_once(found.rows)
        written = values(data, found)
        if len(found.rows) == count:
            return written
        default = field.default_value
        if field.enum_type is not None:
            default = field.enum_type.values_by_number[default].name
        elif pa.types.is_decimal(written.type):
            raise UnsureError  # The default is the empty text, which is not a number.
        require(not choices or default in choices)
        if check is not None:
            check(pa.array([default], written.type))
        column = pa.concat_arrays([written, pa.array([default], written.type)])
        indices = np.full(count, len(found.rows), np.int64)
        indices[found.rows] = np.arange(len(found.rows))
        return column.take(pa.array(indices))

    return make


def _require_once(rows: Places) -> None:
    """Raise UnsureError if a value has a field twice. Only the last one would count."""
    require(bool((np.diff(rows) > 0).all()))


def _maps(field: Any, kind: inspect.DictType) -> Make:
    """Return the function for a map.

    Protobuf writes a map as a list of messages of key and value.
    """
    entry = field.message_type
    if field.type != 11 or not is_entry(entry) or may_be_null(kind.value_type):
        raise NotColumnarError
    of_key, of_value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    if of_key.type != 9 or not isinstance(kind.key_type, inspect.StrType):
        raise NotColumnarError
    make_keys = _with_default(_checked(of_key, kind.key_type), of_key, kind.key_type)
    value_kind = kind.value_type
    if of_value.has_presence and of_value.type == 11:
        make_values = _optional(_checked(of_value, value_kind), is_required=True)
    else:
        make_values = _with_default(_checked(of_value, value_kind), of_value, value_kind)

    def make(data: Data, found: Found, count: int) -> pa.Array:
        parts = _scan(entry, data, found.begins, found.ends)
        entries = len(found.rows)
        keys = make_keys(data, parts.get(1, _NOTHING), entries)
        values = make_values(data, parts.get(2, _NOTHING), entries)
        return maps_of(found.rows, count, keys, values)

    return make


def _lists(values: Values) -> Make:
    def make(data: Data, found: Found, count: int) -> pa.Array:
        counts = np.bincount(found.rows, minlength=count)
        bounds = np.zeros(count + 1, np.int32)
        np.cumsum(counts, out=bounds[1:])
        return pa.ListArray.from_arrays(pa.array(bounds), values(data, found))

    return make


def _values(field: Any, kind: inspect.Type) -> Values:  # noqa: C901  (a table)
    type_number = field.type
    if isinstance(kind, inspect.Metadata):
        digits = digits_of(kind)
        if digits is not None and type_number == 9:
            return lambda data, found: _amounts(data, found, digits)
        if unit_of(kind.extra) is not None and type_number == 11:
            kind = inspect.DateTimeType()
    match kind:
        case inspect.DateTimeType(tz=None) if (
            type_number == 11 and field.message_type.full_name == TIMESTAMP
        ):
            seconds = field.message_type
            return lambda data, found: _times(seconds, data, found)
        case _ if type_number == 11 and is_wrapper(field.message_type):
            return _wrapped(field.message_type, kind)
        case inspect.StructType() | inspect.DataclassType() if type_number == 11:
            return _structs(field.message_type, kind)
        case inspect.IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
            return _whole_numbers(type_number)
        case inspect.FloatType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
            return _doubles(type_number)
        case inspect.BoolType() if type_number == 8:
            return lambda data, found: pa.array(found.numbers != 0)
        case inspect.StrType(min_length=None, max_length=None, pattern=None) if type_number == 9:
            return _texts
        case inspect.BytesType(min_length=None, max_length=None) if type_number == 12:
            return lambda data, found: data.slices(found.begins, found.ends)
        case inspect.StrType(min_length=None, max_length=None, pattern=None) if type_number == 14:
            return _symbols(field.enum_type, None)
        case inspect.LiteralType() | inspect.EnumType() if choice_type(kind) is str:
            choices = choice_values(kind)
            if type_number == 14:
                return _symbols(field.enum_type, {*choices})
            if type_number == 9:
                return _chosen(pa.array(choices, pa.string()))
    raise NotColumnarError


def _structs(descriptor: Any, kind: ObjectType) -> Values:
    inner = ProtoColumns(descriptor, kind)
    names = [each.encode_name for each in kind.fields]

    def values(data: Data, found: Found) -> pa.Array:
        return struct_of(inner.read(data, found.begins, found.ends), names)

    return values


def _wrapped(wrapper: Any, kind: inspect.Type) -> Values:
    """Return the function for messages that wrap a single value."""
    of_value = wrapper.fields_by_name["value"]
    make = _with_default(_checked(of_value, kind), of_value, kind)

    def values(data: Data, found: Found) -> pa.Array:
        parts = _scan(wrapper, data, found.begins, found.ends)
        return make(data, parts.get(of_value.number, _NOTHING), len(found.rows))

    return values


def _texts(data: Data, found: Found) -> pa.Array:
    return data.slices(found.begins, found.ends).cast(pa.string())


def _chosen(choices: pa.Array) -> Values:
    def values(data: Data, found: Found) -> pa.Array:
        column = _texts(data, found)
        require(pc.all(pc.is_in(column, choices), min_count=0).as_py())
        return column

    return values


def _amounts(data: Data, found: Found, digits: tuple[int, int]) -> pa.Array:
    column = _texts(data, found)
    require(pc.all(pc.match_substring_regex(column, _AMOUNT), min_count=0).as_py())
    # The cast refuses digits that do not fit.
    return column.cast(pa.decimal128(*digits))


_FIXED = {6: "<u8", 7: "<u4", 15: "<i4", 16: "<i8"}
"""Number of a type → how NumPy reads it."""


def _whole_numbers(type_number: int) -> Values:
    if type_number in _FIXED:
        return lambda data, found: _fixed_numbers(data, found, _FIXED[type_number])

    def values(data: Data, found: Found) -> pa.Array:
        numbers = found.numbers
        if type_number in (17, 18):
            signs = (numbers & np.uint64(1)).view(np.int64)
            whole = (numbers >> np.uint64(1)).view(np.int64) ^ -signs
        elif type_number in (4, 13):
            require(not len(numbers) or bool(numbers.max() < 2**63))
            whole = numbers.view(np.int64)
        else:
            whole = numbers.view(np.int64)
        if type_number in (5, 13, 17):
            least, most = (0, 2**32) if type_number == 13 else (-(2**31), 2**31)
            require(not len(whole) or (bool(whole.min() >= least) and bool(whole.max() < most)))
        return pa.array(whole)

    if type_number not in (3, 4, 5, 13, 17, 18):
        raise NotColumnarError
    return values


def _fixed_numbers(data: Data, found: Found, kind: str) -> pa.Array:
    rows = data.fixed(found.begins.copy(), int(kind[-1]))
    numbers = np.ascontiguousarray(rows).view(kind).ravel()
    if kind == "<u8":
        require(not len(numbers) or bool(numbers.max() < 2**63))
    return pa.array(numbers.astype(np.int64))


def _doubles(type_number: int) -> Values:
    kinds = {1: ("<f8", 8), 2: ("<f4", 4)}
    if type_number not in kinds:
        raise NotColumnarError
    kind, size = kinds[type_number]

    def values(data: Data, found: Found) -> pa.Array:
        rows = data.fixed(found.begins.copy(), size)
        numbers = np.ascontiguousarray(rows).view(kind).ravel().astype(np.float64)
        require(bool(np.isfinite(numbers).all()))
        return pa.array(numbers)

    return values


def _symbols(enum: Any, choices: set[Any] | None) -> Values:
    names: dict[int, str] = {}
    for value in reversed(enum.values):
        if choices is None or value.name in choices:
            names[value.number] = value.name
    numbers = np.array(sorted(names), np.int64)
    texts = pa.array([names[number] for number in numbers.tolist()], pa.string())

    def values(data: Data, found: Found) -> pa.Array:
        written = found.numbers.view(np.int64)
        require(bool(np.isin(written, numbers).all()))
        return texts.take(pa.array(np.searchsorted(numbers, written)))

    return values


def _times(descriptor: Any, data: Data, found: Found) -> pa.Array:
    count = len(found.rows)
    parts = _scan(descriptor, data, found.begins, found.ends)
    seconds, nanos = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for number, column in ((1, seconds), (2, nanos)):
        part = parts.get(number, _NOTHING)
        _require_once(part.rows)
        column[part.rows] = part.numbers.view(np.int64)
    if count:
        require(bool(seconds.min() >= _FIRST_SECOND) and bool(seconds.max() < _LAST_SECOND))
        require(bool(nanos.min() >= 0) and bool(nanos.max() < 1_000_000_000))
    micros, rest = np.divmod(nanos, 1_000)
    require(not rest.any())
    return pa.array(seconds * 1_000_000 + micros).cast(TIME)
