"""State rows in Arrow tables, and as the columns that shards write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from sluice.state.model import StateRow
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.support.arrays import Mask

_ID = ("group_id", "key", "window_start", "window_end")
PAGE_ROWS = 20_000


def sorted_rows(table: pa.Table, then_by: Sequence[str] = ()) -> pa.Table:
    """Return the columns of `StateRow` of a table, sorted for fast writing.

    Rows with the same key and window are sorted by the columns `then_by`.
    """
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in (*_ID, *then_by)])
    return table.select(StateRow.__struct_fields__).take(order)


def pages_of(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in pages.

    Only a page of rows at a time needs to become Python objects, which take several times as much
    memory.
    """
    for begin in range(0, len(table), PAGE_ROWS):
        yield table.slice(begin, PAGE_ROWS)


def repeats_previous(table: pa.Table) -> Mask:
    """Return whether each of the sorted rows has the same key and window as the row before it."""
    repeats = np.ones(len(table), bool)
    repeats[:1] = False
    for name in _ID:
        column = table.column(name)
        repeats[1:] &= np.asarray(pc.equal(column[1:], column[:-1]))
    return repeats


def ids_of(page: pa.Table) -> RowIds:
    return RowIds(*(page.column(name).to_pylist() for name in _ID))


def columns_of(page: pa.Table, ids: RowIds | None = None) -> RowColumns:
    """Return the rows of a page with their digests.

    `ids` are the page's ids, if the caller has them already.
    """
    return RowColumns(ids or ids_of(page), page.column("value").to_pylist(), row_digests(page))


def row_digests(table: pa.Table) -> list[int]:
    """Return the digests of state rows.

    `checksums.row_digest` applies the same rule to single rows, and takes three times as long per
    row.
    """
    keys, values = table.column("key"), table.column("value")
    key_and_value = pc.binary_join_element_wise(keys, values, "")
    contents = pc.binary_join_element_wise(
        table.column("group_id").cast(pa.string()),
        table.column("window_start").cast(pa.string()),
        table.column("window_end").cast(pa.string()),
        pc.utf8_length(keys).cast(pa.string()),
        key_and_value,
        " ",
    )
    digests = np.zeros(len(table), np.uint64)
    has_value = np.asarray(values.is_valid())
    of_values = contents.drop_null().cast(pa.binary()).to_pylist()
    digests[has_value] = np.fromiter(map(xxh3_64_intdigest, of_values), np.uint64, len(of_values))
    as_signed: list[int] = digests.view(np.int64).tolist()
    return as_signed
