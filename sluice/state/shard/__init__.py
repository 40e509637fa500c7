"""Shards: one worker's versioned state rows and operator states, in SQLite or PostgreSQL."""
