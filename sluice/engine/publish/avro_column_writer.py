"""Encodes columns of values in Avro, with the same bytes as `sluice.values.avro_written`."""

from __future__ import annotations

from base64 import b64decode
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.publish.byte_columns import (
    NOTHING,
    Piece,
    compressed,
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
from sluice.engine.read.json_lines import UnsureError, days_of, require, require_between
from sluice.values.avro_schemas import (
    NO_DEFAULT,
    Array,
    Choice,
    Decimals,
    Field,
    Fixed,
    Node,
    Primitive,
    Record,
    Union,
    may_be_null,
    present,
)
from sluice.values.avro_values import unit_of_logical
from sluice.values.avro_written import writer, written_default
from sluice.values.sql_types import MOST_DIGITS

_NULL = Primitive("null")
_BITS = {"int": 31, "long": 63}


def record_part(node: Record, sample: Any) -> Part:
    """Return the writer of values with a record's schema. Raises NotColumnarError.

    `sample` is the plain data of a value. It shows whether times are texts or numbers.
    """
    if not node.fields:
        raise NotColumnarError
    given = sample if isinstance(sample, dict) else {}
    parts = [_field(each, given.get(each.name)) for each in node.fields]

    def pieces(values: pa.StructArray) -> list[Piece]:
        made: list[Piece] = []
        for part, column in zip(parts, values.flatten(), strict=True):
            made += part.pieces(column)
        return made

    names = [each.name for each in node.fields]
    types = [part.type for part in parts]
    return Part(pa.struct([*zip(names, types, strict=True)]), pieces)


def _field(field: Field, sample: Any) -> Part:
    """Return the writer of a field.

    Arrow cannot tell a missing value from a null, so nulls are written only if both have the same
    bytes.
    """
    null: bytes | None = None
    if may_be_null(field.type):
        null = writer(field.type)(None)
    if field.default is not NO_DEFAULT:
        default = written_default(field.type, field.default, "$")
        null = default if null in (None, default) else None
    return _slot(field.type, sample, null)


def _slot(node: Node, sample: Any, null: bytes | None) -> Part:
    """Return the writer of values.

    Nulls are written as `null`. If `null` is None, no value may be null.
    """
    inner = present(node)
    branch: list[Piece] = []
    if isinstance(node, Union) and inner is not node:
        branch.append(constant(bytes([2 * node.branches.index(inner)])))
    part = _part(inner, sample)

    def pieces(values: pa.Array) -> list[Piece]:
        if not values.null_count:
            return [*branch, *part.pieces(values)]
        if null is None:
            raise UnsureError
        others = values.drop_null()
        written = joined([*branch, *part.pieces(others)], len(others))
        return [in_places(written, values, null)]

    return Part(part.type, pieces)


def _part(node: Node, sample: Any) -> Part:  # noqa: C901  (a table)
    is_number = isinstance(sample, int)
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            if node.precision > MOST_DIGITS:
                raise NotColumnarError
            kind = pa.decimal128(node.precision, node.scale)
            return Part(kind, partial(_decimals, node))
        case Primitive(kind="int", logical="date") if not is_number:
            return Part(pa.string(), lambda values: _longs(days_of(values).cast(pa.int32())))
        case Primitive(kind="long", logical=logical) if (
            unit_of_logical(logical)[0] and not is_number
        ):
            return Part(pa.string(), partial(_times, unit_of_logical(logical)[0]))
        case Primitive(kind="int" | "long" as kind):
            if isinstance(sample, str):
                raise NotColumnarError
            return Part(pa.int64(), lambda values: _longs(values, _BITS[kind]))
        case Primitive(kind="float"):
            return Part(pa.float64(), lambda values: [fixed(bytes_of_rows(float_numbers(values)))])
        case Primitive(kind="double"):
            return Part(pa.float64(), lambda values: [fixed(bytes_of_rows(real_numbers(values)))])
        case Primitive(kind="boolean"):
            return Part(pa.bool_(), _flags)
        case Primitive(kind="string"):
            return Part(pa.string(), lambda values: _with_length(values.cast(pa.binary())))
        case Primitive(kind="bytes"):
            return Part(pa.string(), lambda values: _with_length(bytes_of_each(_of_base64, values)))
        case Fixed(logical="uuid"):
            return Part(pa.string(), lambda values: [bytes_of_each(_of_uuid, values)])
        case Fixed(size=size):
            return Part(pa.string(), partial(_fixed, size))
        case Choice(symbols=symbols):
            names = pa.array(symbols, pa.string())
            return Part(pa.string(), lambda values: [varints(zigzag(places_among(values, names)))])
        case Array(items=items):
            return _list(items, sample)
        case Record():
            return record_part(node, sample)
        case _:
            raise NotColumnarError


def _list(node: Node, sample: Any) -> Part:
    first = sample[0] if isinstance(sample, list) and sample else None
    item = _slot(node, first, writer(node)(None) if may_be_null(node) else None)

    def pieces(values: pa.ListArray) -> list[Piece]:
        counts = whole_numbers(pc.list_value_length(values))
        items = values.flatten()
        written = joined(item.pieces(items), len(items))
        # An empty block ends each list. An empty list consists of this block only.
        has_items = pa.array(counts > 0)
        end = pc.if_else(has_items, constant(b"\0"), NOTHING)
        return [varints(zigzag(counts)), joined_items(written, counts), end]

    return Part(pa.list_(item.type), pieces)


def _longs(values: pa.Array, bits: int = 63) -> list[Piece]:
    return [varints(zigzag(whole_numbers(values, bits)))]


def _with_length(data: pa.Array) -> list[Piece]:
    return [varints(zigzag(lengths(data))), data]


def _flags(values: pa.Array) -> list[Piece]:
    flags = values.to_numpy(zero_copy_only=False).astype(np.uint8)
    return [fixed(flags.reshape(-1, 1))]


def _times(per_second: int, texts: pa.Array) -> list[Piece]:
    numbers = microseconds(texts)
    if per_second > 1_000_000:
        factor = per_second // 1_000_000
        most = (2**63 - 1) // factor
        require(bool((np.abs(numbers) <= most).all()))
        return [varints(zigzag(numbers * factor))]
    numbers, rest = np.divmod(numbers, 1_000_000 // per_second)
    require(not rest.any())
    return [varints(zigzag(numbers))]


def _of_base64(text: str) -> bytes:
    return b64decode(text, validate=True)


def _of_uuid(text: str) -> bytes:
    return UUID(text).bytes


def _fixed(size: int, texts: pa.Array) -> list[Piece]:
    data = bytes_of_each(_of_base64, texts)
    require(bool((lengths(data) == size).all()))
    return [data]


def _decimals(node: Decimals, values: pa.Array) -> list[Piece]:
    largest = Decimal((0, (9,) * node.precision, -node.scale))
    require_between(values, -largest, largest)
    numbers = unscaled(values)
    if isinstance(node, Fixed):
        return [fixed(_sign_extended(numbers, node.size))]
    # The size of a number: one byte for its first 7 bits, and one for each further 8 bits.
    magnitudes = numbers ^ (numbers >> 63)
    sizes = np.ones(len(numbers), np.int64)
    width = int(magnitudes.max()).bit_length() // 8 + 1 if len(numbers) else 1
    for place in range(1, width):
        sizes += magnitudes >> (8 * place - 1) > 0
    # Shift the significant bytes to the front of each row.
    shifted = numbers.view(np.uint64) << (8 * (8 - sizes)).astype(np.uint64)
    rows = np.empty((len(numbers), width + 1), np.uint8)
    rows[:, 0] = 2 * sizes
    rows[:, 1:] = bytes_of_rows(shifted.astype(">u8"))[:, :width]
    return [compressed(rows, sizes + 1)]


def _sign_extended(numbers: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint8]:
    own = bytes_of_rows(numbers.astype(">i8"))
    if size < 8:
        require(bool((numbers >> (8 * size - 1) == numbers >> 63).all()))
        return own[:, 8 - size :]
    rows = np.empty((len(numbers), size), np.uint8)
    rows[:, : size - 8] = (numbers >> 63).astype(np.uint8)[:, None]
    rows[:, size - 8 :] = own
    return rows
