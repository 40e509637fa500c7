"""The rows that go from stage to stage of an ordered job: what gets to an operator, and what it sends on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.engine.batch.arrow import arrow_type
from sluice.state.model import NO_WINDOW

ROW = {
    "target": "INT",
    "side": "INT",
    "emitted": "BOOLEAN",
    "old": "BOOLEAN",
    "output": "STRING",
    "key": "STRING",
    "value": "STRING",
    "foreign": "STRING",
    "time": "BIGINT",
    "before": "BIGINT",
    "after": "BIGINT",
    "left_time": "BIGINT",
    "right_time": "BIGINT",
    "window_start": "BIGINT",
    "window_end": "BIGINT",
    "sequence": "BIGINT",
    "place": "BIGINT",
    "sub": "BIGINT",
    "worker": "INT",
}
"""A row is on its way to operator, store or sink `target`; or `emitted` by operator `target`, and not yet on any way.

Rows are taken in the order of `sequence`, `place`, `sub`: of the records of a batch the one that came first, its
topic's partition and offset, and a number that tells what was made of one record apart.
"""

ROW_DDL = ", ".join(f"{name} {kind}" for name, kind in ROW.items())
SCHEMA = pa.schema([(name, arrow_type(kind)) for name, kind in ROW.items()])
CLOCK = -1
"""`side` of a row that says how far stream time is (`after`) in the partition that `output` names."""

REJECTED = 2**31 - 2
"""`target` of a row that a step rejected, whose `value` is the JSON of a `Rejected`: every stage passes it on."""

LAST = 2**62
"""`sequence` of what is sent on after the last row, which comes of no record."""

PLACE_BITS = 40
PARTITION_BITS = 13
SUBS = 1024
"""What is made of one row is told apart by a number below this."""

_DEFAULTS = {"side": 0, "emitted": False, "old": False, "window_start": NO_WINDOW, "window_end": NO_WINDOW, "sub": 0}

Integers = npt.NDArray[np.int64]


def rows(count: int, columns: dict[str, pa.Array | int | bool | str]) -> pa.RecordBatch:
    """Rows of these columns; a single value stands for every row, and what is left out is its default or null."""
    made = []
    for field in SCHEMA:
        value = columns.get(field.name, _DEFAULTS.get(field.name))
        if value is None:
            made.append(pa.nulls(count, field.type))
        elif isinstance(value, pa.Array | pa.ChunkedArray):
            made.append(value)
        else:
            made.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.RecordBatch.from_arrays(made, schema=SCHEMA)


def places(source: int, partition: int, offsets: Integers) -> Integers:
    """One number for source, partition and offset: sorts as they do."""
    return np.int64((source << PARTITION_BITS | partition) << PLACE_BITS) + offsets


def place_of(place: int) -> tuple[int, int]:
    """Source and partition of such a number."""
    source_and_partition = place >> PLACE_BITS
    return source_and_partition >> PARTITION_BITS, source_and_partition & ((1 << PARTITION_BITS) - 1)


def offset_of(place: int) -> int:
    """The offset of such a number."""
    return place & ((1 << PLACE_BITS) - 1)


def in_order(table: pa.Table) -> npt.NDArray[np.intp]:
    """The order in which rows are to be taken."""
    sort = [table.column(name).to_numpy() for name in ("sub", "place", "sequence")]
    return np.lexsort(sort)
