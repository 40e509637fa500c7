"""Publishes a batch: writes the shards, then all output in one transaction, then the ledger."""
