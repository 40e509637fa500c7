"""Encodes the JSON of many values at once with a schema, field by field.

Arrow's reader of JSON makes columns of the values, and a `Part` for each field of the schema turns
a column into bytes. This takes a fifth of the time of an object for each value. The bytes count
only if the values are proven to fit the schema. Otherwise, they are encoded one by one, which says
what is wrong with which value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.publish.byte_columns import Piece, joined
from sluice.engine.publish.column_parts import Part
from sluice.engine.read.avro_columns import NotColumnarError
from sluice.engine.read.json_lines import (
    UnsureError,
    count_of,
    lines_of_objects,
    one_array,
    parse,
    require,
)
from sluice.support.arrays import present_values

_FEWEST = 100
"""For fewer texts, the calls of Arrow and NumPy take longer than encoding them one by one."""
_PIECE = 4_000
"""How many texts are encoded at once. One that does not fit makes the whole piece slow."""
_SAMPLES = 20
"""How many texts show whether times and amounts are texts or numbers."""
_MOST_MISSES = 3
"""After so many pieces in a row with doubts, most of the next pieces are not tried."""
_TRIED_AGAIN = 50
"""After so many pieces that were not tried, one is tried again."""


@dataclass
class JsonColumnEncoder:
    """Encodes with one schema."""

    part_of: Callable[[Any], Part]
    """Returns what writes the schema's values, by the plain data of a sample. Raises
    NotColumnarError."""
    begin: Piece
    """The bytes before each value."""
    _part: Part | None = field(default=None, init=False)
    _misses: int = field(default=0, init=False)
    """How many pieces in a row could not be encoded."""
    _skipped: int = field(default=0, init=False)
    """How many pieces in a row were not tried."""
    _is_columnar: bool = field(default=True, init=False)

    def encode(self, texts: pa.Array, one_by_one: Callable[[int, pa.Array], pa.Array]) -> pa.Array:
        """Return the bytes of texts, none of which is null.

        `one_by_one` encodes some of the texts, of which it gets the place of the first one.
        """
        encoded: list[pa.Array] = []
        for start in range(0, len(texts), _PIECE):
            piece = texts.slice(start, _PIECE)
            data = self._columns(piece)
            if data is None:
                data = one_by_one(start, piece)
            encoded.append(data)
        if not encoded:
            return pa.array([], pa.binary())
        return pa.concat_arrays(encoded)

    def _columns(self, texts: pa.Array) -> pa.Array | None:
        if len(texts) < _FEWEST or not self._is_tried():
            return None
        try:
            data = self._encoded(texts.cast(pa.binary()))
        except NotColumnarError:
            self._is_columnar = False
            return None
        except (UnsureError, msgspec.DecodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._misses += 1
            # Another sample may show that fields have other types.
            self._part = None
            return None
        self._misses = 0
        return data

    def _is_tried(self) -> bool:
        if not self._is_columnar or self._misses < _MOST_MISSES:
            return self._is_columnar
        self._skipped = (self._skipped + 1) % _TRIED_AGAIN
        return self._skipped == 0

    def _encoded(self, texts: pa.Array) -> pa.Array:
        if self._part is None:
            samples = [msgspec.json.decode(text) for text in texts[:_SAMPLES].to_pylist()]
            self._part = self.part_of(reduce(_merged, samples))
        part = self._part
        lines = lines_of_objects(texts)
        table = parse(lines, pa.schema(part.type.fields), "error")
        require(len(table) == len(texts))
        columns = [one_array(table.column(each.name)).cast(each.type) for each in part.type.fields]
        values = pa.StructArray.from_arrays(columns, fields=part.type.fields)
        _require_no_texts(lines, part.amounts, values)
        return joined([self.begin, *part.pieces(values)], len(texts))


def _merged(first: Any, second: Any) -> Any:
    """Return plain data that has all fields of two values, and one item of all lists."""
    match first, second:
        case dict(), dict():
            names = dict.fromkeys([*first, *second])
            return {name: _merged(first.get(name), second.get(name)) for name in names}
        case list(), list():
            items = [*first, *second]
            return [reduce(_merged, items)] if items else []
        case _:
            return second if first is None else first


def _require_no_texts(lines: pa.Buffer, names: tuple[str, ...], values: pa.StructArray) -> None:
    """Raise UnsureError if a field of one of these names may be a text, not a number."""
    if not names or count_of(lines, '"') == 2 * (_count_strings(values)):
        return
    # The letters of a name may be escaped.
    require(not count_of(lines, "\\") or re.search(rb'\\u[^"]*"\s*:', lines) is None)
    for name in names:
        require(re.search(b'"%b"\\s*:\\s*"' % re.escape(name.encode()), lines) is None)


def _count_strings(values: pa.Array) -> int:
    """Return how many names and strings the JSON of values has at least."""
    present = present_values(values)
    if pa.types.is_string(values.type):
        return len(present)
    if pa.types.is_list(values.type):
        return _count_strings(present.flatten())
    if not pa.types.is_struct(values.type):
        return 0
    count = 0
    for column in present.flatten():
        count += len(column) - column.null_count + _count_strings(column)
    return count
