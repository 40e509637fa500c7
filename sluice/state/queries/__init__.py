"""Queries over one shard, and their results: what readers send to a worker, on this host or another."""
