"""Joins of tables and streams, by key, by foreign key, and within a time."""
