"""The states of a worker's operators as of the previous batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.engine.batch.stream_time import BEFORE_ALL, StreamTimes
from sluice.state.model import NO_WINDOW
from sluice.state.shard.operator_states import StoredState
from sluice.state.shard.row_columns import RowIds
from sluice.state.shard.shard import Shard
from sluice.values.call_parameters import SharedSnapshot
from sluice.values.kept_headers import value_of_row


@dataclass(frozen=True)
class BatchStates:
    """The states of a worker's operators as of the previous batch, read under a lease."""

    shard: Shard
    worker: int
    batch: int
    epoch: int
    before: StreamTimes
    """The stream times at the start of the batch."""
    snapshots: Mapping[str, SharedSnapshot] = field(default_factory=dict)
    """Store of another pipeline → where this batch reads it."""

    def read(self, operator: int, keys: Sequence[str]) -> dict[str, StoredState]:
        """Return the states of keys. Omits keys that never had a state."""
        return self.shard.read_states(operator, keys, self.batch, self.epoch)

    def read_store(
        self, group: int, keys: Sequence[str], *, with_headers: bool = False
    ) -> dict[str, str]:
        """Return the values of keys in an operator's store, as JSON. Omit keys without a value.

        `with_headers`: whether the store keeps headers.
        """
        no_windows = [NO_WINDOW] * len(keys)
        ids = RowIds([group] * len(keys), list(keys), no_windows, no_windows)
        rows = self.shard.rows_before(self.batch, ids, self.epoch)
        values: dict[str, str] = {}
        for _, key, _, _, value, _ in rows.values():
            # A row of a store without headers is an array of this one value.
            values[key] = value_of_row(value) if with_headers else value[1:-1]
        return values

    def read_rows(self, operator: int, names: list[str]) -> dict[str, StoredState]:
        """Return the rows of tables that a processor reads, by their names (see `CopiedRows`)."""
        return self.shard.read_states(operator, names, self.batch, self.epoch, shared=True)

    def shared(self, operator: int) -> StoredState | None:
        """Return the operator's state that all keys of the worker share, if any."""
        return self.shard.read_states(operator, [""], self.batch, self.epoch, shared=True).get("")

    def due(self, operator: int, until: int) -> list[str]:
        """Return the keys whose state is due at stream time `until` (see `Operator.due`)."""
        return self.shard.due_keys(operator, until, self.batch, self.epoch)

    def wall_due(self, operator: int, until: int) -> list[str]:
        """Return the keys with a wall-clock timer that is due at `until`, epoch ms."""
        return self.shard.due_keys(operator, until, self.batch, self.epoch, "wall")

    def earliest_timer(self, operator: int) -> int:
        """Return when the earliest wall-clock timer is due; -1 if there is no timer.

        Call this after the batch's states have been written.
        """
        due = self.shard.earliest_timer(operator, self.batch + 1, self.epoch)
        if due is None:
            return BEFORE_ALL
        return due

    def earliest_result(self, operator: int, after: int) -> int:
        """Return the next stream time after `after` at which a result is due.

        Return -1 if no result is due.

        Call this after the batch's states have been written. For a join, this may also be the time
        at which a record can no longer be matched.
        """
        due = self.shard.earliest_timer(operator, self.batch + 1, self.epoch, "due", after)
        if due is None:
            return BEFORE_ALL
        return due
