"""Functions of lists and maps on Arrow, with Spark's results and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_values import Mask, Result, Value, array_of, mask_of, valid


def made_of(values: list[pa.Array], count: int) -> pa.Array:
    """A list of several values for each row."""
    width = len(values)
    elements = pa.chunked_array(values).combine_chunks()
    order = pa.array(np.arange(count * width).reshape(width, count).T.reshape(-1))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * width), elements.take(order))


def sizes(values: pa.Array) -> pa.Array:
    """The number of elements."""
    return pc.list_value_length(as_lists(values) if pa.types.is_map(values.type) else values).cast(pa.int32())


def element(lists: pa.Array, index: Value, *, offset: int, tries: bool) -> Result:
    """The element at an index, which counts from `offset`. Negative ones count from the end if that is 1."""
    count = len(lists)
    is_known = valid(lists, count) & valid(index, count)
    places = pc.fill_null(array_of(index, count), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_zero = np.zeros(count, bool)
    if offset:
        is_zero = is_known & (places == 0)
        places = np.where(places < 0, lengths + places, places - 1)
    exists = is_known & (places >= 0) & (places < lengths) & ~is_zero
    failed = is_zero if tries else is_known & ~exists
    starts = np.cumsum(lengths) - lengths
    values = lists.flatten().take(pa.array(starts + np.where(exists, places, 0), mask=~exists))
    return Result(values, failed if failed.any() else None)


def entry(maps: pa.Array, key: Value) -> pa.Array:
    """What each map has for a key, or null."""
    pairs = as_lists(maps)
    names, items = pairs.flatten().flatten()
    rows = parents(pairs)
    wanted = array_of(key, len(maps)).take(pa.array(rows))
    found = np.flatnonzero(mask_of(pc.equal(names, wanted), len(names)))[::-1]  # of equal ones, the first one
    places = np.full(len(maps), -1)
    places[rows[found]] = found
    return items.take(pa.array(np.where(places < 0, 0, places), mask=places < 0))


def as_lists(maps: pa.Array) -> pa.Array:
    """Maps as lists of their entries."""
    return maps.cast(pa.list_(pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])))


def map_part(maps: pa.Array, place: int) -> pa.Array:
    """The keys (0) or the values (1) of each map."""
    pairs = as_lists(maps)
    return _lists(pairs, pairs.flatten().flatten()[place])


def without_nulls(lists: pa.Array) -> pa.Array:
    """The lists without elements that are null."""
    elements = lists.flatten()
    kept = elements.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.bincount(parents(lists)[kept], minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        elements.filter(pa.array(kept)),
        mask=pa.array(~lists.is_valid().to_numpy(zero_copy_only=False)),
    )


def contains(lists: pa.Array, value: Value) -> pa.Array:
    """Whether a list has an element; null if it has not, but has a null."""
    count, rows, elements = len(lists), parents(lists), lists.flatten()
    wanted = array_of(value, count)
    found, unknown = np.zeros(count, bool), np.zeros(count, bool)
    found[rows[mask_of(pc.equal(elements, wanted.take(pa.array(rows))), len(elements))]] = True
    unknown[rows[~elements.is_valid().to_numpy(zero_copy_only=False)]] = True
    gone = ~valid(lists, count) | ~valid(wanted, count) | (unknown & ~found)
    return pa.array(found, mask=gone)


def joined(lists: pa.Array, separator: Value) -> pa.Array:
    """The texts of each list in one, without nulls."""
    texts = without_nulls(lists)
    return pc.binary_join(texts, array_of(separator, len(lists)))


def parents(lists: pa.Array) -> Any:
    """The row of each element."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths)


def _lists(like: pa.Array, elements: pa.Array) -> pa.Array:
    """Lists of other elements."""
    lengths = pc.fill_null(pc.list_value_length(like), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    gone: Mask = ~like.is_valid().to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=pa.array(gone))
