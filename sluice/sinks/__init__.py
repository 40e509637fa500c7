"""Tables of databases to which a pipeline writes its output exactly once: their columns, rows and writers."""
