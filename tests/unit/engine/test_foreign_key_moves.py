"""The marks of rows whose foreign keys change."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from sluice.engine.batch.row_schemas import rows
from sluice.engine.stages.foreign_key_moves import ForeignKeyMoves
from sluice.operators.base import LEFT, MOVED, RIGHT

JOIN = 7
OLD, NEW = True, False
Change = tuple[int, bool, str, str | None, str | None]
"""Sequence, old or new, row key, foreign key, value."""

CHANGES: list[tuple[list[Change], list[bool]]] = [
    ([(1, NEW, "a", "x", "1")], [False]),
    ([(1, NEW, "a", None, None)], [False]),
    ([(1, OLD, "a", "x", "1"), (1, NEW, "a", "x", "2")], [False, False]),
    ([(1, OLD, "a", "x", "1"), (1, NEW, "a", "y", "2")], [False, True]),
    ([(1, OLD, "a", "x", "1"), (1, NEW, "a", None, "2")], [True, True]),
    ([(1, OLD, "a", "x", "1"), (1, NEW, "a", None, None)], [True, True]),
    ([(1, OLD, "a", "x", "1"), (1, NEW, "a", "x", None)], [True, True]),
    ([(1, OLD, "a", None, "1"), (1, NEW, "a", "x", "2")], [False, False]),
    ([(1, OLD, "a", None, "1"), (1, NEW, "a", None, None)], [True, True]),
    (
        [(1, OLD, "a", "x", None), (1, NEW, "a", "y", "2")],
        [True, False],
    ),  # a filter removed the old value
    (
        [(1, OLD, "a", "x", "1"), (2, NEW, "a", "y", "2")],
        [True, False],
    ),  # the new value's key failed
    ([(1, OLD, "a", "x", "1"), (1, NEW, "b", "y", "2")], [True, False]),
    ([(1, OLD, "a", "x", "1")], [True]),
]


def batches(changes: list[Change], size: int) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(changes), size):
        some = changes[begin : begin + size]
        sequences, old, foreign, keys, values = (list(column) for column in zip(*some, strict=True))
        columns = {
            "sequence": pa.array(sequences, pa.int64()), "old": pa.array(old), "foreign": pa.array(foreign),
            "key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string()),
        }  # fmt: skip
        yield rows(len(some), {"target": JOIN, "side": LEFT, "origin": 1, "time": 0, **columns})
        # Rows for others, between those for the join, stay as they are.
        yield rows(len(some), {"target": JOIN, "side": RIGHT, "origin": 1, "time": 0, **columns})
        yield rows(len(some), {"target": JOIN + 1, "side": LEFT, "origin": 1, "time": 0, **columns})


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(("changes", "moved"), CHANGES)
def test_rows_whose_foreign_keys_change_are_marked(
    changes: list[Change], moved: list[bool], size: int
) -> None:
    marked = pa.Table.from_batches(ForeignKeyMoves((JOIN,))(batches(changes, size))).to_pylist()
    sides = [(row["target"], row["side"]) for row in marked]
    assert [side == MOVED for target, side in sides if target == JOIN and side != RIGHT] == moved
    assert sides.count((JOIN, RIGHT)) == sides.count((JOIN + 1, LEFT)) == len(changes)
    assert [row["value"] for row in marked if row["target"] == JOIN + 1] == [
        change[-1] for change in changes
    ]
