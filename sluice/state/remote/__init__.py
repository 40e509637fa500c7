"""Reads, writes and copies shards: directly on this host, and through state servers on others."""
