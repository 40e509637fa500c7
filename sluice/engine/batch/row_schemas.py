"""The schemas of the rows between a job's tasks: rows for operators, and state rows for shards."""

from __future__ import annotations

from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_types import arrow_schema
from sluice.state.model import NO_WINDOW
from sluice.support.arrays import Indices, Integers

ROW = {
    "target": "INT",
    "side": "INT",
    "emitted": "BOOLEAN",
    "old": "BOOLEAN",
    "output": "STRING",
    "key": "STRING",
    "value": "STRING",
    "foreign": "STRING",
    "headers": "STRING",
    "time": "BIGINT",
    "before": "BIGINT",
    "after": "BIGINT",
    "window_start": "BIGINT",
    "window_end": "BIGINT",
    "sequence": "BIGINT",
    "origin": "BIGINT",
    "path": "BINARY",
    "advances": "BINARY",
    "undecided": "INT",
    "worker": "INT",
}
"""Columns of a row. `target` is the operator, store, group or sink that the row is for.

`side` is the number of the target's input, such as the left or the right side of a join.

If `emitted` is true, `target` is the operator that emitted the row.

`headers` are the headers of the record that caused the row, as JSON, if an output needs them.

`undecided` is null unless operators decide whether the row's record has any effect (see
`record_outcomes`).

Rows are sorted by position: `sequence` (the record's order among all records), `origin` (the
record's source, partition and offset) and `path` (the steps from the record to the row; see
`values.row_order`).
"""

ROW_DDL = ", ".join(f"{name} {kind}" for name, kind in ROW.items())
SCHEMA = arrow_schema(ROW)
STREAM_TIME = -1
"""The `side` of a row that is a report. Its column `advances` has the positions of a task's rows
that advance the stream time of the operator `target`."""

REJECTED = 2**31 - 2
"""The `target` of a row that a step rejected. The row's `value` is the JSON of a `Rejected`. All
stages pass the row on."""

LAST = 2**62
"""The `sequence` of results that belong neither to a record nor to an advance of stream time, such
as the results of wall-clock timers. These results follow the last row."""

OFFSET_BITS = 40
PARTITION_BITS = 13
SOURCE_BITS = 63 - PARTITION_BITS - OFFSET_BITS
_BITS = 64

STATE_KEY = {"group_id": "INT", "key": "STRING", "window_start": "BIGINT", "window_end": "BIGINT"}
"""Columns that identify a state row."""

SORT_KEY = ("sequence", "origin", "path")
"""The columns of a row's position, by which the results of operators are sorted."""

RETURNED_ROW = pa.schema(
    [
        ("group_id", pa.int32()),
        ("key", pa.string()),
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("value", pa.string()),
        *[SCHEMA.field(name) for name in (*SORT_KEY, "headers", "time")],
    ]
)
"""The schema of the rows that the driver gets: changed state rows, output records, and rejected
rows."""

Position = tuple[int, int, bytes]
"""Sequence, origin and path of a row."""
BEGIN: Position = (-1, 0, b"")
"""A position before all rows."""
END: Position = (LAST, 0, b"")
"""A position after all rows that come from a record."""

_DEFAULTS = {
    "side": 0,
    "emitted": False,
    "old": False,
    "window_start": NO_WINDOW,
    "window_end": NO_WINDOW,
    "path": b"",
}


def rows(count: int, columns: dict[str, pa.Array | int | bool | str | bytes]) -> pa.RecordBatch:
    """Create `count` rows.

    A scalar applies to every row; missing columns get their default or null.
    """
    arrays = []
    for field in SCHEMA:
        value = columns.get(field.name, _DEFAULTS.get(field.name))
        if value is None:
            arrays.append(pa.nulls(count, field.type))
        elif isinstance(value, pa.Array | pa.ChunkedArray):
            arrays.append(value)
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def with_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with exactly the schema `SCHEMA`.

    Spark may have declared columns as not nullable, so that the schemas differ.
    """
    return pa.RecordBatch.from_arrays([batch.column(name) for name in SCHEMA.names], schema=SCHEMA)


def taken(column: pa.Array | pa.ChunkedArray, indices: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Return the column's values at the indices."""
    # A column may have only nulls, such as the headers in most batches. Taking nulls by index is
    # slower than taking texts, so create new nulls.
    if column.null_count == len(column):
        return pa.nulls(len(indices), column.type)
    return column.take(indices)


