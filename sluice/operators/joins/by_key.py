"""Joins by key of two tables, or of a stream with a table. A result is `{"left": LEFT_VALUE, "right": RIGHT_VALUE}`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sluice.operators.base import AHEAD, LEFT, RIGHT, Output, Row, Timeless

How = Literal["inner", "left", "outer"]


def joined(left: str | None, right: str | None) -> str:
    """The JSON text of a join's result."""
    # The values are JSON already, so they need not be decoded.
    left_json = "null" if left is None else left
    right_json = "null" if right is None else right
    return f'{{"left":{left_json},"right":{right_json}}}'


class TablePair(msgspec.Struct, array_like=True):
    """The values of both tables for a key."""

    left: str | None = None
    left_time: int = -1
    right: str | None = None
    right_time: int = -1


class TableJoin(Timeless):
    """Joins two tables by key. A change of either side sends a result with the larger time of both sides.

    A key has a result in an inner join while both sides have a value, in a left join while the left side has one, and
    in an outer join while either side has one. `filtered` says of each side whether its table is filtered.

    If both sides depend on the same table, a change of this table reaches one side before the other. As in Kafka
    Streams, the join then reads the other side from a store that already has the change: the join gets this change
    ahead (side AHEAD), and again when it is the side's turn.

    `gets_old_values` says of each side whether its table sends the old value of each change. As in Kafka Streams, this
    value is retracted, even if the table has never had it (see `BaseAggregation`).
    """

    state_type: Any = TablePair

    def __init__(
        self,
        how: How,
        *,
        retracts: bool = False,
        filtered: tuple[bool, bool] = (False, False),
        gets_old_values: tuple[bool, bool] = (False, False),
    ) -> None:
        self.how = how
        self.retracts = retracts
        self.filtered = filtered
        self.gets_old_values = gets_old_values
        self._ahead: dict[tuple[str, int], tuple[str | None, int]] = {}
        """Key and side → value and time of a change that came ahead and has not come again yet."""
        self._replaced: dict[tuple[str, int], str | None] = {}
        """Key and side → the old value of the side's next change, which has come in a row of its own."""

    def new_state(self) -> TablePair:
        return TablePair()

    def process(self, state: TablePair, row: Row, out: Output) -> None:
        if row.key is None:
            if row.side < AHEAD:
                out.count("null_key")
            return
        if row.old:
            self._replaced[row.key, row.side] = row.value
            return
        # A deleted value has no time, so that the next result has only the time of the other side.
        changed = row.value, row.time if row.value is not None else -1
        if row.side >= AHEAD:
            self._ahead[row.key, row.side - AHEAD] = changed
            return
        if self._ahead:
            self._ahead.pop((row.key, row.side), None)
        # A filtered table sends no tombstone for a row that the filter has never passed.
        stored = state.right if row.side == RIGHT else state.left
        if row.value is None and stored is None and self.filtered[row.side]:
            return
        pair = self._pair_in_stores(state, row) if self._ahead else state
        old = self._result(pair)
        if row.side == RIGHT:
            state.right, state.right_time = pair.right, pair.right_time = changed
        else:
            state.left, state.left_time = pair.left, pair.left_time = changed
        new = self._result(pair)
        if old is None and new is None and not self._sends_tombstone(pair, row.side):
            return
        # As in Kafka Streams, the result or tombstone has the larger time of both sides.
        time = max(row.time, pair.left_time, pair.right_time)
        if self.retracts:
            retracted = self._retracted(pair, row) if self.gets_old_values[row.side] else old
            if retracted is not None:
                out.emit(row.key, retracted, time, old=True)
        out.emit(row.key, new, time)

    def _retracted(self, pair: TablePair, row: Row) -> str | None:
        """The result that a change replaces, as the changed table says, which may differ from the result before."""
        assert row.key is not None
        replaced = self._replaced.pop((row.key, row.side), None)
        if row.side == RIGHT:
            return self._result(TablePair(pair.left, pair.left_time, replaced))
        return self._result(TablePair(replaced, -1, pair.right, pair.right_time))

    def _pair_in_stores(self, state: TablePair, row: Row) -> TablePair:
        """The values that the stores of both sides contain, including a change of the other side that came ahead."""
        assert row.key is not None
        other = LEFT if row.side == RIGHT else RIGHT
        ahead = self._ahead.get((row.key, other))
        if ahead is None:
            return state
        if other == LEFT:
            return TablePair(*ahead, state.right, state.right_time)
        return TablePair(state.left, state.left_time, *ahead)

    def _sends_tombstone(self, state: TablePair, side: int) -> bool:
        """Whether a change of this side sends a tombstone if the join has no result before and after the change.

        As in Kafka Streams, it does if the other side has a value, except for the right side of a left join.
        """
        other = state.left if side == RIGHT else state.right
        return other is not None and (self.how == "inner" or side != RIGHT)

    def is_empty(self, state: TablePair) -> bool:
        return state.left is None and state.right is None

    def _result(self, state: TablePair) -> str | None:
        left, right = state.left, state.right
        match self.how:
            case "inner":
                has_result = left is not None and right is not None
            case "left":
                has_result = left is not None
            case "outer":
                has_result = left is not None or right is not None
        return joined(left, right) if has_result else None


class TableValue(msgspec.Struct, array_like=True):
    """The table's value for a key."""

    value: str | None = None


class StreamTableJoin(Timeless):
    """Joins each record of a stream with the table's current value for its key.

    `mapped`: a row's key is computed by an expression, and the record's own key is in `foreign`. A left join sends
    records without a key with a null right side.
    """

    state_type: Any = TableValue

    def __init__(self, how: How, *, mapped: bool = False) -> None:
        self.how = how
        self.mapped = mapped

    def new_state(self) -> TableValue:
        return TableValue()

    def process(self, state: TableValue, row: Row, out: Output) -> None:
        # Only stream records send results. A change of the table matters to later stream records.
        if row.side == RIGHT:
            if row.key is None:
                out.count("null_key")
            elif not row.old:
                state.value = row.value
        # Kafka Streams drops stream records without a value; those without a
        # key match nothing in an inner join.
        elif row.value is None or (row.key is None and self.how == "inner"):
            out.count("null_value" if row.key is not None else "null_key")
        elif state.value is not None or self.how == "left":
            key = row.foreign if self.mapped else row.key
            out.emit(key, joined(row.value, state.value), row.time)

    def is_empty(self, state: TableValue) -> bool:
        return state.value is None
