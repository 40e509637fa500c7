"""What the ordered operators remember of each key, beside the state rows of the same worker's shard.

A state is a version of a batch, as state rows are: a batch that is tried again reads the states of the one before it. Only
the newest two versions are kept, since no older batch can be tried again and nobody else reads them.

Here is the SQL of it. `Shard` is the one way to it, with the fence and the checksums that state rows have, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from sluice.errors import DamagedState
from sluice.state.shard.checksums import state_digest
from sluice.state.shard.drivers import Driver

_CHUNK = 500

_NEWEST = """s.batch = (SELECT max(n.batch) FROM states AS n
    WHERE n.operator = s.operator AND n.shared = s.shared AND n.key = s.key AND n.batch < ?)"""
_COLUMNS = ("operator", "shared", "key", "batch", "due", "wall", "state", "digest")
_READ = f"""SELECT s.key, s.due, s.wall, s.state, s.digest FROM states AS s
    WHERE s.operator = ? AND s.shared = ? AND s.key IN ({{keys}}) AND {_NEWEST}"""
_DUE = f"SELECT s.key FROM states AS s WHERE s.operator = ? AND s.{{clock}} <= ? AND {_NEWEST} ORDER BY s.key"
_FORGET = """DELETE FROM states WHERE operator = ? AND shared = ? AND key = ? AND batch < (
    SELECT max(batch) FROM states WHERE operator = ? AND shared = ? AND key = ?)"""
_VERSIONS = f"""SELECT {", ".join(_COLUMNS)} FROM states WHERE (operator, shared, key, batch) > (?, ?, ?, ?)
    AND batch >= ? ORDER BY operator, shared, key, batch LIMIT ?"""
_BEGIN = (-1, 0, "", -1)


class State(msgspec.Struct, frozen=True, array_like=True):
    """What one operator remembers of one key after a batch; `data` is None if it has forgotten the key."""

    operator: int
    key: str
    data: bytes | None
    due: int | None = None
    """The stream time, ms, at which something is to be done for the key though no record comes."""
    wall: int | None = None
    """The same by the wall clock, epoch ms."""
    shared: bool = False
    """Whether it is of all keys of the worker; `key` is empty then."""
    replaces: int = 0
    """The digest of the version before, as it was read; 0 if there was none."""


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """A state as it is read."""

    data: bytes
    digest: int


class StateVersion(msgspec.Struct, frozen=True, array_like=True):
    """One version of one state, as it goes from shard to shard."""

    operator: int
    shared: int
    key: str
    batch: int
    due: int | None
    wall: int | None
    state: bytes | None
    digest: int

    def check(self) -> None:
        """Raise DamagedState unless the row is as it was written."""
        shared = bool(self.shared)
        if not _is_as_written(self.operator, shared, self.key, self.due, self.wall, self.state, self.digest):
            raise _altered(self.operator, self.key)


def read(driver: Driver, operator: int, keys: Sequence[str], before: int, shared: bool) -> dict[str, Remembered]:
    """The states of these keys as of the batch before `before`; keys without one are left out.

    Raises DamagedState for a row that is not as it was written.
    """
    found: dict[str, Remembered] = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        sql = _READ.format(keys=", ".join("?" * len(chunk)))
        for key, due, wall, data, digest in driver.fetch(sql, (operator, int(shared), *chunk, before)):
            if not _is_as_written(operator, shared, key, due, wall, data, digest):
                raise _altered(operator, key)
            if data is not None:
                found[key] = Remembered(data, digest)
    return found


def due(driver: Driver, operator: int, until: int, before: int, clock: str) -> list[str]:
    """The keys for which something is to be done once a clock, `due` or `wall`, has reached `until`."""
    return [key for (key,) in driver.fetch(_DUE.format(clock=clock), (operator, until, before))]


def remove(driver: Driver, operator: int, since: int) -> int:
    """Within a transaction, remove an operator's versions of batch `since` and later; how many."""
    return driver.execute("DELETE FROM states WHERE operator = ? AND batch >= ?", (operator, since))


def write(driver: Driver, batch: int, states: Iterable[State]) -> tuple[int, int]:
    """Within a transaction, write versions of a batch; by how much the digests' sum and the number of rows grow."""
    rows, grown = [], 0
    for s in states:
        digest = state_digest(s.operator, s.shared, s.key, s.due, s.wall, s.data)
        grown += digest - s.replaces
        rows.append((s.operator, int(s.shared), s.key, batch, s.due, s.wall, s.data, digest))
    # Of each key that gets a new version the one before it stays, for a batch that is tried again.
    forgotten = driver.execute_many(_FORGET, [(*row[:3], *row[:3]) for row in rows])
    driver.insert("states", _COLUMNS, rows)
    return grown, len(rows) - forgotten


def versions(driver: Driver, since: int, after: tuple[Any, ...] | None, limit: int) -> list[StateVersion]:
    """A page of all versions of batch `since` and later, after an operator, shared, key and batch."""
    return [StateVersion(*row) for row in driver.fetch(_VERSIONS, (*(after or _BEGIN), since, limit))]


def everything(driver: Driver, page_rows: int) -> Iterator[StateVersion]:
    """All versions, each checked against its digest, in order."""
    after: tuple[Any, ...] | None = None
    while page := versions(driver, -1, after, page_rows):
        for one in page:
            one.check()
            yield one
        after = (page[-1].operator, page[-1].shared, page[-1].key, page[-1].batch)


def absorb(driver: Driver, moved: Iterable[StateVersion]) -> None:
    """Within a transaction, take versions over from another shard."""
    rows = []
    for one in moved:
        one.check()
        rows.append(msgspec.structs.astuple(one))
    driver.insert("states", _COLUMNS, rows)


def total(driver: Driver, as_of: int, page_rows: int) -> int:
    """The sum of the digests of the newest versions at a batch; reads and checks everything."""
    added, last, digest = 0, None, 0
    for one in everything(driver, page_rows):
        if one.batch <= as_of:
            key = (one.operator, one.shared, one.key)
            # The versions of a key come one after the other, the newest last.
            added += one.digest - (digest if key == last else 0)
            last, digest = key, one.digest
    return added


def _is_as_written(
    operator: int, shared: bool, key: str, due: int | None, wall: int | None, data: object, digest: int
) -> bool:
    # SQLite takes a text for bytes.
    if not isinstance(data, bytes | None):
        return False
    return state_digest(operator, shared, key, due, wall, data) == digest


def _altered(operator: int, key: str) -> DamagedState:
    return DamagedState(
        f"What operator {operator} remembers of the key {key!r} is not as it was written: its checksum is wrong."
    )
