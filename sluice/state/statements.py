"""The SQL of versioned cells: what was there as of a batch, what it changed, what nobody can see any more."""

GET = (
    "SELECT value FROM cells WHERE cell = ? AND key = ? AND window_start = ? AND batch <= ? ORDER BY batch DESC LIMIT 1"
)
# The version of each cell that was the newest at a batch, unless it is a tombstone.
AS_OF = """FROM cells AS c WHERE cell = ? AND batch <= ? AND value IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
    AND n.batch > c.batch AND n.batch <= ?)"""
PAGE_AS_OF = """SELECT cell, key, window_start, window_end, value FROM cells AS c
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
WRITTEN = 'INSERT INTO batches (batch, "rows", checksum, epoch) VALUES (?, ?, ?, ?)'
JOURNAL = 'SELECT batch, "rows", checksum, epoch FROM batches ORDER BY batch'
VERSIONS = """SELECT cell, key, window_start, window_end, batch, value FROM cells
    WHERE (cell, key, window_start, batch) > (?, ?, ?, ?) AND batch >= ?
    ORDER BY cell, key, window_start, batch LIMIT ?"""
NEXT_SUPERSEDED = f"""SELECT cell, key, window_start, batch {SUPERSEDED}
    ORDER BY cell, key, window_start, batch LIMIT 1 OFFSET ?"""
DELETE_SUPERSEDED = f"DELETE {SUPERSEDED} AND (cell, key, window_start, batch) <= (?, ?, ?, ?)"
