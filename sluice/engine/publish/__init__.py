"""A batch becomes visible: shards, then output records in one transaction, then the ledger."""
