"""Marks the rows of left tables whose foreign key changes.

`engine/batch/row_batches.py` then sends the old and the new value to the workers of their foreign
keys. `operators/joins/foreign_key.py` explains why both must go there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import SCHEMA, with_schema
from sluice.operators.base import LEFT, MOVED
from sluice.plan import Job
from sluice.plan.operator_parameters import TableJoinParameters
from sluice.support.arrays import Indices, Mask


@dataclass(frozen=True)
class ForeignKeyMoves:
    """The task after a stage's operators: marks rows of left tables whose foreign key has changed.

    Such a row gets the side MOVED, because the join must treat it differently (see
    `ForeignKeyJoin`). In this task, the old and the new value of a change still follow each other.
    After this task, each of the two values goes to the worker of its own foreign key.
    """

    joins: tuple[int, ...]
    """The foreign-key joins whose left tables are results of the stage."""

    @classmethod
    def of(cls, job: Job, stage: int) -> Self:
        joins: list[int] = []
        for operator in job.operators:
            action = operator.action
            if isinstance(action, TableJoinParameters) and action.kind == "foreign-key":
                if any(edge.side == LEFT and edge.stage == stage for edge in operator.edges):
                    joins.append(operator.number)
        return cls(tuple(joins))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Mark rows.

        Batches wait while the last row for a join is an old value, because its new value may
        follow.
        """
        held: list[pa.RecordBatch] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(with_schema(batch))
            table = pa.Table.from_batches(held)
            indices = self._indices_of_joins(table)
            if not _ends_with_old_value(table, indices.values()):
                yield from self._marked(table, indices)
                held = []
        if held:
            table = pa.Table.from_batches(held)
            yield from self._marked(table, self._indices_of_joins(table))

    def _indices_of_joins(self, table: pa.Table) -> dict[int, Indices]:
        """Join → the indices of the rows of its left table."""
        return {join: self._indices(table, join) for join in self.joins}

    @staticmethod
    def _indices(table: pa.Table, join: int) -> Indices:
        """Return the indices of the rows of a join's left table."""
        is_input = pc.and_(
            pc.equal(table.column("target"), join),
            pc.equal(table.column("side"), LEFT),
        )
        return np.flatnonzero(boolean_mask(pc.and_(is_input, pc.invert(table.column("emitted")))))

    @staticmethod
    def _marked(table: pa.Table, indices: dict[int, Indices]) -> Iterator[pa.RecordBatch]:
        sides = table.column("side").to_numpy().copy()
        for of_join in indices.values():
            if len(of_join):
                is_moved = _is_moved(table.take(pa.array(of_join)))
                sides[of_join[is_moved]] = MOVED
        number = table.schema.get_field_index("side")
        marked = table.set_column(number, SCHEMA.field("side"), pa.array(sides))
        yield from marked.combine_chunks().to_batches()


def _is_moved(rows: pa.Table) -> Mask:
    """Return whether each row of a foreign-key join's left table gets the side MOVED.

    This depends on the other value of the row's change: whether it has the same foreign key,
    another one or none.
    """
    old = boolean_mask(rows.column("old"))
    keyed = boolean_mask(rows.column("key").is_valid())
    valued = boolean_mask(rows.column("value").is_valid())
    before, after = rows.slice(0, max(len(rows) - 1, 0)), rows.slice(1)
    same = np.ones(len(after), bool)
    for name in ("sequence", "origin", "foreign"):
        same &= boolean_mask(pc.equal(before.column(name), after.column(name)))
    # A new value directly follows the old value that it replaces.
    replaces = np.concatenate(([False], same & old[:-1] & valued[:-1] & ~old[1:]))
    replaced = np.concatenate((replaces[1:], [False]))
    same_key = boolean_mask(pc.equal(before.column("key"), after.column("key")))
    had_other_key = np.concatenate(([False], keyed[:-1] & ~same_key))
    keeps_a_key = replaced & np.concatenate((keyed[1:] & valued[1:], [False]))
    # A row is moved in the three cases of `ForeignKeyJoin`: an old value whose row leaves the
    # foreign key; a new value whose row had another foreign key; and a tombstone of a row that had
    # a value.
    return np.where(old, ~keeps_a_key, replaces & (had_other_key | ~valued))


def _ends_with_old_value(table: pa.Table, indices_of_joins: Iterable[Indices]) -> bool:
    """Return whether the last row of any join is an old value."""
    olds = boolean_mask(table.column("old"))
    return any(len(indices) and olds[indices[-1]] for indices in indices_of_joins)
