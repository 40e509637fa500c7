"""Tables of databases to which a pipeline writes output exactly once: columns, rows and writers."""
