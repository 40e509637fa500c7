"""Reads, writes and copies shards, also those of workers on other hosts, through their state servers."""
