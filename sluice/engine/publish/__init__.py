"""Publishes a batch: writes the shards, then the output records in one transaction, then the ledger."""
