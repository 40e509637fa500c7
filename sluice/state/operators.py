"""What the ordered operators remember of each key, beside the cells of the same worker's shard.

A state is a version of a batch, as cells are: a batch that is tried again reads the states of the one before it. Only
the newest two versions are kept, since no older batch can be tried again and nobody else reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from sluice.state.addresses import open_driver
from sluice.state.drivers import Driver

_CHUNK = 500

_READ = """SELECT s.key, s.state, s.batch FROM states s WHERE s.operator = ? AND s.key IN ({keys}) AND s.batch = (
    SELECT max(n.batch) FROM states n WHERE n.operator = s.operator AND n.key = s.key AND n.batch < ?)"""
_DUE = """SELECT s.key FROM states s WHERE s.operator = ? AND s.{clock} <= ? AND s.batch = (
    SELECT max(n.batch) FROM states n WHERE n.operator = s.operator AND n.key = s.key AND n.batch < ?) ORDER BY s.key"""


@dataclass(frozen=True)
class State:
    """What one operator remembers of one key after a batch; `data` is None if it has forgotten the key."""

    operator: int
    key: str
    data: bytes | None
    due: int | None
    """The stream time, ms, at which something is to be done for the key though no record comes."""
    wall: int | None = None
    """The same by the wall clock, epoch ms."""


class OperatorStates:
    """The states of one worker's operators. Every method raises StateError when the database cannot be used."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @classmethod
    def open(cls, url: str) -> Self:
        """Those in a shard, to be read and written."""
        return cls(open_driver(url, "write"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    def read(self, operator: int, keys: Sequence[str], before: int) -> dict[str, bytes]:
        """The states of these keys as of the batch before `before`; keys without one are left out."""
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            sql = _READ.format(keys=", ".join("?" * len(chunk)))
            rows = self._driver.fetch(sql, (operator, *chunk, before))
            found |= {key: bytes(data) for key, data, _ in rows if data is not None}
        return found

    def due(self, operator: int, closed: int, before: int) -> list[str]:
        """The keys for which something is to be done once stream time has reached `closed`."""
        return [key for (key,) in self._driver.fetch(_DUE.format(clock="due"), (operator, closed, before))]

    def wall_due(self, operator: int, now: int, before: int) -> list[str]:
        """The keys for which something is to be done once the wall clock has reached `now`."""
        return [key for (key,) in self._driver.fetch(_DUE.format(clock="wall"), (operator, now, before))]

    def write(self, batch: int, operators: Iterable[int], states: Sequence[State]) -> None:
        """Write what the operators remember after a batch, in one transaction; again, it replaces what was written."""
        with self._driver.transaction():
            for operator in operators:
                self._driver.execute("DELETE FROM states WHERE operator = ? AND batch >= ?", (operator, batch))
            # Of each key that gets a new version the one before it stays, for a batch that is tried again.
            self._driver.execute_many(_FORGET, [(s.operator, s.key, s.operator, s.key) for s in states])
            self._driver.execute_many(
                "INSERT INTO states (operator, key, batch, due, wall, state) VALUES (?, ?, ?, ?, ?, ?)",
                [(s.operator, s.key, batch, s.due, s.wall, s.data) for s in states],
            )


_FORGET = """DELETE FROM states WHERE operator = ? AND key = ? AND batch < (
    SELECT max(batch) FROM states WHERE operator = ? AND key = ?)"""
