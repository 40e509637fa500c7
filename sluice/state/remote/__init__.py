"""Reads, writes and copies shards, in this process or, for workers on other hosts, through their state servers."""
