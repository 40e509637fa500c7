"""Reads, writes and copies shards. Reaches the shards of workers on other hosts through their state servers."""
