"""Backups of ledger and shards: `sluice backup` and `sluice restore`."""
