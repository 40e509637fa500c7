"""Publishing a batch: the shards, then output records in one transaction, then the ledger."""
