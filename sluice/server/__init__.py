"""State servers: processes that serve the shards on their host and never forward requests."""
