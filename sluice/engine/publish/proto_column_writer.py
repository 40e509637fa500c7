"""Encodes columns of values as Protobuf messages, with the same bytes as Protobuf's own library.

Fields are written in the order of their numbers. `sluice.engine.read.proto_messages.fill` says
which plain data a field takes.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.publish.byte_columns import (
    NOTHING,
    Piece,
    constant,
    fixed,
    in_places,
    joined,
    joined_items,
    lengths,
    varints,
    zigzag,
)
from sluice.engine.publish.column_parts import (
    Part,
    bytes_of_each,
    bytes_of_rows,
    float_numbers,
    microseconds,
    places_among,
    real_numbers,
    unscaled,
    whole_numbers,
)
from sluice.engine.read.avro_columns import NotColumnarError
from sluice.engine.read.json_lines import require, require_between
from sluice.support.arrays import present_values
from sluice.values.proto_descriptors import is_entry, is_wrapper
from sluice.values.proto_schemas import TIMESTAMP

Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
_VARINT, _OF_8_BYTES, _WITH_LENGTH, _OF_4_BYTES = 0, 1, 2, 5
_DECIMALS = 6
_AMOUNT = pa.decimal128(38, _DECIMALS)
"""The type of numbers that are written as texts."""
_GROUP = 10


@dataclass(frozen=True)
class _Kind:
    """How to write the values of a field, without the field's number."""

    wire: int
    part: Part
    zero: bytes
    """The bytes of the field's default value. A field without presence is not written if it has
    this value."""


def message_part(descriptor: Any, sample: Any, within: tuple[str, ...] = ()) -> Part:
    """Return the writer of messages.

    `sample` is the plain data of a message. Raises NotColumnarError.
    """
    fields = sorted(descriptor.fields, key=lambda each: each.number)
    if not fields or descriptor.full_name in within:
        raise NotColumnarError
    given = sample if isinstance(sample, dict) else {}
    inner = (*within, descriptor.full_name)
    parts = [_field(each, given.get(each.name), inner) for each in fields]
    choices: list[list[int]] = []
    for oneof in descriptor.oneofs:
        places = [place for place, each in enumerate(fields) if each.containing_oneof is oneof]
        if len(places) > 1:
            choices.append(places)

    def pieces(values: pa.StructArray) -> list[Piece]:
        columns = values.flatten()
        for places in choices:
            # If the plain data has two fields of a oneof, the last one counts.
            present = [np.asarray(columns[place].is_valid()) for place in places]
            require(bool((np.sum(present, axis=0) <= 1).all()))
        made: list[Piece] = []
        for part, column in zip(parts, columns, strict=True):
            made += part.pieces(column)
        return made

    types = [(each.name, part.type) for each, part in zip(fields, parts, strict=True)]
    amounts = tuple(name for part in parts for name in part.amounts)
    return Part(pa.struct(types), pieces, amounts)


def _field(field: Any, sample: Any, within: tuple[str, ...]) -> Part:
    """Return the writer of a field, including its number. It leaves out null fields."""
    if field.is_repeated:
        return _repeated(field, sample, within)
    kind = _kind(field, sample, within)
    tag = _tag(field.number, kind.wire)
    zero = pa.scalar(tag + kind.zero, pa.binary())

    def pieces(values: pa.Array) -> list[Piece]:
        require(not (values.null_count and field.is_required))
        present = present_values(values)
        made = [constant(tag), *kind.part.pieces(present)]
        may_be_zero = not field.has_presence and _may_be_zero(present)
        if not may_be_zero and not values.null_count:
            return made
        written = joined(made, len(present))
        if may_be_zero:
            written = pc.if_else(pc.equal(written, zero), NOTHING, written)
        if values.null_count:
            written = in_places(written, values, b"")
        return [written]

    return Part(kind.part.type, pieces, kind.part.amounts)


def _may_be_zero(values: pa.Array) -> bool:
    """Return whether any value may be the field's default value."""
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return not np.asarray(values).all()
    return not pa.types.is_decimal(values.type)


