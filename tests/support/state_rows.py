"""State rows as tuples, which tests write and look up more easily than pages of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sluice.state.shard.checksums import row_digest
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.state.shard.row_tuples import Row, RowId
from sluice.state.shard.shard import Shard


def write_rows(
    shard: Shard,
    batch: int,
    rows: Sequence[Row],
    epoch: int = 0,
    replaced: Callable[[], int] | None = None,
) -> int:
    """Write a batch of state rows as one page; see `Shard.write_pages`."""
    return shard.write_pages(batch, [page_of(rows)], epoch, replaced)


def page_of(rows: Iterable[Row]) -> RowColumns:
    """The page of rows, sorted."""
    rows = sorted(rows, key=lambda row: row[:4])
    return RowColumns(
        ids_of(row[:4] for row in rows), [row[4] for row in rows], [row_digest(row) for row in rows]
    )


def ids_of(rows: Iterable[RowId]) -> RowIds:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return RowIds(*columns)
