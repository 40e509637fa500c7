"""Decodes values with schemas in a registry to columns, where the result is certainly exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.read.avro_columns import (
    AvroColumns,
    Data,
    NotColumnarError,
    Places,
)
from sluice.engine.read.json_columns import PIECE, JsonColumns
from sluice.engine.read.json_lines import UnsureError
from sluice.engine.read.proto_columns import ProtoColumns
from sluice.engine.read.registered_values import RegisteredValues, RejectedValueError, schema_header
from sluice.registry.registry import UnknownSchemaError
from sluice.sql.arrow_types import arrow_type
from sluice.values import avro_schemas, stored_values
from sluice.values.avro_values import Aliases, converter
from sluice.values.contracts import ObjectType, type_info
from sluice.values.json_limits import LONGEST_NAME
from sluice.values.proto_descriptors import message_class, message_classes, node_of
from sluice.values.registered_schemas import (
    PREFIX_BYTES,
    VALUE_HEADER,
    SchemaRef,
    UnnamedSchemaError,
    named_schema,
)

_FEWEST = 50
"""Fewer values of a schema than this are read one by one, because this is faster than the calls of
NumPy."""
_MOST_MISSES = 3
_SMALL_PIECE = 400
"""How many values are read at once after a piece with an invalid value. An invalid value makes its
whole piece slow."""
_SMALL_PIECES = 40
"""How many small pieces follow a piece that could not be read."""


@dataclass
class RegisteredColumns:
    """Reads the values of one source to columns."""

    values: RegisteredValues
    json: JsonColumns | None = None
    """Reads the columns of JSON; None for Avro."""
    _misses: int = field(default=0, init=False)
    """How many pieces in a row could not be read."""
    _small_pieces: int = field(default=0, init=False)
    """How many small pieces are still to be read."""
    _skipped: int = field(default=0, init=False)
    """How many pieces in a row were read one by one, without trying to read them at once."""

    def size_of_piece(self) -> int:
        """Return the number of values to read at once."""
        return _SMALL_PIECE if self._small_pieces else PIECE

    def _is_tried(self) -> bool:
        """Return whether to try a piece after others that could not be read."""
        if self._misses < _MOST_MISSES:
            return True
        if self.json is not None:
            return False
        # An attempt takes a tenth of the time of reading the values one by one.
        self._skipped = (self._skipped + 1) % _MOST_MISSES
        return self._skipped == 0

    @cached_property
    def _columns(self) -> dict[tuple[SchemaRef, int], AvroColumns | ProtoColumns | None]:
        """Schema and number of a message → the reader of its columns; None if it needs objects."""
        return {}

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        types = self.values.source.types
        return {name: arrow_type(kind) for name, kind in types.items()}

    @classmethod
    def of(cls, values: RegisteredValues) -> RegisteredColumns | None:
        """Return the reader of a source's values; None if it must read them one by one."""
        source = values.source
        if values.format.kind == "JSON":
            of_json = None if values.format.validates else JsonColumns.of(source)
            return None if of_json is None else cls(values, of_json)
        if source.contract is None or not source.is_object:
            return None
        if stored_values.has_models(source.value_class) or stored_values.is_converted(
            source.value_class
        ):
            return None
        return cls(values) if isinstance(type_info(source.value_class), ObjectType) else None

    def read(self, texts: pa.Array, headers: pa.Array | None) -> pa.RecordBatch | None:
        """Return the values as columns; None if they have to be read one by one.

        Raises RegistryAway.
        """
        self._small_pieces = max(self._small_pieces - 1, 0)
        if len(texts) < _FEWEST or not self._is_tried():
            return None
        if self.without_schema(texts, headers) is not None:
            # `ValueDecoder.mostly_columns` then tries to read the other values.
            return None
        try:
            columns = self._read(texts, headers)
            if columns is None:
                return None
        # NumPy raises IndexError for a value that would end after all bytes.
        except (UnsureError, NotColumnarError, IndexError, pa.ArrowInvalid):
            self._misses += 1
            if self.json is None:
                self._small_pieces = _SMALL_PIECES
            return None
        self._misses = 0
        return columns

    def without_schema(
        self, texts: pa.Array, headers: pa.Array | None
    ) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the values that are null or do not begin with a schema's id.

        Return None if there are no such values, or if headers name the schemas.
        """
        if not len(texts) or self._is_named_in_headers(headers):
            return None
        _, offsets, buffer = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        is_without = np.diff(bounds) < PREFIX_BYTES
        if texts.null_count:
            is_without |= texts.is_null().to_numpy(zero_copy_only=False)
        if buffer is not None and buffer.size:
            places = np.where(is_without, 0, bounds[:-1])
            is_without |= np.frombuffer(buffer, np.uint8)[places] != 0
        return is_without if is_without.any() else None

    @staticmethod
    def _is_named_in_headers(headers: pa.Array | None) -> bool:
        if headers is None or headers.null_count == len(headers):
            return False
        return bool(pc.any(pc.match_substring(headers, VALUE_HEADER)).as_py())

    def _read(self, texts: pa.Array, headers: pa.Array | None) -> pa.RecordBatch | None:
        if texts.null_count:
            raise UnsureError
        _, offsets, buffer = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        begins, ends = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
        if (ends - begins).max() > LONGEST_NAME or (ends - begins).min() < 1:
            raise UnsureError
        data = Data(buffer)
        named = self._named_in_headers(texts, headers)
        if named is None:
            refs, starts = _ids(data, begins, ends), begins + PREFIX_BYTES
        else:
            refs, starts = named[0], begins + named[1]
        if self.json is not None:
            for ref in refs:
                if isinstance(self.values.reader(ref), RejectedValueError):
                    raise UnsureError
            return self.json.values(data.slices(starts, ends))
        message = 0
        if self.values.format.kind == "PROTOBUF" and named is None:
            message, starts = _message(data, starts, ends)
        return self._read_each(data, refs, message, starts, ends)

    def _read_each(
        self,
        data: Data,
        refs: dict[SchemaRef, Places | None],
        message: int,
        begins: Places,
        ends: Places,
    ) -> pa.RecordBatch:
        """Read the values of each schema, and put all values into their original order."""
        if len(refs) == 1:
            return self._read_one((next(iter(refs)), message), data, begins, ends)
        batches: list[pa.RecordBatch] = []
        places: list[Places] = []
        for ref, rows in refs.items():
            assert rows is not None
            batches.append(self._read_one((ref, message), data, begins[rows], ends[rows]))
            places.append(rows)
        order = np.argsort(np.concatenate(places))
        return pa.concat_batches(batches).take(pa.array(order))

    def _read_one(
        self, place: tuple[SchemaRef, int], data: Data, begins: Places, ends: Places
    ) -> pa.RecordBatch:
        if place not in self._columns:
            self._columns[place] = self._new_reader(*place)
        reader = self._columns[place]
        if reader is None:
            raise NotColumnarError
        columns = reader.read(data, begins, ends)
        for name, column in columns.items():
            if column.type != self._types[name]:
                raise NotColumnarError
        return pa.RecordBatch.from_pydict(columns)

    def _new_reader(self, ref: SchemaRef, message: int) -> AvroColumns | ProtoColumns | None:
        source = self.values.source
        try:
            # Ask the reader of single values, too, because it checks the schema as a whole.
            if isinstance(self.values.reader(ref), RejectedValueError):
                return None
            schema = self.values.schema(ref)
            kind = type_info(source.value_class)
            assert isinstance(kind, ObjectType)
            if schema.kind == "PROTOBUF":
                found = message_class(message_classes(schema.text, schema.references), (message,))
                converter(node_of(found.DESCRIPTOR), kind, Aliases())
                return ProtoColumns(found.DESCRIPTOR, kind)
            node = avro_schemas.parse(schema.text, schema.references)
            aliases = Aliases.of(self.values.format)
            return AvroColumns(node, kind, aliases, source.zone == "UTC")
        except (NotColumnarError, UnknownSchemaError, ValueError):
            return None

    def _named_in_headers(
        self, texts: pa.Array, headers: pa.Array | None
    ) -> tuple[dict[SchemaRef, Places | None], Places] | None:
        """Return each schema's rows, and where their data begin; None if headers name no schema."""
        if headers is None or not self._is_named_in_headers(headers):
            return None
        rows: dict[SchemaRef, list[int]] = {}
        starts = np.zeros(len(texts), np.int64)
        values: Sequence[bytes] = texts.to_pylist()
        for row, (value, text) in enumerate(zip(values, headers.to_pylist(), strict=True)):
            try:
                ref, starts[row] = named_schema(value, schema_header(text, VALUE_HEADER))
            except UnnamedSchemaError:
                raise UnsureError from None
            rows.setdefault(ref, []).append(row)
        return {ref: np.array(places, np.int64) for ref, places in rows.items()}, starts


