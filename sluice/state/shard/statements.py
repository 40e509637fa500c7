"""SQL for versioned state rows: as of a batch, changed by a batch, and superseded versions.

Also contains the SQL of a shard's journal, which has a row per batch of state rows and per batch of
an operator's states.
"""

VALUE_AS_OF = """SELECT value FROM state_rows
    WHERE group_id = ? AND key = ? AND window_start = ? AND window_end = ? AND batch <= ?
    ORDER BY batch DESC LIMIT 1"""
# The newest version of each state row as of a batch, unless it is a tombstone.
ROWS_AS_OF = """FROM state_rows AS c WHERE group_id = ? AND batch <= ? AND value IS NOT NULL
    AND NOT EXISTS (
    SELECT 1 FROM state_rows AS n WHERE n.group_id = c.group_id AND n.key = c.key
    AND n.window_start = c.window_start AND n.window_end = c.window_end
    AND n.batch > c.batch AND n.batch <= ?)"""
PAGE_AS_OF = """SELECT group_id, key, window_start, window_end, value, digest FROM state_rows AS c
    WHERE (group_id, key, window_start, window_end) > (?, ?, ?, ?) AND batch <= ?
    AND value IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM state_rows AS n
        WHERE n.group_id = c.group_id AND n.key = c.key
        AND n.window_start = c.window_start AND n.window_end = c.window_end
        AND n.batch > c.batch AND n.batch <= ?)
    ORDER BY group_id, key, window_start, window_end LIMIT ?"""
# Versions that no snapshot since a batch can show: superseded versions, and tombstones.
_SUPERSEDED = """FROM state_rows AS c
    WHERE (group_id, key, window_start, window_end, batch) > (?, ?, ?, ?, ?) AND batch <= ? AND (
    value IS NULL OR EXISTS (
        SELECT 1 FROM state_rows AS n
        WHERE n.group_id = c.group_id AND n.key = c.key
        AND n.window_start = c.window_start AND n.window_end = c.window_end
        AND n.batch > c.batch AND n.batch <= ?))"""
CHANGED = """SELECT DISTINCT key, window_start, window_end FROM state_rows
    WHERE group_id = ? AND batch > ? AND batch <= ?
    ORDER BY key, window_start, window_end LIMIT ?"""
INSERT_BATCH = 'INSERT INTO batches (operator, batch, "rows", checksum) VALUES (?, ?, ?, ?)'
JOURNAL = 'SELECT operator, batch, "rows", checksum FROM batches ORDER BY batch, operator'
ROWS_BY_BATCH = 'SELECT batch, "rows" FROM batches WHERE operator = ? ORDER BY batch'
CHECKSUM = (
    "SELECT checksum FROM batches WHERE operator = ? AND batch <= ? ORDER BY batch DESC LIMIT 1"
)
CHECKSUMS = """SELECT b.operator, b.checksum FROM batches AS b JOIN (
    SELECT operator, max(batch) AS batch FROM batches WHERE batch <= ? GROUP BY operator) AS n
    ON n.operator = b.operator AND n.batch = b.batch"""
DELETE_BATCH = "DELETE FROM batches WHERE operator = ? AND batch = ?"
NEWEST_BATCH = "SELECT max(batch) FROM batches WHERE operator = ?"
DELETE_OLDER_BATCHES = """DELETE FROM batches WHERE operator = ? AND batch < (
    SELECT max(batch) FROM batches WHERE operator = ?)"""
# Changes no row if a newer writer has begun. That tells the older writer that it has lost its
# lease.
FENCE_OLDER_WRITERS = "UPDATE shard SET epoch = ? WHERE epoch <= ?"
# The counts are recorded because lost rows are not noticed otherwise: a table with fewer rows is
# still a valid table.
ADD_TO_ROW_COUNTS = "UPDATE shard SET state_rows = state_rows + ?, states = states + ?"
ROW_COUNTS = """SELECT state_rows, (SELECT count(*) FROM state_rows),
    states, (SELECT count(*) FROM states) FROM shard"""
ROWS_BY_GROUP = "SELECT group_id, count(*) FROM state_rows GROUP BY group_id"
STATES_BY_OPERATOR = "SELECT operator, count(*) FROM states GROUP BY operator"
# After a copy, the rows that were copied count as written.
RESET_WRITER = """UPDATE shard SET epoch = ?, state_rows = (SELECT count(*) FROM state_rows),
    states = (SELECT count(*) FROM states)"""
VERSIONS = """SELECT group_id, key, window_start, window_end, batch, value, digest FROM state_rows
    WHERE (group_id, key, window_start, window_end, batch) > (?, ?, ?, ?, ?) AND batch >= ?
    ORDER BY group_id, key, window_start, window_end, batch LIMIT ?"""
LAST_ROW = """SELECT group_id, key, window_start, window_end, batch FROM state_rows
    ORDER BY group_id DESC, key DESC, window_start DESC, window_end DESC, batch DESC LIMIT 1"""
LAST_STATE = """SELECT operator, shared, key, batch FROM states
    ORDER BY operator DESC, shared DESC, key DESC, batch DESC LIMIT 1"""
NEXT_SUPERSEDED = f"""SELECT group_id, key, window_start, window_end, batch {_SUPERSEDED}
    ORDER BY group_id, key, window_start, window_end, batch LIMIT 1 OFFSET ?"""
DELETE_SUPERSEDED = (
    f"DELETE {_SUPERSEDED} AND (group_id, key, window_start, window_end, batch) <= (?, ?, ?, ?, ?)"
)
