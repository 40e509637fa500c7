"""Reads, writes and copies shards, here or, on other hosts, through their state servers."""
