"""Functions of Arrow arrays of lists and maps, with the same results and errors as in Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_values import Result, Value, array_of, mask_of, valid_rows
from sluice.support.arrays import Mask


def list_of(values: list[pa.Array], count: int) -> pa.Array:
    """Return for each row a list of the values that the arrays have in this row."""
    # Arrow stores the elements of all lists one after the other. So take the first row's values
    # from all arrays, then the second row's values, and so on.
    width = len(values)
    elements = pa.chunked_array(values).combine_chunks()
    order = pa.array(np.arange(count * width).reshape(width, count).T.reshape(-1))
    return pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32) * width),
        elements.take(order),
    )


def sizes(values: pa.Array) -> pa.Array:
    """Return the number of elements of each list, or of entries of each map."""
    lists = _as_lists(values) if pa.types.is_map(values.type) else values
    return pc.list_value_length(lists).cast(pa.int32())


def element(lists: pa.Array, index: Value, *, offset: int, tries: bool) -> Result:
    """Return the element of each list at an index.

    The first element has the index `offset`, which is 0 or 1.

    With offset 1, negative indices count from the end. A row fails if its list has no such element.
    With `tries`, the element is null instead. But with offset 1, the index 0 still fails.
    """
    count = len(lists)
    is_known = valid_rows(lists, count) & valid_rows(index, count)
    places = pc.fill_null(array_of(index, count), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = (
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    is_zero = np.zeros(count, bool)
    if offset:
        is_zero = is_known & (places == 0)
        places = np.where(places < 0, lengths + places, places - 1)
    exists = is_known & (places >= 0) & (places < lengths) & ~is_zero
    failed = is_zero if tries else is_known & ~exists
    starts = np.cumsum(lengths) - lengths
    # Take the elements from the array with the elements of all lists. In this array, each list
    # begins at the sum of the lengths of all earlier lists.
    values = lists.flatten().take(pa.array(starts + np.where(exists, places, 0), mask=~exists))
    return Result.with_failures(values, failed)


def entry(maps: pa.Array, key: Value) -> pa.Array:
    """Return the value that each map has for a key, or null."""
    pairs = _as_lists(maps)
    names, items = pairs.flatten().flatten()
    rows = _rows_of_elements(pairs)
    wanted = array_of(key, len(maps)).take(pa.array(rows))
    # Assign the places in reverse, so that the first place of a repeated key overwrites its later
    # places.
    matching = np.flatnonzero(mask_of(pc.equal(names, wanted), len(names)))[::-1]
    places = np.full(len(maps), -1)
    places[rows[matching]] = matching
    return items.take(pa.array(np.where(places < 0, 0, places), mask=places < 0))


def _as_lists(maps: pa.Array) -> pa.Array:
    """Return maps as lists of their entries."""
    pair = pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])
    return maps.cast(pa.list_(pair))


def map_part(maps: pa.Array, place: int) -> pa.Array:
    """Return the keys (0) or the values (1) of each map."""
    pairs = _as_lists(maps)
    return _lists(pairs, pairs.flatten().flatten()[place])


def drop_nulls(lists: pa.Array) -> pa.Array:
    """Remove the null elements from the lists."""
    elements = lists.flatten()
    is_valid = elements.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.bincount(_rows_of_elements(lists)[is_valid], minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        elements.filter(pa.array(is_valid)),
        mask=pa.array(~lists.is_valid().to_numpy(zero_copy_only=False)),
    )


def contains(lists: pa.Array, value: Value) -> pa.Array:
    """Return whether each list contains the value.

    Null if no element equals the value, but some element is null.
    """
    count, rows, elements = len(lists), _rows_of_elements(lists), lists.flatten()
    wanted = array_of(value, count)
    is_contained, has_null = np.zeros(count, bool), np.zeros(count, bool)
    is_equal = mask_of(pc.equal(elements, wanted.take(pa.array(rows))), len(elements))
    is_contained[rows[is_equal]] = True
    is_missing = ~elements.is_valid().to_numpy(zero_copy_only=False)
    has_null[rows[is_missing]] = True
    is_null = ~valid_rows(lists, count) | ~valid_rows(wanted, count) | (has_null & ~is_contained)
    return pa.array(is_contained, mask=is_null)


def join_elements(lists: pa.Array, separator: Value) -> pa.Array:
    """Join the texts of each list to one text, ignoring nulls."""
    texts = drop_nulls(lists)
    return pc.binary_join(texts, array_of(separator, len(lists)))


def _rows_of_elements(lists: pa.Array) -> Any:
    """Return, for the elements of all lists, the row numbers of their lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths)


def _lists(like: pa.Array, elements: pa.Array) -> pa.Array:
    """Build lists from these elements, with the lengths and nulls of `like`."""
    lengths = pc.fill_null(pc.list_value_length(like), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    is_null: Mask = ~like.is_valid().to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=pa.array(is_null))
