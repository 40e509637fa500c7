"""Joins of streams and tables: by key, by foreign key, within a time window."""
