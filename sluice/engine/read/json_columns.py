"""Decodes the JSON of many values at once to columns, with Arrow's reader of JSON.

This takes half the time of an object for each value. But Arrow also accepts JSON that a contract refuses, and its
errors do not say which value is wrong. `JsonColumns` therefore gives the values of texts only if it can prove that
`ValueDecoder` would accept the texts and give the same columns. All other texts are left to `ValueDecoder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
from msgspec import inspect

from sluice.plan import Source
from sluice.sql.arrow_types import arrow_type
from sluice.values import stored_values
from sluice.values.contracts import ObjectType, choice_type, type_info
from sluice.values.json_limits import LONGEST_NAME

_FEWEST = 100
"""For fewer texts, starting Arrow's reader takes longer than decoding the texts one by one."""
_PIECE = 2_000
"""How many texts are read at once: one invalid text makes a whole piece slow."""
_MOST_MISSES = 3
"""After so many pieces in a row that cannot be read, most pieces probably cannot be read, so no more are tried."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FIRST_TIME, _LAST_TIME = -62_104_060_800_000_000, 253_370_764_799_999_999
"""Times between these, in epoch us, are in the years 2 to 9998, so they are valid in every time zone."""
_SHORTEST_TIME = len("2025-01-01T00:00:00")
"""Arrow also takes shorter times, without seconds or without a time of day, which the contract refuses."""


class Run(NamedTuple):
    """Some of a batch's texts that follow one another."""

    begin: int
    end: int
    values: pa.RecordBatch | None
    """The texts' values: a column for each field of the contract. None if the texts have to be decoded one by one."""


class _UnsureError(Exception):
    """Some of the values may be invalid."""


