"""The SQL of operator states, which are kept per key in the shard of the key's worker.

States are versioned by batch, like state rows, so that a retry reads the states of the preceding
batch. Only the newest two versions are kept: no older batch can be retried, and queries do not read
states.

Access operator states through a `Shard`, which adds fencing and checksums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from sluice.errors import DamagedState
from sluice.state.shard.checksums import state_digest
from sluice.state.shard.database_driver import Driver

_CHUNK = 500

_NEWEST = """s.batch = (SELECT max(n.batch) FROM states AS n
    WHERE n.operator = s.operator AND n.shared = s.shared AND n.key = s.key AND n.batch < ?)"""
_COLUMNS = ("operator", "shared", "key", "batch", "due", "wall", "state", "digest")
_READ = f"""SELECT s.key, s.due, s.wall, s.state, s.digest, s.batch FROM states AS s
    WHERE s.operator = ? AND s.shared = ? AND s.key IN ({{keys}}) AND {_NEWEST}"""
_DUE = f"""SELECT s.key FROM states AS s
    WHERE s.operator = ? AND s.{{clock}} <= ? AND {_NEWEST} ORDER BY s.key"""
_EARLIEST = f"""SELECT min(s.{{clock}}) FROM states AS s
    WHERE s.operator = ? AND s.{{clock}} > ? AND {_NEWEST}"""
_DELETE_BUT_NEWEST = """DELETE FROM states WHERE operator = ? AND shared = ? AND key = ?
    AND batch < (SELECT max(batch) FROM states WHERE operator = ? AND shared = ? AND key = ?)"""
_DELETE_BEFORE = "DELETE FROM states WHERE operator = ? AND shared = ? AND key = ? AND batch < ?"
_VERSIONS = f"""SELECT {", ".join(_COLUMNS)} FROM states
    WHERE (operator, shared, key, batch) > (?, ?, ?, ?)
    AND batch >= ? ORDER BY operator, shared, key, batch LIMIT ?"""
_BEGIN = (-1, 0, "", -1)
_NOTHING = (0, -1)


Replaced: TypeAlias = tuple[int, int]
"""The digest and the batch of a version that another version replaces."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """The state that an operator keeps for a key, as of a batch.

    `data` is None if the operator deleted it.
    """

    operator: int
    key: str
    data: bytes | None
    due: int | None = None
    """Stream time in ms at which the state is due, for example for a timer; None if it never is."""
    wall: int | None = None
    """Epoch ms at which the state is due by the wall clock; None if it never is."""
    shared: bool = False
    """Whether the state belongs to no key. If all keys share the state, `key` is empty. If the
    state is a table's row that a processor reads, `key` is the row's name."""
    replaces: Replaced | None = None
    """The version of the state that the task has read and now replaces; None for a new key."""


class StoredState(msgspec.Struct, frozen=True, array_like=True):
    """A state that a task has read from the shard.

    `data` is None if the operator has deleted the state.
    """

    data: bytes | None
    version: Replaced


class StateVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version of a state, in the form in which shards copy it."""

    operator: int
    shared: int
    key: str
    batch: int
    due: int | None
    wall: int | None
    state: bytes | None
    digest: int

    def check(self) -> None:
        """Raise DamagedState if the row has been altered since it was written."""
        shared = bool(self.shared)
        if not _is_as_written(
            self.operator, shared, self.key, self.due, self.wall, self.state, self.digest
        ):
            raise _damage_error(self.operator, self.key)


def read(
    driver: Driver,
    operator: int,
    keys: Sequence[str],
    before: int,
    shared: bool,
) -> dict[str, StoredState]:
    """Return the states of these keys as of the batch before `before`.

    Omit keys that never had a state.

    Raise DamagedState if a row has been altered since it was written.
    """
    states: dict[str, StoredState] = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        sql = _READ.format(keys=", ".join("?" * len(chunk)))
        for key, due, wall, data, digest, batch in driver.fetch(
            sql, (operator, int(shared), *chunk, before)
        ):
            if not _is_as_written(operator, shared, key, due, wall, data, digest):
                raise _damage_error(operator, key)
            states[key] = StoredState(data, (digest, batch))
    return states


def due(driver: Driver, operator: int, until: int, before: int, clock: str) -> list[str]:
    """Return the keys whose state is due at `until`.

    `clock` is `due` for stream time, or `wall` for the wall clock.
    """
    rows = driver.fetch(_DUE.format(clock=clock), (operator, until, before))
    return [key for (key,) in rows]


