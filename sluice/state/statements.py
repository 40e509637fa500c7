"""The SQL of versioned cells: what was there as of a batch, what it changed, what nobody can see any more.

And of a shard's journal, which has a row for each batch of cells, and of each operator's states.
"""

GET = (
    "SELECT value FROM cells WHERE cell = ? AND key = ? AND window_start = ? AND batch <= ? ORDER BY batch DESC LIMIT 1"
)
# The version of each cell that was the newest at a batch, unless it is a tombstone.
AS_OF = """FROM cells AS c WHERE cell = ? AND batch <= ? AND value IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
    AND n.batch > c.batch AND n.batch <= ?)"""
PAGE_AS_OF = """SELECT cell, key, window_start, window_end, value, digest FROM cells AS c
    WHERE (cell, key, window_start) > (?, ?, ?) AND batch <= ? AND value IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
        AND n.batch > c.batch AND n.batch <= ?)
    ORDER BY cell, key, window_start LIMIT ?"""
# Versions that no cut from a batch on can show: superseded by then, or a tombstone with nothing under it.
SUPERSEDED = """FROM cells AS c WHERE (cell, key, window_start, batch) > (?, ?, ?, ?) AND batch <= ? AND (
    value IS NULL OR EXISTS (
        SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
        AND n.batch > c.batch AND n.batch <= ?))"""
CHANGED = """SELECT DISTINCT key, window_start FROM cells WHERE cell = ? AND batch > ? AND batch <= ?
    ORDER BY key, window_start LIMIT ?"""
WRITTEN = 'INSERT INTO batches (operator, batch, "rows", checksum) VALUES (?, ?, ?, ?)'
JOURNAL = 'SELECT operator, batch, "rows", checksum FROM batches ORDER BY batch, operator'
BATCHES = 'SELECT batch, "rows" FROM batches WHERE operator = ? ORDER BY batch'
CHECKSUM = "SELECT checksum FROM batches WHERE operator = ? AND batch <= ? ORDER BY batch DESC LIMIT 1"
CHECKSUMS = """SELECT b.operator, b.checksum FROM batches AS b JOIN (
    SELECT operator, max(batch) AS batch FROM batches WHERE batch <= ? GROUP BY operator) AS n
    ON n.operator = b.operator AND n.batch = b.batch"""
FORGET_BATCH = "DELETE FROM batches WHERE operator = ? AND batch = ?"
FORGET_SINCE = "DELETE FROM batches WHERE operator = ? AND batch >= ?"
FORGET_BUT_LAST = """DELETE FROM batches WHERE operator = ? AND batch < (
    SELECT max(batch) FROM batches WHERE operator = ?)"""
FENCE = "UPDATE shard SET epoch = ? WHERE epoch <= ?"
GROWN = "UPDATE shard SET cells = cells + ?, states = states + ?"
ROWS = "SELECT cells, (SELECT count(*) FROM cells), states, (SELECT count(*) FROM states) FROM shard"
COUNTED = """UPDATE shard SET epoch = ?, cells = (SELECT count(*) FROM cells),
    states = (SELECT count(*) FROM states)"""
VERSIONS = """SELECT cell, key, window_start, window_end, batch, value, digest FROM cells
    WHERE (cell, key, window_start, batch) > (?, ?, ?, ?) AND batch >= ?
    ORDER BY cell, key, window_start, batch LIMIT ?"""
NEXT_SUPERSEDED = f"""SELECT cell, key, window_start, batch {SUPERSEDED}
    ORDER BY cell, key, window_start, batch LIMIT 1 OFFSET ?"""
DELETE_SUPERSEDED = f"DELETE {SUPERSEDED} AND (cell, key, window_start, batch) <= (?, ?, ?, ?)"
