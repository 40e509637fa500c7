"""Joins of streams and tables: by key, by foreign key, or within a time window."""
