"""Builds columns of bytes from columns of numbers and texts, with a few calls of NumPy and Arrow.

A writer turns each field of many values into *pieces*, columns with some bytes of each value, and
joins the pieces of all fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Piece: TypeAlias = pa.Array | pa.BinaryScalar
"""Some bytes of each value; a scalar if the bytes of all values are the same."""
_BITS_OF_BYTE = 7
_MOST_BYTES = 10
NOTHING = pa.scalar(b"", pa.binary())


def joined(pieces: Iterable[Piece], count: int) -> pa.Array:
    """Concatenate the pieces of each of `count` values."""
    parts = [*pieces]
    if not any(isinstance(each, pa.Array) for each in parts):
        whole = b"".join(each.as_py() for each in parts)
        return pa.repeat(pa.scalar(whole, pa.binary()), count)
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, NOTHING)


def constant(data: bytes) -> Piece:
    return pa.scalar(data, pa.binary())


def zigzag(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Map signed numbers to unsigned ones: 0, -1, 1, -2 and so on become 0, 1, 2, 3 and so on."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varints(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    """Encode each number in as few bytes as possible.

    Each byte has 7 bits of the number, the lowest bits first.
    """
    return compressed(*_varint_rows(numbers))


def _varint_rows(
    numbers: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    largest = int(numbers.max()) if len(numbers) else 0
    width = max(1, -(-largest.bit_length() // _BITS_OF_BYTE))
    rows = np.empty((len(numbers), width), np.uint8)
    sizes = np.ones(len(numbers), np.int64)
    rest = numbers
    for place in range(width):
        rows[:, place] = rest & np.uint64(0x7F)
        rest = rest >> np.uint64(_BITS_OF_BYTE)
        if place + 1 < width:
            goes_on = rest != 0
            rows[:, place] |= goes_on.view(np.uint8) << 7
            sizes += goes_on
    return rows, sizes


def compressed(rows: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]) -> pa.Array:
    """Return the first bytes of each row. `sizes` has each row's number of bytes."""
    width = rows.shape[1]
    if width == 1 or bool((sizes == width).all()):
        return fixed(rows)
    kept = rows[np.arange(width) < sizes[:, None]]
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return _bytes_between(ends, kept)


def fixed(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return all bytes of each row."""
    count, width = rows.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return _bytes_between(ends, np.ascontiguousarray(rows).reshape(-1))


def _bytes_between(ends: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def lengths(data: pa.Array) -> npt.NDArray[np.int64]:
    """Return each value's number of bytes."""
    return np.asarray(pc.binary_length(data)).astype(np.int64)


def in_places(data: pa.Array, values: pa.Array, otherwise: bytes) -> pa.Array:
    """Return bytes for each of `values`: the next element of `data`, or `otherwise` for a null.

    `data` has only the bytes of the values that are not null.
    """
    is_present = values.is_valid().to_numpy(zero_copy_only=False)
    places = np.cumsum(is_present) - 1
    found = data.take(pa.array(places, pa.int64(), mask=~is_present))
    return found.fill_null(pa.scalar(otherwise, pa.binary()))


def joined_items(items: pa.Array, counts: npt.NDArray[np.int64]) -> pa.Array:
    """Concatenate the items of each list.

    `items` has the items of all lists, and `counts` the number of items of each list.
    """
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    # A list's items are adjacent, so its bytes begin after the previous list's last item.
    return _slices(items, ends)


def _slices(items: pa.Array, ends: npt.NDArray[np.int32]) -> pa.Array:
    _, offsets, data = items.buffers()
    begins = np.frombuffer(offsets, np.int32)[items.offset : items.offset + len(items) + 1]
    bounds = begins[ends] if len(items) else np.zeros(len(ends), np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(np.ascontiguousarray(bounds)), data]
    )
