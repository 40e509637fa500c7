"""State rows in Arrow tables, and as the tuples that shards write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from sluice.state.model import StateRow
from sluice.state.shard.row_tuples import DigestedRow, Row

_SORT = ("group_id", "key", "window_start", "window_end")
_PAGE_ROWS = 20_000


def sorted_pages(table: pa.Table) -> Iterator[pa.Table]:
    """The columns of `StateRow` of a table, sorted for fast writing.

    Only a page of rows at a time needs to become Python objects, which take several times as much memory.
    """
    table = table.select(StateRow.__struct_fields__).sort_by([(name, "ascending") for name in _SORT])
    for begin in range(0, len(table), _PAGE_ROWS):
        yield table.slice(begin, _PAGE_ROWS)


def rows_of(pages: Iterable[pa.Table]) -> Iterator[Row]:
    """The rows of pages as tuples."""
    for page in pages:
        yield from zip(*(column.to_pylist() for column in page.columns), strict=True)


def digested_rows_of(pages: Iterable[pa.Table]) -> Iterator[DigestedRow]:
    """Like `rows_of`, with the digest of each row."""
    for page in pages:
        yield from zip(*(column.to_pylist() for column in page.columns), row_digests(page), strict=True)


def row_digests(table: pa.Table) -> list[int]:
    """The digests of state rows. `checksums.row_digest` has the same rule, and takes three times as long for a row."""
    keys, values = table.column("key"), table.column("value")
    numbers = [*(table.column(name) for name in ("group_id", "window_start", "window_end")), pc.utf8_length(keys)]
    key_and_value = pc.binary_join_element_wise(keys, values, "")
    contents = pc.binary_join_element_wise(*(number.cast(pa.string()) for number in numbers), key_and_value, " ")
    digests = np.zeros(len(table), np.uint64)
    has_value = np.asarray(values.is_valid())
    of_values = contents.drop_null().cast(pa.binary()).to_pylist()
    digests[has_value] = np.fromiter(map(xxh3_64_intdigest, of_values), np.uint64, len(of_values))
    as_signed: list[int] = digests.view(np.int64).tolist()
    return as_signed
