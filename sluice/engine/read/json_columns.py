"""Decodes the JSON of many values at once to columns, with Arrow's reader of JSON.

This takes half the time of decoding each value to an object. But Arrow also accepts JSON that a
contract refuses, and its errors do not say which value is wrong. `JsonColumns` therefore returns
the values of texts only if it can prove that `ValueDecoder` would accept the texts and give the
same columns. All other texts are left to `ValueDecoder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from sluice.engine.read.json_lines import (
    FIRST_DAY,
    LAST_DAY,
    SECONDS_OF_DAY,
    UnsureError,
    count_of,
    days_of,
    lines_of,
    lines_of_objects,
    one_array,
    parse,
    require,
    require_all,
    require_between,
    times_of,
)
from sluice.engine.read.json_types import (
    TIME,
    column_type,
    count_parts,
    is_more_than_fields,
    may_be_missing,
    may_be_null,
    parsed_type,
    present,
    with_unknown_fields,
)
from sluice.plan import Source
from sluice.sql.arrow_types import arrow_type
from sluice.support.arrays import present_values
from sluice.values import stored_values
from sluice.values.contract_parts import digits_of
from sluice.values.contracts import ObjectType, choice_values, type_info, types_within
from sluice.values.epochs import unit_of
from sluice.values.json_limits import MOST_LEVELS
from sluice.values.registry_formats import RegistryFormat

_FEWEST = 100
"""Fewer texts than this are decoded one by one, because starting Arrow's reader would take
longer."""
PIECE = 4_000
"""How many texts are read at once. One invalid text makes a whole piece slow, and each piece has a
fixed cost: the time of about 250 texts."""
_MOST_MISSES = 3
"""After this many consecutive pieces that cannot be read, stop trying, because most further pieces
probably cannot be read, either."""
_SAMPLE_EVERY = 100
"""Of this many texts, one is examined for fields that the contract lacks."""
_MOST_PARTS = 500
"""The maximum number of fields that Arrow reads. Each field needs memory for all texts, even if few
texts have the field."""


class TextRun(NamedTuple):
    """Some of a batch's texts that follow one another."""

    begin: int
    end: int
    values: pa.RecordBatch | None
    """The texts' values: a column for each field of the contract. None if the texts have to be
    decoded one by one."""


def text_runs(
    count: int,
    read: Callable[[int, int], pa.RecordBatch | None],
    size_of_piece: Callable[[], int] = lambda: PIECE,
) -> Iterator[TextRun]:
    """Read a batch's texts in pieces.

    Join adjacent pieces if all of them, or none of them, could be read. `read` gets the beginning
    and the size of a piece, and returns the piece's values, or None.
    """
    begin, start, read_pieces = 0, 0, list[pa.RecordBatch]()
    while start < count:
        size = min(size_of_piece(), count - start)
        values = read(start, size)
        if bool(read_pieces) != (values is not None) and start > begin:
            yield TextRun(begin, start, _joined(read_pieces))
            begin, read_pieces = start, []
        if values is not None:
            read_pieces.append(values)
        start += size
    if begin < count:
        yield TextRun(begin, count, _joined(read_pieces))