def _ids(data: Data, begins: Places, ends: Places) -> dict[SchemaRef, Places | None]:
    """Return the rows of each schema id; None for the rows if all values have the same id."""
    if (ends - begins).min() < PREFIX_BYTES:
        raise UnsureError
    prefixes = data.bytes[begins[:, None] + np.arange(PREFIX_BYTES)]
    if prefixes[:, 0].any():
        raise UnsureError
    ids = np.ascontiguousarray(prefixes[:, 1:]).view(">u4").ravel()
    if (ids == ids[0]).all():
        return {int(ids[0]): None}
    return {int(each): np.flatnonzero(ids == each) for each in np.unique(ids)}


def _message(data: Data, begins: Places, ends: Places) -> tuple[int, Places]:
    """Return the number of the values' common message type, and where the messages begin."""
    if (ends - begins).min() < 1:
        raise UnsureError
    first = data.bytes[begins]
    if not first.any():
        return 0, begins + 1
    if (ends - begins).min() < 2:
        raise UnsureError
    number = data.bytes[begins + 1]
    # Each index has two bytes: the number of places (1), and the place.
    if (first != 2).any() or (number != number[0]).any() or number[0] > 0x7F or number[0] & 1:
        raise UnsureError
    return int(number[0]) >> 1, begins + 2