def earliest_timer(
    driver: Driver, operator: int, before: int, clock: str, after: int
) -> int | None:
    """Return the earliest time later than `after` at which a state of the operator is due.

    Return None if no state is due after `after`.

    The states are those as of the batch before `before`. `clock` is `due` for stream time, or
    `wall` for the wall clock.
    """
    ((time,),) = driver.fetch(_EARLIEST.format(clock=clock), (operator, after, before))
    return None if time is None else int(time)


def remove(driver: Driver, operator: int, batch: int) -> int:
    """Remove an operator's versions of a batch, within a transaction.

    Return the number removed.
    """
    return driver.execute("DELETE FROM states WHERE operator = ? AND batch = ?", (operator, batch))


def write(driver: Driver, batch: int, states: Iterable[State]) -> tuple[int, int]:
    """Write a batch's versions of the states that have changed, within a transaction.

    Return by how much the sum of the digests and the number of rows have grown.
    """
    rows, outdated, digest_growth = [], [], 0
    for state in states:
        digest = state_digest(
            state.operator, state.shared, state.key, state.due, state.wall, state.data
        )
        replaced_digest, replaced_batch = state.replaces or _NOTHING
        # The state is the same as in the newest version, so it needs no new version.
        if digest == replaced_digest:
            continue
        digest_growth += digest - replaced_digest
        rows.append(
            (
                state.operator,
                int(state.shared),
                state.key,
                batch,
                state.due,
                state.wall,
                state.data,
                digest,
            )
        )
        # The replaced version is kept, because a repeated batch starts from it.
        if state.replaces is not None:
            outdated.append((state.operator, int(state.shared), state.key, replaced_batch))
    deleted = driver.execute_many(_DELETE_BEFORE, outdated)
    driver.insert("states", _COLUMNS, rows)
    return digest_growth, len(rows) - deleted


def versions(
    driver: Driver,
    since: int,
    after: tuple[Any, ...] | None,
    limit: int,
) -> list[StateVersion]:
    """Return a sorted page of the versions since batch `since` that come after `after`.

    `after` is (operator, shared, key, batch).
    """
    rows = driver.fetch(_VERSIONS, (*(after or _BEGIN), since, limit))
    return [StateVersion(*row) for row in rows]


def _all_versions(driver: Driver, page_rows: int) -> Iterator[StateVersion]:
    """Yield all versions in order, each checked against its digest."""
    after: tuple[Any, ...] | None = None
    while page := versions(driver, -1, after, page_rows):
        for version in page:
            version.check()
            yield version
        after = (page[-1].operator, page[-1].shared, page[-1].key, page[-1].batch)


def absorb(driver: Driver, moved: Iterable[StateVersion]) -> None:
    """Insert another shard's versions, within a transaction.

    They must be newer than this shard's versions.
    """
    rows = []
    for version in moved:
        version.check()
        rows.append(msgspec.structs.astuple(version))
    driver.execute_many(_DELETE_BUT_NEWEST, [(*row[:3], *row[:3]) for row in rows])
    driver.insert("states", _COLUMNS, rows)


def total(driver: Driver, as_of: int, page_rows: int) -> int:
    """Return the digest sum of all states as of a batch. Reads and checks every version."""
    digest_sum, last_key, last_digest = 0, None, 0
    for version in _all_versions(driver, page_rows):
        if version.batch <= as_of:
            key = (version.operator, version.shared, version.key)
            if key == last_key:
                # The versions of a key are adjacent, the newest last, so this version replaces the
                # preceding version.
                digest_sum -= last_digest
            digest_sum += version.digest
            last_key, last_digest = key, version.digest
    return digest_sum


def _is_as_written(
    operator: int,
    shared: bool,
    key: str,
    due: int | None,
    wall: int | None,
    data: object,
    digest: int,
) -> bool:
    # A BLOB column of SQLite can hold text. Sluice writes only bytes, so such a row was altered.
    if not isinstance(data, bytes | None):
        return False
    return state_digest(operator, shared, key, due, wall, data) == digest


def _damage_error(operator: int, key: str) -> DamagedState:
    return DamagedState(
        f"The shard is damaged: the state of operator {operator}, key {key!r} was altered."
    )
