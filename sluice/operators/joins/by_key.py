"""Joins of tables, and of a stream with a table: a result is `{"left": ..., "right": ...}`, the values as they are."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sluice.operators.base import RIGHT, Output, Row, Timeless

How = Literal["inner", "left", "outer"]


def joined(left: str | None, right: str | None) -> str:
    """The JSON text of a join's result."""
    return f'{{"left":{"null" if left is None else left},"right":{"null" if right is None else right}}}'


class Pair(msgspec.Struct, array_like=True):
    """What both tables hold for a key."""

    left: str | None = None
    left_time: int = -1
    right: str | None = None
    right_time: int = -1


class TableJoin(Timeless):
    """Two tables, key by key: either side triggers, the time is the larger of both.

    Inner: there is a result while both have a value; left: while the left has; outer: while either has.
    """

    state_type: Any = Pair
    drops_null_values = False

    def __init__(self, how: How, *, retracts: bool = False) -> None:
        self.how = how
        self.retracts = retracts

    def begin(self) -> Pair:
        """Neither side has a value."""
        return Pair()

    def process(self, state: Pair, row: Row, out: Output) -> None:
        """Take the new value of one side; old ones are known."""
        if row.key is None:
            out.count("null_key")
            return
        if row.old:
            return
        old = self._result(state)
        if row.side == RIGHT:
            state.right, state.right_time = row.value, row.time if row.value is not None else -1
        else:
            state.left, state.left_time = row.value, row.time if row.value is not None else -1
        new = self._result(state)
        if old is None and new is None:
            return
        time = max(row.time, state.left_time, state.right_time)
        if self.retracts and old is not None:
            out.emit(row.key, old, time, old=True)
        out.emit(row.key, new, time)

    def is_empty(self, state: Pair) -> bool:
        """Whether neither side has a value."""
        return state.left is None and state.right is None

    def _result(self, state: Pair) -> str | None:
        left, right = state.left, state.right
        if self.how == "outer":
            return None if left is None and right is None else joined(left, right)
        return joined(left, right) if left is not None and (right is not None or self.how == "left") else None


class Looked(msgspec.Struct, array_like=True):
    """What a table holds for a key that a stream looks up."""

    value: str | None = None


class StreamTableJoin(Timeless):
    """A stream looks up each record's key in a table, as the table is at that moment in the order of the rows.

    `mapped`: the rows' key is what an expression makes of the record, whose own key is in `foreign`. A left join sends
    a record without a key on with null.
    """

    state_type: Any = Looked
    drops_null_values = False

    def __init__(self, how: How, *, mapped: bool = False) -> None:
        self.how = how
        self.mapped = mapped

    def begin(self) -> Looked:
        """No value."""
        return Looked()

    def process(self, state: Looked, row: Row, out: Output) -> None:
        """Look up, or take the table's new value."""
        if row.side == RIGHT:
            if row.key is None:
                out.count("null_key")
            elif not row.old:
                state.value = row.value
        elif row.value is None or (row.key is None and self.how == "inner"):
            out.count("null_value" if row.key is not None else "null_key")
        elif state.value is not None or self.how == "left":
            out.emit(row.foreign if self.mapped else row.key, joined(row.value, state.value), row.time)

    def is_empty(self, state: Looked) -> bool:
        """Whether the table has no value."""
        return state.value is None