@dataclass
class JsonColumns:
    """Reads the JSON of one contract."""

    contract: inspect.StructType | inspect.DataclassType | inspect.TypedDictType
    types: dict[str, pa.DataType]
    """The contract's fields by their names in JSON, with the types of their columns."""
    is_utc: bool
    """Whether times without a zone are in UTC."""
    _misses: int = field(default=0, init=False)
    """How many pieces in a row could not be read."""

    @classmethod
    def of(cls, source: Source) -> JsonColumns | None:
        """The reader of a source's values; None if its contract cannot be read in this way."""
        if source.contract is None or source.decode is not None or not source.is_object:
            return None
        if stored_values.has_models(source.value_class) or stored_values.is_converted(source.value_class):
            return None
        contract = type_info(source.value_class)
        if not isinstance(contract, ObjectType) or _is_more_than_fields(contract):
            return None
        types = {name: arrow_type(sql) for name, sql in source.types.items()}
        columns = cls(contract, types, source.zone == "UTC")
        if any(columns._type_of(each.type) != types[each.encode_name] for each in contract.fields):
            return None
        return columns

    def runs(self, texts: pa.Array) -> Iterator[Run]:
        """Divide the texts of a batch into runs that could be read and runs that could not."""
        begin, read = 0, list[pa.RecordBatch]()
        for start in range(0, len(texts), _PIECE):
            piece = texts.slice(start, _PIECE)
            values = self._values(piece)
            if bool(read) != (values is not None) and start > begin:
                yield Run(begin, start, _joined(read))
                begin, read = start, []
            if values is not None:
                read.append(values)
        if begin < len(texts):
            yield Run(begin, len(texts), _joined(read))

    def _values(self, texts: pa.Array) -> pa.RecordBatch | None:
        if len(texts) < _FEWEST or self._misses == _MOST_MISSES:
            return None
        try:
            values = self._read(texts)
        except (_UnsureError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._misses += 1
            return None
        self._misses = 0
        return values

    def _read(self, texts: pa.Array) -> pa.RecordBatch:
        """The values of texts. Raises _UnsureError or one of Arrow's errors if any of them may be invalid."""
        # Each text begins and ends like an object. If all of them together are as many objects, each is one object:
        # no object can go on in the next text, because no comma is between them.
        for is_so in (texts.is_valid(), pc.starts_with(texts, b"{"), pc.ends_with(texts, b"}")):
            _require_all(is_so)
        _require(pc.max(pc.binary_length(texts)).as_py() <= LONGEST_NAME)
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n")
        together = lines[0].as_buffer()
        text = together.to_pybytes()
        _require_unicode(text)
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = arrow_json.read_json(pa.BufferReader(together), options, self._parsing)
        _require(len(table) == len(texts))
        columns: dict[str, pa.Array] = {}
        strings = len(self.contract.fields) * len(texts)
        for each in self.contract.fields:
            column = _one_array(table.column(each.encode_name))
            strings += _count_strings(each.type, column)
            columns[each.encode_name] = self._times(column) if _is_time(each.type) else column
        # The fields and strings of valid values have so many quotation marks at least. If there are no more, no text
        # has an unknown field, a field twice, or an amount as text.
        _require(text.count(b'"') == 2 * strings)
        return pa.RecordBatch.from_pydict(columns)

    @cached_property
    def _parsing(self) -> arrow_json.ParseOptions:
        parsed = [
            (each.encode_name, pa.string() if _is_time(each.type) else self.types[each.encode_name])
            for each in self.contract.fields
        ]
        return arrow_json.ParseOptions(pa.schema(parsed), unexpected_field_behavior="ignore")

    def _times(self, texts: pa.Array) -> pa.Array:
        """The times of texts. Either none of them has a zone, or each has the zone Z."""
        zone = "Z" if pc.all(pc.ends_with(texts, "Z")).as_py() else ""
        _require(bool(zone) or self.is_utc)
        _require(pc.min(pc.binary_length(texts)).as_py() >= _SHORTEST_TIME + len(zone))
        # Arrow refuses a text with a zone for a type without a zone, and the reverse.
        times = texts.cast(pa.timestamp("us", "UTC" if zone else None)).cast(pa.timestamp("us", "UTC"))
        _require_between(times.cast(pa.int64()), _FIRST_TIME, _LAST_TIME)
        return times

    def _type_of(self, kind: inspect.Type) -> pa.DataType | None:
        """The type of a field's column; None if the field cannot be read."""
        return pa.timestamp("us", "UTC") if _is_time(kind) else _type_of_part(kind)


def _require(is_sure: bool) -> None:
    if not is_sure:
        raise _UnsureError


def _require_all(mask: pa.Array) -> None:
    _require(pc.all(mask, min_count=0).as_py())


def _require_unicode(text: bytes) -> None:
    """Raise _UnsureError if the JSON may have strings that are not Unicode, which Arrow does not check."""
    _require(b"\\" not in text or _SURROGATE.search(text) is None)
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError:
        raise _UnsureError from None


def _require_between(numbers: pa.Array, least: int | Decimal, most: int | Decimal) -> None:
    found = pc.min_max(numbers)
    if len(numbers):
        _require(least <= found["min"].as_py() and found["max"].as_py() <= most)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    return pa.concat_batches(batches) if batches else None


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _is_time(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.DateTimeType) and kind.tz is None


def _is_more_than_fields(kind: ObjectType) -> bool:
    """Whether fields may be missing, or the class has a tag or code that checks or changes its values."""
    if isinstance(kind, inspect.StructType) and (kind.tag_field is not None or kind.array_like):
        return True
    return hasattr(kind.cls, "__post_init__") or not all(each.required for each in kind.fields)


def _digits(kind: inspect.Type) -> tuple[int, int] | None:
    """Precision and scale of a Decimal with declared digits."""
    if not isinstance(kind, inspect.Metadata) or not isinstance(kind.type, inspect.DecimalType):
        return None
    extra = kind.extra or {}
    return (extra["precision"], extra["scale"]) if "scale" in extra else None


def _type_of_part(kind: inspect.Type) -> pa.DataType | None:
    """The Arrow type of a number, text, list or object; None if values of this type cannot be read."""
    match kind:
        case inspect.IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
            return pa.int64()
        case inspect.FloatType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
            return pa.float64()
        case inspect.BoolType():
            return pa.bool_()
        case inspect.StrType(min_length=None, max_length=None, pattern=None):
            return pa.string()
        case inspect.LiteralType() | inspect.EnumType():
            return {str: pa.string(), int: pa.int64()}.get(choice_type(kind))
        case inspect.Metadata():
            digits = _digits(kind)
            return pa.decimal128(*digits) if digits is not None else None
        case (
            inspect.ListType(min_length=None, max_length=None) | inspect.VarTupleType(min_length=None, max_length=None)
        ):
            item = _type_of_part(kind.item_type)
            return None if item is None else pa.list_(item)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() if not _is_more_than_fields(kind):
            types = [(each.encode_name, _type_of_part(each.type)) for each in kind.fields]
            return None if any(part is None for _, part in types) else pa.struct(types)
        case _:
            return None


def _count_strings(kind: inspect.Type, values: pa.Array) -> int:
    """The number of strings, including names of fields, in the JSON of a field's values.

    Raises _UnsureError if one of the values is missing, or may be invalid.
    """
    _require(values.null_count == 0)
    match kind:
        case inspect.ListType() | inspect.VarTupleType():
            return _count_strings(kind.item_type, values.flatten())
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            counts = zip(kind.fields, values.flatten(), strict=True)
            return len(kind.fields) * len(values) + sum(_count_strings(each.type, part) for each, part in counts)
        case inspect.LiteralType() | inspect.EnumType():
            choices = kind.values if isinstance(kind, inspect.LiteralType) else [each.value for each in kind.cls]
            _require_all(pc.is_in(values, pa.array(choices, values.type)))
        case inspect.FloatType():
            _require_all(pc.is_finite(values))
            # The decoder reads -0 as 0.0, but -0.0 as -0.0. Arrow reads both as -0.0.
            _require(not (np.signbit(values) & np.equal(values, 0)).any())
        case inspect.Metadata():
            # Arrow compares the digits with the precision before it adds the zeros of the scale.
            precision, scale = _digits(kind) or (0, 0)
            end = Decimal((0, (9,) * precision, -scale))
            _require_between(values, -end, end)
    return len(values) if pa.types.is_string(values.type) else 0
