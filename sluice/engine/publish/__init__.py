"""Publishes a batch: writes the shards, then output in one transaction, then the ledger."""
