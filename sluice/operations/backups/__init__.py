"""Backups: `sluice backup` and `sluice restore`."""