def _repeated(field: Any, sample: Any, within: tuple[str, ...]) -> Part:
    if field.message_type is not None and is_entry(field.message_type):
        raise NotColumnarError
    first = sample[0] if isinstance(sample, list) and sample else None
    kind = _kind(field, first, within)
    if field.name in kind.part.amounts:
        raise NotColumnarError
    is_packed = field.is_packed
    tag = constant(_tag(field.number, _WITH_LENGTH if is_packed else kind.wire))

    def pieces(values: pa.ListArray) -> list[Piece]:
        counts = whole_numbers(pc.fill_null(pc.list_value_length(values), 0))
        items = values.flatten()
        require(not items.null_count)
        of_items = kind.part.pieces(items)
        if not is_packed:
            return [joined_items(joined([tag, *of_items], len(items)), counts)]
        data = joined_items(joined(of_items, len(items)), counts)
        written = joined([tag, *_with_length(data)], len(data))
        return [pc.if_else(pa.array(counts > 0), written, NOTHING)]

    return Part(pa.list_(kind.part.type), pieces, kind.part.amounts)


def _kind(field: Any, sample: Any, within: tuple[str, ...]) -> _Kind:  # noqa: C901  (a table)
    match field.type:
        case 1:
            return _Kind(_OF_8_BYTES, Part(pa.float64(), _of(real_numbers)), bytes(8))
        case 2:
            return _Kind(_OF_4_BYTES, Part(pa.float64(), _of(float_numbers)), bytes(4))
        case 3:
            return _numbers(lambda values: whole_numbers(values).view(np.uint64))
        case 5:
            return _numbers(lambda values: whole_numbers(values, 31).view(np.uint64))
        case 4 | 13:
            return _numbers(partial(_without_sign, 32 if field.type == 13 else 64), pa.uint64())
        case 17 | 18:
            bits = 31 if field.type == 17 else 63
            return _numbers(lambda values: zigzag(whole_numbers(values, bits)))
        case 6:
            return _Kind(_OF_8_BYTES, Part(pa.uint64(), _of(partial(_without_sign, 64))), bytes(8))
        case 16:
            return _Kind(_OF_8_BYTES, Part(pa.int64(), _of(whole_numbers)), bytes(8))
        case 7:
            return _Kind(_OF_4_BYTES, Part(pa.uint64(), _of(_unsigned_32)), bytes(4))
        case 15:
            return _Kind(_OF_4_BYTES, Part(pa.int64(), _of(_signed_32)), bytes(4))
        case 8:
            return _numbers(lambda values: np.asarray(values).astype(np.uint64), pa.bool_())
        case 9 if isinstance(sample, int | float) and not isinstance(sample, bool):
            part = Part(_AMOUNT, lambda values: _with_length(_digits(values)), (field.name,))
            return _Kind(_WITH_LENGTH, part, b"\0")
        case 9:
            part = Part(pa.string(), lambda values: _with_length(values.cast(pa.binary())))
            return _Kind(_WITH_LENGTH, part, b"\0")
        case 12:
            return _Kind(_WITH_LENGTH, Part(pa.string(), _of_base64), b"\0")
        case 14:
            return _symbols(field.enum_type, sample)
        case 11:
            inner = _inner(field.message_type, sample, within)
            part = Part(inner.type, partial(_message, inner), inner.amounts)
            return _Kind(_WITH_LENGTH, part, b"")
        case _:
            raise NotColumnarError


def _inner(descriptor: Any, sample: Any, within: tuple[str, ...]) -> Part:
    if descriptor.full_name == TIMESTAMP:
        return Part(pa.string(), _times)
    if is_wrapper(descriptor):
        part = _field(descriptor.fields_by_name["value"], sample, within)
        if part.amounts:
            raise NotColumnarError
        return part
    return message_part(descriptor, sample, within)


