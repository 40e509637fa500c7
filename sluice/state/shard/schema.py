"""The schema of a shard: its tables in SQLite and PostgreSQL.

The first window that expires adds the table `horizons` and an index (`shard/expired_windows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.errors import DamagedState

FORMAT = 4
"""Format of a shard's tables. Shards with another format are rejected."""

_TABLES = (
    # The table `shard` has one row, with the epoch of the newest writer, and the numbers of rows in
    # the tables `state_rows` and `states`.
    """CREATE TABLE IF NOT EXISTS shard (
        format INTEGER PRIMARY KEY, epoch BIGINT NOT NULL, state_rows BIGINT NOT NULL,
        states BIGINT NOT NULL)""",
    f"INSERT INTO shard (format, epoch, state_rows, states) VALUES ({FORMAT}, 0, 0, 0) ON CONFLICT "
    "DO NOTHING",
    # `operator` is -1 for batches of state rows, and the operator's number for batches of operator
    # states.
    """CREATE TABLE IF NOT EXISTS batches (
        operator INTEGER NOT NULL, batch BIGINT NOT NULL, "rows" BIGINT NOT NULL,
        checksum TEXT NOT NULL,
        PRIMARY KEY (operator, batch))""",
    # Keys sort by code point in both databases, whatever the locale. `digest` covers the other
    # columns of its row.
    """CREATE TABLE IF NOT EXISTS state_rows (
        group_id INTEGER NOT NULL, key VARCHAR {collation} NOT NULL, window_start BIGINT NOT NULL,
        window_end BIGINT NOT NULL, batch BIGINT NOT NULL, value TEXT, digest BIGINT NOT NULL,
        PRIMARY KEY (group_id, key, window_start, window_end, batch)) {options}""",
    # `shared` is 1 for a state that belongs to no key, and 0 for the state of a key, so that the
    # two cannot collide.
    """CREATE TABLE IF NOT EXISTS states (
        operator INTEGER NOT NULL, shared INTEGER NOT NULL, key VARCHAR {collation} NOT NULL,
        batch BIGINT NOT NULL,
        due BIGINT, wall BIGINT, state {bytes}, digest BIGINT NOT NULL,
        PRIMARY KEY (operator, shared, key, batch)) {options}""",
    "CREATE INDEX IF NOT EXISTS states_due ON states (operator, due) WHERE due IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS states_wall ON states (operator, wall) WHERE wall IS NOT NULL",
)


def tables(**dialect: str) -> list[str]:
    """Return the statements that create a shard's missing tables."""
    return [statement.format(**dialect) for statement in _TABLES]


PROBE = """SELECT format FROM shard
    LEFT JOIN (SELECT 1 FROM state_rows, states, batches LIMIT 0) AS there ON true"""
"""Reads the shard's format. Fails unless all tables of a shard exist."""


def require_format(rows: Sequence[Any]) -> None:
    """Raise DamagedState unless rows, read by PROBE, have this version's format."""
    if [*rows] != [(FORMAT,)]:
        raise DamagedState("The shard has no format, or the format of another version of Sluice.")
