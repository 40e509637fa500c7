"""Queries over one shard, which readers send to a worker on this or another host, and the results of these queries."""
