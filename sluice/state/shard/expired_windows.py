"""Expires windows: writes tombstones in the batch in which their retention passes.

`engine/publish/window_expiry.py` decides which windows expire. Older snapshots still show the
expired windows. The rows are deleted together with the last snapshot that can show them, by
`LocalShard.compact`, which `operations/snapshot_retention.py` calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.state.shard.database_driver import Driver

_CREATE_HORIZONS = """CREATE TABLE IF NOT EXISTS horizons (
    group_id INTEGER NOT NULL, batch BIGINT NOT NULL, until BIGINT NOT NULL,
    PRIMARY KEY (group_id, batch))"""
_CREATE_INDEX = """CREATE INDEX IF NOT EXISTS state_rows_end ON state_rows (group_id, window_end)
    WHERE window_end >= 0 AND value IS NOT NULL"""
_LAST_HORIZON = "SELECT max(until) FROM horizons WHERE group_id = ? AND batch < ?"
_DELETE_HORIZONS = """DELETE FROM horizons WHERE group_id = ? AND (
    batch >= ? OR batch < (SELECT max(batch) FROM horizons WHERE group_id = ? AND batch < ?))"""
# SQLite uses the partial index `state_rows_end` only if the query repeats the index's condition:
# `window_end >= 0 AND value IS NOT NULL`.
_ENDED_WINDOWS = """SELECT group_id, key, window_start, window_end, value, digest
    FROM state_rows AS c
    WHERE group_id = ? AND window_end >= 0 AND value IS NOT NULL AND window_end >= ?
    AND window_end < ? AND batch <= ?
    AND NOT EXISTS (SELECT 1 FROM state_rows AS n WHERE n.group_id = c.group_id AND n.key = c.key
        AND n.window_start = c.window_start AND n.window_end = c.window_end
        AND n.batch > c.batch AND n.batch <= ?)"""
_DELETE_VERSION = """DELETE FROM state_rows
    WHERE group_id = ? AND key = ? AND window_start = ? AND window_end = ? AND batch = ?"""
_COLUMNS = ("group_id", "key", "window_start", "window_end", "value", "digest", "batch")


def expire(
    driver: Driver,
    batch: int,
    ends: Mapping[int, int],
) -> tuple[list[tuple[Any, ...]], int]:
    """Write tombstones for each group's windows that ended before a time, within a transaction.

    `ends`: group id → this time, epoch ms. Return the expired rows with their digests, and by how
    many rows the table has grown. A call for the same batch can be repeated.
    """
    driver.execute(_CREATE_HORIZONS)
    driver.execute(_CREATE_INDEX)
    expired: list[tuple[Any, ...]] = []
    for group_id, until in ends.items():
        # A batch's horizon is the time in its `ends`. Windows that ended before an earlier batch's
        # horizon have expired already, and no record can open them again.
        since = driver.fetch(_LAST_HORIZON, (group_id, batch))[0][0] or 0
        if until > since:
            expired += driver.fetch(_ENDED_WINDOWS, (group_id, since, until, batch, batch))
            # A repeated batch replaces its own horizon. Of the earlier batches' horizons, only the
            # last is still used.
            driver.execute(_DELETE_HORIZONS, (group_id, batch, group_id, batch))
            driver.execute(
                "INSERT INTO horizons (group_id, batch, until) VALUES (?, ?, ?)",
                (group_id, batch, until),
            )
    # If the batch has also changed an expired window, the window already has a version of this
    # batch, which the tombstone replaces.
    removed = driver.execute_many(_DELETE_VERSION, [(*row[:4], batch) for row in expired])
    driver.insert("state_rows", _COLUMNS, [(*row[:4], None, 0, batch) for row in expired])
    return expired, len(expired) - removed
