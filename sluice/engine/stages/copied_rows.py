"""A worker's copies of tables' rows. A processor reads these copies."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.engine.stages.batch_states import BatchStates
from sluice.state.shard.operator_states import Replaced, State


class CopiedRows:
    """This worker's copies of the rows of tables that a processor reads, in one batch.

    A row is stored as a state that belongs to no key. The state's name consists of the number of
    the table's input, and of the row's key.
    """

    def __init__(self, operator: int, stored: BatchStates) -> None:
        self._operator = operator
        self._stored = stored
        self._values: dict[str, str | None] = {}
        """Name → the value of each row that has been read or changed."""
        self._versions: dict[str, Replaced] = {}
        self._changed: dict[str, None] = {}

    def read(self, side: int, key: str) -> str | None:
        """Return the value of a row as JSON; None if there is no such row."""
        name = f"{side}:{key}"
        if name not in self._values:
            self.load([name])
        return self._values[name]

    def load(self, names: list[str]) -> None:
        """Load rows in one read."""
        rows = self._stored.read_rows(self._operator, names)
        for name in names:
            row = rows.get(name)
            if row is None or row.data is None:
                self._values[name] = None
            else:
                self._values[name] = row.data.decode()
            if row is not None:
                self._versions[name] = row.version

    def put(self, side: int, key: str, value: str | None) -> None:
        """Change or delete a row that `load` has loaded."""
        name = f"{side}:{key}"
        self._values[name] = value
        self._changed[name] = None

    def states_to_store(self) -> Iterator[State]:
        for name in self._changed:
            value, replaced = self._values[name], self._versions.get(name)
            if value is not None or replaced is not None:
                data = None if value is None else value.encode()
                yield State(self._operator, name, data, shared=True, replaces=replaced)