def _numbers(
    convert: Callable[[pa.Array], npt.NDArray[np.uint64]], kind: pa.DataType | None = None
) -> _Kind:
    part = Part(kind or pa.int64(), lambda values: [varints(convert(values))])
    return _Kind(_VARINT, part, b"\0")


def _symbols(enum: Any, sample: Any) -> _Kind:
    if isinstance(sample, int):
        raise NotColumnarError
    names = pa.array([each.name for each in enum.values], pa.string())
    numbers = np.array([each.number for each in enum.values], np.int64).view(np.uint64)
    part = Part(pa.string(), lambda values: [varints(numbers[places_among(values, names)])])
    return _Kind(_VARINT, part, b"\0")


def _of(convert: Callable[[pa.Array], npt.NDArray[Any]]) -> Callable[[pa.Array], list[Piece]]:
    """Return the function that writes all bytes of each number."""
    return lambda values: [fixed(bytes_of_rows(convert(values)))]


def _without_sign(bits: int, values: pa.Array) -> npt.NDArray[np.uint64]:
    require_between(values, 0, 2**bits - 1)
    return np.asarray(values).astype(np.uint64, copy=False)


def _unsigned_32(values: pa.Array) -> npt.NDArray[np.uint32]:
    return _without_sign(32, values).astype(np.uint32)


def _signed_32(values: pa.Array) -> npt.NDArray[np.int32]:
    return whole_numbers(values, 31).astype(np.int32)


def _with_length(data: pa.Array) -> list[Piece]:
    return [varints(lengths(data).view(np.uint64)), data]


def _of_base64(texts: pa.Array) -> list[Piece]:
    return _with_length(bytes_of_each(lambda text: b64decode(text, validate=True), texts))


def _digits(amounts: pa.Array) -> pa.Array:
    """Return numbers as texts, without trailing zeros."""
    numbers = unscaled(amounts)
    require(bool((numbers > -(2**63)).all()))
    whole, fractions = np.divmod(np.abs(numbers), 10**_DECIMALS)
    texts: list[Piece] = [pa.array(whole).cast(pa.string()).cast(pa.binary())]
    if fractions.any():
        texts.append(_after_point(fractions))
    if (numbers < 0).any():
        texts.insert(0, pc.if_else(pa.array(numbers < 0), constant(b"-"), NOTHING))
    return joined(texts, len(amounts))


def _after_point(fractions: npt.NDArray[np.int64]) -> pa.Array:
    """Return the decimal point and the fraction's digits; empty if there is no fraction."""
    hundredths, rest = np.divmod(fractions, 10_000)
    if not rest.any():
        return _HUNDREDTHS.take(pa.array(hundredths))
    digits = pc.utf8_slice_codeunits(pa.array(fractions + 10**_DECIMALS).cast(pa.string()), 1)
    texts = pc.binary_join_element_wise(".", pc.utf8_rtrim(digits, "0"), "").cast(pa.binary())
    return pc.if_else(pa.array(fractions > 0), texts, NOTHING)


_HUNDREDTHS = pa.array(
    [b""] + [f".{number:02}".rstrip("0").encode() for number in range(1, 100)], pa.binary()
)


def _message(inner: Part, values: pa.Array) -> list[Piece]:
    return _with_length(joined(inner.pieces(values), len(values)))


def _times(texts: pa.Array) -> list[Piece]:
    """Write times as messages of seconds since 1970 and nanoseconds."""
    seconds, micros = np.divmod(microseconds(texts), 1_000_000)
    made: list[Piece] = []
    for number, values in ((1, seconds), (2, micros * 1_000)):
        written = joined([constant(_tag(number, _VARINT)), varints(values.view(np.uint64))], 0)
        made.append(pc.if_else(pa.array(values != 0), written, NOTHING))
    return made


def _tag(number: int, wire: int) -> bytes:
    (tag,) = varints(np.array([number << 3 | wire], np.uint64)).to_pylist()
    return bytes(tag)
