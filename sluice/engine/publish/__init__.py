"""Publishes a batch: writes the shards, then output and dead letters in one transaction, then the ledger."""
