"""Joins two tables by a foreign key: rows of the left table refer to keys of the right table."""

from __future__ import annotations

from typing import Any, Literal

from sluice.operators.base import MOVED, RIGHT, Output, Row
from sluice.operators.columns import BatchTimeline, KeyedRows, KeyStates, Results
from sluice.operators.joins.by_key import joined
from sluice.operators.joins.foreign_key_columns import join_columns
from sluice.operators.joins.foreign_key_state import Referred
from sluice.operators.operator import Operator


class ForeignKeyJoin(Operator[Referred]):
    """Joins rows of the left table with the right table's row that they refer to.

    Results have the left table's key. If a right row changes, the results have that row's time. If
    a left row changes, the result has the larger time of both rows.

    The engine sends the rows to this join by foreign key: `Row.key` is the foreign key, and
    `Row.foreign` is the left row's own key. If a left row's foreign key changes, its old value
    therefore goes to the state of the old foreign key. Its new value goes to the state of the new
    foreign key, before or after that. Neither state has both values. Therefore the engine
    (`engine/stages/foreign_key_moves.py`) gives some rows of the left table the side MOVED instead
    of LEFT:

    - an old value, unless a new value that has a foreign key replaces it,
    - a new value whose old value had another foreign key, and
    - a tombstone of a row that had a value.

    A left row without a foreign key has no result in an inner join, and a result with a null right
    side in a left join.
    """

    state_type: Any = Referred

    def __init__(self, how: Literal["inner", "left"], *, right_filtered: bool = False) -> None:
        self.how = how
        self.right_filtered = right_filtered

    def new_state(self) -> Referred:
        return Referred()

    def process(self, state: Referred, row: Row, out: Output) -> None:
        if row.side == RIGHT:
            self._process_right(state, row, out)
        elif row.foreign is None:
            out.count("null_key")
        elif row.old:
            state.left.pop(row.foreign, None)
            # In an inner join, Kafka Streams sends a tombstone for a left row that is deleted or
            # loses its foreign key, even if there is no right row. Some tombstones therefore delete
            # nothing. In a left join, `_process_left` sends the new result or the tombstone.
            if (
                row.value is not None
                and row.side == MOVED
                and row.key is not None
                and self.how == "inner"
            ):
                out.emit(row.foreign, None, max(row.time, state.right_time))
        else:
            self._process_left(state, row.foreign, row, out)

    def process_columns(
        self, states: KeyStates[Referred], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        return join_columns(
            states, rows, is_left_join=self.how == "left", right_filtered=self.right_filtered
        )

    def _process_right(self, state: Referred, row: Row, out: Output) -> None:
        if row.key is None:
            out.count("null_key")
            return
        if row.old:
            return
        old = state.right
        state.put_right(row.value, row.time)
        # In Kafka Streams, deleting a right row that was never stored still sends tombstones. But a
        # filtered table does not pass on the deletion of a row that it never had.
        if self.right_filtered and old is None and row.value is None:
            return
        # In Kafka Streams, a store sorts the left rows of a foreign key by their own keys.
        for key in sorted(state.left, key=str.encode):
            out.emit(key, self._result(state.left[key], row.value), row.time)

    def _process_left(self, state: Referred, key: str, row: Row, out: Output) -> None:
        if row.value is None:
            # In a left join, every left row has a result, which must be deleted. In an inner join,
            # the old value's row has already sent the tombstone (see `process`).
            if self.how == "left" and row.side == MOVED:
                out.emit(key, None, row.time)
            return
        # A left row without a foreign key refers to nothing, so it
        # is not stored with any right row.
        if row.key is not None:
            state.put_left(key, row.value)
        elif self.how == "inner":
            out.count("null_key")
            return
        result = self._result(row.value, state.right)
        # If there is no right row, a tombstone deletes the result that the left row may have had
        # with its old foreign key.
        if result is not None or row.side == MOVED:
            out.emit(key, result, max(row.time, state.right_time))

    def _result(self, left: str, right: str | None) -> str | None:
        if right is not None or self.how == "left":
            return joined(left, right)
        return None

    def is_empty(self, state: Referred) -> bool:
        return state.right is None and not state.left
