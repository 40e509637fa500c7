"""Reads, writes and copies shards, in this process or through state servers."""
