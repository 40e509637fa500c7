"""Queries over one shard, which readers send to a worker on any host, and their results."""
