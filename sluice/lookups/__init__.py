"""Look-ups of records in tables of databases: batched reads, and a cache of rows."""
