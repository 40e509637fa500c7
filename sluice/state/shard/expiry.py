"""Windows past their retention: tombstones of the batch with which stream time has passed them.

So an older snapshot shows them still, and they leave the database with the snapshots that can show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.state.shard.drivers import Driver

_HORIZONS = """CREATE TABLE IF NOT EXISTS horizons (
    group_id INTEGER NOT NULL, batch BIGINT NOT NULL, until BIGINT NOT NULL, PRIMARY KEY (group_id, batch))"""
_ENDS = """CREATE INDEX IF NOT EXISTS cells_end ON state_rows (group_id, window_end)
    WHERE window_end >= 0 AND value IS NOT NULL"""
_SINCE = "SELECT max(until) FROM horizons WHERE group_id = ? AND batch < ?"
_FORGET = """DELETE FROM horizons WHERE group_id = ? AND (
    batch >= ? OR batch < (SELECT max(batch) FROM horizons WHERE group_id = ? AND batch < ?))"""
# What the index says is repeated, or SQLite would not know that it may use it.
_ENDED = """SELECT group_id, key, window_start, window_end, value, digest FROM state_rows AS c
    WHERE group_id = ? AND window_end >= 0 AND value IS NOT NULL AND window_end >= ? AND window_end < ? AND batch <= ?
    AND NOT EXISTS (SELECT 1 FROM state_rows AS n WHERE n.group_id = c.group_id AND n.key = c.key
        AND n.window_start = c.window_start AND n.batch > c.batch AND n.batch <= ?)"""
_REMOVE = "DELETE FROM state_rows WHERE group_id = ? AND key = ? AND window_start = ? AND batch = ?"
_TOMBSTONE = ("group_id", "key", "window_start", "window_end", "value", "digest", "batch")


def let_go(driver: Driver, batch: int, ends: Mapping[int, int]) -> tuple[list[tuple[Any, ...]], int]:
    """Within a transaction, write tombstones for windows that ended before a time (state row -> epoch ms).

    Returns what they were, each a row and its digest, and by how many rows there are more then. Done again for the same
    batch, it finds what it has not let go of yet.
    """
    driver.execute(_HORIZONS)
    driver.execute(_ENDS)
    gone: list[tuple[Any, ...]] = []
    for group_id, until in ends.items():
        # What ended before the last batch's horizon has gone with it, and nothing can be added to it.
        since = driver.fetch(_SINCE, (group_id, batch))[0][0] or 0
        if until > since:
            gone += driver.fetch(_ENDED, (group_id, since, until, batch, batch))
            driver.execute(_FORGET, (group_id, batch, group_id, batch))
            driver.execute("INSERT INTO horizons (group_id, batch, until) VALUES (?, ?, ?)", (group_id, batch, until))
    this_batch = [(*row[:3], batch) for row in gone]
    removed = driver.execute_many(_REMOVE, this_batch)
    driver.insert("state_rows", _TOMBSTONE, [(*row[:4], None, 0, batch) for row in gone])
    return gone, len(gone) - removed