@dataclass
class JsonColumns:
    """Reads the JSON of one contract."""

    contract: ObjectType
    is_utc: bool
    """Whether times without a zone are in UTC."""
    _schema: pa.Schema = field(init=False)
    """The fields that the last texts had, with the types in which Arrow parses them."""
    _misses: int = field(default=0, init=False)
    """How many pieces in a row could not be read."""

    def __post_init__(self) -> None:
        self._schema = self._declared

    @cached_property
    def _declared(self) -> pa.Schema:
        return pa.schema(
            [(each.encode_name, parsed_type(each.type)) for each in self.contract.fields]
        )

    @classmethod
    def of(cls, source: Source) -> JsonColumns | None:
        """Return the reader of a source's values.

        Return None if its contract cannot be read in this way.
        """
        if source.contract is None or not source.is_object:
            return None
        if source.decode is not None:
            decode = source.decode.value
            if not isinstance(decode, RegistryFormat) or decode.kind != "JSON":
                return None
        if stored_values.has_models(source.value_class) or stored_values.is_converted(
            source.value_class
        ):
            return None
        contract = type_info(source.value_class)
        if not isinstance(contract, ObjectType) or is_more_than_fields(contract):
            return None
        for each in contract.fields:
            if column_type(each.type) != arrow_type(source.types[each.encode_name]):
                return None
        return cls(contract, source.zone == "UTC")

    def runs(self, texts: pa.Array) -> Iterator[TextRun]:
        """Divide the texts of a batch into runs that could be read and runs that could not."""
        return text_runs(len(texts), lambda start, size: self.values(texts.slice(start, size)))

    def values(self, texts: pa.Array) -> pa.RecordBatch | None:
        """Return the values of texts; None if they have to be decoded one by one."""
        if len(texts) < _FEWEST or self._misses == _MOST_MISSES:
            return None
        try:
            values = self._read(texts)
        except (UnsureError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._misses += 1
            return None
        self._misses = 0
        return values

    def _read(self, texts: pa.Array) -> pa.RecordBatch:
        """Return the values of texts.

        Raises UnsureError or one of Arrow's errors if any of them may be invalid.
        """
        lines = lines_of_objects(texts)
        table = self._parsed(texts, lines)
        require(len(table) == len(texts))
        fields = [one_array(table.column(each.name)).cast(each.type) for each in self._declared]
        self._require_no_amounts_as_text(lines, _count_strings(self.contract.fields, fields))
        columns: dict[str, pa.Array] = {}
        for each, values in zip(self.contract.fields, fields, strict=True):
            columns[each.encode_name] = self._column(present(each.type), values)
        return pa.RecordBatch.from_pydict(columns)

    def _parsed(self, texts: pa.Array, lines: pa.Buffer) -> pa.Table:
        """Return the fields of texts, in Arrow's types. No field occurs twice.

        Arrow refuses duplicates only within fields that it reads, so it reads the fields that the
        contract lacks, too.
        """
        try:
            return parse(lines, self._schema, "error")
        except pa.ArrowInvalid:
            require(not self._forbids_unknown_fields)
            self._schema = self._schema_with_unknown_fields(
                texts.take(pa.array(range(0, len(texts), _SAMPLE_EVERY)))
            )
        return parse(lines, self._schema, "error")

    def _schema_with_unknown_fields(self, sample: pa.Array) -> pa.Schema:
        """Return the fields of the contract, and the other fields of some of the texts."""
        # Arrow would crash if the unknown fields were nested very deep.
        for text in sample.to_pylist():
            require(text.count(b"[") + text.count(b"{") <= MOST_LEVELS)
        found = pa.struct(parse(lines_of(sample), self._declared, "infer").schema)
        require(found != pa.struct(self._declared) and count_parts(found) <= _MOST_PARTS)
        return pa.schema(with_unknown_fields(pa.struct(self._declared), found).fields)

    @cached_property
    def _forbids_unknown_fields(self) -> bool:
        for kind in types_within(self.contract.cls):
            if isinstance(kind, inspect.StructType) and kind.forbid_unknown_fields:
                return True
        return False

    @cached_property
    def _amounts(self) -> list[str]:
        """The names of the fields with amounts; an empty name for the elements of a list."""
        names: list[str] = []
        for kind in types_within(self.contract.cls):
            if isinstance(kind, ObjectType):
                for each in kind.fields:
                    if digits_of(present(each.type)):
                        names.append(each.encode_name)
            elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and digits_of(
                present(kind.item_type)
            ):
                names.append("")
        return names

    def _require_no_amounts_as_text(self, lines: pa.Buffer, strings: int) -> None:
        """Raise UnsureError if an amount may be a text, because Arrow does not check its form.

        `strings` is the minimum number of names and strings that the contract's fields have in the
        lines.
        """
        if not self._amounts or count_of(lines, '"') == 2 * strings:
            return
        require("" not in self._amounts and not count_of(lines, "\\"))
        for name in self._amounts:
            require(re.search(b'"%b"\\s*:\\s*"' % re.escape(name.encode()), lines) is None)

    def _column(self, kind: inspect.Type, values: pa.Array) -> pa.Array:
        """Return the column of a field's values in Arrow's type."""
        match kind:
            case inspect.DateType():
                return days_of(values)
            case inspect.DateTimeType():
                return times_of(values, is_utc=self.is_utc)
            case inspect.Metadata(extra=extra) if (unit := unit_of(extra)) is not None:
                per_day = SECONDS_OF_DAY * unit.value
                require_between(values, FIRST_DAY * per_day, LAST_DAY * per_day)
                return pc.multiply(values, 1_000_000 // unit.value).cast(TIME)
            case _:
                return values


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    if not batches:
        return None
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


def _count_strings(fields: Iterable[inspect.Field], columns: Iterable[pa.Array]) -> int:
    """Return the number of names and strings in the JSON of fields that are not null.

    Raises UnsureError if one of the values may be invalid.
    """
    count = 0
    for each, column in zip(fields, columns, strict=True):
        require(column.null_count == 0 or may_be_missing(each))
        count += (
            len(column)
            - column.null_count
            + _count_in_values(present(each.type), present_values(column))
        )
    return count


def _count_in_values(kind: inspect.Type, values: pa.Array) -> int:
    """Return the number of strings in the JSON of values, none of which is null.

    Raises UnsureError in the same case as `_count_strings`.
    """
    match kind:
        case inspect.ListType() | inspect.VarTupleType():
            items = values.flatten()
            require(items.null_count == 0 or may_be_null(kind.item_type))
            return _count_in_values(present(kind.item_type), present_values(items))
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            return _count_strings(kind.fields, values.flatten())
        case inspect.LiteralType() | inspect.EnumType():
            require_all(pc.is_in(values, pa.array(choice_values(kind), values.type)))
        case inspect.FloatType():
            require_all(pc.is_finite(values))
            # The decoder reads the text -0 as 0.0, and the text -0.0 as -0.0. Arrow reads both as
            # -0.0.
            require(not (np.signbit(values) & np.equal(values, 0)).any())
        case inspect.Metadata() if (declared := digits_of(kind)) is not None:
            # Arrow checks the precision before it pads the number to the scale, so check the range
            # here.
            precision, scale = declared
            largest = Decimal((0, (9,) * precision, -scale))
            require_between(values, -largest, largest)
    return len(values) if pa.types.is_string(values.type) else 0