def origins(source: int, partition: int, offsets: Integers) -> Integers:
    """Return each record's source, partition and offset as one number that sorts like the three.

    Raises OverflowError, with the reason, if a number is too large.
    """
    numbers = {"step": (source, SOURCE_BITS), "partition": (partition, PARTITION_BITS)}
    if len(offsets):
        numbers["offset"] = int(offsets.max()), OFFSET_BITS
    for name, (number, bits) in numbers.items():
        # A number with too many bits would overwrite bits of the number before it, and records
        # would silently be sorted wrongly.
        if number >= 1 << bits:
            raise OverflowError(f"{name} {number} is above {(1 << bits) - 1}, the limit")
    return np.int64((source << PARTITION_BITS | partition) << OFFSET_BITS) + offsets


@overload
def partition_of(origin: int) -> tuple[int, int]: ...
@overload
def partition_of(origin: Integers) -> tuple[Integers, Integers]: ...
def partition_of(origin: int | Integers) -> tuple[int | Integers, int | Integers]:
    """Return the source and the partition of an origin, or of each origin in an array."""
    source_and_partition = origin >> OFFSET_BITS
    lowest_bits = (1 << PARTITION_BITS) - 1
    return source_and_partition >> PARTITION_BITS, source_and_partition & lowest_bits


def has_origin(sequence: int | None) -> bool:
    """Return whether a record or an advance of stream time has caused a row with this sequence."""
    return sequence is not None and BEGIN[0] < sequence < END[0]


@overload
def offset_of(origin: int) -> int: ...
@overload
def offset_of(origin: Integers) -> Integers: ...
def offset_of(origin: int | Integers) -> int | Integers:
    return origin & ((1 << OFFSET_BITS) - 1)


def sorted_indices(table: pa.Table) -> Indices:
    """Return the indices that sort the rows by position.

    Rows with the same position keep their order.
    """
    sort_keys: list[tuple[str, str]] = []
    for name in SORT_KEY:
        if name in table.column_names:
            sort_keys.append((name, "ascending"))
    order = pc.sort_indices(table, sort_keys)
    return np.asarray(order).astype(np.intp)


def position_keys(table: pa.Table) -> list[Integers]:
    """Return the columns that form a row's position, each as numbers with the order of its values.

    The column that matters least for the order comes first, as `np.lexsort` needs it.
    """
    keys: list[Integers] = []
    for name in reversed(SORT_KEY):
        if name in table.column_names:
            keys.append(ranks(table.column(name)))
    return keys


def position_numbers(table: pa.Table) -> Integers:
    """Return a number for each row that sorts like the row's position.

    Equal positions have equal numbers.
    """
    numbers = np.zeros(len(table), np.int64)
    if not len(table):
        return numbers
    keys = position_keys(table)
    paths, origins, sequences = keys
    bits = 0
    # In most batches, the parts of all positions are so close to each other that they fit into 64
    # bits together. Work in place: allocating a large array takes longer than computing its values.
    for part in (sequences.copy(), origins >> OFFSET_BITS, offset_of(origins), paths):
        least = part.min()
        width = (int(part.max()) - int(least)).bit_length()
        if width:
            numbers <<= width
            part -= least
            numbers |= part
            bits += width
    if bits < _BITS:
        return numbers
    order = np.lexsort(keys)
    differs = np.zeros(len(order), np.bool_)
    for key in keys:
        differs[1:] |= np.diff(key[order]) != 0
    numbers[order] = np.cumsum(differs)
    return numbers


def stable_order(numbers: Integers) -> Indices:
    """Return the indices that sort numbers from 0 to 2**32 - 1. Equal numbers keep their order.

    `np.argsort` does the same, but takes ten times as long for numbers of more than 16 bits.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if len(numbers) and numbers.max() >= 1 << 16:
        order = order[np.argsort((numbers[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def ranks(column: pa.ChunkedArray) -> Integers:
    """Return numbers with the same order as the column's values. Nulls come last."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column.to_numpy())
    # In most batches, all paths are equal. Checking this takes a quarter of the time of encoding
    # them.
    if len(column) and column[0] == column[-1]:
        are_equal = pc.all(pc.equal(column, column[0]), skip_nulls=False)
        if are_equal.as_py():
            return np.zeros(len(column), np.int64)
    # Most texts and paths occur many times, so only the distinct values are compared.
    codes = column.combine_chunks().dictionary_encode()
    different = len(codes.dictionary)
    rank_of = np.empty(different + 1, np.int64)
    rank_of[np.asarray(pc.sort_indices(codes.dictionary))] = np.arange(different)
    rank_of[different] = different
    places: Integers = np.asarray(pc.fill_null(codes.indices, different), np.int64)
    return rank_of[places]
